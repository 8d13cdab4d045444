"""Fields about reasoning, which do something for models that reason and nothing for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.runtime.conversation import reasoning_rules
from bitnet.tokenizer.chat import chat_template
from bitnet.wire.schemas import TEXT, Schema

if TYPE_CHECKING:
    from bitnet.wire.forms import Served

#: How much the model reasons, for templates that know the word.
EFFORT: Schema = TEXT | {
    "maxLength": 16,
    "description": "none, low, medium or high: how much the model reasons, if its template can",
}


def can_reason(model: Served) -> bool:
    """True if answers of *model* may have a reasoning part, or no model is known."""
    if model is None or not model.tokenizer.chat_template:
        return model is None
    return reasoning_rules(model.tokenizer, "") is not None


def takes_effort(model: Served, effort: str | None) -> bool:
    """True if an *effort* changes what the template of *model* writes, or no model is known."""
    return model is None or bool(effort_variables(effort, model))


def effort_variables(effort: str | None, model: Served) -> dict[str, Any]:
    """Variables of the template of *model* for an *effort*; none if that changes nothing.

    The effort ``none`` turns reasoning off where the template has a switch and no efforts.
    """
    if not effort or model is None or not model.tokenizer.chat_template:
        return {}
    facts = chat_template(model.tokenizer).facts
    if facts.effort:
        return {facts.effort: effort}
    if effort == "none":
        return dict.fromkeys(facts.thinking_switches, False)
    return {}

"""Fields about reasoning, which do something for models that reason and nothing for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.runtime.conversation import reasoning_rules
from bitnet.wire.messages import reads
from bitnet.wire.schemas import TEXT, Schema

if TYPE_CHECKING:
    from bitnet.wire.forms import Served

#: How much the model reasons, for templates that know the word.
EFFORT: Schema = TEXT | {
    "maxLength": 16,
    "description": "low, medium or high: how much the model reasons, if its template can say so",
}
_VARIABLE = "reasoning_effort"  # of templates


def can_reason(model: Served) -> bool:
    """True if answers of *model* may have a reasoning part, or no model is known."""
    if model is None or not model.tokenizer.chat_template:
        return model is None
    return reasoning_rules(model.tokenizer, "") is not None


def takes_effort(model: Served) -> bool:
    """True if the template of *model* reads an effort, or no model is known."""
    return model is None or reads(model, _VARIABLE)


def effort_variables(effort: str | None, model: Served) -> dict[str, Any]:
    """Variables of the template of *model* for an *effort*; none if it does not read one."""
    if not effort or model is None or not reads(model, _VARIABLE):
        return {}
    return {_VARIABLE: effort}

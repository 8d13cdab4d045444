"""Fields about reasoning, which have no effect on models that do not reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.runtime.conversation import effort_variables, reasoning_rules
from bitnet.wire.schemas import TEXT, Schema

if TYPE_CHECKING:
    from bitnet.wire.forms import Served

#: How much the model reasons, for templates that have such a variable.
EFFORT: Schema = TEXT | {
    "maxLength": 16,
    "description": "none, low, medium or high: how much the model reasons, if its template can",
}


def can_reason(model: Served) -> bool:
    """True if answers of *model* may have a reasoning part, or if the model is not known."""
    if model is None or not model.tokenizer.chat_template:
        return model is None
    return reasoning_rules(model.tokenizer, "") is not None


def takes_effort(model: Served, effort: str | None) -> bool:
    """True if *effort* changes the prompt of *model*, or if the model is not known."""
    return model is None or bool(effort_variables(model.tokenizer, effort))

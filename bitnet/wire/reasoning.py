"""Fields about reasoning, which have no effect on models that do not reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.runtime.conversation import effort_variables, reasoning_rules
from bitnet.wire.schemas import DEFAULT, TEXT, Schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.wire.forms import Served

#: How much the model reasons, for templates that have such a variable.
EFFORT: Schema = TEXT | {
    "maxLength": 16,
    "description": "none, low, medium or high: how much the model reasons, if its template can",
}

#: Names under which clients of chats send the most tokens of reasoning: vLLM's, llama-server's,
#: those of Qwen's and of other services.
BUDGETS = (
    "thinking_token_budget", "reasoning_budget_tokens", "thinking_budget_tokens",
    "reasoning_budget", "thinking_budget", "max_thinking_tokens",
)  # fmt: skip
BUDGET: Schema = {
    "type": "integer",
    "minimum": 0,
    DEFAULT: -1,
    "description": "most tokens of reasoning, which then ends; -1: no limit",
}


def find_budget(body: Mapping[str, Any]) -> tuple[str, int | None]:
    """The field of *body* that limits the reasoning, or an empty text, and its number of tokens.

    The number is None if the reasoning is not limited.
    """
    names = [name for name in BUDGETS if body.get(name) is not None]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} are both given", field=names[1])
    if not names:
        return "", None
    number = body[names[0]]
    return names[0], None if number == -1 else number


def can_reason(model: Served) -> bool:
    """True if answers of *model* may have a reasoning part, or if the model is not known."""
    if model is None or not model.tokenizer.chat_template:
        return model is None
    return reasoning_rules(model.tokenizer, "") is not None


def takes_effort(model: Served, effort: str | None) -> bool:
    """True if *effort* changes the prompt of *model*, or if the model is not known."""
    return model is None or bool(effort_variables(model.tokenizer, effort))

"""An answer in the form of OpenAI's chats, which other programs' dialects share in part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import FinishReason, TokenLogprob

__all__ = ["chat_finish", "chat_logprobs", "finish_of", "message_of", "token_facts", "with_top"]


def finish_of(reason: FinishReason | None) -> str | None:
    """OpenAI's word for why an answer ended, ours where it has none."""
    return "length" if reason == "context" else reason


def chat_finish(answer: Answer) -> str | None:
    """As :func:`finish_of`, of an answer that may call functions."""
    called = answer.calls and answer.finish_reason == "stop"
    return "tool_calls" if called else finish_of(answer.finish_reason)


def message_of(answer: Answer) -> dict[str, Any]:
    """The turn of a conversation that *answer* is."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    return message


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """Log-probabilities of *tokens*, each with its alternatives."""
    return {"content": [with_top(token) for token in tokens], "refusal": None}


def token_facts(token: TokenLogprob) -> dict[str, Any]:
    """A token without its alternatives."""
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.bytes)}


def with_top(
    token: TokenLogprob, facts: Callable[[TokenLogprob], dict[str, Any]] = token_facts
) -> dict[str, Any]:
    """A token and its alternatives, each as *facts* has it."""
    return facts(token) | {"top_logprobs": [facts(other) for other in token.top]}

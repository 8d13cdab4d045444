"""An answer in the form of OpenAI's chat API, which other dialects share in part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import FinishReason, TokenLogprob

__all__ = [
    "chat_finish",
    "chat_logprobs",
    "chat_reply",
    "finish_of",
    "message_of",
    "token_facts",
    "usage",
    "with_top",
]


def chat_reply(
    head: Mapping[str, Any], answers: Sequence[Answer], *, logprobs: bool
) -> dict[str, Any]:
    """The whole reply of ``/v1/chat/completions``.

    Args:
        head: its id, model and time.
        answers: one for each choice.
        logprobs: log-probabilities were asked for.
    """
    choices = [
        {
            "index": index,
            "message": message_of(answer),
            "logprobs": chat_logprobs(answer.logprobs) if logprobs else None,
            "finish_reason": chat_finish(answer),
        }
        for index, answer in enumerate(answers)
    ]
    counts = usage(answers, choices=len(answers))
    return {**head, "object": "chat.completion", "choices": choices, "usage": counts}


def usage(answers: Sequence[Answer], *, choices: int) -> dict[str, Any]:
    """Tokens that *answers* took; a prompt counts once for its choices.

    Args:
        answers: all of them, those of a prompt together.
        choices: how many each prompt has.
    """
    firsts = answers[::choices]
    prompt = sum(answer.stats.prompt_tokens for answer in firsts)
    written = sum(answer.stats.tokens for answer in answers)
    cached = sum(answer.stats.reused_tokens for answer in firsts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def finish_of(reason: FinishReason | None) -> str | None:
    """OpenAI's name of a finish reason; ours where OpenAI has none."""
    return "length" if reason == "context" else reason


def chat_finish(answer: Answer) -> str | None:
    """As :func:`finish_of`, for an answer that may call functions."""
    called = answer.calls and answer.finish_reason == "stop"
    return "tool_calls" if called else finish_of(answer.finish_reason)


def message_of(answer: Answer) -> dict[str, Any]:
    """*answer* as a message of the conversation."""
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

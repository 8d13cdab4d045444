"""Lines of OpenAI's batch files: ``custom_id``, ``method``, ``url`` and ``body``.

As platform.openai.com/docs/guides/batch has them; chats only.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bitnet.errors import UsageError
from bitnet.runtime.chat_form import chat_finish, chat_logprobs, message_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.runtime.answer import Answer

__all__ = ["fields_of", "line_of", "reply_of"]

URL = "/v1/chat/completions"
_SAME = {
    "messages", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p", "seed",
    "stop", "frequency_penalty", "presence_penalty", "logit_bias", "response_format",
}  # fmt: skip
# What changes nothing in the answer.
_IDLE = {"model", "user", "metadata", "store", "service_tier", "safety_identifier",
         "prompt_cache_key"}  # fmt: skip


def fields_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a request that the line *facts* describes.

    Raises:
        UsageError: it asks for something that a batch does not do.
    """
    for name, wanted in (("method", "POST"), ("url", URL)):
        if facts.get(name) != wanted:
            raise UsageError(f"{name} is {str(facts.get(name))[:80]!r}, expected {wanted!r}",
                             field=name)  # fmt: skip
    body = facts.get("body")
    if not isinstance(body, dict):
        raise UsageError("body is not an object", field="body")
    unknown = set(facts) - {"custom_id", "method", "url", "body"}
    if unknown:
        raise UsageError(f"{min(unknown)} is not a field of a line", field=min(unknown))
    if "messages" not in body:
        raise UsageError("body.messages is missing", field="body.messages")
    found: dict[str, Any] = {"temperature": 1.0}
    for name, value in body.items():
        if name in _SAME:
            found[name] = value
        elif name in ("max_tokens", "max_completion_tokens"):
            found["max_tokens"] = value
        elif name == "logprobs":
            found |= {"logprobs": body.get("top_logprobs") or 0} if value else {}
        elif name == "top_logprobs":
            _expect(name, bool(body.get("logprobs")) or value is None, "is for logprobs: true")
        elif name == "n":
            _expect(name, value in (1, None), "is more than one answer for a row")
        elif name == "stream":
            _expect(name, value in (False, None), "is not for a batch")
        elif name not in _IDLE:
            _expect(name, value is None, "is not served in a batch")
    if body.get("temperature") is None:
        found["temperature"] = 1.0
    return found


def _expect(name: str, is_right: bool, problem: str) -> None:
    if not is_right:
        raise UsageError(f"body.{name} {problem}", field=f"body.{name}")


def line_of(row_id: str, digest: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The line of the output for the line *row_id* of the input.

    Args:
        row_id: its ``custom_id``.
        digest: of the line.
        facts: what :func:`reply_of` gave, or ``error`` alone.
    """
    error, response = facts.get("error"), None
    if error is None:
        response = {"status_code": 200, "request_id": f"row-{digest}", "body": dict(facts)}
    told = None if error is None else {"code": "request_failed", "message": error}
    return {"id": f"batch_req_{digest}", "custom_id": row_id, "row": digest,
            "response": response, "error": told}  # fmt: skip


def reply_of(digest: str, answer: Answer, model: str) -> dict[str, Any]:
    """A chat completion, as OpenAI has it."""
    has_logprobs = answer.sequence.request.logprobs is not None
    choice = {
        "index": 0,
        "message": message_of(answer),
        "logprobs": chat_logprobs(answer.logprobs) if has_logprobs else None,
        "finish_reason": chat_finish(answer),
    }
    prompt, written = answer.stats.prompt_tokens, answer.stats.tokens
    return {
        "id": f"chatcmpl-{digest}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        },
    }

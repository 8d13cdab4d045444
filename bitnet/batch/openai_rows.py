"""Lines of OpenAI's batch files: ``custom_id``, ``method``, ``url`` and ``body``.

As platform.openai.com/docs/guides/batch has them. A body has the fields that the worker takes for
the same address, and its answer the form that the worker gives it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.formats.model_files import model_name
from bitnet.wire.openai import (
    CHAT,
    COMPLETION,
    EMBEDDING,
    chat_requests,
    completion_requests,
    embedding_requests,
)
from bitnet.wire.openai_reply import (
    ChatReply,
    CompletionReply,
    embeddings_reply,
    vector_precision,
    vectors_of,
)
from bitnet.wire.responses import RESPONSE, ResponseItems, response_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.request import Request
    from bitnet.wire.fields import Form

__all__ = ["URLS", "Url", "check_for", "line_of", "reply_of", "requests_of"]

MAX_TEXTS = 2048  # of a row, as OpenAI has it


def requests_of(facts: Mapping[str, Any], default: Request) -> list[Request]:
    """Requests of the line *facts*, one for each answer, those of a prompt together."""
    url = URLS.get(facts["url"]) if isinstance(facts.get("url"), str) else None
    if url is None:
        known = ", ".join(URLS)
        raise UsageError(f"url is {str(facts.get('url'))[:80]!r}, expected one of {known}",
                         field="url")  # fmt: skip
    if facts.get("method") != "POST":
        raise UsageError(f"method is {str(facts.get('method'))[:80]!r}, expected 'POST'",
                         field="method")  # fmt: skip
    if unknown := set(facts) - {"custom_id", "method", "url", "body"}:
        raise UsageError(f"{min(unknown)} is not a field of a line", field=min(unknown))
    if not isinstance(facts.get("body"), dict):
        raise UsageError("body: expected a JSON object", field="body")
    try:
        body = url.form.read(facts["body"])
        if body.get("stream"):
            raise UsageError("stream is not for a batch", field="stream")
        requests = url.requests(body, default)
        for request in requests:
            request.check()
    except UsageError as error:
        raise _in_body(url.form.rename(error)) from error
    choices = range(body.get("n") or 1)
    return [request.choice(number) for request in requests for number in choices]


def check_for(facts: Mapping[str, Any], model: LanguageModel) -> None:
    """Refuse the line *facts* if *model* cannot give what it asks for."""
    if facts["url"] != "/v1/embeddings":
        return
    try:
        vector_precision(EMBEDDING.read(facts["body"]), model.config.dim)
    except UsageError as error:
        raise _in_body(error) from error


def _in_body(error: UsageError) -> UsageError:
    """*error* about a body, as one about its line."""
    field, message = f"body.{error.field}", error.message
    if not error.field:
        return error
    said = f"body.{message}" if message.startswith(error.field) else f"{field}: {message}"
    return UsageError(said, hint=error.hint, field=field)


def line_of(row_id: str, digest: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Output line for that with the ``custom_id`` *row_id*: ``body`` or ``error`` of *facts*."""
    error, response = facts.get("error"), None
    if error is None:
        response = {"status_code": 200, "request_id": f"row-{digest}", "body": facts["body"]}
    told = None if error is None else {"code": "request_failed", "message": error}
    return {"id": f"batch_req_{digest}", "custom_id": row_id, "row": digest,
            "response": response, "error": told}  # fmt: skip


def reply_of(
    facts: Mapping[str, Any], digest: str, answers: Sequence[Answer], model: LanguageModel
) -> dict[str, Any]:
    """The reply to the line *facts*, as OpenAI has it."""
    url = URLS[facts["url"]]
    created, name = int(time.time()), model_name(model.path)
    head = {"id": f"{url.prefix}{digest}", "created": created, "model": name}
    return url.reply(url.form.read(facts["body"]), head, answers, model)


@dataclass(frozen=True)
class Url:
    """An address that a line may name.

    Attributes:
        prefix: that the id of a reply begins with.
        form: of its bodies.
        requests: makes the requests of a body, one for each prompt.
        reply: makes the reply of the answers.
    """

    prefix: str
    form: Form
    requests: Callable[[Mapping[str, Any], Request], list[Request]]
    reply: Callable[
        [Mapping[str, Any], Mapping[str, Any], Sequence[Answer], LanguageModel], dict[str, Any]
    ]


def _embedding_reply(
    body: Mapping[str, Any],
    head: Mapping[str, Any],
    answers: Sequence[Answer],
    model: LanguageModel,
) -> dict[str, Any]:
    rows = vectors_of(body, answers, vector_precision(body, model.config.dim))
    tokens = sum(answer.stats.prompt_tokens for answer in answers)
    return embeddings_reply(body, rows, str(head["model"]), tokens)


URLS = {
    "/v1/chat/completions": Url(
        "chatcmpl-",
        CHAT,
        chat_requests,
        lambda body, head, answers, _: ChatReply(head, body).whole(answers),
    ),
    "/v1/completions": Url(
        "cmpl-",
        COMPLETION,
        partial(completion_requests, at_most=MAX_TEXTS),
        lambda body, head, answers, _: CompletionReply(head, body).whole(answers),
    ),
    "/v1/embeddings": Url(
        "",
        EMBEDDING,
        lambda body, _: embedding_requests(body, at_most=MAX_TEXTS),
        _embedding_reply,
    ),
    "/v1/responses": Url(
        "resp_",
        RESPONSE,
        response_requests,
        lambda body, head, answers, _: ResponseItems(body, head).whole(answers),
    ),
}

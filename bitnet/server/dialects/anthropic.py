"""Anthropic's ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from bitnet.base.errors import UsageError
from bitnet.server.bodies import body_of, taking
from bitnet.server.models import worker_of
from bitnet.server.prompts import prepare
from bitnet.server.streams import NAMED, Exchange
from bitnet.wire.anthropic import (
    COUNT,
    MESSAGE,
    MessageReply,
    message_head,
    message_requests,
)

router = APIRouter(tags=["Anthropic"])


@router.post(
    "/v1/messages",
    summary="The next message of a conversation, as Anthropic has it",
    openapi_extra=taking(MESSAGE),
)
async def messages(request: Request) -> Response:
    """Answer in the model's own chat template; ``stream`` sends Anthropic's events."""
    body = await body_of(request, MESSAGE)
    worker = await worker_of(request, body["model"])
    exchange = Exchange(worker, request, partial(message_requests, body), body, form=MESSAGE)
    return await exchange.reply(MessageReply(message_head(worker.name)), wire=NAMED)


@router.post(
    "/v1/messages/count_tokens",
    summary="The tokens of a conversation",
    openapi_extra=taking(COUNT),
)
async def count_tokens(request: Request) -> dict[str, int]:
    """Number of tokens in the prompt of the same request to ``/v1/messages``."""
    body = await body_of(request, COUNT)
    worker = await worker_of(request, body["model"])

    def count() -> int:
        (asked,) = message_requests(body)
        return len(prepare(asked, worker)[0])

    try:
        with worker.place():
            return {"input_tokens": await worker.run_in_thread(count)}
    except UsageError as error:
        raise COUNT.rename(error) from error

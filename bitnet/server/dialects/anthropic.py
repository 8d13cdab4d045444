"""Anthropic's ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from bitnet.errors import UsageError
from bitnet.server.bodies import body_of, taking
from bitnet.server.models import service_of
from bitnet.server.prompts import prepared
from bitnet.server.streams import NAMED, Exchange
from bitnet.wire.anthropic import (
    COUNT,
    MESSAGE,
    MessageEvents,
    message_head,
    message_reply,
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
    service = await service_of(request, body["model"])
    exchange = Exchange(service, request, partial(message_requests, body), body, form=MESSAGE)
    head = message_head(service.name)
    if not body["stream"]:
        (answer,) = await exchange.collect()
        return JSONResponse(head | message_reply(answer))
    events = MessageEvents(head)
    return await exchange.stream(events.of, events.end, wire=NAMED)


@router.post(
    "/v1/messages/count_tokens",
    summary="The tokens of a conversation",
    openapi_extra=taking(COUNT),
)
async def count_tokens(request: Request) -> dict[str, int]:
    """Number of tokens in the prompt of the same request to ``/v1/messages``."""
    body = await body_of(request, COUNT)
    service = await service_of(request, body["model"])

    def counted() -> int:
        (asked,) = message_requests(body)
        return len(prepared(asked, service)[0])

    try:
        with service.worker.place():
            return {"input_tokens": await service.worker.prepared(counted)}
    except UsageError as error:
        raise COUNT.rename(error) from error

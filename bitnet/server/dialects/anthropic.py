"""Anthropic's ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from bitnet.server.exchange import compute, open_order, prepare, respond, taking
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
    order = await open_order(request, MESSAGE)
    make = partial(message_requests, order.body)
    return await respond(order, make, MessageReply(message_head(order.worker.name)))


@router.post(
    "/v1/messages/count_tokens",
    summary="The tokens of a conversation",
    openapi_extra=taking(COUNT),
)
async def count_tokens(request: Request) -> dict[str, int]:
    """Number of tokens in the prompt of the same request to ``/v1/messages``."""
    order = await open_order(request, COUNT)

    def count() -> int:
        (asked,) = message_requests(order.body)
        return len(prepare(asked, order.worker)[0])

    return {"input_tokens": await compute(order, count)}

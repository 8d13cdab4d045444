"""Anthropic's ``/v1/messages/count_tokens``."""

from __future__ import annotations

from fastapi import APIRouter, Request

from bitnet.server.exchange import compute, prepare, receive, taking
from bitnet.wire.anthropic import COUNT, message_requests

router = APIRouter(tags=["Anthropic"])


@router.post(
    "/v1/messages/count_tokens",
    summary="The tokens of a conversation",
    openapi_extra=taking(COUNT),
)
async def count_tokens(request: Request) -> dict[str, int]:
    """Number of tokens in the prompt of the same request to ``/v1/messages``."""
    body, slot = await receive(request, COUNT)

    def count() -> int:
        (asked,) = message_requests(body)
        return len(prepare(asked, slot)[0])

    return {"input_tokens": await compute(request, slot, COUNT, count)}

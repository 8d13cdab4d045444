"""OpenAI's ``/v1/responses``, without features that require state between requests.

Names and events are those of platform.openai.com/docs/api-reference/responses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from bitnet.runtime.request import Request as ModelRequest
from bitnet.runtime.response_form import (
    LOGPROBS,
    ResponseItems,
    response_request,
    response_schema,
)
from bitnet.server import openai
from bitnet.server.models import service_of
from bitnet.server.prompts import check_size, sequences_of
from bitnet.server.shapes import MAX_MESSAGES, Shape
from bitnet.server.streams import NAMED, Exchange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import Piece
    from bitnet.runtime.sequence import Sequence
    from bitnet.server.refusals import Refused
    from bitnet.server.service import Service

router = APIRouter(tags=["OpenAI"])


class ResponseRequest(Shape):
    """``/v1/responses``."""

    model: str | None = None
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = Field(None, description="format: text or a JSON schema")
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[str] | None = Field(None, description=f"only {LOGPROBS}")
    truncation: Literal["disabled"] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    prompt: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    max_tool_calls: int | None = None
    context_management: list[dict[str, Any]] | None = None
    # Fields without effect on the answer; nothing is stored, and the reply says so.
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


@router.post("/v1/responses", summary="The next items of a conversation")
async def responses(body: ResponseRequest, request: Request) -> Response:
    """Answer in the model's own chat template; ``stream`` sends OpenAI's events of responses."""
    service = await service_of(request, body.model)
    facts = body.model_dump()
    compiles = body.tool_choice not in (None, "auto", "none") or bool(response_schema(facts))
    exchange = Exchange(service, request, _sequences, body, compiles=compiles)
    items = ResponseItems(facts, openai.reply_head("resp_", service.name))
    if not body.stream:
        (answer,) = await exchange.collect()
        return JSONResponse(items.whole(answer))

    def chunks(_index: int, piece: Piece, _answer: Answer) -> Iterator[Any]:
        return items.of(piece)

    def last(answers: list[Answer]) -> Iterator[Any]:
        return items.end(answers[0])

    def fault(refused: Refused) -> dict[str, Any]:
        code = refused.code or refused.kind
        return items.event("error", code=code, message=refused.message, param=refused.param)

    return await exchange.stream(chunks, last, wire=NAMED, fault=fault)


def _sequences(body: ResponseRequest, service: Service) -> list[Sequence]:
    facts = body.model_dump()
    check_size("tools", body.tools)
    check_size("text.format", response_schema(facts))
    default = ModelRequest()
    default = replace(default, sampling=replace(default.sampling, temperature=1.0))
    translated = response_request(facts, default)
    is_bounded = body.max_output_tokens not in (None, -1)
    return sequences_of(translated, service, tokens=translated.max_tokens if is_bounded else None)

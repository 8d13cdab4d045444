"""OpenAI's embeddings, which the other dialects share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from bitnet.server.exchange import collect, name_of, receive, taking
from bitnet.wire import openai, openai_reply

if TYPE_CHECKING:
    from bitnet.server.slot import Slot
    from bitnet.wire.fields import Form

router = APIRouter(tags=["OpenAI"])


@router.post("/embeddings", include_in_schema=False)
@router.post("/v1/embeddings", summary="Vectors of texts", openapi_extra=taking(openai.EMBEDDING))
async def embeddings(request: Request) -> JSONResponse:
    """Embeddings of texts, pooled as the model says and normalized to length one."""
    body, slot = await receive(request, openai.EMBEDDING)
    return JSONResponse(await embed_body(request, slot, openai.EMBEDDING, body))


async def embed_body(
    request: Request, slot: Slot, form: Form, body: dict[str, Any]
) -> dict[str, Any]:
    """The reply to *body*, as :data:`EMBEDDING` reads it, for clients that wrote one of *form*."""
    precision = openai_reply.vector_precision(body, slot.model.config.dim)
    make = partial(openai.embedding_requests, body)
    answers = await collect(request, slot, form, body, make)
    rows = openai_reply.vectors_of(body, answers, precision)
    tokens = sum(answer.prompt_tokens for answer in answers)
    return openai_reply.embeddings_reply(body, rows, name_of(slot, body), tokens)

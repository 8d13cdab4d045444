"""OpenAI's embeddings, which the other dialects share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from bitnet.server.exchange import collect, open_order, taking
from bitnet.wire import openai, openai_reply

if TYPE_CHECKING:
    from bitnet.server.worker import Order

router = APIRouter(tags=["OpenAI"])


@router.post("/embeddings", include_in_schema=False)
@router.post("/v1/embeddings", summary="Vectors of texts", openapi_extra=taking(openai.EMBEDDING))
async def embeddings(request: Request) -> JSONResponse:
    """Embeddings of texts, pooled as the model says and normalized to length one."""
    order = await open_order(request, openai.EMBEDDING)
    return JSONResponse(await embed_body(order, order.body))


async def embed_body(order: Order, body: dict[str, Any]) -> dict[str, Any]:
    """The reply to *body*, as :data:`EMBEDDING` reads it."""
    worker = order.worker
    precision = openai_reply.vector_precision(body, worker.model.config.dim)
    answers = await collect(order, partial(openai.embedding_requests, body))
    rows = openai_reply.vectors_of(body, answers, precision)
    tokens = sum(answer.stats.prompt_tokens for answer in answers)
    return openai_reply.embeddings_reply(body, rows, order.name, tokens)

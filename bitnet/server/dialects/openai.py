"""OpenAI's routes: chats, completions, responses and embeddings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from bitnet.runtime.request import Request as ModelRequest
from bitnet.server.exchange import collect, open_order, respond, taking
from bitnet.wire import openai, openai_reply, responses

if TYPE_CHECKING:
    from bitnet.server.worker import Order

router = APIRouter(tags=["OpenAI"])


@router.post("/chat/completions", include_in_schema=False)  # as llama.cpp's server has it
@router.post(
    "/v1/chat/completions",
    summary="The next message of a conversation",
    openapi_extra=taking(openai.CHAT),
)
async def chat(request: Request) -> Response:
    """Answer in the model's own chat template; ``stream`` sends server-sent events."""
    order = await open_order(request, openai.CHAT)
    head = openai_reply.reply_head("chatcmpl-", order.worker.name)
    make = partial(openai.chat_requests, order.body)
    return await respond(order, make, openai_reply.ChatReply(head, order.body))


@router.post("/completions", include_in_schema=False)
@router.post(
    "/v1/completions",
    summary="The continuation of texts",
    openapi_extra=taking(openai.COMPLETION),
)
async def completions(request: Request) -> Response:
    """Continue ``prompt``; ``stream`` sends server-sent events."""
    order = await open_order(request, openai.COMPLETION)
    head = openai_reply.reply_head("cmpl-", order.worker.name)
    most = min(openai.DEFAULT_COMPLETION_TOKENS, order.worker.limits.max_output_tokens)
    make = partial(openai.completion_requests, order.body, ModelRequest(max_tokens=most))
    return await respond(order, make, openai_reply.CompletionReply(head, order.body))


@router.post(
    "/v1/responses",
    summary="The next items of a conversation",
    openapi_extra=taking(responses.RESPONSE),
)
async def response(request: Request) -> Response:
    """Answer in the model's own chat template; ``stream`` sends OpenAI's events of responses."""
    order = await open_order(request, responses.RESPONSE)
    head = openai_reply.reply_head("resp_", order.worker.name)
    make = partial(responses.response_requests, order.body)
    return await respond(order, make, responses.ResponseItems(order.body, head))


@router.post("/embeddings", include_in_schema=False)
@router.post("/v1/embeddings", summary="Vectors of texts", openapi_extra=taking(openai.EMBEDDING))
async def embeddings(request: Request) -> Response:
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
    return openai_reply.embeddings_reply(body, rows, worker.name, tokens)

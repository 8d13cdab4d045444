"""OpenAI's routes: chats, completions, responses and embeddings."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from bitnet.runtime.request import Request as ModelRequest
from bitnet.server.exchange import Exchange, taking
from bitnet.wire import openai, openai_reply, responses

router = APIRouter(tags=["OpenAI"])


@router.post("/chat/completions", include_in_schema=False)  # as llama.cpp's server has it
@router.post(
    "/v1/chat/completions",
    summary="The next message of a conversation",
    openapi_extra=taking(openai.CHAT),
)
async def chat(request: Request) -> Response:
    """Answer in the model's own chat template; ``stream`` sends server-sent events."""
    exchange = await Exchange.open(request, openai.CHAT)
    head = openai_reply.reply_head("chatcmpl-", exchange.worker.name)
    make = partial(openai.chat_requests, exchange.body)
    return await exchange.reply(make, openai_reply.ChatReply(head, exchange.body))


@router.post("/completions", include_in_schema=False)
@router.post(
    "/v1/completions",
    summary="The continuation of texts",
    openapi_extra=taking(openai.COMPLETION),
)
async def completions(request: Request) -> Response:
    """Continue ``prompt``; ``stream`` sends server-sent events."""
    exchange = await Exchange.open(request, openai.COMPLETION)
    head = openai_reply.reply_head("cmpl-", exchange.worker.name)
    most = min(openai.DEFAULT_COMPLETION_TOKENS, exchange.worker.limits.max_output_tokens)
    make = partial(openai.completion_requests, exchange.body, ModelRequest(max_tokens=most))
    return await exchange.reply(make, openai_reply.CompletionReply(head, exchange.body))


@router.post(
    "/v1/responses",
    summary="The next items of a conversation",
    openapi_extra=taking(responses.RESPONSE),
)
async def respond(request: Request) -> Response:
    """Answer in the model's own chat template; ``stream`` sends OpenAI's events of responses."""
    exchange = await Exchange.open(request, responses.RESPONSE)
    head = openai_reply.reply_head("resp_", exchange.worker.name)
    make = partial(responses.response_requests, exchange.body)
    return await exchange.reply(make, responses.ResponseItems(exchange.body, head))


@router.post("/embeddings", include_in_schema=False)
@router.post("/v1/embeddings", summary="Vectors of texts", openapi_extra=taking(openai.EMBEDDING))
async def embeddings(request: Request) -> Response:
    """Embeddings of texts, pooled as the model says and normalized to length one."""
    exchange = await Exchange.open(request, openai.EMBEDDING)
    return JSONResponse(await embed_body(exchange, exchange.body))


async def embed_body(exchange: Exchange, body: dict[str, Any]) -> dict[str, Any]:
    """The reply to *body*, as :data:`EMBEDDING` reads it.

    Raises:
        Refused: something in it cannot be, or the worker stops.
    """
    worker = exchange.worker
    precision = openai_reply.vector_precision(body, worker.model.config.dim)
    answers = await exchange.collect(partial(openai.embedding_requests, body))
    rows = openai_reply.vectors_of(body, answers, precision)
    tokens = sum(answer.stats.prompt_tokens for answer in answers)
    return openai_reply.embeddings_reply(body, rows, worker.name, tokens)

"""OpenAI's routes: chats, completions, responses and embeddings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from bitnet.runtime.request import Request as ModelRequest
from bitnet.server.bodies import body_of, taking
from bitnet.server.models import worker_of
from bitnet.server.streams import NAMED, Exchange
from bitnet.wire import openai, openai_reply, responses

if TYPE_CHECKING:
    from bitnet.server.worker import Worker

router = APIRouter(tags=["OpenAI"])


@router.post("/chat/completions", include_in_schema=False)  # as llama.cpp's server has it
@router.post(
    "/v1/chat/completions",
    summary="The next message of a conversation",
    openapi_extra=taking(openai.CHAT),
)
async def chat(request: Request) -> Response:
    """Answer in the model's own chat template; ``stream`` sends server-sent events."""
    body = await body_of(request, openai.CHAT)
    worker = await worker_of(request, body["model"])
    make = partial(openai.chat_requests, body)
    reply = openai_reply.ChatReply(openai_reply.reply_head("chatcmpl-", worker.name), body)
    return await Exchange(worker, request, make, body, form=openai.CHAT).reply(reply)


@router.post("/completions", include_in_schema=False)
@router.post(
    "/v1/completions",
    summary="The continuation of texts",
    openapi_extra=taking(openai.COMPLETION),
)
async def completions(request: Request) -> Response:
    """Continue ``prompt``; ``stream`` sends server-sent events."""
    body = await body_of(request, openai.COMPLETION)
    worker = await worker_of(request, body["model"])
    most = min(openai.DEFAULT_COMPLETION_TOKENS, worker.limits.max_output_tokens)
    make = partial(openai.completion_requests, body, ModelRequest(max_tokens=most))
    reply = openai_reply.CompletionReply(openai_reply.reply_head("cmpl-", worker.name), body)
    return await Exchange(worker, request, make, body, form=openai.COMPLETION).reply(reply)


@router.post(
    "/v1/responses",
    summary="The next items of a conversation",
    openapi_extra=taking(responses.RESPONSE),
)
async def respond(request: Request) -> Response:
    """Answer in the model's own chat template; ``stream`` sends OpenAI's events of responses."""
    body = await body_of(request, responses.RESPONSE)
    worker = await worker_of(request, body["model"])
    make = partial(responses.response_requests, body)
    exchange = Exchange(worker, request, make, body, form=responses.RESPONSE)
    reply = responses.ResponseItems(body, openai_reply.reply_head("resp_", worker.name))
    return await exchange.reply(
        reply,
        wire=NAMED,
        fault=lambda error: reply.fault(error.message, error.code or error.kind, error.param),
    )


@router.post("/embeddings", include_in_schema=False)
@router.post("/v1/embeddings", summary="Vectors of texts", openapi_extra=taking(openai.EMBEDDING))
async def embeddings(request: Request) -> Response:
    """Embeddings of texts, pooled as the model says and normalized to length one."""
    body = await body_of(request, openai.EMBEDDING)
    return JSONResponse(await embed_body(body, await worker_of(request, body["model"]), request))


async def embed_body(body: dict[str, Any], worker: Worker, request: Request) -> dict[str, Any]:
    """The reply to *body*, as :data:`EMBEDDING` reads it.

    Raises:
        Refused: something in it cannot be, or the worker stops.
    """
    precision = openai_reply.vector_precision(body, worker.model.config.dim)
    make = partial(openai.embedding_requests, body)
    answers = await Exchange(worker, request, make, body, form=openai.EMBEDDING).collect()
    rows = openai_reply.vectors_of(body, answers, precision)
    tokens = sum(answer.stats.prompt_tokens for answer in answers)
    return openai_reply.embeddings_reply(body, rows, worker.name, tokens)

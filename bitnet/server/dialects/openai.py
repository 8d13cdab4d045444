"""OpenAI's routes: chats, completions, responses and embeddings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from bitnet.runtime.request import Request as ModelRequest
from bitnet.server.bodies import body_of, taking
from bitnet.server.models import service_of
from bitnet.server.streams import NAMED, Exchange
from bitnet.wire import openai, openai_reply, responses

if TYPE_CHECKING:
    from bitnet.server.refusals import Refused
    from bitnet.server.service import Service

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
    service = await service_of(request, body["model"])
    make = partial(openai.chat_requests, body)
    exchange = Exchange(service, request, make, body, form=openai.CHAT)
    head = openai_reply.reply_head("chatcmpl-", service.name)
    if not body["stream"]:
        return JSONResponse(openai_reply.chat_reply(body, head, await exchange.collect()))
    events = openai_reply.ChatEvents(head, body)
    return await exchange.stream(events.of, events.end)


@router.post("/completions", include_in_schema=False)
@router.post(
    "/v1/completions",
    summary="The continuation of texts",
    openapi_extra=taking(openai.COMPLETION),
)
async def completions(request: Request) -> Response:
    """Continue ``prompt``; ``stream`` sends server-sent events."""
    body = await body_of(request, openai.COMPLETION)
    service = await service_of(request, body["model"])
    most = min(openai.DEFAULT_COMPLETION_TOKENS, service.max_output_tokens)
    make = partial(openai.completion_requests, body, ModelRequest(max_tokens=most))
    exchange = Exchange(service, request, make, body, form=openai.COMPLETION)
    head = openai_reply.reply_head("cmpl-", service.name)
    if not body["stream"]:
        return JSONResponse(openai_reply.completion_reply(body, head, await exchange.collect()))
    events = openai_reply.CompletionEvents(head, body)
    return await exchange.stream(events.of, events.end)


@router.post(
    "/v1/responses",
    summary="The next items of a conversation",
    openapi_extra=taking(responses.RESPONSE),
)
async def respond(request: Request) -> Response:
    """Answer in the model's own chat template; ``stream`` sends OpenAI's events of responses."""
    body = await body_of(request, responses.RESPONSE)
    service = await service_of(request, body["model"])
    make = partial(responses.response_requests, body)
    exchange = Exchange(service, request, make, body, form=responses.RESPONSE)
    items = responses.ResponseItems(body, openai_reply.reply_head("resp_", service.name))
    if not body["stream"]:
        (answer,) = await exchange.collect()
        return JSONResponse(items.whole(answer))

    def fault(refused: Refused) -> dict[str, Any]:
        code = refused.code or refused.kind
        return items.event("error", code=code, message=refused.message, param=refused.param)

    return await exchange.stream(
        lambda _index, piece, _answer: items.of(piece),
        lambda answers: items.end(answers[0]),
        wire=NAMED,
        fault=fault,
    )


@router.post("/embeddings", include_in_schema=False)
@router.post("/v1/embeddings", summary="Vectors of texts", openapi_extra=taking(openai.EMBEDDING))
async def embeddings(request: Request) -> Response:
    """Embeddings of texts, pooled as the model says and normalized to length one."""
    body = await body_of(request, openai.EMBEDDING)
    service = await service_of(request, body["model"])
    return JSONResponse(await embed_body(body, service, request))


async def embed_body(body: dict[str, Any], service: Service, request: Request) -> dict[str, Any]:
    """The reply to *body*, as :data:`EMBEDDING` reads it.

    Raises:
        Refused: something in it cannot be, or the worker stops.
    """
    precision = openai_reply.vector_precision(body, service.model.config.dim)
    make = partial(openai.embedding_requests, body)
    answers = await Exchange(service, request, make, body, form=openai.EMBEDDING).collect()
    rows = openai_reply.vectors_of(body, answers, precision)
    tokens = sum(answer.stats.prompt_tokens for answer in answers)
    return openai_reply.embeddings_reply(body, rows, service.name, tokens)

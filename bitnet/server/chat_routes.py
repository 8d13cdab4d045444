"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from bitnet.server import openai, streams
from bitnet.server.faults import Refused
from bitnet.server.shapes import ChatRequest, ResponseFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.runtime.generation import Grammar
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.server.app import Service
    from bitnet.server.worker import Delta

router = APIRouter(tags=["OpenAI"])

_KIND = "chat.completion.chunk"


@router.post("/v1/chat/completions", summary="The next message of a conversation")
async def chat(body: ChatRequest, request: Request) -> Response:
    """Answer in the model's own chat template; ``stream`` sends server-sent events."""
    service: Service = request.app.state.service
    model = service.worker.model
    asked = openai.Asked.new("chatcmpl", service.name)
    jobs = await asyncio.to_thread(_jobs, body, asked, service)
    if body.stream:
        return await _streamed(request, service, asked, body, jobs)
    answers = await streams.collect(request, service, jobs)
    return JSONResponse(openai.chat_reply(asked, answers, model, logprobs=bool(body.logprobs)))


def _jobs(body: ChatRequest, asked: openai.Asked, service: Service) -> list[Any]:
    worker = service.worker
    return openai.chat_jobs(
        body, worker.model, asked,
        limit=service.max_output_tokens,
        share=worker.fair_positions,
        grammar=_grammar(body.response_format, worker.model),
    )  # fmt: skip


def _grammar(wanted: ResponseFormat | None, model: LanguageModel) -> Grammar | None:
    """What the answer must look like.

    Raises:
        Refused: the schema is missing.
        BitnetError: the schema cannot be used, or the extra for it is not installed.
    """
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return model.grammars.json_object()
    schema = (wanted.json_schema or {}).get("schema")
    if not isinstance(schema, dict):
        raise Refused(400, "json_schema needs a schema", param="response_format.json_schema.schema")
    return model.grammars.json_schema(schema)


async def _streamed(
    request: Request, service: Service, asked: openai.Asked, body: ChatRequest, jobs: list[Any]
) -> Response:
    model = service.worker.model
    begun: set[int] = set()

    def chunks(index: int, delta: Delta, answer: openai.Answer) -> Iterator[Any]:
        if index not in begun:
            begun.add(index)
            yield openai.chat_chunk(asked, index, {"role": "assistant", "content": ""})
        probabilities = None
        if body.logprobs and answer.pieces and answer.pieces[-1] is delta.piece:
            probabilities = openai.chat_logprobs(delta.piece, model)
        if delta.text or probabilities:
            yield openai.chat_chunk(asked, index, {"content": delta.text}, logprobs=probabilities)
        if answer.finish:
            yield openai.chat_chunk(asked, index, {}, finish=answer.finish)

    def last(answers: list[openai.Answer]) -> Iterator[Any]:
        if body.stream_options and body.stream_options.include_usage:
            counts = openai.usage(answers, choices=len(answers))
            yield openai.usage_chunk(asked, _KIND, counts)

    return await streams.stream(request, service, jobs, chunks, last)

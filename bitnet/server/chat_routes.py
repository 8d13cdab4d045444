"""``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from bitnet.runtime.chat_form import chat_finish, chat_logprobs, chat_reply, usage
from bitnet.server import openai
from bitnet.server.models import service_of
from bitnet.server.shapes import ChatRequest
from bitnet.server.streams import Exchange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import Piece

router = APIRouter(tags=["OpenAI"])

_KIND = "chat.completion.chunk"


@router.post("/v1/chat/completions", summary="The next message of a conversation")
async def chat(body: ChatRequest, request: Request) -> Response:
    """Answer in the model's own chat template; ``stream`` sends server-sent events."""
    service = await service_of(request, body.model)
    head = openai.reply_head("chatcmpl-", service.name)
    exchange = Exchange(
        service, request, openai.chat, body, places=body.n or 1, compiles=openai.compiles(body)
    )
    if not body.stream:
        answers = await exchange.collect()
        return JSONResponse(chat_reply(head, answers, logprobs=bool(body.logprobs)))
    begun: set[int] = set()

    def chunks(index: int, piece: Piece, answer: Answer) -> Iterator[Any]:
        if index not in begun:
            begun.add(index)
            yield openai.chat_chunk(head, index, {"role": "assistant", "content": ""})
        logprobs = chat_logprobs([piece.described]) if piece.described else None
        if piece.text or logprobs:
            yield openai.chat_chunk(head, index, {"content": piece.text}, logprobs=logprobs)
        for call in piece.calls:
            yield openai.chat_chunk(head, index, {"tool_calls": [openai.call_delta(call)]})
        if piece.finish_reason:
            finish = chat_finish(answer)
            yield openai.chat_chunk(head, index, {}, finish=finish)

    def last(answers: list[Answer]) -> Iterator[Any]:
        if body.stream_options and body.stream_options.include_usage:
            yield openai.usage_chunk(head, _KIND, usage(answers, choices=len(answers)))

    return await exchange.stream(chunks, last)

"""``/v1/inference``, ``/v1/completions``, embeddings, and text to ids and back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from bitnet.runtime.chat_form import finish_of, usage
from bitnet.runtime.text_form import (
    completion_reply,
    embeddings_reply,
    text_logprobs,
    vector_precision,
    vectors_of,
)
from bitnet.server import openai
from bitnet.server.models import service_of
from bitnet.server.refusals import Refused
from bitnet.server.shapes import (
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    InferenceRequest,
    TokenizeRequest,
)
from bitnet.server.streams import Exchange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import Piece
    from bitnet.server.service import Service

router = APIRouter()


@router.post("/v1/inference", tags=["worker"], summary="The continuation of a text")
async def inference(body: InferenceRequest, request: Request) -> Response:
    """Continue ``prompt``, greedily by default."""
    service = await service_of(request, body.model)
    request_id = request.state.request_id
    exchange = Exchange(service, request, openai.inference, body, compiles=openai.compiles(body))
    if not body.stream:
        (answer,) = await exchange.collect()
        return JSONResponse(_inference_facts(answer, request_id, service))

    def chunks(_index: int, piece: Piece, _answer: Answer) -> Iterator[Any]:
        if piece.text:
            yield {"text": piece.text}

    def last(answers: list[Answer]) -> Iterator[Any]:
        yield {**_inference_facts(answers[0], request_id, service), "done": True}

    return await exchange.stream(chunks, last)


def _inference_facts(answer: Answer, request_id: str, service: Service) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "worker_id": service.narrate.worker_id,
        "text": answer.text,
        "tokens": answer.ids,
        "tokens_generated": answer.stats.tokens,
        "prompt_tokens": answer.stats.prompt_tokens,
        "cached_tokens": answer.stats.reused_tokens,
        "finish_reason": finish_of(answer.finish_reason),
    }


@router.post("/v1/completions", tags=["OpenAI"], summary="The continuation of texts")
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue ``prompt``; ``stream`` sends server-sent events."""
    service = await service_of(request, body.model)
    head = openai.reply_head("cmpl-", service.name)
    choices = body.n or 1
    places = len(openai.prompts_of(body.prompt)) * choices
    exchange = Exchange(
        service, request, openai.completions, body, places=places, compiles=openai.compiles(body)
    )
    has_logprobs = body.logprobs is not None

    def echoed(answer: Answer) -> str:
        return answer.prompt_text if body.echo else ""

    if not body.stream:
        answers = await exchange.collect()
        return JSONResponse(
            completion_reply(
                head, answers, logprobs=has_logprobs, choices=choices,
                echoed=[echoed(answer) for answer in answers],
            )
        )  # fmt: skip
    begun: set[int] = set()

    def chunks(index: int, piece: Piece, answer: Answer) -> Iterator[Any]:
        logprobs = text_logprobs([piece.described]) if piece.described else None
        text = piece.text if index in begun else echoed(answer) + piece.text
        begun.add(index)
        if text or logprobs or piece.finish_reason:
            finish = finish_of(piece.finish_reason)
            yield openai.completion_chunk(head, index, text, finish, logprobs)

    def last(answers: list[Answer]) -> Iterator[Any]:
        if body.stream_options and body.stream_options.include_usage:
            counts = usage(answers, choices=choices)
            yield openai.usage_chunk(head, "text_completion", counts)

    return await exchange.stream(chunks, last)


@router.post("/v1/embeddings", tags=["OpenAI"], summary="Vectors of texts")
async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """Embeddings of texts, pooled as the model says and normalized to length one."""
    service = await service_of(request, body.model)
    rows, counted = await vectors(body, service, request)
    return JSONResponse(embeddings_reply(dict(body), rows, service.name, counted))


async def vectors(
    body: EmbeddingRequest, service: Service, request: Request
) -> tuple[list[NDArray[Any]], int]:
    """Embeddings of the texts of *body*, and their total number of ids.

    Raises:
        Refused: something in it cannot be, or the worker stops.
    """
    asked = dict(body)
    precision = vector_precision(asked, service.model.config.dim)
    answers = await Exchange(service, request, openai.embeddings, body).collect()
    if any(answer.finish_reason != "stop" for answer in answers):
        raise Refused(503, "the worker is stopping", kind="server_error", retry_after_s=5)
    counted = sum(answer.stats.prompt_tokens for answer in answers)
    return vectors_of(asked, answers, precision), counted


@router.post("/tokenize", tags=["worker"], summary="The ids of a text")
async def tokenize(body: TokenizeRequest, request: Request) -> dict[str, Any]:
    """Ids of ``content``; ``with_pieces`` adds the text of each."""
    worker = (await service_of(request, body.model)).worker
    tokenizer = worker.model.tokenizer

    def made() -> list[Any]:
        ids = tokenizer.encode(body.content, add_special=body.add_special, parse_special=True)
        if not body.with_pieces:
            return list(ids)
        pieces = (tokenizer.token_bytes(token).decode(errors="replace") for token in ids)
        return [{"id": token, "piece": piece} for token, piece in zip(ids, pieces, strict=True)]

    with worker.place():
        return {"tokens": await worker.prepared(made)}


@router.post("/detokenize", tags=["worker"], summary="The text of ids")
async def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, str]:
    """Text of ``tokens``."""
    worker = (await service_of(request, body.model)).worker
    with worker.place():
        made = partial(worker.model.tokenizer.decode, body.tokens)
        return {"content": await worker.prepared(made)}

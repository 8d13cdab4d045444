"""``/v1/inference``, ``/v1/completions``, embeddings, and text to ids and back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from bitnet.server import openai, streams
from bitnet.server.embedding import Embedding
from bitnet.server.faults import Refused
from bitnet.server.shapes import (
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    InferenceRequest,
    TokenizeRequest,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.server.app import Service
    from bitnet.server.worker import Delta

router = APIRouter()


@router.post("/v1/inference", tags=["worker"], summary="The continuation of a text")
async def inference(body: InferenceRequest, request: Request) -> Response:
    """Continue ``prompt``, the likeliest tokens by default."""
    service: Service = request.app.state.service
    worker, request_id = service.worker, request.state.request_id
    job = await asyncio.to_thread(
        openai.inference_job, body, worker.model, request_id, limit=service.max_output_tokens
    )
    if not body.stream:
        (answer,) = await streams.collect(request, service, [job])
        return JSONResponse(_inference_facts(answer, request_id, service))

    def chunks(_index: int, delta: Delta, _answer: openai.Answer) -> Iterator[Any]:
        if delta.text:
            yield {"text": delta.text}

    def last(answers: list[openai.Answer]) -> Iterator[Any]:
        yield {**_inference_facts(answers[0], request_id, service), "done": True}

    return await streams.stream(request, service, [job], chunks, last)


def _inference_facts(answer: openai.Answer, request_id: str, service: Service) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "worker_id": service.narrate.worker_id,
        "text": answer.text,
        "tokens": [piece.token for piece in answer.pieces],
        "tokens_generated": answer.tokens,
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "finish_reason": answer.finish,
    }


@router.post("/v1/completions", tags=["OpenAI"], summary="The continuation of texts")
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue ``prompt``; ``stream`` sends server-sent events."""
    service: Service = request.app.state.service
    model = service.worker.model
    asked = openai.Asked.new("cmpl", service.name)
    jobs = await asyncio.to_thread(
        openai.completion_jobs, body, model, asked, limit=service.max_output_tokens
    )
    choices = body.n or 1
    echoed = [
        model.tokenizer.decode(job.ids, skip_special=True) if body.echo else "" for job in jobs
    ]
    has_logprobs = body.logprobs is not None
    if not body.stream:
        answers = await streams.collect(request, service, jobs)
        return JSONResponse(
            openai.completion_reply(
                asked, answers, model, logprobs=has_logprobs, choices=choices, echoed=echoed
            )
        )

    def chunks(index: int, delta: Delta, answer: openai.Answer) -> Iterator[Any]:
        probabilities = None
        if has_logprobs and answer.pieces and answer.pieces[-1] is delta.piece:
            probabilities = openai.text_logprobs(delta.piece, model)
        text, echoed[index] = echoed[index] + delta.text, ""
        if text or probabilities or answer.finish:
            yield openai.completion_chunk(asked, index, text, answer.finish, probabilities)

    def last(answers: list[openai.Answer]) -> Iterator[Any]:
        if body.stream_options and body.stream_options.include_usage:
            counts = openai.usage(answers, choices=choices)
            yield openai.usage_chunk(asked, "text_completion", counts)

    return await streams.stream(request, service, jobs, chunks, last)


@router.post("/v1/embeddings", tags=["OpenAI"], summary="Vectors of texts")
async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """The mean of the last hidden states of each text, of length one."""
    service: Service = request.app.state.service
    worker = service.worker
    model = worker.model
    if body.dimensions not in (None, model.config.dim):
        raise Refused(
            400, f"the vectors of this model have {model.config.dim:,} dimensions",
            param="dimensions",
        )  # fmt: skip
    ids = [
        text if isinstance(text, list) else model.tokenizer.encode(text)
        for text in openai.texts_of(body.input, "input")
    ]
    for row in ids:
        if not 0 < len(row) <= model.engine.context or max(row) >= model.config.vocab_size:
            raise Refused(
                400, f"each input needs 1 to {model.engine.context:,} known tokens", param="input"
            )
    with worker.place():
        rows = await streams.unless_gone(request, _embedded(service, ids))
    counted = sum(len(row) for row in ids)
    return JSONResponse(openai.embeddings_reply(body, rows, service.name, counted))


async def _embedded(service: Service, texts: list[list[int]]) -> list[Any]:
    """A vector for each of *texts*; memory is taken for one text at a time.

    Raises:
        Refused: it takes too long, or the worker stops.
    """

    async def one_by_one() -> list[Any]:
        async with service.embedding:
            rows = []
            for ids in texts:
                running = Embedding(service.worker.model, ids)
                while running.left:
                    await service.worker.call(running.step)
                rows.append(running.vector())
            return rows

    limit_s = service.worker.deadline_s
    try:
        return await asyncio.wait_for(one_by_one(), limit_s)
    except asyncio.TimeoutError:
        message = f"the vectors were not ready after {limit_s:g} s"
        raise Refused(504, message, kind="server_error") from None


@router.post("/tokenize", tags=["worker"], summary="The ids of a text")
async def tokenize(body: TokenizeRequest, request: Request) -> dict[str, Any]:
    """Ids of ``content``; ``with_pieces`` adds the text of each."""
    tokenizer = request.app.state.service.worker.model.tokenizer
    ids = await asyncio.to_thread(
        tokenizer.encode, body.content, add_special=body.add_special, parse_special=True
    )
    if not body.with_pieces:
        return {"tokens": ids}
    pieces = [tokenizer.token_bytes(token).decode(errors="replace") for token in ids]
    return {"tokens": [{"id": i, "piece": piece} for i, piece in zip(ids, pieces, strict=True)]}


@router.post("/detokenize", tags=["worker"], summary="The text of ids")
async def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, str]:
    """Text of ``tokens``."""
    tokenizer = request.app.state.service.worker.model.tokenizer
    return {"content": await asyncio.to_thread(tokenizer.decode, body.tokens)}

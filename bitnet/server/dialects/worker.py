"""The worker's own routes: ``/v1/inference``, and text to ids and back."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from bitnet.runtime.request import Request as ModelRequest
from bitnet.server.bodies import body_of, taking
from bitnet.server.models import worker_of
from bitnet.server.prompts import DEFAULT_TOKENS
from bitnet.server.streams import Exchange
from bitnet.wire.worker import (
    DETOKENIZE,
    INFERENCE,
    TOKENIZE,
    InferenceReply,
    inference_requests,
)

router = APIRouter(tags=["worker"])


@router.post("/v1/inference", summary="The continuation of a text", openapi_extra=taking(INFERENCE))
async def inference(request: Request) -> Response:
    """Continue ``prompt``, greedily by default."""
    body = await body_of(request, INFERENCE)
    worker = await worker_of(request, body["model"])
    most = min(DEFAULT_TOKENS, worker.limits.max_output_tokens)
    make = partial(inference_requests, body, ModelRequest(max_tokens=most))
    ids = {"request_id": request.state.request_id, "worker_id": worker.narrate.worker_id}
    reply = InferenceReply(ids)
    return await Exchange(worker, request, make, body, form=INFERENCE).reply(reply)


@router.post("/tokenize", summary="The ids of a text", openapi_extra=taking(TOKENIZE))
async def tokenize(request: Request) -> dict[str, Any]:
    """Ids of ``content``; ``with_pieces`` adds the text of each."""
    body = await body_of(request, TOKENIZE)
    worker = await worker_of(request, body["model"])
    tokenizer = worker.model.tokenizer

    def encode_all() -> list[Any]:
        add_special = body["add_special"] is not False
        ids = tokenizer.encode(body["content"], add_special=add_special, parse_special=True)
        if not body["with_pieces"]:
            return list(ids)
        pieces = (tokenizer.token_bytes(token).decode(errors="replace") for token in ids)
        return [{"id": token, "piece": piece} for token, piece in zip(ids, pieces, strict=True)]

    with worker.place():
        return {"tokens": await worker.run_in_thread(encode_all)}


@router.post("/detokenize", summary="The text of ids", openapi_extra=taking(DETOKENIZE))
async def detokenize(request: Request) -> dict[str, str]:
    """Text of ``tokens``."""
    body = await body_of(request, DETOKENIZE)
    worker = await worker_of(request, body["model"])
    with worker.place():
        made = partial(worker.model.tokenizer.decode, body["tokens"])
        return {"content": await worker.run_in_thread(made)}

"""The worker's own routes: ``/v1/inference``, and text to ids and back."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from bitnet.runtime.request import Request as ModelRequest
from bitnet.server.exchange import DEFAULT_TOKENS, compute, open_order, respond, taking
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
    order = await open_order(request, INFERENCE)
    worker = order.worker
    most = min(DEFAULT_TOKENS, worker.limits.max_output_tokens)
    make = partial(inference_requests, order.body, ModelRequest(max_tokens=most))
    ids = {"request_id": request.state.request_id, "worker_id": worker.narrate.worker_id}
    return await respond(order, make, InferenceReply(ids))


@router.post("/tokenize", summary="The ids of a text", openapi_extra=taking(TOKENIZE))
async def tokenize(request: Request) -> dict[str, Any]:
    """Ids of ``content``; ``with_pieces`` adds the text of each."""
    order = await open_order(request, TOKENIZE)
    body, tokenizer = order.body, order.worker.model.tokenizer

    def encode_all() -> list[Any]:
        add_special = body["add_special"] is not False
        ids = tokenizer.encode(body["content"], add_special=add_special, parse_special=True)
        if not body["with_pieces"]:
            return list(ids)
        pieces = (tokenizer.token_bytes(token).decode(errors="replace") for token in ids)
        return [{"id": token, "piece": piece} for token, piece in zip(ids, pieces, strict=True)]

    return {"tokens": await compute(order, encode_all)}


@router.post("/detokenize", summary="The text of ids", openapi_extra=taking(DETOKENIZE))
async def detokenize(request: Request) -> dict[str, str]:
    """Text of ``tokens``."""
    order = await open_order(request, DETOKENIZE)
    tokenizer = order.worker.model.tokenizer
    return {"content": await compute(order, partial(tokenizer.decode, order.body["tokens"]))}

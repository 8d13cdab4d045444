"""The worker's own routes: ``/v1/inference``, and text to ids and back."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from bitnet.runtime.request import Request as ModelRequest
from bitnet.server.exchange import DEFAULT_TOKENS, Exchange, taking
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
    exchange = await Exchange.open(request, INFERENCE)
    worker = exchange.worker
    most = min(DEFAULT_TOKENS, worker.limits.max_output_tokens)
    make = partial(inference_requests, exchange.body, ModelRequest(max_tokens=most))
    ids = {"request_id": request.state.request_id, "worker_id": worker.narrate.worker_id}
    return await exchange.reply(make, InferenceReply(ids))


@router.post("/tokenize", summary="The ids of a text", openapi_extra=taking(TOKENIZE))
async def tokenize(request: Request) -> dict[str, Any]:
    """Ids of ``content``; ``with_pieces`` adds the text of each."""
    exchange = await Exchange.open(request, TOKENIZE)
    body, tokenizer = exchange.body, exchange.worker.model.tokenizer

    def encode_all() -> list[Any]:
        add_special = body["add_special"] is not False
        ids = tokenizer.encode(body["content"], add_special=add_special, parse_special=True)
        if not body["with_pieces"]:
            return list(ids)
        pieces = (tokenizer.token_bytes(token).decode(errors="replace") for token in ids)
        return [{"id": token, "piece": piece} for token, piece in zip(ids, pieces, strict=True)]

    return {"tokens": await exchange.run(encode_all)}


@router.post("/detokenize", summary="The text of ids", openapi_extra=taking(DETOKENIZE))
async def detokenize(request: Request) -> dict[str, str]:
    """Text of ``tokens``."""
    exchange = await Exchange.open(request, DETOKENIZE)
    tokenizer = exchange.worker.model.tokenizer
    return {"content": await exchange.run(partial(tokenizer.decode, exchange.body["tokens"]))}

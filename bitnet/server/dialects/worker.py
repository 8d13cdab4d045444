"""The worker's own routes: ``/v1/inference``, and text to ids and back."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from bitnet.runtime.request import Request as ModelRequest
from bitnet.server.exchange import (
    DEFAULT_TOKENS,
    compute,
    receive,
    respond,
    taking,
)
from bitnet.wire.worker import DETOKENIZE, INFERENCE, TOKENIZE, inference_requests

router = APIRouter(tags=["worker"])


@router.post("/v1/inference", summary="The continuation of a text", openapi_extra=taking(INFERENCE))
async def inference(request: Request) -> Response:
    """Continue ``prompt``, greedily by default."""
    body, slot = await receive(request, INFERENCE)
    most = min(DEFAULT_TOKENS, request.app.state.models.max_output_tokens)
    make = partial(inference_requests, body, ModelRequest(max_tokens=most))
    ids = {"request_id": request.state.request_id, "worker_id": request.app.state.worker_id}
    return await respond(request, slot, INFERENCE, body, make, ids)


@router.post("/tokenize", summary="The ids of a text", openapi_extra=taking(TOKENIZE))
async def tokenize(request: Request) -> dict[str, Any]:
    """Ids of ``content``; ``with_pieces`` adds the text of each."""
    body, slot = await receive(request, TOKENIZE)
    tokenizer = slot.model.tokenizer

    def encode_all() -> list[Any]:
        add_special = body["add_special"] is not False
        ids = tokenizer.encode(body["content"], add_special=add_special, parse_special=True)
        if not body["with_pieces"]:
            return list(ids)
        pieces = (tokenizer.token_bytes(token).decode(errors="replace") for token in ids)
        return [{"id": token, "piece": piece} for token, piece in zip(ids, pieces, strict=True)]

    return {"tokens": await compute(request, slot, TOKENIZE, encode_all)}


@router.post("/detokenize", summary="The text of ids", openapi_extra=taking(DETOKENIZE))
async def detokenize(request: Request) -> dict[str, str]:
    """Text of ``tokens``."""
    body, slot = await receive(request, DETOKENIZE)
    decode = partial(slot.model.tokenizer.decode, body["tokens"])
    return {"content": await compute(request, slot, DETOKENIZE, decode)}

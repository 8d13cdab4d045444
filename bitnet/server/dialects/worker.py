"""The worker's own routes: ``/v1/inference``, and text to ids and back."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from bitnet.runtime.request import Request as ModelRequest
from bitnet.server.bodies import body_of, taking
from bitnet.server.models import service_of
from bitnet.server.prompts import DEFAULT_TOKENS
from bitnet.server.streams import Exchange
from bitnet.wire.worker import (
    DETOKENIZE,
    INFERENCE,
    TOKENIZE,
    InferenceEvents,
    inference_requests,
)

router = APIRouter(tags=["worker"])


@router.post("/v1/inference", summary="The continuation of a text", openapi_extra=taking(INFERENCE))
async def inference(request: Request) -> Response:
    """Continue ``prompt``, greedily by default."""
    body = await body_of(request, INFERENCE)
    service = await service_of(request, body["model"])
    most = min(DEFAULT_TOKENS, service.max_output_tokens)
    make = partial(inference_requests, body, ModelRequest(max_tokens=most))
    exchange = Exchange(service, request, make, body, form=INFERENCE)
    ids = {"request_id": request.state.request_id, "worker_id": service.narrate.worker_id}
    events = InferenceEvents(ids)
    if not body["stream"]:
        (answer,) = await exchange.collect()
        return JSONResponse(events.whole(answer))
    return await exchange.stream(events.of, events.end)


@router.post("/tokenize", summary="The ids of a text", openapi_extra=taking(TOKENIZE))
async def tokenize(request: Request) -> dict[str, Any]:
    """Ids of ``content``; ``with_pieces`` adds the text of each."""
    body = await body_of(request, TOKENIZE)
    worker = (await service_of(request, body["model"])).worker
    tokenizer = worker.model.tokenizer

    def made() -> list[Any]:
        add_special = body["add_special"] is not False
        ids = tokenizer.encode(body["content"], add_special=add_special, parse_special=True)
        if not body["with_pieces"]:
            return list(ids)
        pieces = (tokenizer.token_bytes(token).decode(errors="replace") for token in ids)
        return [{"id": token, "piece": piece} for token, piece in zip(ids, pieces, strict=True)]

    with worker.place():
        return {"tokens": await worker.prepared(made)}


@router.post("/detokenize", summary="The text of ids", openapi_extra=taking(DETOKENIZE))
async def detokenize(request: Request) -> dict[str, str]:
    """Text of ``tokens``."""
    body = await body_of(request, DETOKENIZE)
    worker = (await service_of(request, body["model"])).worker
    with worker.place():
        made = partial(worker.model.tokenizer.decode, body["tokens"])
        return {"content": await worker.prepared(made)}

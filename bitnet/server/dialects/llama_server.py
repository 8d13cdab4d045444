"""Routes of llama.cpp's server: ``/infill``, ``/props``, ``/apply-template`` and others.

``/tokenize`` and ``/detokenize`` are the worker's own, since several dialects share them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from bitnet import __version__
from bitnet.runtime.conversation_text import conversation_text
from bitnet.runtime.request import Request as ModelRequest
from bitnet.server.dialects.openai import embed_body
from bitnet.server.exchange import (
    compute,
    name_of,
    open_slot,
    receive,
    respond,
    slot_of,
    taking,
)
from bitnet.server.refusals import Refused
from bitnet.wire.fields import without_nulls
from bitnet.wire.llama_server import (
    DEFAULTS,
    EMBED,
    INFILL,
    TEMPLATE,
    infill_requests,
)
from bitnet.wire.openai import EMBEDDING

if TYPE_CHECKING:
    from bitnet.server.models import Models

router = APIRouter(tags=["llama-server"])


@router.post(
    "/infill",
    summary="The text of a gap, as llama.cpp's server has it",
    openapi_extra=taking(INFILL),
)
async def infill(request: Request) -> Response:
    """Fill the gap between ``input_prefix`` and ``input_suffix``, by models that can."""
    body, slot = await receive(request, INFILL)
    make = partial(infill_requests, body, slot.model.tokenizer)
    return await respond(request, slot, INFILL, body, make, {"model": name_of(slot, body)})


@router.post(
    "/apply-template",
    summary="The text that the chat template makes of a conversation",
    openapi_extra=taking(TEMPLATE),
)
async def apply_template(request: Request) -> dict[str, str]:
    """The prompt of a chat, without answering it."""
    body, slot = await receive(request, TEMPLATE)

    def render() -> str:
        asked = ModelRequest(messages=without_nulls(body["messages"]), tools=body["tools"])
        asked.check()
        return conversation_text(slot.model.tokenizer, asked)[0]

    return {"prompt": await compute(request, slot, TEMPLATE, render)}


@router.get("/props", summary="Facts about a model, which is loaded")
async def props(request: Request, model: str | None = None) -> dict[str, Any]:
    """Chat template, context length and number of slots."""
    slot = await open_slot(request, model)
    models: Models = request.app.state.models
    tokenizer = slot.model.tokenizer

    def text(token: int | None) -> str:
        return "" if token is None else tokenizer.token_bytes(token).decode("utf-8", "replace")

    return {
        "default_generation_settings": {"n_ctx": slot.model.context, "params": DEFAULTS},
        "total_slots": models.max_batch,
        "model_alias": slot.name,
        "model_path": slot.model.path.name,
        "chat_template": tokenizer.chat_template or "",
        "bos_token": text(tokenizer.bos_id),
        "eos_token": text(tokenizer.eos_id),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"bitnet {__version__}",
    }


@router.get("/slots", summary="How many answers are being written")
async def slots(request: Request, model: str | None = None) -> list[dict[str, Any]]:
    """A row for each answer that may be written at the same time, those in use first.

    There is none while the model is not loaded.
    """
    slot, models = slot_of(request, model), request.app.state.models
    return [
        {"id": index, "n_ctx": slot.model.context, "is_processing": index < slot.open_jobs}
        for index in range(models.max_batch if slot.loaded else 0)
    ]


@router.get("/health", summary="Whether requests are taken, as llama.cpp's server says it")
async def health(request: Request) -> JSONResponse:
    """``ok``, or status 503."""
    models: Models = request.app.state.models
    if models.alive and not models.draining:
        return JSONResponse({"status": "ok"})
    raise Refused(503, "the worker is stopping", kind="unavailable_error", retry_after_s=5)


@router.post(
    "/embedding",
    summary="Vectors of texts, as llama.cpp's server has it",
    openapi_extra=taking(EMBED),
)
async def embedding(request: Request) -> JSONResponse:
    """As ``/v1/embeddings``, in the form of llama.cpp's server."""
    body, slot = await receive(request, EMBED)
    asked = EMBEDDING.read({"input": body["content"], "model": body["model"]})
    reply = await embed_body(request, slot, EMBED, asked)
    rows = [{"index": row["index"], "embedding": [row["embedding"]]} for row in reply["data"]]
    return JSONResponse(rows)

"""What a worker tells of itself and its models as llama.cpp's server and Ollama do."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from bitnet import __version__
from bitnet.base.errors import BitnetError
from bitnet.server.exchange import body_of, open_slot, taking
from bitnet.server.refusals import Refused
from bitnet.wire.llama_server import DEFAULTS
from bitnet.wire.ollama import NEVER, SHOW, parameter_size, timestamp

if TYPE_CHECKING:
    from bitnet.server.models import Models
    from bitnet.server.slot import Slot

llama_server = APIRouter(tags=["llama-server"])
ollama = APIRouter(prefix="/api", tags=["Ollama"])


@llama_server.get("/props", summary="Facts about a model, which is loaded")
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


@llama_server.get("/slots", summary="How many answers are being written")
async def slots(request: Request, model: str | None = None) -> list[dict[str, Any]]:
    """A row for each answer that may be written at the same time, those in use first.

    There is none while the model is not loaded.
    """
    models: Models = request.app.state.models
    slot = models.find(model)
    return [
        {"id": index, "n_ctx": slot.model.context, "is_processing": index < slot.open_jobs}
        for index in range(models.max_batch if slot.loaded else 0)
    ]


@llama_server.get("/health", summary="Whether requests are taken, as llama.cpp's server says it")
async def health(request: Request) -> JSONResponse:
    """``ok``, or status 503."""
    models: Models = request.app.state.models
    if models.alive and not models.draining:
        return JSONResponse({"status": "ok"})
    raise Refused(503, "the worker is stopping", kind="unavailable_error", retry_after_s=5)


@ollama.get("/tags", summary="The models, as Ollama lists them")
async def tags(request: Request) -> dict[str, Any]:
    """Names, sizes and kinds."""
    models: Models = request.app.state.models
    return {"models": [await _describe(slot) for slot in models.slots.values()]}


@ollama.get("/ps", summary="The models that are loaded, as Ollama lists them")
async def running(request: Request) -> dict[str, Any]:
    """As ``/api/tags``, with when each is unloaded if it is not used until then."""
    models: Models = request.app.state.models
    listing = []
    for slot in models.slots.values():
        if slot.loaded:
            until = slot.expires_at
            expires = NEVER if until is None else timestamp(until)
            context = slot.model.context
            more = {"size_vram": 0, "expires_at": expires, "context_length": context}
            listing.append(await _describe(slot) | more)
    return {"models": listing}


@ollama.post("/show", summary="A model, as Ollama describes it", openapi_extra=taking(SHOW))
async def show(request: Request) -> dict[str, Any]:
    """Its chat template, its kind and what it can; it is not loaded for that."""
    body = await body_of(request, SHOW)
    slot: Slot = request.app.state.models.find(body["model"] or body["name"] or "")
    facts, listed = await slot.header(), await _describe(slot)
    name = facts["architecture"]
    can = ["completion", *(["tools"] if facts["template"] else [])] if facts["writes"] else []
    return {
        "template": facts["template"],
        "details": listed["details"],
        "modified_at": listed["modified_at"],
        "model_info": {
            "general.architecture": name,
            f"{facts['architecture']}.context_length": facts["context"],
            f"{facts['architecture']}.embedding_length": facts["dim"],
        },
        "capabilities": [*can, "embedding"],
    }


@ollama.get("/version", summary="The version of this worker")
async def version() -> dict[str, str]:
    """This program's version, in Ollama's form."""
    return {"version": __version__}


async def _describe(slot: Slot) -> dict[str, Any]:
    path = slot.path
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    stats = [file.stat() for file in files]
    form = "gguf" if path.suffix == ".gguf" else "safetensors"
    details: dict[str, Any] = {"format": form}
    digest = ""
    with suppress(BitnetError):  # a broken one is said to be so when it is asked
        facts = await slot.header()
        details |= {
            "parent_model": "",
            "family": facts["architecture"],
            "families": [facts["architecture"]],
            "parameter_size": parameter_size(facts["parameters"]),
            "quantization_level": facts["encoding"],
        }
        digest = await slot.digest()
    return {
        "name": slot.name,
        "model": slot.name,
        "modified_at": timestamp(max((status.st_mtime for status in stats), default=0.0)),
        "size": sum(status.st_size for status in stats),
        "digest": digest,
        "details": details,
    }

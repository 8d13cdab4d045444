"""Ollama's routes: ``/api/chat``, ``/api/generate``, ``/api/embed`` and its information routes."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from bitnet import __version__
from bitnet.base.errors import BitnetError
from bitnet.server.dialects.openai import embed_body
from bitnet.server.exchange import body_of, compute, open_slot, respond, slot_of, taking
from bitnet.wire.ollama import (
    CHAT,
    EMBED,
    EMBED_ONE,
    GENERATE,
    SHOW,
    chat_requests,
    check_options,
    empty_reply,
    generate_requests,
    parameter_size,
    seconds_of,
    timestamp,
)
from bitnet.wire.openai import EMBEDDING

if TYPE_CHECKING:
    from bitnet.server.models import Models
    from bitnet.server.slot import Slot
    from bitnet.wire.fields import Form

router = APIRouter(prefix="/api", tags=["Ollama"])

NEVER = "9999-12-31T23:59:59+00:00"


@router.post(
    "/chat",
    summary="The next message of a conversation, as Ollama has it",
    openapi_extra=taking(CHAT),
)
async def chat(request: Request) -> Response:
    """Answer in the model's own chat template; JSON lines unless ``stream`` is false."""
    body = await body_of(request, CHAT)
    return await _answer(request, CHAT, body, is_empty=not body["messages"])


@router.post(
    "/generate", summary="The answer to a prompt, as Ollama has it", openapi_extra=taking(GENERATE)
)
async def generate(request: Request) -> Response:
    """Answer ``prompt`` in the model's chat template, or continue it if ``raw`` is true."""
    body = await body_of(request, GENERATE)
    return await _answer(request, GENERATE, body, is_empty=not body["prompt"])


async def _answer(
    request: Request, form: Form, body: dict[str, Any], *, is_empty: bool
) -> Response:
    if is_empty and seconds_of(body["keep_alive"]) == 0:  # Ollama's way to unload a model
        request.app.state.models.keep(slot_of(request, body["model"]), 0)
        return JSONResponse(empty_reply(body, "unload"))
    slot = await _open(request, body)
    if is_empty:  # Ollama's way to load a model
        return JSONResponse(empty_reply(body, "load"))
    model = slot.model
    make = partial(chat_requests, body, model.context)
    if form is GENERATE:
        chats = bool(model.tokenizer.chat_template)
        make = partial(generate_requests, body, model.context, chats=chats)
    return await respond(request, slot, form, body, make, {})


@router.post("/embed", summary="Vectors of texts, as Ollama has it", openapi_extra=taking(EMBED))
async def embed(request: Request) -> JSONResponse:
    """As ``/v1/embeddings``, in Ollama's form."""
    body = await body_of(request, EMBED)
    rows, tokens = await _vectors(request, EMBED, body, body["input"])
    facts = {"model": body["model"], "embeddings": rows, "prompt_eval_count": tokens}
    return JSONResponse(facts)


@router.post(
    "/embeddings", summary="The vector of a text, as Ollama had it", openapi_extra=taking(EMBED_ONE)
)
async def embeddings(request: Request) -> JSONResponse:
    """As ``/api/embed`` of one text, in the older form."""
    body = await body_of(request, EMBED_ONE)
    (row,), _ = await _vectors(request, EMBED_ONE, body, body["prompt"])
    return JSONResponse({"embedding": row})


async def _open(request: Request, body: dict[str, Any]) -> Slot:
    """Slot of the model of *body*, kept as long as that says after its last request."""
    idle_s = seconds_of(body["keep_alive"])
    slot = await open_slot(request, body["model"])
    request.app.state.models.keep(slot, idle_s)
    return slot


async def _vectors(
    request: Request, form: Form, body: dict[str, Any], content: str | list[str]
) -> tuple[list[list[float]], int]:
    """Vectors of *content*, texts in a *body* of *form*, and the number of their tokens."""
    slot = await _open(request, body)
    model = slot.model
    check_options(body["options"] or {}, model.context)
    texts: list[Any] = [content] if isinstance(content, str) else content
    if body.get("truncate") is not False:
        whole = texts
        ids_of = partial(model.embedding_ids, truncate=True)
        texts = await compute(request, slot, form, lambda: [*map(ids_of, whole)])
    fields = {"model": body["model"], "input": texts, "dimensions": body.get("dimensions")}
    reply = await embed_body(request, slot, form, EMBEDDING.read(fields))
    return [row["embedding"] for row in reply["data"]], reply["usage"]["prompt_tokens"]


@router.get("/tags", summary="The models, as Ollama lists them")
async def tags(request: Request) -> dict[str, Any]:
    """Names, sizes and kinds."""
    models: Models = request.app.state.models
    return {"models": [await _describe(slot) for slot in models.slots.values()]}


@router.get("/ps", summary="The models that are loaded, as Ollama lists them")
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


@router.post("/show", summary="A model, as Ollama describes it", openapi_extra=taking(SHOW))
async def show(request: Request) -> dict[str, Any]:
    """Its chat template, its kind and what it can; it is not loaded for that."""
    body = await body_of(request, SHOW)
    slot = slot_of(request, body["model"] or body["name"] or "")
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


@router.get("/version", summary="The version of this worker")
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

"""The application and its routes. Handlers parse, submit and format, without touching the model."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from bitnet import __version__
from bitnet.base.errors import BitnetError
from bitnet.runtime.request import EVERYTHING
from bitnet.server import pages
from bitnet.server.description import refusals_of, replies_of, text_reply, without_validation
from bitnet.server.exchange import (
    answer,
    body_of,
    compute,
    describe_body,
    open_slot,
    respond_with,
)
from bitnet.server.guard import Guard
from bitnet.server.metrics import trace_requests
from bitnet.server.refusals import Refused, from_error
from bitnet.wire.fields import RANDOM, with_defaults
from bitnet.wire.llama_server import DEFAULTS
from bitnet.wire.ollama import NEVER, SHOW, parameter_size, timestamp
from bitnet.wire.routes import COMPUTED, ROUTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bitnet.server.metrics import Metrics
    from bitnet.server.models import Models
    from bitnet.server.narration import Narrate
    from bitnet.server.serve_options import ServeOptions
    from bitnet.server.slot import Slot
    from bitnet.wire.forms import Form

_llama_server = APIRouter(tags=["llama-server"])
_ollama = APIRouter(prefix="/api", tags=["Ollama"])


def create_app(
    models: Models, metrics: Metrics, narrate: Narrate, options: ServeOptions
) -> FastAPI:
    """The application that serves *models*, and closes them when it ends.

    Requests are counted in *metrics* and reported to *narrate*; *options* limit who may call, and
    how large a request may be.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        models.close()
        await asyncio.to_thread(end_tracing)

    app = FastAPI(
        title="bitnet",
        version=__version__,
        summary="Language models over HTTP, OpenAI-compatible",
        lifespan=lifespan,
        redoc_url=None,
        docs_url=None,  # that page loads scripts from another host: pages.py has ours
        openapi_url="/openapi.json",
    )
    app.state.models = models
    app.state.worker_id = options.worker_id
    for router in (pages.router, _llama_server, _ollama):
        app.include_router(router)
    for handle, table in ((answer, ROUTES), (compute, COMPUTED)):
        for path, form in table.items():
            _add_routes(app, path, form, handle)
    _add_plain_routes(app, models, metrics)
    _add_error_handlers(app)
    describe = app.openapi
    app.openapi = lambda: without_validation(describe())  # type: ignore[method-assign]
    app.add_middleware(Guard, options=options, metrics=metrics, narrate=narrate)
    if options.allow_origin:
        # Added after the guard, so around it: a page can read why a request was refused.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.allow_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["X-Request-ID", "Retry-After", "bitnet-ignored"],
        )
    end_tracing = trace_requests(app)
    return app


def _add_routes(app: FastAPI, path: str, form: Form, handle: Callable[..., Any]) -> None:
    """Route bodies of *form*, at *path* and at the aliases of the form, to *handle*."""
    respond = respond_with(handle, form)
    for each in (path, *form.aliases):
        app.add_api_route(
            each, respond, methods=["POST"], tags=[form.tag], summary=form.summary,
            openapi_extra=describe_body(form), responses=replies_of(path, form),
            include_in_schema=each == path,
        )  # fmt: skip


def _add_plain_routes(app: FastAPI, models: Models, metrics: Metrics) -> None:
    """Routes for health, metrics and the list of models."""

    @app.get(
        "/health/live",
        tags=["health"],
        summary="Whether the process answers",
        responses=refusals_of("/health/live", 503),
    )
    async def live() -> JSONResponse:
        dead = models.dead
        if dead is None:
            return JSONResponse({"status": "alive"})
        facts = {"status": "dead", "reason": "the model's thread has ended", "model": dead.name}
        return JSONResponse(facts, 503)

    @app.get(
        "/health/ready",
        tags=["health"],
        summary="Whether requests are taken",
        responses=refusals_of("/health/ready", 503),
    )
    async def ready() -> JSONResponse:
        status = "stopped" if models.dead else "ready"
        if models.draining:
            status = "draining"
        facts = {
            "status": status,
            "model": models.default.name,
            "open": models.open_jobs,
            "models": {name: slot.state for name, slot in models.slots.items()},
        }
        return JSONResponse(facts, 200 if status == "ready" else 503)

    @app.get(
        "/metrics",
        tags=["health"],
        summary="Metrics for Prometheus",
        response_class=PlainTextResponse,
        responses=refusals_of("/metrics") | text_reply("The metrics", "text/plain"),
    )
    async def prometheus_metrics() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    async def facts_of(slot: Slot, name: str = "") -> dict[str, Any]:
        """Facts about the model in *slot*, or about its adapter *name*."""
        parent = {"parent": slot.name} if name else {}
        facts: dict[str, Any] = parent | {
            "id": name or slot.name,
            "object": "model",
            "created": models.created,
            "owned_by": "bitnet",
            "status": {"value": slot.state},
            # As Anthropic's clients read it.
            "type": "model",
            "display_name": name or slot.name,
            "created_at": timestamp(models.created),
        }
        with suppress(BitnetError):  # the list has broken models, too: a request gets the error
            header = await slot.header()
            facts["context_length"] = header["context"]
            if header["writes"]:
                # RANDOM: temperature 1, the default of OpenAI's and Anthropic's addresses.
                default = with_defaults(models.defaults, max_tokens=EVERYTHING, **RANDOM)
                request = slot.fill_in(default).with_settings(header["generation"])
                facts["generation_defaults"] = request.sampling_facts()
        if slot.loaded:
            model = slot.model
            ignored = list(model.ignored_keys)
            facts |= {"backend": model.backend} | ({"ignored_keys": ignored} if ignored else {})
        return facts

    @app.get("/models", include_in_schema=False)
    @app.get(
        "/v1/models",
        tags=["OpenAI"],
        summary="The models",
        responses=refusals_of("/v1/models"),
    )
    async def list_models() -> dict[str, Any]:
        slots = models.slots.values()
        data = [await facts_of(slot, name) for slot in slots for name in ("", *slot.adapters)]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
        return {"object": "list", "data": data, "has_more": False, **ends}

    @app.get(
        "/v1/models/{name:path}",
        tags=["OpenAI"],
        summary="A model, by its name",
        responses=refusals_of("/v1/models", 404),
    )
    async def model(name: str) -> dict[str, Any]:
        slot = models.find(name, exactly=True)
        return await facts_of(slot, slot.adapter(name))


def _add_error_handlers(app: FastAPI) -> None:
    """Return every error in the form of the address's dialect, without a traceback."""

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        return from_error(error).response(request.url.path)

    for kind in (Refused, BitnetError, Exception):
        app.add_exception_handler(kind, refuse)

    @app.exception_handler(HTTPException)
    async def refuse_route(request: Request, error: HTTPException) -> JSONResponse:
        refusal = Refused(error.status_code, str(error.detail))
        return refusal.response(request.url.path, error.headers)


# --- facts about the worker, as llama.cpp's server and Ollama report them ------------------------


@_llama_server.get(
    "/props",
    summary="Facts about a model, which is loaded for this",
    responses=refusals_of("/props", 404, 503, 504),
)
async def props(request: Request, model: str | None = None) -> dict[str, Any]:
    """Chat template, context length and number of slots."""
    slot = await open_slot(request, model)
    tokenizer = slot.model.tokenizer
    default = with_defaults(request.app.state.models.defaults, **DEFAULTS)
    params = slot.fill_in(default).with_settings(slot.model.generation).sampling._asdict()

    def text(token: int | None) -> str:
        return "" if token is None else tokenizer.token_bytes(token).decode("utf-8", "replace")

    return {
        "default_generation_settings": {"n_ctx": slot.model.context, "params": params},
        "total_slots": request.app.state.models.max_batch,
        "model_alias": slot.name,
        "model_path": slot.model.path.name,
        "chat_template": tokenizer.chat_template or "",
        "bos_token": text(tokenizer.bos_id),
        "eos_token": text(tokenizer.eos_id),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"bitnet {__version__}",
    }


@_llama_server.get(
    "/slots",
    summary="How many answers are being written",
    responses=refusals_of("/slots", 404),
)
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


@_llama_server.get(
    "/health",
    summary="Whether requests are taken, as llama.cpp's server says it",
    responses=refusals_of("/health", 503),
)
async def health(request: Request) -> JSONResponse:
    """``ok``, or status 503."""
    models: Models = request.app.state.models
    if not (models.dead or models.draining):
        return JSONResponse({"status": "ok"})
    raise Refused(503, "the worker is stopping", kind="unavailable_error", retry_after_s=5)


@_ollama.get(
    "/tags", summary="The models, as Ollama lists them", responses=refusals_of("/api/tags")
)
async def tags(request: Request) -> dict[str, Any]:
    """Names, sizes and kinds of the models."""
    models: Models = request.app.state.models
    return {"models": [await _describe_model(slot) for slot in models.slots.values()]}


@_ollama.get(
    "/ps",
    summary="The models that are loaded, as Ollama lists them",
    responses=refusals_of("/api/ps"),
)
async def running(request: Request) -> dict[str, Any]:
    """As ``/api/tags``, with the time at which each is unloaded if no request uses it."""
    models: Models = request.app.state.models
    listing = []
    for slot in models.slots.values():
        if slot.loaded:
            until = slot.expires_at
            expires = NEVER if until is None else timestamp(until)
            context = slot.model.context
            usage = {"size_vram": 0, "expires_at": expires, "context_length": context}
            listing.append(await _describe_model(slot) | usage)
    return {"models": listing}


@_ollama.post(
    "/show",
    summary="A model, as Ollama describes it",
    openapi_extra=describe_body(SHOW),
    responses=refusals_of("/api/show", 400, 404, 408, 413, 415),
)
async def show(request: Request) -> dict[str, Any]:
    """The chat template, kind and capabilities of a model, which is not loaded for this."""
    body = await body_of(request, SHOW)
    slot: Slot = request.app.state.models.find(body["model"] or body["name"] or "", exactly=True)
    facts = await slot.header()
    listed = await _describe_model(slot)
    name = facts["architecture"]
    return {
        "template": facts["template"],
        "details": listed["details"],
        "modified_at": listed["modified_at"],
        "model_info": {
            "general.architecture": name,
            f"{name}.context_length": facts["context"],
            f"{name}.embedding_length": facts["dim"],
        },
        "capabilities": _list_capabilities(facts),
    }


def _list_capabilities(facts: dict[str, Any]) -> list[str]:
    """Ollama's names of what a model can do, from the *facts* of its header.

    Models that write have vectors, too, but Ollama's client chats only with one that is not listed
    as one for embeddings.
    """
    if not facts["writes"]:
        return ["embedding"]
    has_template = bool(facts["template"])
    can_do = {
        "completion": True,
        "tools": has_template,
        "thinking": has_template and facts["reasons"],
        "insert": facts["fills"],
    }
    return [name for name, can in can_do.items() if can]


@_ollama.get(
    "/version", summary="The version of this worker", responses=refusals_of("/api/version")
)
async def version() -> dict[str, str]:
    """This program's version, in Ollama's form."""
    return {"version": __version__}


async def _describe_model(slot: Slot) -> dict[str, Any]:
    """Facts about the model of *slot*, as ``/api/tags`` lists them; few if its file is broken."""
    path = slot.path
    files = [path]
    details: dict[str, Any] = {"format": "gguf" if path.suffix == ".gguf" else "safetensors"}
    digest = ""
    with suppress(BitnetError):  # the list has broken models, too: a request gets the error
        facts = await slot.header()
        files = facts["files"]
        details |= {
            "parent_model": "",
            "family": facts["architecture"],
            "families": [facts["architecture"]],
            "parameter_size": parameter_size(facts["parameters"]),
            "quantization_level": facts["encoding"],
        }
        digest = await slot.digest()
    stats = []
    for file in files:
        with suppress(OSError):  # it is gone, or cannot be read any more
            stats.append(file.stat())
    return {
        "name": slot.name,
        "model": slot.name,
        "modified_at": timestamp(max((status.st_mtime for status in stats), default=0.0)),
        "size": sum(status.st_size for status in stats),
        "digest": digest,
        "details": details,
    }

"""The routes. Handlers parse, submit and format; they never touch the model."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from bitnet import __version__
from bitnet.errors import BitnetError
from bitnet.server import chat_routes, pages, text_routes
from bitnet.server.dialects import anthropic, llama_server, ollama, responses
from bitnet.server.faults import Refused, from_error, from_validation
from bitnet.server.guard import Guard
from bitnet.server.tracing import Traced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from bitnet.server.service import Service
    from bitnet.server.tracing import Tracing

__all__ = ["create_app"]


def create_app(
    service: Service,
    *,
    api_key: str = "",
    max_body: int = 1 << 20,
    local_only: bool = False,
    origins: Sequence[str] = (),
    access_log: bool = False,
    tracing: Tracing | None = None,
) -> FastAPI:
    """The application that serves *service*.

    Args:
        service: what the routes work with; its worker is started and stopped with the application.
        api_key: what clients must send; empty: nothing.
        max_body: bytes a request may have.
        local_only: refuse requests that name another host than this machine.
        origins: of web pages elsewhere that may call from a browser; ``*``: all.
        access_log: narrate every request.
        tracing: makes a span of each request that asks for an answer.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        service.metrics.watch(service.worker)
        yield
        service.worker.stop()

    app = FastAPI(
        title="bitnet",
        version=__version__,
        summary="One language model over HTTP, OpenAI-compatible",
        lifespan=lifespan,
        redoc_url=None,
        docs_url=None,  # the page comes from another host; /docs below does not
        openapi_url="/openapi.json",
    )
    app.state.service = service
    app.include_router(chat_routes.router)
    app.include_router(text_routes.router)
    app.include_router(pages.router)
    for dialect in (anthropic, llama_server, ollama, responses):
        app.include_router(dialect.router)
    _add_plain_routes(app, service)
    _add_error_handlers(app)
    app.add_middleware(
        Guard,
        metrics=service.metrics,
        narrate=service.narrate,
        api_key=api_key,
        max_body=max_body,
        local_only=local_only,
        origins=origins,
        access_log=access_log,
    )
    if origins:  # outside of the guard, so that a page can read why it was refused
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["X-Request-ID", "Retry-After"],
        )
    if tracing is not None:
        app.add_middleware(Traced, tracing=tracing)
    return app


def _add_plain_routes(app: FastAPI, service: Service) -> None:
    """Health, figures and the list of models."""

    @app.get("/health/live", tags=["health"], summary="Whether the process answers")
    async def live() -> JSONResponse:
        if service.worker.failure is None:
            return JSONResponse({"status": "alive"})
        return JSONResponse({"status": "dead", "reason": "the model's thread has ended"}, 503)

    @app.get("/health/ready", tags=["health"], summary="Whether requests are taken")
    async def ready() -> JSONResponse:
        worker = service.worker
        status = "draining" if worker.draining else "ready" if worker.alive else "stopped"
        facts = {"status": status, "model": service.name, "open": worker.open_jobs}
        return JSONResponse(facts, 200 if status == "ready" else 503)

    @app.get("/metrics", tags=["health"], summary="Figures for Prometheus")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    def model_facts() -> dict[str, Any]:
        ignored = service.model.ignored_keys
        said = {"ignored_keys": list(ignored)} if ignored else {}
        return said | {
            "id": service.name,
            "object": "model",
            "created": service.created,
            "owned_by": "bitnet",
            "context_length": service.model.context,
            "backend": service.model.backend,
        }

    @app.get("/v1/models", tags=["OpenAI"], summary="The model")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model_facts()]}

    @app.get("/v1/models/{name:path}", tags=["OpenAI"], summary="The model, by its name")
    async def model(name: str) -> dict[str, Any]:
        service.check_name(name)
        return model_facts()


def _add_error_handlers(app: FastAPI) -> None:
    """Every error in OpenAI's shape, none with a traceback."""

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        headers = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s else None
        return JSONResponse(error.body(request.url.path), error.status, headers=headers)

    @app.exception_handler(BitnetError)
    async def failed(request: Request, error: BitnetError) -> JSONResponse:
        return await refused(request, from_error(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        is_json = "json" in request.headers.get("content-type", "")
        return await refused(request, from_validation(error.errors(), error.body, is_json=is_json))

    @app.exception_handler(HTTPException)
    async def refused_by_router(request: Request, error: HTTPException) -> JSONResponse:
        body = Refused(error.status_code, str(error.detail)).body(request.url.path)
        return JSONResponse(body, error.status_code, headers=error.headers)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(from_error(error).body(request.url.path), 500)

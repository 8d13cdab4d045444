"""Ollama's ``/api/chat``, ``/api/generate``, ``/api/embed`` and its information routes.

Names are those of github.com/ollama/ollama/blob/main/docs/api.md, defaults those of its
``docs/modelfile.md``, except that the repetition penalty covers the whole text here.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from bitnet import __version__
from bitnet.errors import BitnetError
from bitnet.runtime.chat_form import finish_of, with_top
from bitnet.server.models import entry_of, service_of
from bitnet.server.prompts import check_size, made, sequences_of
from bitnet.server.refusals import Refused
from bitnet.server.shapes import MAX_MESSAGES, EmbeddingRequest, Message, Shape
from bitnet.server.streams import LINES, Exchange
from bitnet.server.text_routes import vectors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import Piece
    from bitnet.runtime.request import Request as ModelRequest
    from bitnet.runtime.sequence import Sequence
    from bitnet.server.entry import ServedModel
    from bitnet.server.models import Models
    from bitnet.server.service import Service

router = APIRouter(prefix="/api", tags=["Ollama"])

NANO = 10**9
MOST_SECONDS = 10 * 365 * 86_400  # longer is for ever
NEVER = "9999-12-31T23:59:59+00:00"
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_DURATION = re.compile(rf"(?P<sign>-?)(?P<parts>({_PART.pattern})*)", re.ASCII)
_DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
_OPTIONS = {
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    **{name: name for name in ("seed", "temperature", "top_k", "top_p", "min_p", "stop")},
    **{name: name for name in ("presence_penalty", "frequency_penalty")},
}
# Options for loading and running the model, without effect on an answer.
_RUNNING = {
    "numa", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "use_mmap", "use_mlock",
    "num_thread", "num_keep", "vocab_only", "logits_all", "embedding_only",
}  # fmt: skip
# Values that disable features which do not exist here.
_OFF = {"mirostat": (0,), "tfs_z": (1, 1.0), "typical_p": (1, 1.0), "penalize_newline": (True,)}


class _Asked(Shape):
    model: str
    format: str | dict[str, Any] | None = Field(None, description="json, or a JSON schema")
    options: dict[str, Any] | None = None
    stream: bool | None = Field(None, description="true by default")
    think: bool | str | None = Field(None, description="only false")
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    keep_alive: float | int | str | None = None


class OllamaChat(_Asked):
    """``/api/chat``."""

    messages: Annotated[list[Message], Field(max_length=MAX_MESSAGES)] = []  # noqa: RUF012
    tools: list[dict[str, Any]] | None = None


class OllamaGenerate(_Asked):
    """``/api/generate``."""

    prompt: str = ""
    system: str | None = None
    raw: bool | None = Field(None, description="continue the prompt as it is")
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[str] | None = None


class OllamaEmbed(Shape):
    """``/api/embed``."""

    model: str
    input: str | list[str]
    truncate: bool | None = Field(None, description="true by default: cut what is too long")
    options: dict[str, Any] | None = None
    keep_alive: float | int | str | None = None
    dimensions: int | None = None


class OllamaShow(Shape):
    """``/api/show``."""

    model: str
    verbose: bool | None = None


@router.post("/chat", summary="The next message of a conversation, as Ollama has it")
async def chat(body: OllamaChat, request: Request) -> Response:
    """Answer in the model's own chat template; JSON lines unless ``stream`` is false."""

    def said(text: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        return {"message": message | ({"tool_calls": calls} if calls else {})}

    is_empty = not body.messages
    return await _answered(body, request, _chat, said, is_empty=is_empty)


@router.post("/generate", summary="The answer to a prompt, as Ollama has it")
async def generate(body: OllamaGenerate, request: Request) -> Response:
    """Answer ``prompt`` in the model's chat template, or continue it if ``raw`` is true."""

    def said(text: str, _calls: list[dict[str, Any]]) -> dict[str, Any]:
        return {"response": text}

    return await _answered(body, request, _generate, said, is_empty=not body.prompt)


async def _answered(
    body: _Asked, request: Request, make: Any, said: Any, *, is_empty: bool
) -> Response:
    idle_s = _seconds(body.keep_alive)
    if is_empty and idle_s == 0:  # Ollama's way to unload a model
        request.app.state.models.keep(_entry(request, body.model), idle_s)
        facts = _head(body) | said("", []) | {"done": True, "done_reason": "unload"}
        return JSONResponse(facts)
    service = await _service(request, body.model, idle_s)
    if is_empty:  # Ollama's way to load a model
        facts = _head(body) | said("", []) | {"done": True, "done_reason": "load"}
        return JSONResponse(facts)
    exchange = Exchange(service, request, make, body, compiles=bool(body.format))
    if body.stream is False:
        (answer,) = await exchange.collect()
        logprobs = {"logprobs": [with_top(one) for one in answer.logprobs]}
        facts = _head(body) | said(answer.text, _calls(answer)) | _ended(answer)
        return JSONResponse(facts | (logprobs if body.logprobs else {}))

    def chunks(_index: int, piece: Piece, _answer: Answer) -> Iterator[Any]:
        if piece.text or piece.described:
            logprobs = {"logprobs": [with_top(piece.described)]} if piece.described else {}
            yield _head(body) | said(piece.text, []) | {"done": False} | logprobs

    def last(answers: list[Answer]) -> Iterator[Any]:
        # Calls are sent complete: Ollama's are objects, and part of one is not an object.
        for call in _calls(answers[0]):
            yield _head(body) | said("", [call]) | {"done": False}
        yield _head(body) | said("", []) | _ended(answers[0])

    return await exchange.stream(chunks, last, wire=LINES)


@router.post("/embed", summary="Vectors of texts, as Ollama has it")
async def embed(body: OllamaEmbed, request: Request) -> JSONResponse:
    """As ``/v1/embeddings``, in Ollama's form."""
    service = await _service(request, body.model, _seconds(body.keep_alive))
    _check_options(body.options or {}, service)
    texts = [body.input] if isinstance(body.input, str) else body.input
    given: list[Any] = texts
    if body.truncate is not False:
        ids_of = partial(service.model.embedding_ids, truncate=True)
        with service.worker.place():
            given = await service.worker.prepared(lambda: [*map(ids_of, texts)])
    asked = EmbeddingRequest(input=given, dimensions=body.dimensions)
    rows, counted = await vectors(asked, service, request)
    return JSONResponse(
        {
            "model": body.model,
            "embeddings": [row.tolist() for row in rows],
            "prompt_eval_count": counted,
        }
    )


@router.get("/tags", summary="The models, as Ollama lists them")
async def tags(request: Request) -> dict[str, Any]:
    """Names, sizes and kinds."""
    models: Models = request.app.state.models
    return {"models": [await _listed(entry) for entry in models.entries.values()]}


@router.get("/ps", summary="The models that are loaded, as Ollama lists them")
async def running(request: Request) -> dict[str, Any]:
    """As ``/api/tags``, with when each is unloaded if it is not used until then."""
    models: Models = request.app.state.models
    found = []
    for entry in models.entries.values():
        if entry.service is not None:
            until = entry.expires_at
            expires = NEVER if until is None else _time(until)
            context = entry.service.model.context
            more = {"size_vram": 0, "expires_at": expires, "context_length": context}
            found.append(await _listed(entry) | more)
    return {"models": found}


@router.post("/show", summary="A model, as Ollama describes it")
async def show(body: OllamaShow, request: Request) -> dict[str, Any]:
    """Its chat template, its kind and what it can; it is not loaded for that."""
    entry = _entry(request, body.model)
    facts, listed = await entry.facts(), await _listed(entry)
    can = ["completion", *(["tools"] if facts.template else [])] if facts.writes else []
    return {
        "template": facts.template,
        "details": listed["details"],
        "modified_at": listed["modified_at"],
        "model_info": {
            "general.architecture": facts.architecture,
            f"{facts.architecture}.context_length": facts.context,
            f"{facts.architecture}.embedding_length": facts.dim,
        },
        "capabilities": [*can, "embedding"],
    }


@router.get("/version", summary="The version of this worker")
async def version() -> dict[str, str]:
    """This program's version, in Ollama's form."""
    return {"version": __version__}


def _entry(request: Request, name: str) -> ServedModel:
    """The model *name*, whose tag may be left out.

    Raises:
        Refused: the model does not exist here.
    """
    return entry_of(request, name.removesuffix(":latest"))


async def _service(request: Request, name: str, idle_s: float | None) -> Service:
    """Service of the model *name*, which is kept for *idle_s* seconds after its last request.

    Raises:
        Refused: as :func:`bitnet.server.models.service_of`.
    """
    service = await service_of(request, name.removesuffix(":latest"))
    request.app.state.models.keep(_entry(request, name), idle_s)
    return service


def _seconds(keep_alive: float | str | None) -> float | None:
    """Seconds that *keep_alive* stands for: a number, or a text such as ``5m``; below 0: always.

    Raises:
        Refused: it is neither.
    """
    if keep_alive is None:
        return None
    text = str(keep_alive).strip()
    try:
        seconds = float(text)
    except ValueError:
        parts = _DURATION.fullmatch(text)
        if parts is None or not parts["parts"]:
            raise Refused(
                400, "keep_alive: expected seconds, or a duration such as 5m", param="keep_alive"
            ) from None
        found = _PART.findall(parts["parts"])
        seconds = sum(float(count) * _UNITS[unit] for count, unit in found)
        seconds = -seconds if parts["sign"] == "-" else seconds
    if seconds != seconds:
        raise Refused(400, "keep_alive is not a number", param="keep_alive")
    return seconds if 0 <= seconds <= MOST_SECONDS else float("inf")


def _chat(body: OllamaChat, service: Service) -> list[Sequence]:
    check_size("tools", body.tools)
    messages = [message.model_dump(exclude_none=True) for message in body.messages]
    for number, message in enumerate(messages):
        if message.pop("images", None):
            name = f"messages.{number}.images"
            raise Refused(400, f"{name}: only text is served", param=name)
    return _sequences(body, service, {"messages": messages, "tools": body.tools or None})


def _generate(body: OllamaGenerate, service: Service) -> list[Sequence]:
    for name in ("suffix", "template", "context", "images"):
        if getattr(body, name):
            raise Refused(400, f"{name} is not served", param=name)
    if body.raw or not service.model.tokenizer.chat_template:
        if body.system:
            raise Refused(400, "system: a raw prompt has no place for it", param="system")
        return _sequences(body, service, {"prompt": body.prompt})
    told = [{"role": "system", "content": body.system}] if body.system else []
    messages = [*told, {"role": "user", "content": body.prompt}]
    return _sequences(body, service, {"messages": messages})


def _sequences(body: _Asked, service: Service, asked: Mapping[str, Any]) -> list[Sequence]:
    options = body.options or {}
    _check_options(options, service)
    given = {own: options[name] for name, own in _OPTIONS.items() if name in options}
    if given.get("max_tokens") == -2:  # Ollama's word for as many as fit
        given["max_tokens"] = None
    translated = _with_logprobs(
        made(
            {**given, **asked, "json_schema": _schema(body.format)},
            names={own: f"options.{name}" for name, own in _OPTIONS.items()}
            | {"json_schema": "format"},
            **_DEFAULTS,
        ),
        body,
    )
    tokens = translated.max_tokens if given.get("max_tokens") not in (None, -1) else None
    return sequences_of(translated, service, tokens=tokens)


def _with_logprobs(translated: ModelRequest, body: _Asked) -> ModelRequest:
    if body.top_logprobs is not None and not body.logprobs:
        raise Refused(400, "top_logprobs is for logprobs: true", param="top_logprobs")
    if body.think not in (None, False):
        raise Refused(400, "think: only false is served", param="think")
    variables = {"enable_thinking": False} if body.think is False else None
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return replace(translated, logprobs=logprobs, template_variables=variables)


def _check_options(options: Mapping[str, Any], service: Service) -> None:
    for name, value in options.items():
        known = name in _OPTIONS or name in _RUNNING or value is None
        if name == "num_ctx" and isinstance(value, int):
            known = value <= service.model.context
            if not known:
                raise Refused(
                    400, f"options.num_ctx is {value:,}, the context holds "
                    f"{service.model.context:,}", param="options.num_ctx",
                )  # fmt: skip
        if not known and value not in _OFF.get(name, ()):
            name = f"options.{name[:80]}"
            raise Refused(400, f"{name} is not served", param=name)


def _schema(form: str | dict[str, Any] | None) -> Any:
    if isinstance(form, dict):
        check_size("format", form)
        return form
    if form not in (None, "", "json"):
        raise Refused(400, "format is neither json nor a JSON schema", param="format")
    return {"type": "object"} if form else None


def _now() -> str:
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def _head(body: _Asked) -> dict[str, Any]:
    return {"model": body.model, "created_at": _now()}


def _calls(answer: Answer) -> list[dict[str, Any]]:
    found = []
    for number, call in enumerate(answer.calls):
        if (arguments := call.parsed()) is not None:
            function = {"index": number, "name": call.name, "arguments": arguments}
            found.append({"id": call.id, "function": function})
    return found


def _ended(answer: Answer) -> dict[str, Any]:
    stats = answer.stats
    total = stats.tokenize_s + stats.prefill_s + stats.decode_s
    return {
        "done": True,
        "done_reason": finish_of(answer.finish_reason),
        "total_duration": int(total * NANO),
        "load_duration": 0,
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": int(stats.prefill_s * NANO),
        "eval_count": stats.tokens,
        "eval_duration": int(stats.decode_s * NANO),
    }


async def _listed(entry: ServedModel) -> dict[str, Any]:
    path = entry.source.path
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    stats = [one.stat() for one in files]
    form = "gguf" if path.suffix == ".gguf" else "safetensors"
    details: dict[str, Any] = {"format": form}
    with suppress(BitnetError):  # a broken one is said to be so when it is asked
        family = (await entry.facts()).architecture
        details |= {"family": family, "families": [family]}
    return {
        "name": entry.name,
        "model": entry.name,
        "modified_at": _time(max((one.st_mtime for one in stats), default=0.0)),
        "size": sum(one.st_size for one in stats),
        "details": details,
    }


def _time(since_epoch: float) -> str:
    return datetime.fromtimestamp(since_epoch, timezone.utc).isoformat()

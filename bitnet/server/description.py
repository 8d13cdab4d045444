"""Replies of an address, as the OpenAPI page describes them."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from bitnet.wire import anthropic, llama_server, ollama
from bitnet.wire.routes import dialect_of
from bitnet.wire.schemas import NULL, TEXT, WHOLE, Schema

if TYPE_CHECKING:
    from bitnet.wire.forms import Form

#: Statuses with which an address that takes a body refuses it, and when.
_REFUSALS = {
    400: "A field is wrong, unknown, or not served; the message names it",
    401: "The worker has a key, and the request does not",
    403: "A page of another origin, or another host, may not call this worker",
    404: "There is no such model",
    408: "The body did not arrive in time",
    413: "The body is too large",
    415: "The body is not sent as JSON",
    429: "The queue is full",
    431: "The headers are too large",
    500: "The answer failed",
    503: "The worker is stopping, or the model cannot be loaded now",
    504: "The answer was not ready in time",
}
_MAYBE_TEXT = {"anyOf": [TEXT, NULL]}
_OPENAI_ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": TEXT,
                "type": TEXT,
                "param": _MAYBE_TEXT,
                "code": _MAYBE_TEXT,
            },
            "required": ["message", "type", "param", "code"],
        },
    },
    "required": ["error"],
}
#: The form of an error in dialects that are not OpenAI's.
_ERRORS: dict[Any, Schema] = {
    anthropic: {
        "type": "object",
        "properties": {
            "type": TEXT,
            "error": {
                "type": "object",
                "properties": {"type": TEXT, "message": TEXT},
                "required": ["type", "message"],
            },
        },
        "required": ["type", "error"],
    },
    ollama: {"type": "object", "properties": {"error": TEXT}, "required": ["error"]},
    llama_server: {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {"code": WHOLE, "message": TEXT, "type": TEXT},
                "required": ["code", "message", "type"],
            },
        },
        "required": ["error"],
    },
}
_IGNORED_HEADER = {
    "bitnet-ignored": {
        "description": "Fields of the body that cannot change the answer of this model",
        "schema": TEXT,
    }
}

#: Statuses with which every address may refuse a request, also one without a body.
_OF_EVERY_ADDRESS = (401, 403, 431, 500)


def refusals_of(path: str, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """Replies of *path* with an error status: *statuses* and those of every address."""
    schema = _ERRORS.get(dialect_of(path), _OPENAI_ERROR)
    content = {"application/json": {"schema": schema}}
    return {
        status: {"description": _REFUSALS[status], "content": content}
        for status in sorted({*statuses, *_OF_EVERY_ADDRESS})
    }


def text_reply(about: str, media_type: str) -> dict[int | str, dict[str, Any]]:
    """The reply with status 200 of an address that sends text of *media_type*."""
    return {200: {"description": about, "content": {media_type: {"schema": TEXT}}}}


def without_validation(description: dict[str, Any]) -> dict[str, Any]:
    """The *description* of all addresses without FastAPI's own errors, which are never sent."""
    for operations in description["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    schemas = description.get("components", {}).get("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    return description


def replies_of(path: str, form: Form) -> dict[int | str, dict[str, Any]]:
    """Replies of *path*, which takes a body of *form*, by their status."""
    kinds: dict[str, dict[str, Schema]] = {"application/json": {"schema": {}}}
    if form.events is not None:
        streams = "application/x-ndjson" if dialect_of(path) is ollama else "text/event-stream"
        kinds[streams] = {"schema": {}}
    success = {"description": form.summary, "content": kinds, "headers": _IGNORED_HEADER}
    return {HTTPStatus.OK.value: success, **refusals_of(path, *_REFUSALS)}

"""Requests in OpenAI's form as our own, with the extensions of vLLM and llama.cpp's server."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.errors import UsageError
from bitnet.runtime.options import SAMPLING
from bitnet.runtime.request import Request

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "GRAMMARS",
    "chat_request",
    "grammar_of",
    "request_of",
    "schema_of",
    "texts_of",
]

# Fields that constrain the answer, besides response_format.
GRAMMARS = ("json_schema", "guided_json", "guided_regex", "guided_choice", "structured_outputs")
_SPECIAL = re.compile(r"[][\\.+*?()|{}^$#&~-]")  # of a regular expression
# Variables of a chat template that clients must not set.
_OURS = {
    "self", "messages", "tools", "documents", "bos_token", "eos_token", "add_generation_prompt",
}  # fmt: skip


def request_of(body: Mapping[str, Any], default: Request) -> Request:
    """Our request for *body*, without the prompt.

    Args:
        body: a chat or completion request; missing fields are ``None``.
        default: values of fields that *body* leaves out.

    Raises:
        UsageError: a value has the wrong type or is out of its range, or two contradict each other.
    """
    names = (*SAMPLING, "max_tokens", "min_tokens", "ignore_eos", "stop")
    given = {name: body.get(name) for name in names} | grammar_of(body)[1]
    if body.get("repeat_penalty") is not None:
        given["repetition_penalty"] = body["repeat_penalty"]
    if body.get("max_completion_tokens") is not None:
        given["max_tokens"] = body["max_completion_tokens"]
    return Request.from_mapping(given, default)


def chat_request(body: Mapping[str, Any], default: Request) -> Request:
    """Our request for *body*, a chat request whose messages are checked.

    Raises:
        UsageError: as :func:`request_of`, or a tool or a variable of the template is wrong.
    """
    variables = body.get("chat_template_kwargs")
    if wrong := _OURS.intersection(variables or ()):
        raise UsageError(f"{', '.join(sorted(wrong))} cannot be set", field="chat_template_kwargs")
    return replace(
        request_of(body, default),
        logprobs=(body.get("top_logprobs") or 0) if body.get("logprobs") else None,
        messages=body["messages"],
        tools=None if body.get("tool_choice") == "none" else body.get("tools"),
        tool_choice=body.get("tool_choice"),
        parallel_tool_calls=body.get("parallel_tool_calls") is not False,
        template_variables=variables,
    )


def texts_of(given: Any, field: str, *, at_most: int) -> list[str | list[int]]:
    """Texts in any of the four forms that OpenAI accepts.

    Args:
        given: a text, its ids, or a list of either.
        field: name of the field in the request, for errors.
        at_most: largest number of texts.

    Raises:
        UsageError: there are none, or too many.
    """
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [list(given)]
    if not 0 < len(given) <= at_most:
        raise UsageError(f"{len(given)} texts, expected 1 to {at_most}", field=field)
    return list(given)


def grammar_of(body: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The field of *body* that constrains the answer, and ``json_schema`` or ``regex``.

    Raises:
        UsageError: two such fields are given, or the form of one is unknown.
    """
    found: dict[str, tuple[str, Any]] = {}
    for name in GRAMMARS[:-1]:
        if (value := body.get(name)) is not None:
            kind = {"guided_regex": "regex", "guided_choice": "choice"}.get(name, "json_schema")
            found[name] = kind, value
    for name, value in (body.get(GRAMMARS[-1]) or {}).items():
        kinds = {"json": "json_schema", "json_object": "any", "regex": "regex", "choice": "choice"}
        if name not in kinds:
            name = f"structured_outputs.{name}"[:100]
            raise UsageError(f"{name} is not served", field=name)
        found[f"structured_outputs.{name}"] = kinds[name], value
    if (schema := schema_of(body.get("response_format"))) is not None:
        found["response_format"] = "json_schema", schema
    if len(found) > 1:
        raise UsageError(f"{' and '.join(found)} are both given", field=next(iter(found)))
    for name, (kind, value) in found.items():
        return name, _grammar(name, kind, value)
    return "", {}


def schema_of(form: Any, field: str = "response_format") -> dict[str, Any] | None:
    """Schema of the answer; ``None``: any text.

    Args:
        form: ``{"type": "text"}``, ``{"type": "json_object"}`` or a ``json_schema``, in the form
            of chats or of responses; ``None``: any text.
        field: name of the field, for errors.

    Raises:
        UsageError: it is none of them.
    """
    kind = "text" if form is None else form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        inside = "schema" if field == "text.format" else "json_schema.schema"
        holder = form if field == "text.format" else form.get("json_schema")
        schema = holder.get("schema") if isinstance(holder, dict) else None
        if isinstance(schema, dict):
            return schema
        raise UsageError(f"{field}.{inside} is not an object", field=f"{field}.{inside}")
    raise UsageError(f"{field} is none of text, json_object and json_schema", field=field)


def _grammar(name: str, kind: str, value: Any) -> dict[str, Any]:
    if kind == "any":
        return {"json_schema": {"type": "object"}} if value else {}
    if kind != "choice":
        return {kind: value}
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UsageError(f"{name} is not a list of texts", field=name)
    if not value:
        raise UsageError(f"{name} is empty", field=name)
    return {"regex": "|".join(_SPECIAL.sub(r"\\\g<0>", one) for one in value)}

"""The table of a request's fields, and forms of JSON objects that have them.

What a field means, its type, bounds and default are those of :class:`Request`. A form reads a body
up to its first error, which it names as the client wrote the field, and writes the OpenAPI page.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.base.options import range_text
from bitnet.runtime.request import (
    EVERYTHING,
    MAX_MESSAGES,
    MAX_STOPS,
    Request,
    check_value,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.piece import Piece

    #: Pieces of the answers to one body, each with the number of its answer, and that answer.
    Pieces = AsyncIterator[tuple[int, Piece, Answer]]
    Events = AsyncIterator[dict[str, Any]]
    Body = Mapping[str, Any]
    Default = Request | None  # what a body leaves out
    Served = LanguageModel | None  # the model that answers, where it is known

Schema = dict[str, Any]

DIALECTS = ("openai", "responses", "anthropic", "ollama", "llama_server")
#: The name of each field of a request in the dialects, in their order; empty: it has none there.
NAMES: dict[str, tuple[str, str, str, str, str]] = {
    "max_tokens": ("max_tokens", "max_output_tokens", "max_tokens", "num_predict", "n_predict"),
    "stop": ("stop", "", "stop_sequences", "stop", "stop"),
    "min_tokens": ("min_tokens", "", "", "", ""),
    "ignore_eos": ("ignore_eos", "", "", "", "ignore_eos"),
    "temperature": ("temperature",) * 5,
    "top_k": ("top_k", "", "top_k", "top_k", "top_k"),
    "top_p": ("top_p",) * 5,
    "min_p": ("min_p", "", "", "min_p", "min_p"),
    "repetition_penalty": ("repetition_penalty", "", "", "repeat_penalty", "repeat_penalty"),
    "frequency_penalty": ("frequency_penalty", "", "", "frequency_penalty", "frequency_penalty"),
    "presence_penalty": ("presence_penalty", "", "", "presence_penalty", "presence_penalty"),
    "seed": ("seed", "", "", "seed", "seed"),
    "logit_bias": ("logit_bias", "", "", "", "logit_bias"),
    "json_schema": ("json_schema", "text.format", "output_config.format", "format", "json_schema"),
    "messages": ("messages", "input", "messages", "messages", ""),
    "tools": ("tools", "tools", "tools", "tools", ""),
    "tool_choice": ("tool_choice", "tool_choice", "tool_choice", "", ""),
    "parallel_tool_calls": ("parallel_tool_calls", "parallel_tool_calls", "", "", ""),
    "prompt": ("prompt", "", "", "prompt", "prompt"),
    "thinking": ("", "", "thinking", "think", ""),
    "thinking_budget": ("thinking_token_budget", "", "thinking.budget_tokens", "", ""),
    "continue_final_message": ("continue_final_message", "", "", "", ""),
}

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
OBJECT: Schema = {"type": "object"}
NULL: Schema = {"type": "null"}
OBJECTS: Schema = {"type": "array", "items": OBJECT}
TEXTS: Schema = {"type": "array", "items": TEXT}
TOKEN_ID: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
STOPS: Schema = {"type": "array", "items": TEXT, "maxItems": MAX_STOPS}
TOP_LOGPROBS: Schema = {"type": "integer", "minimum": 0, "maximum": 20}  # as OpenAI has it
#: Texts in the four forms of OpenAI.
INPUTS: Schema = {
    "anyOf": [
        TEXT,
        TEXTS,
        {"type": "array", "items": TOKEN_ID},
        {"type": "array", "items": {"type": "array", "items": TOKEN_ID}},
    ]
}
MESSAGE: Schema = {
    "type": "object",
    "properties": {
        "role": {"type": "string", "minLength": 1, "maxLength": 64},
        "content": {"anyOf": [TEXT, OBJECTS, NULL]},
    },
    "required": ["role"],
}
MESSAGES: Schema = {"type": "array", "items": MESSAGE, "minItems": 1, "maxItems": MAX_MESSAGES}
TOOL_CHOICE: Schema = {
    "anyOf": [{"type": "string", "enum": ["none", "auto", "required"]}, OBJECT],
    "description": "none: the model is not told of the tools; required, or a function by its name: "
    "the answer is a call that follows the function's schema",
}
#: The types of a schema: those of their values, and how an error calls them.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "a text"), "integer": ((int,), "a whole number"),
    "number": ((int, float), "a number"), "boolean": ((bool,), "true or false"),
    "object": ((dict,), "a JSON object"), "array": ((list,), "a list"),
    "null": ((type(None),), "null"),
}  # fmt: skip
# Forms of the fields whose annotations are not numbers or flags.
_SHAPES: dict[str, Schema] = {
    "stop": {
        "anyOf": [TEXT, STOPS],
        "description": "texts that end the answer and are not part of it",
    },
    "logit_bias": {"type": "object", "additionalProperties": NUMBER},
    "json_schema": {"anyOf": [OBJECT, FLAG]},
    "messages": MESSAGES,
    "tools": OBJECTS,
    "tool_choice": TOOL_CHOICE,
}
_MINUS_ONE = {"max_tokens", "top_k", "seed"}  # -1: the default
_DEFAULT = "x-default-as"  # key of a schema: the number that stands for the default


def optional(*schemas: Schema, about: str = "") -> Schema:
    """A schema of values that follow one of *schemas*; a field may always be left out or null."""
    whole = dict(schemas[0]) if len(schemas) == 1 else {"anyOf": [*schemas]}
    return whole | ({"description": about} if about else {})


def schemas_by_name(dialect: str, *only: str, without: Iterable[str] = ()) -> dict[str, Schema]:
    """Schemas of request fields by their names in *dialect*: *only* some, or *without* some."""
    at = DIALECTS.index(dialect)
    chosen = only or tuple(name for name in NAMES if name not in without)
    return {NAMES[name][at]: _schema(name) for name in chosen if NAMES[name][at]}


def random(default: Request | None = None, /, **sampling: Any) -> Request:
    """*default*, else a request of any length, with a dialect's defaults of sampling."""
    return replace(default or Request(max_tokens=EVERYTHING), **sampling)


def without_nulls(messages: Iterable[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """*messages* without entries that are null, of which some templates would write the word."""
    entries = [message.items() for message in messages or ()]
    return [{name: value for name, value in each if value is not None} for each in entries]


def _schema(name: str) -> Schema:
    """Schema of the request's field *name*, by its declaration."""
    entry = Request.__dataclass_fields__[name]
    whole = dict(_SHAPES.get(name) or {"type": _kind(str(entry.type))})
    low, high = entry.metadata.get("bounds") or (None, None)
    if whole.get("type") in ("integer", "number") and low is not None:
        whole |= {"minimum": low} | ({} if high is None else {"maximum": high})
    about = entry.metadata.get("help", "")
    if name in _MINUS_ONE:
        whole[_DEFAULT], about = -1, f"{about}; -1: the default"
    if about and "description" not in whole:
        whole["description"] = about
    return whole


def _kind(annotation: str) -> str:
    kinds = {"int": "integer", "float": "number", "bool": "boolean"}
    return kinds.get(annotation.partition(" ")[0], "string")


#: Schemas of the fields of a request by their own names, for rows of a batch.
ROW: dict[str, Schema] = {
    **{name: _schema(name) for name in NAMES},
    **{name: _schema(name) for name in ("lookup", "logprobs", "regex")},
    "prompt": optional(TEXT, {"type": "array", "items": TOKEN_ID}),
    "json_schema": optional(OBJECT, FLAG, TEXT),
}


def read_json(raw: bytes | str) -> Any:
    """The JSON value *raw*; an object that has a key twice is refused, since one would be lost."""
    try:
        return json.loads(raw, object_pairs_hook=_object_of)
    except RecursionError:
        raise UsageError("the body is nested too deep") from None
    except ValueError as error:
        reason = getattr(error, "msg", str(error)).removesuffix(" at")
        place = getattr(error, "pos", None)
        at = "" if place is None else f" at character {place:,}"
        raise UsageError(f"the body is not JSON: {reason}{at}") from None


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object with *pairs* of keys and values."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                label = name[:80].encode(errors="replace").decode()
                raise UsageError(f"{label}: the body has this key twice", field=label)
            names.add(name)
    return entries


def _refuse_to_answer(*_: Any) -> Any:
    """Of a form whose address does not answer so."""
    raise AssertionError


@dataclass(frozen=True)
class Form:
    """The JSON object that an address takes, and what it is answered."""

    name: str  # on the OpenAPI page
    fields: Mapping[str, Schema]  # one that is missing or null is None when it is read
    required: tuple[str, ...] = ()
    idle: Mapping[str, Schema] | None = None  # fields without effect on the answer
    unserved: tuple[str, ...] = ()  # fields that are refused by name unless they are empty
    dialect: str = "openai"  # whose names its fields have
    prefix: str = ""  # that stands before those names in errors
    #: The requests of a body to a model, one for each prompt; a default has what it leaves out.
    requests: Callable[[Body, Request, LanguageModel | None], list[Request]] = _refuse_to_answer
    #: The whole reply to a body by its answers, each part of which begins with given fields.
    reply: Callable[[Body, Body, Sequence[Answer]], Any] = _refuse_to_answer
    events: Callable[[Body, Body, Pieces], Events] | None = None  # the same as events
    compute: Callable[[Body, LanguageModel], Any] = _refuse_to_answer  # a reply without answers
    loads: str = ""  # field without which the model is only loaded, or unloaded
    head: tuple[str, ...] = ("id", "created", "model")  # fields with which a reply begins
    id_prefix: str = ""  # that the id of a reply begins with
    #: Other fields that set a field of a request, by the name of that one.
    setters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tokens: int = EVERYTHING  # most tokens of an answer whose body does not say it
    tag: str = ""  # API that the address belongs to
    summary: str = ""  # what comes back, for the OpenAPI page
    aliases: tuple[str, ...] = ()  # other addresses for it

    def parse(self, raw: bytes) -> dict[str, Any]:
        """The fields of the body *raw*."""
        if not raw:
            raise UsageError("the request has no body")
        return self.read(read_json(raw))

    def read(self, body: Any) -> dict[str, Any]:
        """All fields of *body*, those that it leaves out as ``None``."""
        if not isinstance(body, dict):
            raise UsageError("expected a JSON object")
        for name in self.required:
            if body.get(name) is None:
                raise UsageError(f"{name}: this field is required", field=name)
        for name, value in body.items():
            schema = self._schemas.get(name)
            if schema is None:
                self._refuse_unknown(name, value)
                continue
            if value is None:
                continue
            check_value(name, value, nul=True)  # where there may be none, the request says so
            if problem := _problem(schema, value, (name,)):
                place, reason = problem
                where = ".".join(map(str, place))[:200]
                colon = "" if reason.startswith("is ") else ":"
                raise UsageError(f"{where}{colon} {reason}", field=where)
        return {name: body.get(name) for name in self._schemas}

    @cached_property
    def _schemas(self) -> dict[str, Schema]:
        return {**self.fields, **(self.idle or {})}

    def _refuse_unknown(self, name: str, value: Any) -> None:
        label = name[:200].encode(errors="replace").decode()
        if name not in self.unserved:
            raise UsageError(
                f"{label}: this field is not known here, and nothing is ignored", field=label
            )
        if isinstance(value, dict):  # clients send objects without values
            value = [entry for entry in value.values() if entry is not None]
        if value not in (None, "", [], False):
            raise UsageError(f"{label} is not served", field=label)

    def openapi(self) -> Schema:
        """This form as a JSON schema."""
        properties = {
            name: schema
            if name in self.required
            else {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}
            | {key: schema[key] for key in ("description",) if key in schema}
            for name, schema in self._schemas.items()
        }
        return {
            "title": self.name,
            "type": "object",
            "properties": properties,
            "required": [*self.required],
            "additionalProperties": False,
        }

    def rename(self, error: UsageError, body: Body | None = None) -> UsageError:
        """*error* about a field of a request, with the name that clients of this form gave it.

        A *body* says by which one of several fields it was set.
        """
        own = error.field
        if body is not None and body.get(own) is None:
            for setter in self.setters.get(own, ()):
                if body.get(setter) is not None:
                    return _with_name(error, setter)
        if own in NAMES and (there := NAMES[own][DIALECTS.index(self.dialect)]):
            own = there if there in self._schemas else f"{self.prefix}{there}"
        return error if own == error.field else _with_name(error, own)


def _with_name(error: UsageError, name: str) -> UsageError:
    """*error* about the field that a client calls *name*."""
    message = error.message.replace(error.field, name, 1)
    return UsageError(message, hint=error.hint, field=name)


_Place = tuple[str | int, ...]
_Problem = tuple[_Place, str]


def _problem(schema: Schema, value: Any, place: _Place) -> _Problem | None:
    """The first place where *value*, which is at *place*, does not follow *schema*, and why."""
    if "anyOf" in schema:
        return _problem_of_all(schema["anyOf"], value, place)
    if not _has_type(schema, value):
        return place, f"expected {_KINDS[schema['type']][1]}"
    check = _CHECKS.get(schema["type"])
    return check(schema, value, place) if check else None


def _problem_of_all(schemas: Sequence[Schema], value: Any, place: _Place) -> _Problem | None:
    """The problem of *value* with the one of *schemas* that it follows furthest."""
    problems = []
    for schema in schemas:
        if _has_type(schema, value):
            problem = _problem(schema, value, place)
            if problem is None:
                return None
            problems.append(problem)
    if problems:
        # A number out of its bounds says more than a type that another schema expects there.
        return max(problems, key=lambda problem: (len(problem[0]), problem[1][:3] == "is "))
    kinds = dict.fromkeys(schema["type"] for schema in schemas)
    words = [_KINDS[kind][1] for kind in kinds if kind != "null"]
    return place, f"expected {' or '.join(words)}"


def _has_type(schema: Schema, value: Any) -> bool:
    """True if *value* has the type of *schema*."""
    kind = schema["type"]
    return isinstance(value, _KINDS[kind][0]) and (kind == "boolean" or type(value) is not bool)


def _text_problem(schema: Schema, value: str, place: _Place) -> _Problem | None:
    if "enum" in schema and value not in schema["enum"]:
        return place, f"expected one of {', '.join(schema['enum'])}"
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if len(value) < low or (high is not None and len(value) > high):
        return place, f"expected {low:,} to {high:,} characters"
    return None


def _bounds_problem(schema: Schema, value: float, place: _Place) -> _Problem | None:
    if value == schema.get(_DEFAULT):
        return None
    low, high = schema.get("minimum"), schema.get("maximum")
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        return place, f"is {str(value)[:40]}, expected {range_text(low or 0, high)}"
    return None


def _list_problem(schema: Schema, value: list[Any], place: _Place) -> _Problem | None:
    low, high = schema.get("minItems", 0), schema.get("maxItems")
    if len(value) < low:
        return place, f"expected at least {low:,}"
    if high is not None and len(value) > high:
        return place, f"{len(value):,} entries, expected at most {high:,}"
    items = schema["items"]
    if items == TEXT and set(map(type, value)) <= {str}:
        return None
    if items == TOKEN_ID and set(map(type, value)) == {int}:
        value = [token for token in (min(value), max(value)) if not 0 <= token < 2**31] and value
    problems = (_problem(items, entry, (*place, at)) for at, entry in enumerate(value))
    return next((problem for problem in problems if problem), None)


def _object_problem(schema: Schema, value: dict[str, Any], place: _Place) -> _Problem | None:
    for name in schema.get("required", ()):
        if name not in value:
            return (*place, name), "this field is required"
    own, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, inner in value.items():
        at = (*place, name[:80])
        if name in own:
            if problem := _problem(own[name], inner, at):
                return problem
        elif others is False:
            return at, "this field is not known here, and nothing is ignored"
        elif others and (problem := _problem(others, inner, at)):
            return problem
    return None


_CHECKS: dict[str, Callable[[Schema, Any, _Place], _Problem | None]] = {
    "string": _text_problem, "integer": _bounds_problem, "number": _bounds_problem,
    "array": _list_problem, "object": _object_problem,
}  # fmt: skip

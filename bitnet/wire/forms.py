"""Forms: the JSON object that an address takes, read up to its first error.

A field of a form is supported, refused by name, or accepted without effect on the answer; its
schema says which.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from bitnet.base.errors import UsageError
from bitnet.base.trust import encodable
from bitnet.runtime.request import EVERYTHING, Request
from bitnet.runtime.request_checks import check_value
from bitnet.wire.fields import DIALECTS, NAMES
from bitnet.wire.schemas import (
    IGNORED,
    NULL,
    REFUSED,
    Problem,
    Schema,
    find_ignored,
    find_problem,
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
    Default = Request | None  # supplies what a body leaves out
    Served = LanguageModel | None  # the model that answers, if it is known
    #: What a body has its model do, and the seconds without a request after which the model may be
    #: unloaded; None: the body says nothing about that.
    ModelUse = tuple[Literal["answer", "load", "unload"], float | None]


#: A message of a request, as the field of an error.
MESSAGE = re.compile(r"messages\.(\d+)")


def read_json(raw: bytes | str) -> Any:
    """The JSON value *raw*.

    An object that has a key twice is refused, since one would be lost; so is a number that JSON
    cannot write again: ``NaN``, ``Infinity``, or one beyond the range of a float.
    """
    try:
        return json.loads(
            raw,
            object_pairs_hook=_object_of,
            parse_float=_finite_float,
            parse_constant=_refuse_constant,
        )
    except RecursionError:
        raise UsageError("the body is nested too deep") from None
    except ValueError as error:
        # A UnicodeDecodeError has no ``msg``; some messages of JSONDecodeError end with "at".
        reason = getattr(error, "msg", str(error)).removesuffix(" at")
        offset = getattr(error, "pos", None)
        at = "" if offset is None else f" at character {offset:,}"
        raise UsageError(f"the body is not JSON: {reason}{at}") from None


def check_entries(value: Mapping[str, Any], schemas: Mapping[str, Schema], where: str) -> None:
    """Refuse entries of *value*, which is at *where*, that *schemas* does not name."""
    schema = {"type": "object", "properties": schemas, "additionalProperties": False}
    if problem := find_problem(schema, value, (where,)):
        raise _refusal(problem)


def _refusal(problem: Problem) -> UsageError:
    """Error for *problem*: ``top_p is 2, expected ...`` or ``top_p: expected ...``."""
    field = encodable(".".join(map(str, problem.place))[:200])
    colon = "" if problem.text.startswith("is ") else ":"
    return UsageError(f"{field}{colon} {problem.text}", field=field)


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object with *pairs* of keys and values; a key that comes twice is refused."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                label = encodable(name[:80])
                raise UsageError(f"{label}: the body has this key twice", field=label)
            names.add(name)
    return entries


def _finite_float(text: str) -> float:
    """The number *text*; one that a float cannot hold is refused."""
    number = float(text)
    if math.isinf(number):
        raise UsageError(f"the body is not JSON that can be read: {text[:40]} is out of range")
    return number


def _refuse_constant(name: str) -> Any:
    """Refuse the constant *name*, which Python's reader accepts."""
    raise UsageError(f"the body is not JSON: {name} is not a value of JSON")


def no_requests(*_: Any) -> list[Request]:
    """The requests of a body whose reply is computed from its own fields."""
    return []


def _refuse_to_answer(*_: Any) -> Any:
    """Stand in for a function of a form whose address never calls it."""
    raise AssertionError


def answer_only(_: Body) -> ModelUse:
    """Use of the model by a body that cannot load or unload it."""
    return "answer", None


@dataclass(frozen=True)
class Form:
    """The JSON object that an address takes, and the functions that make the reply to it."""

    name: str  # on the OpenAPI page
    fields: Mapping[str, Schema]  # one that is missing or null is read as None
    required: tuple[str, ...] = ()
    # a name in DIALECTS, whose names the fields have; the form of errors follows the path
    dialect: str = "openai"
    prefix: str = ""  # in errors, before fields inside an object of the body: ``options.``
    #: Names of the fields in a body without effect on the answer of the model, if it is known;
    #: those whose schema says so are not among them.
    ignores: Callable[[Body, LanguageModel | None], Iterable[str]] | None = None
    #: The requests of a body to a model, one for each prompt; a default supplies missing fields.
    requests: Callable[[Body, Request, LanguageModel | None], list[Request]] = _refuse_to_answer
    #: The reply to a body, from the fields that it begins with (:attr:`head`) and the answers.
    reply: Callable[[Body, Body, Sequence[Answer]], Any] = _refuse_to_answer
    events: Callable[[Body, Body, Pieces], Events] | None = None  # the reply as a stream
    #: How events are written: ``openai`` (with a last line), ``named``, ``unnamed``, ``lines``.
    stream: str = "openai"
    #: The reply of an address that generates nothing, from a body, its requests (:attr:`requests`
    #: may make none) and the model.
    compute: Callable[[Body, Sequence[Request], LanguageModel], Any] = _refuse_to_answer
    #: For each message of the request, its path in the body; default: ``messages.N``.
    places: Callable[[Body], list[str]] | None = None
    clamps: bool = False  # a token limit that exceeds what is left is lowered, not refused
    model_use: Callable[[Body], ModelUse] = answer_only  # what a body wants the model to do
    empty_reply: Callable[[Body, str], Any] = _refuse_to_answer  # to a body that only (un)loads
    head: tuple[str, ...] = ("id", "created", "model")  # fields with which a reply begins
    id_prefix: str = ""  # of the id of a reply
    #: For a field of the request, other fields of the body that set it.
    setters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tokens: int = EVERYTHING  # most tokens of an answer if the body sets no limit
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
            if value is None:
                continue  # clients send all fields that they know
            schema = self.fields.get(name)
            if schema is None:
                self._refuse_unknown(name)
                continue
            check_value(name, value, nul=True)  # Request.check refuses NUL where it must not be
            if problem := find_problem(schema, value, (name,)):
                raise _refusal(problem)
        return {name: body.get(name) for name in self.fields}

    def list_ignored(self, body: Body, model: LanguageModel | None = None) -> list[str]:
        """Names of the fields in *body* without effect on the answer of *model*, each once."""
        names: dict[str, None] = {}
        for name, schema in self.fields.items():
            names |= dict.fromkeys(find_ignored(schema, body.get(name), name))
        if self.ignores is not None:
            names |= dict.fromkeys(self.ignores(body, model))
        return [*names]

    def _refuse_unknown(self, name: str) -> None:
        """Refuse the field *name*, with a hint at a similar one."""
        label = encodable(name[:200])
        near = get_close_matches(name[:200], self.fields, 1)
        raise UsageError(
            f"{label}: this field is not known here",
            hint=f"did you mean {near[0]}?" if near else "leave it out",
            field=label,
        )

    def openapi(self) -> Schema:
        """This form as a JSON schema; fields that are refused are listed by themselves."""
        properties = {
            name: schema if name in self.required else _or_null(schema)
            for name, schema in self.fields.items()
            if REFUSED not in schema
        }
        return {
            "title": self.name,
            "type": "object",
            "properties": properties,
            "required": [*self.required],
            "additionalProperties": False,
            REFUSED: [name for name, schema in self.fields.items() if REFUSED in schema],
        }

    def rename(self, error: UsageError, body: Body | None = None) -> UsageError:
        """*error* about a field of a request, under the name of that field in this form.

        If several fields of the form can set it, *body* decides which of them is meant.
        """
        field_name = error.field
        match = MESSAGE.match(field_name)
        if match and self.places is not None and body is not None:
            try:
                places = self.places(body)
            except UsageError:  # no message was made of the body: the error names its own entry
                return error
            number = int(match[1])
            return with_name(error, places[number]) if number < len(places) else error
        if body is not None and body.get(field_name) is None:
            for setter in self.setters.get(field_name, ()):
                if body.get(setter) is not None:
                    return with_name(error, setter)
        names = NAMES.get(field_name)
        own_name = names[DIALECTS.index(self.dialect)] if names else ""
        if own_name:
            field_name = own_name if own_name in self.fields else f"{self.prefix}{own_name}"
        return error if field_name == error.field else with_name(error, field_name)


def _or_null(schema: Schema) -> Schema:
    """*schema* for a field that may also be null, with the same description."""
    notes = {key: schema[key] for key in ("description", IGNORED) if key in schema}
    return {"anyOf": [*schema.get("anyOf", [schema]), NULL]} | notes


def with_name(error: UsageError, name: str) -> UsageError:
    """*error* with *name*, under which clients know its field, also in the message."""
    message = error.message.replace(error.field, name, 1)
    return UsageError(message, hint=error.hint, field=name)

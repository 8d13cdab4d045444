"""Forms: the JSON object that an address takes, read up to its first error.

A field of a form is done, refused by name, or cannot change an answer; its schema says which.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from bitnet.base.errors import UsageError
from bitnet.base.trust import encodable
from bitnet.runtime.request import EVERYTHING, Request
from bitnet.runtime.request_checks import check_value
from bitnet.wire.fields import DIALECTS, NAMES
from bitnet.wire.schemas import IGNORED, REFUSED, Problem, Schema, find_ignored, find_problem

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
    #: What a body has its model do, and the seconds without a request after which the model may be
    #: unloaded; None: those of the worker.
    ModelUse = tuple[Literal["answer", "load", "unload"], float | None]


_MESSAGE = re.compile(r"messages\.(\d+)")


def read_json(raw: bytes | str) -> Any:
    """The JSON value *raw*; an object that has a key twice is refused, since one would be lost."""
    try:
        return json.loads(raw, object_pairs_hook=_object_of)
    except RecursionError:
        raise UsageError("the body is nested too deep") from None
    except ValueError as error:
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
    field = encodable(".".join(map(str, problem.place))[:200])
    colon = "" if problem.text.startswith("is ") else ":"
    return UsageError(f"{field}{colon} {problem.text}", field=field)


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object with *pairs* of keys and values."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                label = encodable(name[:80])
                raise UsageError(f"{label}: the body has this key twice", field=label)
            names.add(name)
    return entries


def _refuse_to_answer(*_: Any) -> Any:
    """Stand in for a function of a form whose address never calls it."""
    raise AssertionError


def answer_only(_: Body) -> ModelUse:
    """Use of the model by a body whose dialect has no fields for it."""
    return "answer", None


@dataclass(frozen=True)
class Form:
    """The JSON object that an address takes, and what it is answered."""

    name: str  # on the OpenAPI page
    fields: Mapping[str, Schema]  # one that is missing or null is None when it is read
    required: tuple[str, ...] = ()
    dialect: str = "openai"  # whose names its fields have
    prefix: str = ""  # that stands before those names in errors
    #: Names of further fields in a body that cannot change the answer of a model, if it is known.
    ignores: Callable[[Body, LanguageModel | None], Iterable[str]] | None = None
    #: The requests of a body to a model, one for each prompt; a default has what it leaves out.
    requests: Callable[[Body, Request, LanguageModel | None], list[Request]] = _refuse_to_answer
    #: The whole reply to a body by its answers, each part of which begins with given fields.
    reply: Callable[[Body, Body, Sequence[Answer]], Any] = _refuse_to_answer
    events: Callable[[Body, Body, Pieces], Events] | None = None  # the same as events
    #: How events are written: ``openai`` (with a last line), ``named``, ``unnamed``, ``lines``.
    stream: str = "openai"
    compute: Callable[[Body, LanguageModel], Any] = _refuse_to_answer  # a reply without answers
    #: Places in a body of the messages of its request, where they are not ``messages.N``.
    places: Callable[[Body], list[str]] | None = None
    clamps: bool = False  # more tokens than there is room for are as many as there is room for
    use: Callable[[Body], ModelUse] = answer_only  # of the model, by a body
    empty_reply: Callable[[Body, str], Any] = _refuse_to_answer  # once it is loaded or unloaded
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
            if value is None:
                continue  # clients send all fields that they know
            schema = self.fields.get(name)
            if schema is None:
                self._refuse_unknown(name)
                continue
            check_value(name, value, nul=True)  # where there may be none, the request says so
            if problem := find_problem(schema, value, (name,)):
                raise _refusal(problem)
        return {name: body.get(name) for name in self.fields}

    def list_ignored(self, body: Body, model: LanguageModel | None = None) -> list[str]:
        """Names of the fields in *body* that cannot change the answer of *model*, each once."""
        names: dict[str, None] = {}
        for name, schema in self.fields.items():
            names |= dict.fromkeys(find_ignored(schema, body.get(name), name))
        if self.ignores is not None:
            names |= dict.fromkeys(self.ignores(body, model))
        return [*names]

    def _refuse_unknown(self, name: str) -> None:
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
            name: schema
            if name in self.required
            else {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}
            | {key: schema[key] for key in ("description", IGNORED) if key in schema}
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
        """*error* about a field of a request, with the name that clients of this form gave it.

        A *body* says by which one of several fields it was set.
        """
        own = error.field
        match = _MESSAGE.match(own)
        if match and self.places is not None and body is not None:
            places = self.places(body)
            number = int(match[1])
            return _with_name(error, places[number]) if number < len(places) else error
        if body is not None and body.get(own) is None:
            for setter in self.setters.get(own, ()):
                if body.get(setter) is not None:
                    return _with_name(error, setter)
        names = NAMES.get(own)
        own_name = names[DIALECTS.index(self.dialect)] if names else ""
        if own_name:
            own = own_name if own_name in self.fields else f"{self.prefix}{own_name}"
        return error if own == error.field else _with_name(error, own)


def _with_name(error: UsageError, name: str) -> UsageError:
    """*error* about the field that a client calls *name*."""
    message = error.message.replace(error.field, name, 1)
    return UsageError(message, hint=error.hint, field=name)

"""Bounds of a request's values: one check for every door, before anything is tokenized or compiled.

A value that passes can be encoded as UTF-8, walked recursively and compiled: grammars of the
largest schemas here were measured on a stack of :data:`STACK_BYTES`, in time and in depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check_schema", "check_text", "check_value"]

MAX_MESSAGES = 4096
MAX_STOPS = 16  # each is searched for at every token
MAX_BIASES = 1024
MAX_DEPTH = 100  # of JSON; the grammar library reads 127
MAX_GRAMMAR = 1 << 18  # characters of a schema or a regular expression
MAX_PROPERTIES = 4096  # of all objects of a schema; compile time grows with their square
MAX_REFERENCES = 512  # definitions that a schema refers to; each may be a level of the next one
MAX_REPEATS = 4096  # of all patterns; compile time grows with their square
STACK_BYTES = 1 << 29  # twice what the deepest schema within these bounds needs; reserved only


def check_text(name: str, text: str, *, field: str = "", nul: bool = False) -> None:
    """Check that *text* is text: no half of a surrogate pair, no NUL unless *nul*.

    Raises:
        UsageError: it is not; names *name*, and *field* if that is another one.
    """
    field = field or name
    if "\0" in text and not nul:
        raise UsageError(
            f"{name} has a NUL character at position {text.index(chr(0)):,}",
            hint="pass text, not a binary file",
            field=field,
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name} has half a surrogate pair at position {error.start:,}, which is not text",
            field=field,
        ) from None


def check_value(name: str, value: Any, *, nul: bool = False) -> None:
    """Check the texts in *value*, as JSON has it, and how deep it is nested.

    Raises:
        UsageError: a text is not text, or it is too deep; names the field *name*.
    """
    for part, depth in _parts(value):
        if depth > MAX_DEPTH:
            raise UsageError(f"{name} is nested more than {MAX_DEPTH} deep", field=name)
        if isinstance(part, str):
            check_text(name, part, nul=nul)


def check_schema(name: str, value: Any) -> None:
    """Check the size of *value*, schemas or a regular expression that become a grammar.

    Raises:
        UsageError: it is too large to be compiled; names the field *name*.
    """
    check_value(name, value)
    characters = properties = repeats = 0
    references = set()
    for part, _ in _parts({"pattern": value} if isinstance(value, str) else value):
        characters += len(part) + 4 if isinstance(part, str) else 4
        if not isinstance(part, Mapping):
            continue
        own, pattern, target = (part.get(key) for key in ("properties", "pattern", "$ref"))
        properties += len(own) if isinstance(own, Mapping) else 0
        references.add(target if isinstance(target, str) else None)
        by_pattern = part.get("patternProperties")
        for text in (pattern, *(by_pattern if isinstance(by_pattern, Mapping) else ())):
            repeats += sum(map(text.count, "?*+{")) if isinstance(text, str) else 0
    for count, most, what in (
        (characters, MAX_GRAMMAR, "characters"),
        (properties, MAX_PROPERTIES, "properties"),
        (len(references), MAX_REFERENCES, "definitions referred to"),
        (repeats, MAX_REPEATS, "repetitions in patterns"),
    ):
        if count > most:
            raise UsageError(f"{name} is too large: a grammar may have {most:,} {what}", field=name)


def _parts(value: Any) -> Iterator[tuple[Any, int]]:
    """Everything in *value*, keys too, with its depth; without recursion."""
    left = [(value, 0)]
    while left:
        part, depth = left.pop()
        yield part, depth
        if depth > MAX_DEPTH:
            continue  # the caller refuses it
        if isinstance(part, Mapping):
            for key, inner in part.items():
                left += ((key, depth), (inner, depth + 1))
        elif isinstance(part, list | tuple):
            left += ((inner, depth + 1) for inner in part)

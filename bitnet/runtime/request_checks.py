"""Checks of the values in a request: a :class:`UsageError` names the field that is wrong.

A value within the bounds can be encoded as UTF-8, walked recursively and compiled: grammars of the
largest schemas were measured in time and in depth.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.base.options import check_type, wrong_type

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BIAS = 1e9
# Keywords of a schema whose numbers the grammar library reads, and those whose keys are names.
_NUMBERS = frozenset({
    *("const", "enum", "multipleOf"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
})  # fmt: skip
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
MAX_DEPTH = 100  # of nested JSON; the grammar library reads 127 levels
MAX_GRAMMAR = 1 << 18  # characters of a schema or a regular expression
MAX_PROPERTIES = 4096  # of all objects of a schema; compile time grows with their square
MAX_REFERENCES = 512  # definitions that a schema refers to; each may refer to a deeper one
MAX_REPEATS = 4096  # of all patterns; compile time grows with their square
#: Names under which clients send the reasoning of a message, ours first.
REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")
ALLOWED = "allowed_tools"  # type of a tool choice that allows some of the tools


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The reasoning of *message*, under whichever name a client sends it; empty if none."""
    texts = [message.get(name) for name in REASONING_NAMES]
    return next((text for text in texts if isinstance(text, str) and text), "")


def is_call_required(choice: Any) -> bool:
    """True if an answer with this ``tool_choice`` must be a call."""
    if isinstance(choice, Mapping) and choice.get("type") == ALLOWED:
        allowed = choice.get("allowed_tools")
        return isinstance(allowed, Mapping) and allowed.get("mode") == "required"
    return choice not in (None, "auto", "none")


def check_messages(messages: Any) -> None:
    """Check the form of a conversation."""
    are_objects = isinstance(messages, list | tuple) and all(
        isinstance(message, Mapping) for message in messages
    )
    if not are_objects or not messages:
        problem = "empty" if are_objects else "not a list of objects"
        raise UsageError(f"messages is {problem}", field="messages")
    for number, message in enumerate(messages):
        content = message.get("content")
        where = f"messages.{number}"
        problem = ""
        if not isinstance(message.get("role"), str):
            problem = "role is not a text"
        elif content is None and message["role"] != "assistant":
            problem = "content is missing; only an assistant's message may be without"
        elif not isinstance(content, str | list | None):
            problem = "content is neither a text nor a list"
        if problem:
            raise UsageError(f"{where}: {problem}", field=where)


def check_variables(variables: Any) -> None:
    """Check the form of variables for a chat template."""
    check_type("template_variables", variables, "an object or None", Mapping, None)
    for name in variables or ():
        check_type("template_variables", name, "texts as its keys", str)


def check_prompt(text: str) -> None:
    """Check a prompt."""
    if not text:
        raise UsageError("the prompt is empty", hint="pass some text: --prompt 'Once upon a time'")
    check_text("the prompt", text, field="prompt")


def check_text(name: str, text: str, *, field: str = "", nul: bool = False) -> None:
    """Check that *text* is text: no half of a surrogate pair, no NUL unless *nul*."""
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
    """Check the texts in *value*, as JSON has it, and how deep it is nested."""
    for part, depth in _parts(value):
        if depth > MAX_DEPTH:
            raise UsageError(f"{name} is nested more than {MAX_DEPTH} deep", field=name)
        if isinstance(part, str):
            check_text(name, part, nul=nul)


def check_json(name: str, value: Any, *, field: str = "") -> None:
    """Check that *value*, which :func:`check_value` accepts, consists of JSON's types alone."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} is not JSON: {error}", field=field or name) from None


def check_schema(name: str, value: Any) -> None:
    """Check the size of *value*, schemas or a regular expression that become a grammar."""
    check_value(name, value)
    characters = properties = repeats = 0
    references = set()
    for part, _ in _parts({"pattern": value} if isinstance(value, str) else value):
        characters += 4  # about what JSON adds to a value
        if isinstance(part, str):
            characters += len(part)
        if not isinstance(part, Mapping):
            continue
        members, pattern, target = (part.get(key) for key in ("properties", "pattern", "$ref"))
        if isinstance(members, Mapping):
            properties += len(members)
        if isinstance(target, str):
            references.add(target)
        by_pattern = part.get("patternProperties")
        for text in (pattern, *(by_pattern if isinstance(by_pattern, Mapping) else ())):
            if isinstance(text, str):
                repeats += sum(map(text.count, "?*+{"))
    for count, most, parts in (
        (characters, MAX_GRAMMAR, "characters"),
        (properties, MAX_PROPERTIES, "properties"),
        (len(references), MAX_REFERENCES, "definitions referred to"),
        (repeats, MAX_REPEATS, "repetitions in patterns"),
    ):
        if count > most:
            raise UsageError(
                f"{name} is too large: a grammar may have {most:,} {parts}", field=name
            )


def check_numbers(field: str, schema: Any) -> None:
    """Refuse a *schema* with an integer that the grammar library, which reads floats, rounds."""
    for keyword, value in _numbers_in(schema):
        if not _is_float(value):
            text = f"{keyword} {value}"[:60]
            raise UsageError(
                f"{field}: {text} is a number that the grammar library rounds",
                hint="use a number of up to 15 digits, or a text",
                field=field,
            )


def _numbers_in(schema: Any) -> Iterator[tuple[str, int]]:
    """Each integer in the value of one of the keywords _NUMBERS in *schema*, with the keyword."""
    stack = [("", schema)]
    while stack:
        keyword, part = stack.pop()
        if isinstance(part, Mapping):
            for key, inner in part.items():
                if not keyword and key in _NAMED and isinstance(inner, Mapping):
                    stack += (("", each) for each in inner.values())
                else:
                    stack.append((keyword or (key if key in _NUMBERS else ""), inner))
        elif isinstance(part, list | tuple):
            stack += ((keyword, inner) for inner in part)
        elif keyword and type(part) is int:
            yield keyword, part


def _is_float(value: int) -> bool:
    """True if a float is exactly *value*."""
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def read_schema(schema: str | bool | Mapping[str, Any]) -> Mapping[str, Any]:
    """*schema* as an object."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"the JSON schema is not JSON: {error}",
                hint="""--json-schema '{"type": "object"}', or the name of a file""",
                field="json_schema",
            ) from None
    if schema is not True and not isinstance(schema, dict):
        written = json.dumps(schema, default=repr)[:40]
        problem = f"a JSON schema is an object or true, not {written}"
        hint = """--json-schema '{"type": "object"}'"""
        raise UsageError(problem, hint=hint, field="json_schema")
    check_schema("json_schema", schema)
    check_json("the JSON schema", schema, field="json_schema")
    return {} if schema is True else schema  # the library sets a style on objects only


def _parts(value: Any) -> Iterator[tuple[Any, int]]:
    """Every part of *value*, keys included, with its depth; computed without recursion."""
    stack = [(value, 0)]
    while stack:
        part, depth = stack.pop()
        yield part, depth
        if depth > MAX_DEPTH:
            continue  # the caller refuses it
        if isinstance(part, Mapping):
            for key, inner in part.items():
                stack += ((key, depth), (inner, depth + 1))
        elif isinstance(part, list | tuple):
            stack += ((inner, depth + 1) for inner in part)


def biases_of(entries: Mapping[Any, float] | Iterable[str]) -> dict[int, float]:
    """Biases from ``ID=BIAS`` texts, or from a mapping whose ids may be texts, as in JSON."""
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise wrong_type("logit_bias", entries, "a mapping from token ids to numbers")
    if not isinstance(entries, Mapping):
        texts = list(entries)
        if not all(isinstance(text, str) for text in texts):
            raise wrong_type("logit_bias", entries, "a mapping from token ids to numbers")
        entries = dict(text.partition("=")[::2] for text in texts)
    biases = {}
    for token, bias in entries.items():
        try:
            number = float(bias)
        except (ValueError, TypeError, OverflowError):  # a whole number may be beyond any float
            number = math.nan
        if not re.fullmatch("[0-9]{1,19}", str(token)) or not number <= MAX_BIAS:
            written = f"{token}={bias}".removesuffix("=")[:60]
            raise UsageError(
                f"logit_bias is {written!r}, expected a token id and a number up to {MAX_BIAS:g}",
                hint="for example: --logit-bias 42=-inf",
                field="logit_bias",
            )
        biases[int(token)] = number
    return biases


def list_texts(name: str, value: Any) -> list[str]:
    """The texts in *value*, a list of them or one, of the field *name*."""
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, Sequence) and all(isinstance(text, str) for text in texts):
        return list(texts)
    raise UsageError(f"{name} is neither a text nor a list of texts", field=name)

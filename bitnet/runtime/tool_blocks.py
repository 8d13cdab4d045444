"""Function calls that are not one JSON object: how they are read, and the grammars of them.

A block is the text from an opening mark to a closing one. Its arguments are JSON (DeepSeek),
``<parameter=...>`` elements (Qwen3-Coder), or FunctionGemma's notation, in which ``<escape>``
stands for the quotes of a text. The forms are those of the chat templates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.runtime.piece import CallDelta, new_call_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.runtime.tool_formats import CallFormat, CallRules

__all__ = ["Arguments", "BlockReader", "overlap", "read_json"]

_ELEMENT = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_BARE = re.compile(r"[^,\[\]{}:]+")
_JSON = json.JSONDecoder()
# A string with one of these is not guaranteed by a grammar of raw text.
_OF_TEXT = {"pattern", "format", "minLength", "maxLength"}
# Only one whitespace style: small models get stuck where whitespace may repeat forever.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ESCAPE = "<escape>"
CLOSED = "\n</parameter>\n"


class Arguments:
    """Grammar rules of one function's arguments, in the grammar library's Lark form."""

    def __init__(self, name: str, schema: Mapping[str, Any], literal: Callable[[str], str]) -> None:
        """Rules named after *name*.

        Args:
            name: that the names of the rules begin with.
            schema: of the arguments.
            literal: writes a text as a literal of the grammar.
        """
        self.rules: list[str] = []
        self._name = name
        self._literal = literal
        self._definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        if {"$ref", "anyOf", "oneOf", "allOf"} & set(schema):
            raise UsageError(
                "tools: this model's calls need parameters that are an object with properties",
                field="tools",
            )
        self._required = set(schema.get("required") or ())
        self._properties = schema.get("properties") or {}
        if missing := self._required - set(self._properties):
            raise UsageError(f"tools: {min(missing)!r} is required and no property", field="tools")

    def xml(self) -> str:
        """Rule of ``<parameter=...>`` elements, in the order of the schema."""
        parts = []
        for number, (key, schema) in enumerate(self._properties.items()):
            value = self._text(schema, CLOSED) or f"{self._json(schema)} {self._literal(CLOSED)}"
            rule = self._add(
                f"p{number}", f"{self._literal(f'<parameter={key}>{chr(10)}')} {value}"
            )
            parts.append(rule if key in self._required else f"{rule}?")
        return self._add("all", " ".join(parts) or '""')

    def notation(self) -> str:
        """Rule of FunctionGemma's notation, whose keys are sorted as its template has them."""
        return self._object(self._properties, self._required)

    def _object(self, properties: Mapping[str, Any], required: set[str]) -> str:
        pairs = [
            (f"{self._literal(f'{key}:')} {self._value(properties[key])}", key in required)
            for key in sorted(properties)
        ]
        pairs = [(self._add("pair", rule), needed) for rule, needed in pairs]
        # The first pair has no comma before it: one alternative for each that may be first.
        choices = []
        for at, (rule, needed) in enumerate(pairs):
            rest = [
                f'("," {each})' + ("" if is_needed else "?") for each, is_needed in pairs[at + 1 :]
            ]
            choices.append(" ".join([rule, *rest]))
            if needed:
                break
        else:
            choices.append('""')
        return self._add("object", f'"{{" ({" | ".join(choices)}) "}}"')

    def _value(self, schema: Any) -> str:
        schema = schema if isinstance(schema, Mapping) else {}
        kind = schema.get("type")
        if text := self._text(schema, ESCAPE):
            return f"{self._literal(ESCAPE)} {text}"
        if kind == "object":
            properties = schema.get("properties") or {}
            return self._object(properties, set(schema.get("required") or ()))
        if kind == "array" and not {"minItems", "maxItems", "prefixItems"} & set(schema):
            item = self._value(schema.get("items"))
            return self._add("array", f'"[" ({item} ("," {item})*)? "]"')
        if kind in ("integer", "number", "boolean", "null"):
            return self._json(schema)
        raise UsageError(
            f"tools: the schema {json.dumps(schema)[:60]} has no form in this model's calls",
            field="tools",
        )

    def _text(self, schema: Any, end: str) -> str:
        """Rule of a raw text of *schema* up to its *end*; empty if it is not a text."""
        if not isinstance(schema, Mapping):
            return ""
        choices = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
        if choices and all(isinstance(choice, str) for choice in choices):
            texts = " | ".join(self._literal(choice) or '""' for choice in choices)
            return f"({texts}) {self._literal(end)}"
        if schema.get("type") != "string" or choices:
            return ""
        if wrong := _OF_TEXT & set(schema):
            raise UsageError(
                f"tools: {min(wrong)} cannot be guaranteed for a text in this model's calls",
                field="tools",
            )
        if (mark := self._literal(end)).startswith("<["):  # a text cannot contain a control token
            return f"({self._add('text', '/(?s:.+)/')})? {mark}"
        return self._add("text", "/(?s:.*)/", attributes=f"[suffix={json.dumps(end)}]")

    def _json(self, schema: Any) -> str:
        own = schema if isinstance(schema, Mapping) else {}
        whole = {**self._definitions, **own, "x-guidance": JSON_STYLE}
        return self._add("json", f"%json {json.dumps(whole)}")

    def _add(self, kind: str, rule: str, attributes: str = "") -> str:
        name = f"{self._name}_{kind}_{len(self.rules)}"
        self.rules.append(f"{name}{attributes}: {rule}")
        return name


class BlockReader:
    """Splits the text of an answer into text and calls, each reported when its block is complete.

    A block that is not a call of a known function stays text, unless a grammar guides the answer.
    """

    def __init__(self, rules: CallRules) -> None:
        """Reads one answer."""
        self._rules = rules
        self._form = rules.form
        self._held = ""
        self._calls = 0

    def push(self, text: str) -> tuple[str, list[CallDelta]]:
        """Text and calls that are certain after the next part, *text*."""
        self._held += text
        return self._take(final=False)

    def finish(self) -> tuple[str, list[CallDelta]]:
        """The remaining text and calls."""
        return self._take(final=True)

    def _take(self, *, final: bool) -> tuple[str, list[CallDelta]]:
        texts: list[str] = []
        deltas: list[CallDelta] = []
        marker, closing = self._form.marker, self._form.closing.strip()
        while True:
            before, opened, rest = self._held.partition(marker)
            body, closed, after = rest.partition(closing)
            if not opened or not (closed or final):
                break
            calls = _calls_in(self._form, marker + body, self._rules.schemas)
            texts.append(before.rstrip() if calls else before)
            self._held = after.lstrip() if calls else after
            if calls and all(name in self._rules.names for name, _ in calls):
                for name, arguments in calls[: None if self._rules.parallel else 1 - self._calls]:
                    deltas.append(CallDelta(self._calls, arguments, new_call_id(), name))
                    self._calls += 1
            else:
                texts.append(opened + body + closed)
        keep = 0 if final else len(self._held) if opened else overlap(self._held, marker)
        ready = self._held[: len(self._held) - keep]
        if not final:
            ready = ready.rstrip() if keep else ready
        self._held = self._held[len(ready) :]
        texts.append(ready)
        return "" if self._rules.guided else "".join(texts), deltas


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of *text* with which *mark* begins."""
    return next(n for n in range(len(mark), -1, -1) if text.endswith(mark[:n]))


def _calls_in(
    form: CallFormat, block: str, schemas: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, str]] | None:
    """Names and arguments, as JSON, of the calls in *block*; ``None`` if it is none."""
    calls = []
    for match in re.finditer(form.block, block):
        name = match["name"]
        arguments = ARGUMENTS[form.arguments](block[match.end() :], schemas.get(name) or {})
        if arguments is None:
            return None
        calls.append((name, arguments))
    return calls or None


def read_json(text: str, _schema: Mapping[str, Any]) -> str | None:
    """The JSON object with which *text* begins; ``None`` if it does not."""
    begin = len(text) - len(text.lstrip())
    try:
        value, end = _JSON.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None
    return text[begin:end] if isinstance(value, dict) else None


def _read_xml(text: str, schema: Mapping[str, Any]) -> str | None:
    body, closed, _ = text.partition("</function>")
    values, at = {}, 0
    properties = schema.get("properties") or {}
    while match := _ELEMENT.match(body, at):
        name, raw = match.groups()
        values[name] = _of_type(raw, properties.get(name))
        at = match.end()
    if not closed or body[at:].strip():
        return None
    return json.dumps(values, ensure_ascii=False)


def _of_type(raw: str, schema: Any) -> Any:
    """The value that *raw* spells: a text where the schema says so, else JSON if it is."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    choices = (schema.get("enum") or ()) if isinstance(schema, Mapping) else ()
    if kind == "string" or (choices and all(isinstance(choice, str) for choice in choices)):
        return raw
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw


def _read_notation(text: str, _schema: Mapping[str, Any]) -> str | None:
    try:
        value, _ = _notation(text, 0, 0)
    except (ValueError, IndexError):
        return None
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else None


def _notation(text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value at *at* in FunctionGemma's notation, and its end.

    Raises:
        ValueError: there is none.
        IndexError: the text ends within it.
    """
    if depth > 100:
        raise ValueError("nested too deep")
    if text.startswith(ESCAPE, at):
        end = text.index(ESCAPE, at + len(ESCAPE))
        return text[at + len(ESCAPE) : end], end + len(ESCAPE)
    if text[at] not in "{[":
        bare = _BARE.match(text, at)
        if bare is None:
            raise ValueError("a value is missing")
        return _of_type(bare[0].strip(), None), bare.end()
    is_object = text[at] == "{"
    values: dict[str, Any] = {}
    items: list[Any] = []
    at += 1
    while text[at] not in "}]":
        if is_object:
            end = text.index(":", at)
            key, at = text[at:end].strip().replace(ESCAPE, ""), end + 1
            values[key], at = _notation(text, at, depth + 1)
        else:
            item, at = _notation(text, at, depth + 1)
            items.append(item)
        at += text[at] == ","
    return (values if is_object else items), at + 1


#: How arguments are read, by the name of the notation.
ARGUMENTS: dict[str, Callable[[str, Mapping[str, Any]], str | None]] = {
    "json": read_json,
    "xml": _read_xml,
    "notation": _read_notation,
}

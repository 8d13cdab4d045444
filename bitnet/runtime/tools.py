"""Functions that a request offers, and the grammar by which an answer can only call them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.runtime.tool_formats import ESCAPE, NAME, CallRules

if TYPE_CHECKING:
    from bitnet.runtime.tool_formats import CallFormat
    from bitnet.tokenizer import Tokenizer

_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
# A string with one of these is not guaranteed by a grammar of raw text.
_OF_TEXT = {"pattern", "format", "minLength", "maxLength"}
# Only one whitespace style: small models get stuck where whitespace may repeat forever.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_CLOSED = "\n</parameter>\n"
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tools:
    """The functions of a request, and its ``tool_choice``."""

    given: tuple[Mapping[str, Any], ...]  # as the template receives them
    callable: tuple[Mapping[str, Any], ...]  # those that may be called
    required: bool  # the answer must be a call
    parallel: bool  # it may contain several calls

    def rules(self, form: CallFormat, tokenizer: Tokenizer) -> CallRules:
        """Rules for finding the calls in an answer of the model with *tokenizer*."""
        functions = [tool["function"] for tool in self.callable]
        schemas = {each["name"]: each.get("parameters") or _NOTHING for each in functions}
        text_by_token = {token: text for text, token in _control_tokens(form, tokenizer).items()}
        return CallRules(form, schemas, self.required, self.parallel, text_by_token)

    def grammar(
        self, form: CallFormat, tokenizer: Tokenizer, schema: Mapping[str, Any] | bool | None = None
    ) -> str:
        """Grammar of calls, in the grammar library's Lark form.

        *schema* is that of an answer without calls, if one is allowed.
        """
        tokens = _control_tokens(form, tokenizer)
        heads, rules = [], []
        for number, tool in enumerate(self.callable):
            function = tool["function"]
            head = _literal(form.head.replace(NAME, function["name"]), tokens)
            heads.append(f"{head} args_{number} {_literal(form.tail, tokens)}")
            schema_of_call = function.get("parameters") or _NOTHING
            rules += _arguments(f"args_{number}", form.arguments, schema_of_call, tokens)
        opening, closing = _literal(form.opening, tokens), _literal(form.closing, tokens)
        between = _literal(form.between, tokens)
        one = "call" if form.listed else "whole"
        several = self.parallel and not form.channels  # a message of its own has one call
        many = f"{one} ({between} {one})*" if several else one
        calls = f"{opening} {many} {closing}" if form.listed else many
        if not form.listed:
            rules.append(f"whole: {opening} call {closing}")
        if schema is not None:
            calls = f"{calls} | answer"
            rules.append(f"answer: {_json(schema)}")
        return "\n".join([f"start: {calls}", f"call: {' | '.join(heads)}", *rules])


NO_TOOLS = Tools((), (), required=False, parallel=True)


def read_tools(given: Any, choice: Any, *, parallel: bool = True) -> Tools | None:
    """Tools of a request, as it has them; ``None`` if there are none or none may be called."""
    if not isinstance(given or (), list | tuple):
        raise UsageError("tools: expected a list of functions", field="tools")
    tools = tuple(given or ())
    for number, tool in enumerate(tools):
        _check(tool, f"tools.{number}")
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise UsageError("tools: two functions have one name", field="tools")
    if choice in (None, "auto", "none"):
        return Tools(tools, tools, False, parallel) if tools and choice != "none" else None
    named, problem = tools, "there are no tools"
    if choice != "required":
        function = choice.get("function") if isinstance(choice, Mapping) else None
        chosen = function.get("name") if isinstance(function, Mapping) else None
        is_name = isinstance(chosen, str) and len(choice) <= 2 and choice.get("type") == "function"
        named = tuple(tool for tool in tools if is_name and tool["function"]["name"] == chosen)
        problem = "expected none, auto, required, or the name of one of the tools"
        parallel = False
    if not named:
        raise UsageError(f"tool_choice: {problem}", field="tool_choice")
    return Tools(tools, named, True, parallel)


def _check(tool: Any, where: str) -> None:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
        raise UsageError(f"{where}: expected a tool of the type function", field=where)
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        field = f"{where}.function.name"
        raise UsageError(f"{field}: expected 1 to 64 letters, digits, and . _ -", field=field)
    if schema is not None and not isinstance(schema, Mapping):
        field = f"{where}.function.parameters"
        raise UsageError(f"{field} is not an object", field=field)


def _control_tokens(form: CallFormat, tokenizer: Tokenizer) -> dict[str, int]:
    """Ids of those texts of *form* that are single control tokens."""
    markers = {text.encode(): text for text in form.markers}
    spelled = ((tokenizer.token_bytes(token), token) for token in tokenizer.special_ids)
    return {markers[raw]: token for raw, token in spelled if raw in markers}


def _literal(text: str, tokens: Mapping[str, int]) -> str:
    """*text* as a literal of the grammar; control tokens are referred to by id."""
    for marker, token in tokens.items():
        before, found, after = text.partition(marker)
        if found:
            return " ".join(
                part for part in (_literal(before, tokens), f"<[{token}]>", _literal(after, tokens))
                if part
            )  # fmt: skip
    return json.dumps(text) if text else ""


def _arguments(
    name: str, notation: str, schema: Mapping[str, Any], tokens: Mapping[str, int]
) -> list[str]:
    """Rule *name*, and those it needs, of arguments that follow *schema*."""
    if notation == "json":
        return [f"{name}: {_json(schema)}"]
    arguments = _Arguments(name, schema, tokens)
    if notation == "xml":
        start = arguments.xml()
    elif notation == "notation":
        start = arguments.notation()
    else:
        start = arguments.keys("\n" if notation == "key-lines" else "")
    return [f"{name}: {start}", *arguments.rules]


def _json(schema: Mapping[str, Any] | bool) -> str:
    own = schema if isinstance(schema, Mapping) else {}
    return f"%json {json.dumps({**own, 'x-guidance': JSON_STYLE})}"


class _Arguments:
    """Grammar rules of one function's arguments, in the grammar library's Lark form."""

    def __init__(self, name: str, schema: Mapping[str, Any], tokens: Mapping[str, int]) -> None:
        """Rules of arguments that follow *schema*, with names that begin with *name*."""
        self.rules: list[str] = []
        self._name = name
        self._literal = partial(_literal, tokens=tokens)
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
        return self._elements("<parameter=KEY>\n", _CLOSED)

    def keys(self, line: str) -> str:
        """Rule of pairs of ``<arg_key>`` and ``<arg_value>``, each of which ends with *line*."""
        return self._elements(f"<arg_key>KEY</arg_key>{line}<arg_value>", f"</arg_value>{line}")

    def _elements(self, begin: str, end: str) -> str:
        """Rule of elements in the order of the schema; KEY in their *begin* is the key."""
        parts = []
        for number, (key, schema) in enumerate(self._properties.items()):
            value = self._text(schema, end) or f"{self._json(schema)} {self._literal(end)}"
            opening = self._literal(begin.replace("KEY", key))
            rule = self._add(f"p{number}", f"{opening} {value}")
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

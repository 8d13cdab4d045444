"""Grammar by which an answer can only call functions, in the grammar library's Lark form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.runtime.schema_types import types_of
from bitnet.runtime.tool_formats import ID, INDEX, KEY, NAME, TYPE, fill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.runtime.tool_formats import CallFormat, Notation
    from bitnet.tokenizer import Tokenizer

# Keywords of a string's schema that a grammar of raw text cannot guarantee.
_OF_TEXT = {"pattern", "format", "minLength", "maxLength"}
# Only one whitespace style: small models get stuck where whitespace may repeat forever.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
#: Regular expressions of the parts of a head that the model chooses itself.
_CHOSEN = {ID: "/[a-zA-Z0-9]{9}/", INDEX: "/[0-9]{1,3}/"}


def write_grammar(
    form: CallFormat,
    schemas: Mapping[str, Mapping[str, Any]],
    tokens: Mapping[str, int],
    *,
    parallel: bool,
    schema: Mapping[str, Any] | bool | None = None,
    begun: str = "",
) -> str:
    """Grammar of calls in *form* of functions whose arguments follow *schemas*.

    *tokens* are the ids of control tokens by their texts. *schema* is that of an answer without
    calls, if one is allowed. *begun* is the beginning of the first call, which ends the prompt.
    """
    heads = []
    rules = []
    for number, (name, arguments) in enumerate(schemas.items()):
        head = _head(form.head, name, tokens)
        heads.append(f"{head} args_{number} {_literal(form.tail, tokens)}")
        rules += _arguments(f"args_{number}", form.notation, arguments, tokens)
    opening = _literal(form.opening, tokens)
    closing = _literal(form.closing, tokens)
    between = _literal(form.between, tokens)
    first = opening
    if begun:
        first = _literal(form.opening.removeprefix(begun), tokens)
    several = parallel and form.headers is None  # with headers, a message has one call
    if form.listed:
        many = f"call ({between} call)*" if several else "call"
        calls = f"{first} {many} {closing}"
    else:
        more = f"({between} {opening} call {closing})*" if several else ""
        calls = f"{first} call {closing} {more}"
    if schema is not None:
        calls = f"{calls} | answer"
        rules.append(f"answer: {_json(schema)}")
    return "\n".join([f"start: {calls}", f"call: {' | '.join(heads)}", *rules])


def control_tokens(form: CallFormat, tokenizer: Tokenizer) -> dict[str, int]:
    """Ids of those texts of *form* that are single control tokens, the longest first."""
    texts = "\n".join(form.texts)
    spelled = {
        tokenizer.token_bytes(token).decode("utf-8", "replace"): token
        for token in tokenizer.special_ids
    }
    used = [text for text in spelled if len(text) > 1 and text in texts]
    return {text: spelled[text] for text in sorted(used, key=len, reverse=True)}


def _head(text: str, name: str, tokens: Mapping[str, int]) -> str:
    """*text*, the head of a call of the function *name*; the model chooses an id or index in it."""
    parts = re.split(f"([{ID}{INDEX}])", text)
    named = (_CHOSEN.get(part) or _literal(part.replace(NAME, name), tokens) for part in parts)
    return " ".join(filter(None, named))


def _literal(text: str, tokens: Mapping[str, int]) -> str:
    """*text* as literals of the grammar; control tokens are referred to by id."""
    marks = "|".join(map(re.escape, tokens))
    parts = re.split(f"({marks})", text) if marks else [text]
    return " ".join(_spell(part, tokens) for part in parts if part)


def _spell(part: str, tokens: Mapping[str, int]) -> str:
    return f"<[{tokens[part]}]>" if part in tokens else json.dumps(part)


def _arguments(
    name: str, notation: Notation, schema: Mapping[str, Any], tokens: Mapping[str, int]
) -> list[str]:
    """Rule *name*, and those it needs, of arguments that follow *schema*."""
    if notation.kind == "json":
        return [f"{name}: {_json(schema)}"]
    arguments = _Arguments(name, notation, schema, tokens)
    return [f"{name}: {arguments.start()}", *arguments.rules]


def _json(schema: Mapping[str, Any] | bool) -> str:
    own = schema if isinstance(schema, Mapping) else {}
    return f"%json {json.dumps({**own, 'x-guidance': JSON_STYLE})}"


def _list_required(schema: Mapping[str, Any]) -> Sequence[str]:
    """Names of the properties that *schema* requires; an older draft has true at each property."""
    required = schema.get("required") or ()
    return () if isinstance(required, bool) else required


class _Arguments:
    """Grammar rules of one function's arguments, in the grammar library's Lark form."""

    def __init__(
        self,
        name: str,
        notation: Notation,
        schema: Mapping[str, Any],
        tokens: Mapping[str, int],
    ) -> None:
        """Rules of arguments that follow *schema*, with names that begin with *name*."""
        self.rules: list[str] = []
        self._name = name
        self._notation = notation
        self._schema = schema
        self._literal = partial(_literal, tokens=tokens)
        self._definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        if {"$ref", "anyOf", "oneOf", "allOf"} & set(schema):
            raise UsageError(
                "tools: this model's calls need parameters that are an object with properties",
                field="tools",
            )
        if missing := set(_list_required(schema)) - set(schema.get("properties") or {}):
            raise UsageError(f"tools: {min(missing)!r} is required and no property", field="tools")

    def start(self) -> str:
        """The rule of all arguments."""
        writers: dict[str, Callable[[Mapping[str, Any]], str]] = {
            "elements": self._elements,
            "nested": self._elements,
            "braces": self._braces,
            "keywords": self._keywords,
        }
        return writers[self._notation.kind](self._schema)

    # --- elements ---------------------------------------------------------------------------------

    def _elements(self, schema: Mapping[str, Any]) -> str:
        """Rule of elements in the order of the *schema*."""
        parts = []
        required = _list_required(schema)
        for number, (key, value) in enumerate((schema.get("properties") or {}).items()):
            rule = self._add(f"p{number}", self._element(key, value))
            parts.append(rule if key in required else f"{rule}?")
        return self._add("all", " ".join(parts) or '""')

    def _element(self, key: str, schema: Any) -> str:
        """Rule of one element, whose marks name *key*."""
        end = fill(self._notation.end, {KEY: key})
        text = self._text(schema, end)
        kind = self._type(schema, is_text=bool(text))
        opening = self._literal(fill(self._notation.begin, {KEY: key, TYPE: kind}))
        if text:
            return f"{opening} {text}"
        value = self._json(schema)
        if self._notation.kind == "nested":
            value = self._parts(schema)
        return f"{opening} {value} {self._literal(end)}"

    def _type(self, schema: Any, *, is_text: bool) -> str:
        """The type that the mark before a value of *schema* states; see :class:`Notation`."""
        if self._notation.types != "name":
            return str(is_text).lower()
        types = types_of(schema)
        if len(types) != 1:
            raise self._formless(schema)
        return min(types)

    def _parts(self, schema: Any) -> str:
        """Rule of a value that is not a text, whose parts are elements."""
        schema = schema if isinstance(schema, Mapping) else {}
        kind = schema.get("type")
        if kind == "object":
            return self._elements(schema)
        if kind == "array" and not {"minItems", "maxItems", "prefixItems"} & set(schema):
            return self._add("array", f"({self._element('item', schema.get('items'))})*")
        if kind in ("integer", "number", "boolean"):
            return self._json(schema)
        raise self._formless(schema)

    # --- pairs with commas ------------------------------------------------------------------------

    def _braces(self, schema: Mapping[str, Any]) -> str:
        """Rule of an object in braces; its keys are sorted, as templates write them."""
        properties = schema.get("properties") or {}
        required = _list_required(schema)
        pairs = [
            (f"{self._literal(f'{key}:')} {self._brace_value(properties[key])}", key in required)
            for key in sorted(properties)
        ]
        return self._add("object", f'"{{" ({self._with_commas(pairs, ",")}) "}}"')

    def _keywords(self, schema: Mapping[str, Any]) -> str:
        """Rule of Python's keyword arguments, in the order of the schema."""
        required = _list_required(schema)
        pairs = [
            (f"{self._literal(f'{key}=')} {self._python(value)}", key in required)
            for key, value in (schema.get("properties") or {}).items()
        ]
        return self._add("keywords", self._with_commas(pairs, ", "))

    def _with_commas(self, rules: Sequence[tuple[str, bool]], comma: str) -> str:
        """Alternatives of *rules* with a *comma* between two; a rule with True is required."""
        pairs = [(self._add("pair", rule), needed) for rule, needed in rules]
        # The first pair has no comma before it: one alternative for each that may be first.
        choices = []
        for at, (rule, needed) in enumerate(pairs):
            rest = [
                f'("{comma}" {each})' + ("" if is_needed else "?")
                for each, is_needed in pairs[at + 1 :]
            ]
            choices.append(" ".join([rule, *rest]))
            if needed:
                break
        else:
            choices.append('""')
        return " | ".join(choices)

    def _brace_value(self, schema: Any) -> str:
        schema = schema if isinstance(schema, Mapping) else {}
        kind = schema.get("type")
        quote = self._notation.quote
        if text := self._text(schema, quote):
            return f"{self._literal(quote)} {text}"
        if kind == "object":
            return self._braces(schema)
        if kind == "array" and not {"minItems", "maxItems", "prefixItems"} & set(schema):
            item = self._brace_value(schema.get("items"))
            return self._add("array", f'"[" ({item} ("," {item})*)? "]"')
        if kind in ("integer", "number", "boolean", "null"):
            return self._json(schema)
        raise self._formless(schema)

    def _python(self, schema: Any) -> str:
        """Rule of a value in Python's notation; texts, lists and objects as in JSON."""
        spelled = {"boolean": '("True" | "False")', "null": '"None"'}
        types = types_of(schema)
        is_free = isinstance(schema, Mapping) and not {"enum", "const", "allOf"} & set(schema)
        if is_free and len(types) == 1 and types <= set(spelled):
            return spelled[min(types)]
        return self._json(schema)

    # --- values -----------------------------------------------------------------------------------

    def _formless(self, schema: Any) -> UsageError:
        """The error about a *schema* whose values cannot be written in the notation."""
        text = json.dumps(schema)[:60]
        return UsageError(
            f"tools: the schema {text} has no form in this model's calls", field="tools"
        )

    def _text(self, schema: Any, end: str) -> str:
        """Rule of a raw text of *schema* with its *end*; empty if the value is not a text."""
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
        """Add *rule*, and return the name that it got."""
        name = f"{self._name}_{kind}_{len(self.rules)}"
        self.rules.append(f"{name}{attributes}: {rule}")
        return name

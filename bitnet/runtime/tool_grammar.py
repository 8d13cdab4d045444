"""Grammar by which an answer can only call functions, in the grammar library's Lark form."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.runtime.schema_types import follow, parts_of, types_of
from bitnet.runtime.tool_arguments import read_arguments, write_arguments
from bitnet.runtime.tool_formats import ID, INDEX, KEY, NAME, TYPE, fill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.runtime.tool_formats import CallFormat, Notation
    from bitnet.tokenizer import Tokenizer

# Keywords of a string's schema that a grammar of raw text cannot guarantee.
_OF_TEXT = {"pattern", "format", "minLength", "maxLength"}
# Keywords that combine schemas, or choose among values.
_COMBINING = {"$ref", "anyOf", "oneOf", "allOf", "not", "if", "enum", "const"}
# Keywords of an object and of a list whose parts have rules that such a grammar cannot guarantee.
_OF_OBJECT = _COMBINING | {
    *("minProperties", "maxProperties", "patternProperties", "propertyNames"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
}
_OF_ARRAY = _COMBINING | {"minItems", "maxItems", "prefixItems", "uniqueItems", "contains"}
_MOST_DEPTH = 100  # of branches within one another
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


def _find_used(words: set[str], schema: Mapping[str, Any]) -> set[str]:
    """Those keywords of *words* that *schema* has with a value."""
    return {word for word in words if schema.get(word) is not None}


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
        self._known_texts: dict[int, list[str] | None] = {}  # results of _texts by id(schema)
        self._open: set[int] = set()  # id(schema) of those whose texts are being collected

    def start(self) -> str:
        """The rule of all arguments."""
        writers: dict[str, Callable[[Mapping[str, Any]], str]] = {
            "elements": self._elements,
            "nested": self._elements,
            "braces": self._braces,
            "keywords": self._keywords,
        }
        return writers[self._notation.kind](self._schema)

    def _properties(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Schemas of the properties of the object *schema*, which is checked."""
        if wrong := _find_used(_OF_OBJECT, schema):
            raise UsageError(
                "tools: this model's calls need parameters that are an object with properties, "
                f"without {min(wrong)}",
                field="tools",
            )
        properties = dict(schema.get("properties") or {})
        if missing := set(_list_required(schema)) - set(properties):
            raise UsageError(f"tools: {min(missing)!r} is required and no property", field="tools")
        for key in properties:
            if not self._is_readable(key):
                raise UsageError(
                    f"tools: the property {key!r} has no form in this model's calls", field="tools"
                )
        return properties

    def _is_readable(self, key: str) -> bool:
        """True if the reader of the notation finds *key* where the grammar writes it."""
        schema = {"type": "object", "properties": {key: {"type": "string"}}}
        written = f"{write_arguments(self._notation, {key: 'x'})})"  # a bracket ends keywords
        try:
            found, _ = read_arguments(self._notation, written, 0, schema)
        except ValueError:
            return False
        return bool(json.loads(found) == {key: "x"})

    # --- elements ---------------------------------------------------------------------------------

    def _elements(self, schema: Mapping[str, Any]) -> str:
        """Rule of elements in the order of the *schema*."""
        parts = []
        required = _list_required(schema)
        for number, (key, value) in enumerate(self._properties(schema).items()):
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
        types = types_of(schema, self._schema)
        if len(types) != 1:
            raise self._formless(schema)
        return min(types)

    def _parts(self, schema: Any) -> str:
        """Rule of a value that is not a text, whose parts are elements."""
        schema = schema if isinstance(schema, Mapping) else {}
        kind = schema.get("type")
        if kind == "object":
            return self._elements(schema)
        if kind == "array" and not _find_used(_OF_ARRAY, schema):
            return self._add("array", f"({self._element('item', schema.get('items'))})*")
        if kind in ("integer", "number", "boolean"):
            return self._json(schema)
        raise self._formless(schema)

    # --- pairs with commas ------------------------------------------------------------------------

    def _braces(self, schema: Mapping[str, Any]) -> str:
        """Rule of an object in braces; its keys are sorted, as templates write them."""
        properties = self._properties(schema)
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
            for key, value in self._properties(schema).items()
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
        if kind == "array" and not _find_used(_OF_ARRAY, schema):
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
        if types_of(schema, self._schema) != {"string"}:  # as the reader decides
            return ""
        choices = self._texts(schema)
        if choices is not None:
            if not choices or any(end.strip() in choice for choice in choices):
                raise self._formless(schema)
            texts = " | ".join(self._literal(choice) or '""' for choice in choices)
            return f"({texts}) {self._literal(end)}"
        if (mark := self._literal(end)).startswith("<["):  # a text cannot contain a control token
            return f"({self._add('text', '/(?s:.+)/')})? {mark}"
        return self._add("text", "/(?s:.*)/", attributes=f"[suffix={json.dumps(end)}]")

    def _texts(self, schema: Any, depth: int = 0) -> list[str] | None:
        """The only texts that *schema* allows; None if it allows any.

        A UsageError if it has other rules for a text, or leads back to itself.
        """
        if id(schema) in self._known_texts:
            return self._known_texts[id(schema)]
        if id(schema) in self._open or depth > _MOST_DEPTH:
            raise self._formless(schema)
        self._open.add(id(schema))
        parts = parts_of(schema, self._schema)
        allowed: list[str] | None = None
        for part in parts:
            reference = part.get("$ref")
            if reference is not None and follow(reference, self._schema) is None:
                raise self._formless(part)
            limits: list[Any] = [[part["const"]]] if "const" in part else []
            limits.append(part.get("enum") or None)
            limits += [self._texts_of_any(part, word, depth) for word in ("anyOf", "oneOf")]
            for limit in limits:
                if limit is None:
                    continue
                before = limit if allowed is None else allowed
                allowed = [each for each in before if isinstance(each, str) and each in limit]
        rules = {"not", "if"} if allowed is not None else {"not", "if", *_OF_TEXT}
        if wrong := set().union(*(_find_used(rules, part) for part in parts)):
            raise UsageError(
                f"tools: {min(wrong)} cannot be guaranteed for a text in this model's calls",
                field="tools",
            )
        self._open.remove(id(schema))
        self._known_texts[id(schema)] = allowed
        return allowed

    def _texts_of_any(self, schema: Mapping[str, Any], word: str, depth: int) -> list[str] | None:
        """The only texts that the branches of *schema* under *word* allow; None if any are."""
        branches = [
            branch
            for branch in schema.get(word) or ()
            if branch is not False and "string" in (types_of(branch, self._schema) or {"string"})
        ]
        lists = [self._texts(branch, depth + 1) for branch in branches]
        if None in lists:
            if word == "oneOf" and len(lists) > 1:  # a text may be allowed by several of them
                raise self._formless(schema)
            return None
        counts = Counter(text for each in lists for text in dict.fromkeys(each or ()))
        texts = [text for text, count in counts.items() if word == "anyOf" or count == 1]
        return texts if schema.get(word) else None

    def _json(self, schema: Any) -> str:
        own = schema if isinstance(schema, Mapping) else {}
        whole = {**self._definitions, **own, "x-guidance": JSON_STYLE}
        return self._add("json", f"%json {json.dumps(whole)}")

    def _add(self, kind: str, rule: str, attributes: str = "") -> str:
        """Add *rule*, and return the name that it got."""
        name = f"{self._name}_{kind}_{len(self.rules)}"
        self.rules.append(f"{name}{attributes}: {rule}")
        return name

"""Arguments of a function call in each notation: read from text and written as text.

Readers return JSON, and raise a ValueError if the text is not in their notation.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from bitnet.runtime.schema_types import items_of, properties_of, type_name, types_of
from bitnet.runtime.tool_formats import KEY, TYPE, fill

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.runtime.tool_formats import Notation

    Schema = Mapping[str, Any]

MOST_DEPTH = 100  # levels of nested elements or braces
_MOST_PYTHON_CHARS = 100_000  # of a value in Python's notation
_JSON = json.JSONDecoder()
_BARE = re.compile(r"[^,\[\]{}:]+")
_SPACE = re.compile(r"\s*")
_CDATA = re.compile(r"<!\[CDATA\[(.*)\]\]>", re.DOTALL)
_KEYWORD = re.compile(r"\s*([^\W\d]\w*)\s*=\s*")
# Keys of a call that is a JSON object.
_KEYS_OF_CALL = {"name", "tool_name", "arguments", "parameters", "type", "id", "tool_call_id"}
_PYTHON_WORDS = {"True": True, "False": False, "None": None}

#: What follows the value of a keyword argument: another argument, or the end of the call.
_AFTER_VALUE = r"(?=\s*(?:,\s*[^\W\d]\w*\s*=|\)\s*(?:[,\]]|\Z)))"


def read_arguments(notation: Notation, text: str, at: int, schema: Schema) -> tuple[str, int]:
    """The arguments at index *at* of *text* as JSON, and their end; they follow *schema*."""
    return _READERS[notation.kind](notation, text, at, schema)


def write_arguments(notation: Notation, arguments: Mapping[str, Any]) -> str:
    """*arguments* in *notation*, as a template writes them."""
    if notation.kind == "json":
        return dump(arguments)
    if notation.kind == "elements":
        return "".join(_write_element(notation, *pair) for pair in arguments.items())
    if notation.kind == "nested":
        return _write_nested(notation, arguments)
    if notation.kind == "braces":
        return _write_braces(notation.quote, arguments)
    return ", ".join(f"{key}={_write_python(value)}" for key, value in arguments.items())


def decode(text: str, at: int) -> tuple[Any, int]:
    """The JSON value at index *at* of *text*, and its end."""
    try:
        return _JSON.raw_decode(text, at)
    except RecursionError:
        raise ValueError("nested too deep") from None


def value_texts(text: str) -> dict[str, str]:
    """The JSON of each value in *text*, a JSON object; of two with one key the last one."""
    values: dict[str, str] = {}
    at = _skip_space(text, 1)
    while text[at] != "}":
        key, at = decode(text, at)
        begin = _skip_space(text, text.index(":", at) + 1)
        _, end = decode(text, begin)
        values[key] = text[begin:end]
        at = _skip_comma(text, end, "}")
    return values


def item_texts(text: str) -> list[str]:
    """The JSON of each item in *text*, a JSON list."""
    items = []
    at = _skip_space(text, 1)
    while text[at] != "]":
        _, end = decode(text, at)
        items.append(text[at:end])
        at = _skip_comma(text, end, "]")
    return items


def key_of_arguments(call: Mapping[str, Any]) -> str:
    """The key of the arguments in *call*, a JSON object; empty if there are none.

    A ValueError if they may be under another key.
    """
    for key in ("arguments", "parameters"):
        if call.get(key) is not None:
            return key
    if call.keys() - _KEYS_OF_CALL:
        raise ValueError("the arguments are under another key")
    return ""


def check_end(text: str, end: int) -> None:
    """Raise a ValueError if *text* goes on behind the arguments, which end at index *end*."""
    if text[end:].strip():
        raise ValueError("not only arguments")


def dump(arguments: Any) -> str:
    """*arguments* as JSON text; a ValueError if they are not an object, or not JSON."""
    if not isinstance(arguments, Mapping):
        raise ValueError("not an object")
    return _dump_value(arguments)


def value_of(raw: str, schema: Any, root: Any = None) -> Any:
    """The value that *raw* spells, in JSON or Python's notation, or *raw* itself.

    It stays text if *schema*, a part of the schema *root*, allows only texts, or texts but not the
    type of that value.
    """
    types = types_of(schema, root)
    if types == {"string"}:
        return raw
    try:
        value = _parse_value(raw.strip())
    except (ValueError, RecursionError):
        return raw
    if "string" in types and type_name(value) not in types:
        return raw
    return value


def _parse_value(raw: str) -> Any:
    """The value of *raw*, which is JSON, or a constant, list or object of Python's."""
    try:
        value = json.loads(raw)
        _dump_value(value)  # NaN, and numbers too large for a float, are not JSON
        return value
    except ValueError:
        if raw not in _PYTHON_WORDS and raw[:1] not in ("{", "["):
            raise
    return _read_python(raw)


def _read_python(raw: str) -> Any:
    """The value of the Python literal *raw*; a ValueError if JSON cannot represent it."""
    if len(raw) > _MOST_PYTHON_CHARS:
        raise ValueError("too long")
    try:
        value = ast.literal_eval(raw)
        _dump_value(value)
    except (SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise ValueError(str(error)) from None
    return value


# --- readers --------------------------------------------------------------------------------------


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    """Add *key* to *values*; a ValueError if it is there, so that neither value is lost."""
    if key in values:
        raise ValueError(f"{key} is there twice")
    values[key] = value


def _read_json(_notation: Notation, text: str, at: int, _schema: Schema) -> tuple[str, int]:
    begin = at + len(text[at:]) - len(text[at:].lstrip())
    value, end = decode(text, begin)
    dump(value)
    return text[begin:end], end


def _read_elements(notation: Notation, text: str, at: int, schema: Schema) -> tuple[str, int]:
    element = _element_pattern(notation)
    values: dict[str, Any] = {}
    properties = properties_of(schema, schema)
    while match := element.match(text, at):
        parts = match.groupdict()
        key = parts["key"].strip()
        raw = parts["value"]
        wrapped = _CDATA.fullmatch(raw) if notation.cdata else None
        value: Any
        if wrapped:
            value = wrapped[1]
        elif parts.get("type") in ("true", "string"):
            value = raw
        else:
            value = value_of(raw, properties.get(key), schema)
        _put(values, key, value)
        at = match.end()
    return dump(values), at


@lru_cache(maxsize=64)
def _element_pattern(notation: Notation) -> re.Pattern[str]:
    """Expression of one element; line breaks beside its marks may be missing."""
    begin = re.escape(notation.begin)  # a line break in it becomes a backslash and the break
    begin = re.sub(r">(\\\n)?<", r">\\s*<", begin)
    begin = begin.replace("\\\n", r"\n?")
    begin = begin.replace(re.escape(KEY), r"(?P<key>[^\n]+?)", 1)
    begin = begin.replace(re.escape(TYPE), r"(?P<type>\w+)", 1)
    end = re.escape(notation.end.rstrip()).replace("\\\n", r"\n?")
    value = r"(?P<value>.*?)"
    if notation.cdata:
        value = r"(?P<value><!\[CDATA\[.*?\]\]>|.*?)"
    return re.compile(rf"\s*{begin}{value}{end}", re.DOTALL)


def _read_nested(notation: Notation, text: str, at: int, schema: Schema) -> tuple[str, int]:
    value, at = _read_parts(notation, text, at, schema, schema, 0)
    return dump(value if value != "" else {}), at


def _read_parts(
    notation: Notation, text: str, at: int, schema: Any, root: Schema, depth: int
) -> tuple[Any, int]:
    """The value at index *at*, up to the mark that closes its element, and its end.

    It follows *schema*, a part of the schema *root*. *depth* is 0 for all arguments together, which
    no such mark follows.
    """
    if depth > MOST_DEPTH:
        raise ValueError("nested too deep")
    begin, end = (mark.split(KEY) for mark in (notation.begin, notation.end))
    opening = re.compile(rf"\s*{re.escape(begin[0])}([^\s<>/]+){re.escape(begin[1])}")
    properties = properties_of(schema, root)
    items = items_of(schema, root)
    pairs: list[tuple[str, Any]] = []
    while match := opening.match(text, at):
        key = match[1]
        inner = properties.get(key) if key != "item" or items is None else items
        value, at = _read_parts(notation, text, match.end(), inner, root, depth + 1)
        closing = key.join(end)
        if not text.startswith(closing, at):
            raise ValueError("an element is not closed")
        pairs.append((key, value))
        at += len(closing)
    types = types_of(schema, root)
    if pairs:
        has_items = all(key == "item" for key, _ in pairs)
        may_be_list = depth > 0 and not (has_items and "item" in properties)
        if may_be_list and ("array" in types or (has_items and "object" not in types)):
            return [value for _, value in pairs], at
        values: dict[str, Any] = {}
        for key, value in pairs:
            _put(values, key, value)
        return values, at
    until = text.find(end[0], at)
    if depth == 0 or until < 0:
        return "", at
    raw = text[at:until]
    if not raw and types and "string" not in types:
        if "array" in types:
            return [], until
        return ({} if "object" in types else raw), until
    return value_of(raw, schema, root), until


def _read_braces(notation: Notation, text: str, at: int, _schema: Schema) -> tuple[str, int]:
    try:
        value, at = _read_brace_value(notation.quote, text, at, 0)
    except IndexError:
        raise ValueError("the arguments are not complete") from None
    return dump(value), at


def _read_brace_value(quote: str, text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value in braces, brackets, quotes or none of them at index *at*, and its end."""
    if depth > MOST_DEPTH:
        raise ValueError("nested too deep")
    at = _skip_space(text, at)
    if text.startswith(quote, at):
        end = text.index(quote, at + len(quote))
        return text[at + len(quote) : end], end + len(quote)
    if text[at] == "{":
        return _read_brace_object(quote, text, at + 1, depth)
    if text[at] == "[":
        return _read_brace_list(quote, text, at + 1, depth)
    bare = _BARE.match(text, at)
    if bare is None:
        raise ValueError("a value is missing")
    if quote in bare[0]:  # the marks of a text are never a part of it
        raise ValueError("a text does not begin with its mark")
    return value_of(bare[0].strip(), None), bare.end()


def _read_brace_object(quote: str, text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    """The object whose pairs begin at index *at*, and its end."""
    values: dict[str, Any] = {}
    at = _skip_space(text, at)
    while text[at] != "}":
        end = text.index(":", at)
        key = text[at:end].strip().replace(quote, "")
        value, at = _read_brace_value(quote, text, end + 1, depth + 1)
        _put(values, key, value)
        at = _skip_comma(text, at, "}")
    return values, at + 1


def _read_brace_list(quote: str, text: str, at: int, depth: int) -> tuple[list[Any], int]:
    """The list whose items begin at index *at*, and its end."""
    items: list[Any] = []
    at = _skip_space(text, at)
    while text[at] != "]":
        item, at = _read_brace_value(quote, text, at, depth + 1)
        items.append(item)
        at = _skip_comma(text, at, "]")
    return items, at + 1


def _skip_comma(text: str, at: int, closing: str) -> int:
    """Index of what follows a value that ends at *at*: the next one, or the *closing* bracket."""
    at = _skip_space(text, at)
    if text[at] == ",":
        return _skip_space(text, at + 1)
    if text[at] != closing:
        raise ValueError("a comma is missing")
    return at


def _skip_space(text: str, at: int) -> int:
    """Index of the first character of *text* from *at* on that is not white space."""
    space = _SPACE.match(text, at)
    assert space is not None, "it may be empty"
    return space.end()


def _read_keywords(_notation: Notation, text: str, at: int, schema: Schema) -> tuple[str, int]:
    values: dict[str, Any] = {}
    properties = properties_of(schema, schema)
    while match := _KEYWORD.match(text, at):
        key = match[1]
        value, at = _keyword_value(text, match.end(), properties.get(key), schema)
        _put(values, key, value)
        comma = re.compile(r"\s*,").match(text, at)
        if comma is None:
            break
        at = comma.end()
    return dump(values), at


def _keyword_value(text: str, at: int, schema: Any, root: Schema) -> tuple[Any, int]:
    """The value at index *at*, and its end; quotes within a text need not be escaped."""
    begin = text[at : at + 1]
    if begin in ("'", '"'):
        return _read_quoted(text, at)
    if begin in ("{", "["):
        decoded = _try_decode(text, at)
        if decoded is not None:
            return decoded
    raw = re.compile(rf".*?{_AFTER_VALUE}", re.DOTALL).match(text, at)
    if raw is None:
        raise ValueError("a value is not complete")
    return value_of(raw[0].strip(), schema, root), raw.end()


def _read_quoted(text: str, at: int) -> tuple[Any, int]:
    """The text in quotes at index *at*, and its end: escaped as in Python, or as it is."""
    closing = f"{text[at]}{_AFTER_VALUE}"
    escaped = re.compile(rf".(?:\\.|[^\\])*?{closing}", re.DOTALL).match(text, at)
    if escaped is not None:
        with suppress(ValueError):
            return _read_python(escaped[0]), escaped.end()
    plain = re.compile(rf".(.*?){closing}", re.DOTALL).match(text, at)
    if plain is None:
        raise ValueError("a text is not closed")
    return plain[1], plain.end()


def _try_decode(text: str, at: int) -> tuple[Any, int] | None:
    """The JSON value at index *at* and its end, if it is a whole keyword argument; else None."""
    try:
        value, end = decode(text, at)
    except ValueError:
        return None
    return (value, end) if re.compile(_AFTER_VALUE).match(text, end) else None


_READERS: dict[str, Callable[[Notation, str, int, Schema], tuple[str, int]]] = {
    "json": _read_json,
    "elements": _read_elements,
    "nested": _read_nested,
    "braces": _read_braces,
    "keywords": _read_keywords,
}


# --- writers --------------------------------------------------------------------------------------


def _write_element(notation: Notation, key: str, value: Any) -> str:
    is_text = isinstance(value, str)
    kind = str(is_text).lower() if notation.types == "flag" else type_name(value)
    begin = fill(notation.begin, {KEY: key, TYPE: kind})
    return f"{begin}{value if is_text else _dump_value(value)}{notation.end}"


def _write_nested(notation: Notation, value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = [(key, each) for key, each in value.items() if each is not None]
    elif isinstance(value, list):
        pairs = [("item", each) for each in value]
    else:
        return value if isinstance(value, str) else _dump_value(value)
    return "".join(
        notation.begin.replace(KEY, key)
        + _write_nested(notation, each)
        + notation.end.replace(KEY, key)
        for key, each in pairs
    )


def _write_braces(quote: str, value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = sorted(value.items())
        return "{" + ",".join(f"{key}:{_write_braces(quote, each)}" for key, each in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_write_braces(quote, each) for each in value) + "]"
    return f"{quote}{value}{quote}" if isinstance(value, str) else _dump_value(value)


def _write_python(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    return str(value) if value is None or isinstance(value, bool) else _dump_value(value)


def _dump_value(value: Any) -> str:
    """*value* as JSON text; a ValueError if JSON cannot represent it."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise ValueError("nested too deep") from None
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair: it is text only as an escape
        return json.dumps(value, allow_nan=False)
    return text

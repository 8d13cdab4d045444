"""Types and properties that a JSON schema allows, with its local references followed.

Schemas are those of clients: parts of wrong types say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

# Types of JSON Schema; integers are numbers.
_ALL = frozenset({"string", "number", "boolean", "null", "array", "object"})
_MOST_DEPTH = 100  # of schemas and references within one another


def type_name(value: Any) -> str:
    """JSON Schema's name for the type of *value*; an integer is a ``number``."""
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    names = {str: "string", int: "number", float: "number", list: "array"}
    return names.get(type(value), "object")


def types_of(schema: Any, root: Any = None) -> frozenset[str]:
    """Names of the types that *schema* allows, empty if it does not say; integers are numbers.

    *root* is the whole schema, in which local references are looked up.
    """
    return _types_of(schema, root, {}, 0)


def properties_of(schema: Any, root: Any) -> dict[str, Any]:
    """Schemas of the properties of *schema* by name, with those of ``$ref`` and ``allOf``."""
    schemas: dict[str, Any] = {}
    for part in parts_of(schema, root):
        properties = part.get("properties")
        if isinstance(properties, Mapping):
            schemas = {**properties, **schemas}
    return schemas


def items_of(schema: Any, root: Any) -> Any:
    """Schema of the items of *schema*, also by ``$ref`` and ``allOf``; None if it has none."""
    return next((part["items"] for part in parts_of(schema, root) if "items" in part), None)


def parts_of(schema: Any, root: Any) -> list[Mapping[str, Any]]:
    """*schema* and the schemas that apply with it, by ``$ref`` and ``allOf``."""
    parts = []
    waiting = [schema]
    followed = set()
    while waiting:
        part = waiting.pop(0)
        if not isinstance(part, Mapping):
            continue
        parts.append(part)
        waiting += _list_in(part, "allOf")
        reference = part.get("$ref")
        if isinstance(reference, str) and reference not in followed:
            followed.add(reference)
            waiting.append(follow(reference, root))
    return parts


def _types_of(
    schema: Any, root: Any, followed_types: dict[str, frozenset[str]], depth: int
) -> frozenset[str]:
    """Types that *schema* allows; *followed_types* are those of references followed before."""
    if not isinstance(schema, Mapping) or depth > _MOST_DEPTH:
        return frozenset()
    limits = [_own_types(schema)]
    limits += [
        _types_of(part, root, followed_types, depth + 1) for part in _list_in(schema, "allOf")
    ]
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in followed_types:
            followed_types[reference] = frozenset()  # one that leads back to itself says nothing
            inner = follow(reference, root)
            followed_types[reference] = _types_of(inner, root, followed_types, depth + 1)
        limits.append(followed_types[reference])
    for word in ("anyOf", "oneOf"):
        branches = [
            _types_of(branch, root, followed_types, depth + 1) or _ALL
            for branch in _list_in(schema, word)
        ]
        limits.append(frozenset().union(*branches))
    known_limits = [limit for limit in limits if limit]
    return frozenset.intersection(*known_limits) if known_limits else frozenset()


def _own_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """Types that *schema* itself names, or has values of."""
    if "const" in schema:
        return frozenset({type_name(schema["const"])})
    if choices := _list_in(schema, "enum"):
        return frozenset(map(type_name, choices))
    types = schema.get("type")
    names = [types] if isinstance(types, str) else _list_in(schema, "type")
    return frozenset("number" if name == "integer" else str(name) for name in names)


def follow(reference: Any, root: Any) -> Any:
    """The part of *root* that a local *reference* names; None if there is none."""
    if not isinstance(reference, str) or not (reference + "/").startswith("#/"):
        return None
    part = root
    for word in unquote(reference[1:]).split("/")[1:]:
        key = word.replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping):
            part = part.get(key)
        elif isinstance(part, list | tuple) and key.isdecimal() and int(key) < len(part):
            part = part[int(key)]
        else:
            return None
    return part


def _list_in(schema: Mapping[str, Any], key: str) -> list[Any]:
    """The list under *key* of *schema*; empty if it has none."""
    value = schema.get(key)
    return list(value) if isinstance(value, list | tuple) else []

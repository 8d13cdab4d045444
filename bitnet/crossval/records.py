"""Dataclasses as JSON values, and back, with every field checked."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from bitnet.base.errors import InvalidFormat

_MOST = 1e300  # JSON has no infinity: an unlimited difference becomes this number

Record = TypeVar("Record")


def to_json(value: Any, digits: int = 6) -> Any:
    """*value* as JSON values; floats have *digits* significant digits, and NaN becomes None."""
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name), digits) for field in fields(value)}
    if isinstance(value, dict):
        return {key: to_json(entry, digits) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(entry, digits) for entry in value]
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{min(max(value, -_MOST), _MOST):.{digits}g}")
    return value


def from_json(
    kind: type[Record], values: Any, where: str = "the report", *, partial: bool = False
) -> Record:
    """A *kind* from JSON *values*, which messages call *where*.

    In *partial* values, what is missing has its default, and what is unknown is ignored.
    """
    hint = "write the report again"

    def expect(right: bool, value: Any, where: str, expected: object) -> Any:
        if not right:
            text = f"{where} is {str(value)[:60]!r}, expected {expected}"
            raise InvalidFormat(text, hint=hint)
        return value

    def read(kind: Any, values: Any, where: str) -> Any:
        origin = get_origin(kind)
        arguments = get_args(kind)
        if is_dataclass(kind):
            field_types = get_type_hints(kind)
            expect(type(values) is dict, values, where, "an object")
            wrong = sorted(field_types.keys() ^ values.keys())
            if wrong and not partial:
                what = "has an unknown field" if wrong[0] in values else "lacks the field"
                raise InvalidFormat(f"{where} {what} {wrong[0]!r}", hint=hint)
            make = cast("Any", kind)
            return make(
                **{
                    name: read(field_types[name], values[name], f"{where}.{name}")
                    for name in field_types.keys() & values.keys()
                }
            )
        if origin is UnionType:
            (inner,) = [argument for argument in arguments if argument is not NoneType]
            return None if values is None else read(inner, values, where)
        if origin is Literal:
            return expect(values in arguments and type(values) is str, values, where, arguments)
        if origin is tuple:
            expect(type(values) is list, values, where, "a list")
            return tuple(
                read(arguments[0], entry, f"{where}[{at}]") for at, entry in enumerate(values)
            )
        if origin is dict:
            expect(type(values) is dict, values, where, "an object")
            return {
                key: read(arguments[1], entry, f"{where}.{key}") for key, entry in values.items()
            }
        if kind is float:
            # Also NaN, infinities, and integers that no float holds are not in this range.
            is_number = type(values) in (int, float) and -_MOST <= values <= _MOST
            return float(expect(is_number, values, where, f"a number up to {_MOST:g}"))
        return expect(type(values) is kind, values, where, kind.__name__)

    result: Record = read(kind, values, where)
    return result

"""Dataclasses to JSON values and back; missing, extra or mistyped values are refused."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bitnet.base.errors import InvalidFormat

_DIGITS = 6  # significant digits of a measured number
_MOST = 1e300  # JSON has no infinity: an unlimited difference becomes this number

Record = TypeVar("Record")


def to_json(value: Any) -> Any:
    """*value* as JSON values, with six significant digits."""
    if is_dataclass(value):
        return {one.name: to_json(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, dict):
        return {key: to_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(one) for one in value]
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{min(max(value, -_MOST), _MOST):.{_DIGITS}g}")
    return value


def round_numbers(record: Record) -> Record:
    """*record* with its numbers as a file has them."""
    return from_json(type(record), to_json(record))


def from_json(kind: type[Record], values: Any, where: str = "the report") -> Record:
    """A *kind* from JSON *values*; *where* is their name in messages.

    Raises:
        InvalidFormat: a value is missing, unknown, of another type, or not finite.
    """
    found: Record = _read(kind, values, where)
    return found


def _read(kind: Any, values: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _record(kind, values, where)
    if origin in (Union, UnionType):
        (inner,) = [entry for entry in arguments if entry is not NoneType]
        return None if values is None else _read(inner, values, where)
    if origin is Literal:
        return _expect(values in arguments and isinstance(values, str), values, where, arguments)
    if origin is tuple:
        _expect(isinstance(values, list), values, where, "a list")
        return tuple(
            _read(arguments[0], entry, f"{where}[{at}]") for at, entry in enumerate(values)
        )
    if origin is dict:
        _expect(isinstance(values, dict), values, where, "an object")
        return {key: _read(arguments[1], entry, f"{where}.{key}") for key, entry in values.items()}
    if kind is float:
        is_number = isinstance(values, (int, float)) and not isinstance(values, bool)
        _expect(is_number and math.isfinite(values), values, where, "a finite number")
        return float(values)
    return _expect(type(values) is kind, values, where, kind.__name__)


def _record(kind: Any, values: Any, where: str) -> Any:
    _expect(isinstance(values, dict), values, where, "an object")
    hints = get_type_hints(kind)
    names = {one.name for one in fields(kind)}
    wrong = sorted(names ^ set(values))
    if wrong:
        what = "has an unknown field" if wrong[0] in values else "lacks the field"
        raise InvalidFormat(f"{where} {what} {wrong[0]!r}", hint="write the report again")
    return kind(**{name: _read(hints[name], values[name], f"{where}.{name}") for name in names})


def _expect(right: bool, value: Any, where: str, expected: object) -> Any:
    if not right:
        raise InvalidFormat(
            f"{where} is {str(value)[:60]!r}, expected {expected}", hint="write the report again"
        )
    return value

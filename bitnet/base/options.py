"""Fields of frozen dataclasses that are command-line options.

Each layer declares its own options as such fields; :mod:`bitnet.commands.declare` builds the
command line from them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

from bitnet.base import settings
from bitnet.base.errors import UsageError, WrongType

_DURATION = re.compile(r"(?P<count>\d+(\.\d+)?)(?P<unit>[smhdw])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def wrong_type(name: str, value: object, expected: str) -> WrongType:
    """The error of a parameter *name* whose *value* is not of the *expected* type."""
    actual = "None" if value is None else type(value).__name__
    return WrongType(f"{name} is of type {actual}, expected {expected}", field=name)


def check_type(name: str, value: object, expected: str, *kinds: type | None) -> None:
    """Refuse the *value* of the parameter *name* unless it is of one of *kinds*.

    ``True`` is not a number. *expected* names *kinds* in words; the kind ``None`` accepts ``None``.
    """
    types = tuple(type(None) if kind is None else kind for kind in kinds)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise wrong_type(name, value, expected)


def check_values(name: str, values: object, expected: str, item: str, *kinds: type) -> None:
    """Refuse *values* of the parameter *name* unless each is of one of *kinds*.

    *expected* names such values in words, and *item* one of them. A text alone is refused.
    """
    if isinstance(values, str) or not isinstance(values, Collection):
        raise wrong_type(name, values, expected)
    for index, value in enumerate(values):
        check_type(f"{name}[{index}]", value, item, *kinds)


def check_ids(name: str, ids: Any, expected: str = "token ids") -> list[int]:
    """*ids* as a list of ``int``; NumPy's integers are accepted."""
    if isinstance(ids, str | bytes | bytearray) or not isinstance(ids, Iterable):
        raise wrong_type(name, ids, expected)
    values = list(ids)
    for index, value in enumerate(values):
        if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise wrong_type(f"{name}[{index}]", value, "a token id")
    return [operator.index(value) for value in values]


def option(
    default: Any,  # value when the option is not given; its type is the option's type
    help: str,  # one sentence, with the unit where there is one
    *,
    choices: Iterable[str] = (),  # the only values allowed
    synonyms: Iterable[str] = (),  # other long names, dashed
    formerly: Iterable[str] = (),  # its earlier long names; they work, but help omits them
    positional: bool = False,  # its value may be given without its name
    short: str = "",  # a one-letter name
    count: bool = False,  # the option has no value; its occurrences are counted
    metavar: str = "",  # placeholder of the value in help
    writes: bool = False,  # its value names a file or folder that the command writes
    needs_text: bool = False,  # an empty value is refused; elsewhere it counts as not given
    bounds: tuple[float, float | None] | None = None,  # lowest and highest: `check_bounds`
    section: str = "",  # heading in help; default: that of its dataclass
) -> Any:
    """A dataclass field that is a command-line option; read by :mod:`bitnet.commands.declare`."""
    lists = {"choices": choices, "synonyms": synonyms, "formerly": formerly}
    metadata: dict[str, Any] = {name: tuple(values) for name, values in lists.items()}
    metadata |= {"help": help, "positional": positional, "short": short, "count": count}
    metadata |= {"metavar": metavar, "bounds": bounds, "writes": writes}
    metadata |= {"section": section, "needs_text": needs_text}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def range_text(low: float, high: float | None) -> str:
    """``at least 1``, ``1 to 4,096`` or ``0 to 2.5``."""
    if high is None:
        return f"at least {low:g}"
    return f"{low:g} to {high:,}" if type(high) is int else f"{low:g} to {high:g}"


@cache
def types_of(record: type, *names: str) -> dict[str, Any]:
    """Types of the fields *names* of the dataclass *record*.

    Only these are resolved: other fields may have types that only a type checker imports.
    """
    annotations = {entry.name: entry.type for entry in fields(record) if entry.name in names}
    stand_in = type(record.__name__, (), {"__module__": record.__module__})
    stand_in.__annotations__ = annotations
    return get_type_hints(stand_in)


def is_optional(hint: Any) -> bool:
    """True for the type ``X | None``."""
    return type(None) in get_args(hint)


def without_none(hint: Any) -> Any:
    """The type ``X`` for ``X | None``; any other type unchanged."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if is_optional(hint) and len(kinds) == 1 else hint


def check_bounds(record: Any) -> None:
    """Check that the numbers of a dataclass are within their bounds."""
    bounded = [entry for entry in fields(record) if entry.metadata.get("bounds")]
    types = types_of(record.__class__, *(entry.name for entry in bounded))
    for entry in bounded:
        value = getattr(record, entry.name)
        _check_number(entry.name, value, types[entry.name])
        if value is None:
            continue
        low, high = entry.metadata["bounds"]
        highest = float("inf") if high is None else high
        if not low <= value <= highest:  # true for NaN, too
            text = f"{entry.name} is {value}, expected {range_text(low, high)}"
            raise UsageError(text, field=entry.name)


def _check_number(name: str, value: object, hint: Any) -> None:
    """Check that *value* is of the type *hint*: ``int``, ``float``, or either with ``None``."""
    is_whole = without_none(hint) is int
    expected = "a whole number" if is_whole else "a number"
    kinds: list[type | None] = [Integral if is_whole else Real]
    if is_optional(hint):
        expected += " or None"
        kinds.append(None)
    check_type(name, value, expected, *kinds)


def parse_duration(text: str, flag: str) -> float:
    """Seconds in ``30d``, ``12h``, ``90m``, ``2w`` or ``45s``, the value of *flag*."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(
            f"{flag} expects a number and a unit, got {text!r}",
            hint="for example 30d; the units are s, m, h, d, w",
        )
    return float(match["count"]) * _UNIT_S[match["unit"]]


@dataclass(frozen=True)
class CacheOptions:
    """The cache folder a command works on."""

    SECTION: ClassVar = "Cache"

    cache_dir: str = option(
        "",
        "cache folder, instead of BITNET_CACHE_DIR or ~/.cache/bitnet",
        metavar="DIR",
        needs_text=True,
    )

    @property
    def root(self) -> Path:
        """The effective cache folder; it need not exist."""
        if self.cache_dir:
            return settings.expand_home(Path(self.cache_dir)).absolute()
        return settings.cache_dir()

"""Types of the values that Python code passes: a wrong one is refused by the parameter's name."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from numbers import Integral
from typing import Any

from bitnet.base.errors import WrongType


def wrong_type(name: str, value: object, expected: str) -> WrongType:
    """The error of a parameter *name* whose *value* is not of the *expected* type."""
    given = "None" if value is None else type(value).__name__
    return WrongType(f"{name} is of type {given}, expected {expected}", field=name)


def check_type(name: str, value: object, expected: str, *kinds: type | None) -> None:
    """Accept the *value* of a parameter that is of one of *kinds*; ``True`` is not a number.

    *expected* names *kinds* in words; the kind ``None`` is for the value ``None``.

    Raises:
        WrongType: it is of another type.
    """
    types = tuple(type(None) if kind is None else kind for kind in kinds)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise wrong_type(name, value, expected)


def check_ids(name: str, ids: Any, expected: str = "token ids") -> list[int]:
    """*ids* as a list; NumPy's integers are welcome.

    Raises:
        WrongType: *ids* is a text or not iterable, or one of them is not an integer.
    """
    if isinstance(ids, str | bytes | bytearray) or not isinstance(ids, Iterable):
        raise wrong_type(name, ids, expected)
    given = list(ids)
    for place, one in enumerate(given):
        if type(one) is not int and not isinstance(one, Integral):
            raise wrong_type(f"{name}[{place}]", one, "a token id")
    return [operator.index(one) for one in given]

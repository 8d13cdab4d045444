"""Renewal of locks, and of the state they protect, in forked children."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Owner = TypeVar("_Owner")
_owners: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def renew_in_child(owner: _Owner, renew: Callable[[_Owner], None]) -> None:
    """Call ``renew(owner)`` first thing in every forked child, for as long as *owner* lives."""
    _owners[owner] = renew


def _renew_all() -> None:
    for owner, renew in list(_owners.items()):
        renew(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)

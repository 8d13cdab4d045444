"""JSON files of a model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from bitnet.errors import InvalidFormat

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["T", "damaged", "parse_json"]

T = TypeVar("T", dict, list)  # type: ignore[type-arg]


def parse_json(raw: bytes, path: Path, kind: type[T]) -> T:
    """The object or array that *raw* is, a part of the file *path*.

    Args:
        raw: the text.
        path: the file, for messages.
        kind: ``dict`` or ``list``.

    Raises:
        InvalidFormat: it is not JSON, JSON of another kind, or has a key twice, of which some
            readers take the first and others the last.
    """
    try:
        found = json.loads(raw, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is not valid JSON: {error}") from None
    if not isinstance(found, kind):
        raise damaged(path, f"it is not a JSON {'array' if kind is list else 'object'}")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:80]!r} is there twice")
    return found


def damaged(path: Path, why: str) -> InvalidFormat:
    """The error about the file *path*, which is damaged."""
    where = f"{path.parent.name}/{path.name}"
    return InvalidFormat(f"{where}: {why}", hint="the file is damaged: fetch it again")

"""JSON files beside weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

from bitnet.errors import InvalidFormat, from_os_error

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["damaged", "parse_json", "read_json"]

T = TypeVar("T", dict, list)  # type: ignore[type-arg]


def read_json(path: Path, kind: type[T]) -> T:
    """The object or array in the file *path*.

    Args:
        path: the file.
        kind: ``dict`` or ``list``.

    Raises:
        NotFound: the file does not exist.
        InvalidFormat: it is not JSON, or JSON of another kind.
    """
    try:
        return parse_json(path.read_bytes(), path, kind)
    except OSError as error:
        raise from_os_error(error, path) from error


def parse_json(raw: bytes, path: Path, kind: type[T]) -> T:
    """The object or array that *raw* is, a part of the file *path*.

    Raises:
        InvalidFormat: it is not JSON, or JSON of another kind.
    """
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is not valid JSON: {error}") from None
    if not isinstance(found, kind):
        raise damaged(path, f"it is not a JSON {'array' if kind is list else 'object'}")
    return found


def damaged(path: Path, why: str) -> InvalidFormat:
    """The error about the file *path*, which is damaged."""
    where = f"{path.parent.name}/{path.name}"
    return InvalidFormat(f"{where}: {why}", hint="the file is damaged: fetch it again")

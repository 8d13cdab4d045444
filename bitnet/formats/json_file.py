"""JSON files of a model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from bitnet.base.errors import InvalidFormat

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["T", "damage_error", "find_repeated_keys", "parse_json"]

T = TypeVar("T", dict, list)  # type: ignore[type-arg]


def parse_json(raw: bytes, path: Path, kind: type[T], *, unique: bool = False) -> T:
    """The object or array that *raw* is, a part of the file *path*.

    Args:
        raw: the text.
        path: the file, for messages.
        kind: ``dict`` or ``list``.
        unique: refuse a key that is there twice; otherwise the last one counts, as in
            transformers: a published ``config.json`` has one.
    """
    try:
        content = json.loads(raw)
        if unique and (twice := find_repeated_keys(raw)):
            raise ValueError(f"the key {twice[0][0][:80]!r} is there twice")
    except (ValueError, RecursionError) as error:
        raise damage_error(path, f"it is not valid JSON: {error}") from None
    if not isinstance(content, kind):
        raise damage_error(path, f"it is not a JSON {'array' if kind is list else 'object'}")
    return content


def find_repeated_keys(raw: bytes) -> list[tuple[str, Any]]:
    """Keys in the JSON text *raw* that an object has again later, with their values."""
    overwritten: list[tuple[str, Any]] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            last = {key: at for at, (key, _) in enumerate(pairs)}
            overwritten.extend(pair for at, pair in enumerate(pairs) if last[pair[0]] != at)
        return found

    json.loads(raw, object_pairs_hook=collect)
    return overwritten


def damage_error(path: Path, why: str) -> InvalidFormat:
    """The error about the file *path*, which is damaged."""
    where = f"{path.parent.name}/{path.name}"
    return InvalidFormat(f"{where}: {why}", hint="the file is damaged: fetch it again")

"""Read a ``tokenizer.json`` as data, and check its vocabulary."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, VocabMismatch, from_os_error
from bitnet.tokenizer.side_files import json_fault

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_vocabulary", "read_tokenizer_json", "vocabulary"]


def read_tokenizer_json(path: Path) -> dict[str, Any]:
    """The JSON object in *path*.

    Raises:
        InvalidFormat: the file is empty, is not JSON (names line and column) or is not a
            tokenizer.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise from_os_error(error, path) from error
    again = "fetch it again: bitnet tokenizer --source mirror --output models --force"
    if not raw.strip():
        raise InvalidFormat(f"Downloaded tokenizer file is empty: {path}", hint=again)
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidFormat(
            f"Invalid JSON in downloaded tokenizer: {json_fault(error)} ({path})", hint=again
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise InvalidFormat(f"{path} is JSON, but not a tokenizer: it has no 'model'", hint=again)
    return document


def vocabulary(document: dict[str, Any]) -> dict[int, str]:
    """Text of every id, including added tokens; a later definition of an id wins.

    Raises:
        InvalidFormat: an id is not a whole number that fits 32 bits.
    """
    table: dict[int, str] = {}
    entries = document["model"].get("vocab") or {}
    if isinstance(entries, dict):
        pairs = [(number, text) for text, number in entries.items()]
    else:  # Unigram: a list of [text, score]
        pairs = [(number, entry[0]) for number, entry in enumerate(entries)]
    added = document.get("added_tokens") or []
    for number, text in [*pairs, *((item.get("id"), item.get("content")) for item in added)]:
        if type(number) is not int or not 0 <= number < 2**32:
            raise InvalidFormat(f"token {text!r} has id {number!r}, which is not a 32-bit id")
        table[number] = text
    return table


def check_vocabulary(path: Path, vocab_size: int) -> None:
    """Check that the ids in *path* are exactly 0 to ``vocab_size - 1``.

    Raises:
        VocabMismatch: an id is missing or too many.
        InvalidFormat: as for :func:`read_tokenizer_json`.
    """
    table = vocabulary(read_tokenizer_json(path))
    if table.keys() == set(range(vocab_size)):
        return
    missing = next((number for number in range(vocab_size) if number not in table), None)
    detail = f", the first id missing is {missing:,}" if missing is not None else ""
    raise VocabMismatch(
        f"Vocabulary size mismatch: expected {vocab_size}, got {len(table)} "
        f"({path}: ids up to {max(table, default=-1):,}{detail})",
        hint="fetch it again: bitnet tokenizer --source mirror --output models --force",
    )

"""Read a ``tokenizer.json`` as data: check its vocabulary, compare two files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.errors import InvalidFormat, VocabMismatch, from_os_error

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "TokenizerDifference",
    "check_vocabulary",
    "differences",
    "read_tokenizer_json",
    "vocabulary",
]

_SHOWN = 3


@dataclass(frozen=True)
class TokenizerDifference:
    """One difference between two tokenizers.

    Attributes:
        part: ``vocabulary``, ``merges``, ``added tokens``, ``normalizer`` ...
        text: what differs, with the first examples.
    """

    part: str
    text: str


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
        where = (
            f"{error.msg} at line {error.lineno} column {error.colno}"
            if isinstance(error, json.JSONDecodeError)
            else str(error)
        )
        raise InvalidFormat(
            f"Invalid JSON in downloaded tokenizer: {where} ({path})", hint=again
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


def differences(left: Path, right: Path) -> list[TokenizerDifference]:
    """Differences in meaning between two ``tokenizer.json`` files; empty if there are none.

    The order of keys, white space and the version are ignored; numbering, pre-tokenization,
    merges and templates are compared.
    """
    a, b = read_tokenizer_json(left), read_tokenizer_json(right)
    found = [
        _tables("vocabulary", vocabulary(a), vocabulary(b)),
        _sequences("merges", _merges(a), _merges(b)),
        _tables("added tokens", _added(a), _added(b)),
    ]
    parts = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding")
    found += [_values(part, a.get(part), b.get(part)) for part in parts]
    options = sorted((a["model"].keys() | b["model"].keys()) - {"vocab", "merges"})
    found += [
        _values(f"model.{name}", a["model"].get(name), b["model"].get(name)) for name in options
    ]
    return [difference for difference in found if difference is not None]


def _merges(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Merges as pairs, from either spelling (``"a b"`` or ``["a", "b"]``)."""
    merges = document["model"].get("merges") or []
    return [tuple(m.split(" ", 1)) if isinstance(m, str) else tuple(m) for m in merges]


def _added(document: dict[str, Any]) -> dict[int, Any]:
    return {item["id"]: item for item in document.get("added_tokens") or []}


def _tables(part: str, a: dict[int, Any], b: dict[int, Any]) -> TokenizerDifference | None:
    different = sorted(number for number in a.keys() | b.keys() if a.get(number) != b.get(number))
    if not different:
        return None
    shown = "; ".join(f"id {n}: {a.get(n)!r} / {b.get(n)!r}" for n in different[:_SHOWN])
    return TokenizerDifference(
        part, f"{len(a):,} and {len(b):,} entries, {len(different):,} differ: {shown}"
    )


def _sequences(part: str, a: list[Any], b: list[Any]) -> TokenizerDifference | None:
    if a == b:
        return None
    pairs = enumerate(zip(a, b, strict=False))
    first = next((n for n, (x, y) in pairs if x != y), min(len(a), len(b)))
    shown = " / ".join(repr(" ".join(s[first])) if first < len(s) else "none" for s in (a, b))
    return TokenizerDifference(
        part, f"{len(a):,} and {len(b):,}, different from number {first:,}: {shown}"
    )


def _values(part: str, a: Any, b: Any) -> TokenizerDifference | None:
    # A missing option means the library's default, which it also writes as null or false.
    if a == b or (not a and not b):
        return None
    texts = (json.dumps(value, ensure_ascii=False, sort_keys=True) for value in (a, b))
    return TokenizerDifference(
        part, " / ".join(t if len(t) <= 200 else t[:197] + "..." for t in texts)
    )

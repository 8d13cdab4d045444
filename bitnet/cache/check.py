"""Check cached files against the digest or format that their name promises."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import BitnetError, from_os_error
from bitnet.base.files import sha256_of
from bitnet.cache.exact_heads import problem_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from bitnet.cache.entries import Entry


@dataclass(frozen=True)
class EntryCheck:
    """Result of checking one entry; *problem* is empty if it is intact."""

    entry: Entry
    check: str
    problem: str = ""

    @property
    def intact(self) -> bool:
        """True if there is no problem."""
        return not self.problem

    def facts(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            **self.entry.facts(),
            "check": self.check,
            "intact": self.intact,
            "problem": self.problem or None,
        }

    def __str__(self) -> str:
        if self.intact:
            return f"✓ Valid {self.check}: {self.entry.path}"
        return f"✗ Invalid {self.check}: {self.entry.path}: {self.problem}"


def verify(
    entry: Entry,
    *,
    read_gguf: Callable[[Path], object] | None = None,
    expected: Mapping[str, str] | None = None,
) -> EntryCheck:
    """Check the content of *entry* against its name.

    Args:
        entry: any entry but a partial file or a leftover.
        read_gguf: reads a whole GGUF file and raises a ``BitnetError`` if it is damaged.
        expected: SHA-256 by path, for files whose digest is known.
    """
    path = entry.path
    check = {".json": "JSON", ".gguf": "GGUF", ".copy": "exact head"}.get(path.suffix, "file")
    try:
        if not path.stat().st_size:
            return EntryCheck(entry, check, "the file is empty")
        digest = (expected or {}).get(str(path))
        if digest and (found := sha256_of(path)) != digest:
            return EntryCheck(entry, "SHA-256", f"expected {digest}, found {found}")
        problem = ""
        if check == "JSON":
            problem = _json_problem(path)
        elif check == "GGUF":
            problem = _gguf_problem(path, read_gguf)
        elif check == "exact head":
            problem = problem_of(path)
    except OSError as error:
        return EntryCheck(entry, check, from_os_error(error, path).message)
    return EntryCheck(entry, check, problem)


def _json_problem(path: Path) -> str:
    try:
        value = json.loads(path.read_bytes())
    except json.JSONDecodeError as error:
        return f"{error.msg} at line {error.lineno} column {error.colno}"
    except (ValueError, RecursionError) as error:  # not UTF-8; thousands of digits; too deep
        return str(error)
    if path.name == "tokenizer.json" and not (isinstance(value, dict) and "model" in value):
        return 'no "model" in it: not a tokenizer'
    return ""


def _gguf_problem(path: Path, read_gguf: Callable[[Path], object] | None) -> str:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        return f"starts with {magic!r} instead of b'GGUF'"
    if read_gguf is not None:
        try:
            read_gguf(path)
        except BitnetError as error:
            return error.message
    return ""

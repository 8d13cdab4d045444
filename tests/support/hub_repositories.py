"""Repositories, files and requests of the hub on loopback (``hub_server``)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from bitnet.base.files import sha256_of

LARGE_BYTES = 1000  # a file of this size or more is stored as Git LFS does


@dataclass(frozen=True)
class Seen:
    """A request and its reply."""

    where: str  # "hub" or "cdn"
    method: str
    path: str
    headers: dict[str, str]
    status: int
    sent: int  # bytes of the body


class Blob:
    """A file: bytes in memory, or a path."""

    def __init__(self, content: bytes | Path) -> None:
        self.path = content if isinstance(content, Path) else None
        self._bytes = content if isinstance(content, bytes) else b""
        self.size = self.path.stat().st_size if self.path else len(self._bytes)
        self.sha256 = self._digest()
        self.oid = self._oid()

    def _oid(self):
        """SHA-1 of a git blob: the content, or of a large file its SHA-256 instead of a pointer."""
        content = self.sha256.encode() if self.large else self.read(0, self.size)
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def _digest(self):
        return sha256_of(self.path) if self.path else hashlib.sha256(self._bytes).hexdigest()

    def read(self, start: int, stop: int) -> bytes:
        """Bytes *start* to *stop* of the file."""
        if self.path is None:
            return self._bytes[start:stop]
        with open(self.path, "rb") as file:
            file.seek(start)
            return file.read(stop - start)

    @property
    def large(self) -> bool:
        """True if Git LFS would store the file."""
        return self.size >= LARGE_BYTES


@dataclass
class Repo:
    """A repository: files by commit, and commits by revision; ``main`` is the last commit."""

    name: str
    gated: bool = False
    private: bool = False
    licence: str = "apache-2.0"
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)

    def files(self, revision: str) -> tuple[str, dict[str, Blob]] | None:
        """Commit and files of a branch or commit; None if the repository lacks it."""
        commit = self.revisions.get(revision, revision)
        return (commit, self.commits[commit]) if commit in self.commits else None

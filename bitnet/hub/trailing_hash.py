"""Digest of a file that is computed while the file is still being fetched."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_STEP_BYTES = 1 << 20  # least number of new bytes for which the thread is woken up


class TrailingHash:
    """SHA-256 of the beginning of the file *path*; a thread reads back the bytes that arrived."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        # Number of bytes that are hashed, and number that the thread was told to hash.
        self._at = self._limit = 0
        self._thread = ThreadPoolExecutor(1, "sha256")

    def advance(self, limit: int) -> None:
        """Let the thread hash the first *limit* bytes; returns at once."""
        if limit - self._limit >= _STEP_BYTES:
            self._limit = limit
            self._thread.submit(self._read, limit)

    def finish(self, limit: int) -> str:
        """Digest of the first *limit* bytes, hexadecimal."""
        self._thread.submit(self._read, limit).result()
        return self._digest.hexdigest()

    def stop(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _read(self, limit: int) -> None:
        buffer = memoryview(bytearray(1 << 18))  # fits into a core's cache
        with open(self._path, "rb", buffering=0) as file:
            file.seek(self._at)
            while self._at < limit:
                count = file.readinto(buffer[: limit - self._at])
                if not count:
                    raise OSError(f"{self._path.name} became shorter while it was hashed")
                self._digest.update(buffer[:count])
                self._at += count

"""SHA-256 of a file that is still being written, computed during the transfer."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_READ_BYTES = 1 << 18  # fits into a core's cache


class TrailingHash:
    """Hashes the beginning of *path* in a thread, up to the limit of :meth:`advance`.

    The bytes are read back from the page cache, so their order, the number of connections and
    earlier runs do not matter.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        self._limit = 0
        self._ended = False
        self._error: OSError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="sha256", daemon=True)
        self._thread.start()

    def advance(self, limit: int) -> None:
        """Allow hashing up to byte *limit*."""
        with self._changed:
            if limit > self._limit:
                self._limit = limit
                self._changed.notify()

    def finish(self) -> str:
        """Digest of everything allowed so far, hexadecimal.

        Raises:
            OSError: the file cannot be read.
        """
        self.stop()
        if self._error is not None:
            raise self._error
        return self._digest.hexdigest()

    def stop(self) -> None:
        """End the thread after it has hashed up to the limit."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        buffer = memoryview(bytearray(_READ_BYTES))
        position = 0
        try:
            with open(self._path, "rb", buffering=0) as file:
                while (limit := self._next(position)) is not None:
                    count = file.readinto(buffer[: min(_READ_BYTES, limit - position)])
                    if not count:
                        raise OSError(f"{self._path.name} became shorter while it was hashed")
                    self._digest.update(buffer[:count])
                    position += count
        except OSError as error:
            self._error = error

    def _next(self, position: int) -> int | None:
        """Next limit above *position*; ``None`` at the end."""
        with self._changed:
            while self._limit <= position and not self._ended:
                self._changed.wait()
            return self._limit if self._limit > position else None

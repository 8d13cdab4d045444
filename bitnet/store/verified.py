"""Records of computed digests: a file that has not changed since is not read again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet.base.files import keep

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SETTLED_S", "Verified", "VerifiedFiles"]

# Two changes within one tick of a file system's clock leave the same time; FAT counts in steps of
# two seconds. A file changed less than this ago may change again without showing it.
SETTLED_S = 3.0


@dataclass(frozen=True)
class Verified:
    """A file at the time its digest was computed.

    Attributes:
        path: absolute.
        sha256: hexadecimal.
        size: bytes.
        mtime_ns: modification time.
        inode: its number on its file system.
        placed: this program placed it there; else it was only read.
        ctime_ns: time of the last change of any kind, which cannot be set back; 0 when that was
            only a moment before.
    """

    path: str
    sha256: str
    size: int
    mtime_ns: int
    inode: int
    placed: bool = False
    ctime_ns: int = 0

    @property
    def is_unchanged(self) -> bool:
        """True if the file is still the one that was read."""
        try:
            status = os.stat(self.path)  # noqa: PTH116
        except (OSError, ValueError):
            return False
        found = status.st_size, status.st_mtime_ns, status.st_ino
        return found == (self.size, self.mtime_ns, self.inode)

    @property
    def is_untouched(self) -> bool:
        """True if, in addition, no link was made to it and no time was set."""
        try:
            changed = os.stat(self.path).st_ctime_ns  # noqa: PTH116
        except (OSError, ValueError):
            return False
        return self.is_unchanged and self.ctime_ns == changed > 0


class VerifiedFiles:
    """Records in *folder*, one per path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __iter__(self) -> Iterator[Verified]:
        """Every readable record."""
        with suppress(OSError):
            for path in sorted(self._folder.iterdir()):
                record = _read(path)
                if record is not None:
                    yield record

    def record_of(self, path: Path) -> Verified | None:
        """Last record of *path*, whatever is there now."""
        record = _read(self.file_for(path))
        return record if record is not None and record.path == _absolute(path) else None

    def digest_of(self, path: Path) -> str | None:
        """Digest of *path*, if it was computed and the file has not changed since."""
        record = self.record_of(path)
        return record.sha256 if record is not None and record.is_unchanged else None

    def remember(self, path: Path, sha256: str, *, placed: bool = False) -> None:
        """Record that *path* has this digest, unless it was changed only a moment ago.

        If the folder is not writable, the file is merely read again next time.

        Args:
            path: the file.
            sha256: its digest, just computed or known from elsewhere.
            placed: this program has just placed it there.
        """
        try:
            status = path.stat()
        except OSError:
            return
        if not 0 <= status.st_mtime <= time.time() - SETTLED_S:
            self.forget(path)
            return
        place = _absolute(path)
        earlier = self.record_of(path)
        placed = placed or (earlier is not None and earlier.placed and earlier.sha256 == sha256)
        state = status.st_size, status.st_mtime_ns, status.st_ino
        settled = 0 <= status.st_ctime <= time.time() - SETTLED_S
        changed = status.st_ctime_ns if settled else 0
        record = Verified(place, sha256, *state, placed, changed)
        if earlier != record:
            keep(self.file_for(path), json.dumps(asdict(record)).encode())

    def forget(self, path: Path) -> None:
        """Drop the record of *path*."""
        with suppress(OSError):
            self.file_for(path).unlink()

    def sweep(self) -> None:
        """Drop the records of files that are gone."""
        for record in self:
            if not os.path.lexists(record.path):
                self.forget(Path(record.path))

    def file_for(self, path: Path) -> Path:
        """Path of the record of *path*."""
        name = hashlib.sha256(os.fsencode(_absolute(path))).hexdigest()[:32]
        return self._folder / f"{name}.json"


def _absolute(path: Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100  # without links resolved: a name is a name


def _read(path: Path) -> Verified | None:
    try:
        record = Verified(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    numbers = (record.size, record.mtime_ns, record.inode, record.ctime_ns)
    texts = (record.path, record.sha256)
    sound = all(type(n) is int for n in numbers) and all(isinstance(t, str) for t in texts)
    return record if sound else None

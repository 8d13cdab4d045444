"""Records of computed digests: a file that has not changed since is not read again."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bitnet.store.records import RecordFolder

if TYPE_CHECKING:
    from pathlib import Path

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


class VerifiedFiles(RecordFolder[Verified]):
    """Records by path."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _parse, asdict)

    def file_for(self, *name: str | Path) -> Path:
        """Path of the record of a path; links are not resolved, a name is a name."""
        return super().file_for(*map(os.path.abspath, name))

    def digest_of(self, path: Path) -> str | None:
        """Digest of *path*, if it was computed and the file has not changed since."""
        record = self.find(path)
        return record.sha256 if record is not None and record.is_unchanged else None

    def remember(self, path: Path, sha256: str, *, placed: bool = False) -> None:
        """Record that *path* has this digest, unless it was changed only a moment ago.

        If the folder is not writable, the file is merely read again next time. *placed*: this
        program has just placed it there.
        """
        try:
            status = path.stat()
        except OSError:
            return
        if not 0 <= status.st_mtime <= time.time() - SETTLED_S:
            self.forget(path)
            return
        earlier = self.find(path)
        placed = placed or (earlier is not None and earlier.placed and earlier.sha256 == sha256)
        state = status.st_size, status.st_mtime_ns, status.st_ino
        settled = 0 <= status.st_ctime <= time.time() - SETTLED_S
        changed = status.st_ctime_ns if settled else 0
        record = Verified(os.path.abspath(path), sha256, *state, placed, changed)  # noqa: PTH100
        self.write(record, path)

    def sweep(self) -> None:
        """Drop the records of files that are gone."""
        for record in self:
            if not os.path.lexists(record.path):
                self.forget(record.path)


def _parse(values: Any) -> Verified:
    """The record of *values*, a JSON object; ValueError or TypeError if it is none."""
    record = Verified(**values)
    numbers = (record.size, record.mtime_ns, record.inode, record.ctime_ns)
    texts = (record.path, record.sha256)
    if not all(type(n) is int for n in numbers) or not all(type(t) is str for t in texts):
        raise ValueError("not the record of a file")
    return record

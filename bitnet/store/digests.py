"""Records in the store, one file for each: the pins of names, and digests that were computed.

While size, modification time and inode of a file are unchanged, it is not read again
(docs/adr/0007).
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bitnet.base.errors import InvalidFormat
from bitnet.base.files import open_file
from bitnet.store.placing import ABANDONED_S
from bitnet.store.root import keep_in_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = TypeVar("T")

# Two changes within one tick of a file system's clock leave the same time; FAT counts in steps of
# two seconds. A file changed less than this ago may change again without showing it.
SETTLED_S = 3.0


class RecordFolder(Generic[T]):
    """Records by name in *folder*, a JSON file for each; an unreadable one counts as missing."""

    def __init__(
        self, folder: Path, read: Callable[[Any], T], write: Callable[[T], dict[str, Any]]
    ) -> None:
        self._folder = folder
        self._read = read
        self._write = write

    def __iter__(self) -> Iterator[T]:
        """Every readable record."""
        yield from filter(None, map(self._open, self._paths()))

    def find(self, *name: str | Path) -> T | None:
        """Record of *name*, such as a path; or a repository, revision and file."""
        return self._open(self.file_for(*name))

    def write(self, record: T, *name: str | Path) -> None:
        """Write the *record* of *name*, if it is a new one; without permission, do nothing."""
        if self.find(*name) != record:
            keep_in_cache(self.file_for(*name), json.dumps(self._write(record)).encode())

    def forget(self, *name: str | Path) -> None:
        """Delete the record of *name*."""
        with suppress(OSError):
            self.file_for(*name).unlink()

    def forget_if(self, condition: Callable[[T], bool]) -> None:
        """Delete every record for which *condition* returns True."""
        for path in self._paths():
            record = self._open(path)
            if record is not None and condition(record):
                with suppress(OSError):
                    path.unlink()

    def _paths(self) -> list[Path]:
        """Paths of the records; drafts that killed processes left are removed."""
        paths: list[Path] = []
        with suppress(OSError):
            for path in sorted(self._folder.iterdir()):
                if not path.name.startswith("."):
                    paths.append(path)
                elif time.time() - path.lstat().st_mtime > ABANDONED_S:
                    path.unlink()
        return paths

    def file_for(self, *name: str | Path) -> Path:
        """Path of the record of *name*."""
        key = hashlib.sha256(json.dumps([*map(str, name)]).encode()).hexdigest()
        return self._folder / f"{key[:32]}.json"

    def _open(self, path: Path) -> T | None:
        """The record in the file *path*; None if it is missing or unreadable."""
        try:
            with open_file(path) as file:
                return self._read(json.load(file))
        except (OSError, ValueError, TypeError, RecursionError, InvalidFormat):
            return None


@dataclass(frozen=True)
class Verified:
    """A file at the time its digest was computed."""

    path: str  # absolute
    sha256: str  # hexadecimal
    size: int  # bytes
    mtime_ns: int  # modification time
    inode: int  # its number on its file system
    placed: bool = False  # this program placed it there; else it was only read
    ctime_ns: int = 0  # change time, which a new hard link changes too; 0 if only a moment ago

    @property
    def is_unchanged(self) -> bool:
        """True if the file is still the one that was read."""
        with suppress(OSError, ValueError):
            status = os.stat(self.path)  # noqa: PTH116
            actual = status.st_size, status.st_mtime_ns, status.st_ino
            return actual == (self.size, self.mtime_ns, self.inode)
        return False

    @property
    def is_untouched(self) -> bool:
        """True if the file is unchanged, no link to it was made, and its times were not set."""
        with suppress(OSError, ValueError):
            changed = os.stat(self.path).st_ctime_ns  # noqa: PTH116
            return self.is_unchanged and changed > 0 and changed == self.ctime_ns
        return False


class VerifiedFiles(RecordFolder[Verified]):
    """Digests of files, recorded by path."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _parse, asdict)

    def file_for(self, *name: str | Path) -> Path:
        """Path of the record of a path; a link has a record of its own."""
        return super().file_for(*map(os.path.abspath, name))

    def remember(self, path: Path, sha256: str, *, placed: bool = False) -> None:
        """Record the digest of *path*, unless the file was changed a moment ago.

        *placed*: this program put the file there. An earlier record of the same digest that says so
        counts, too.
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
        """Delete the records of files that are gone."""
        for record in self:
            if not os.path.lexists(record.path):
                self.forget(record.path)


def _parse(values: Any) -> Verified:
    """The record of *values*, a JSON object; ValueError or TypeError if it is not one."""
    record = Verified(**values)
    kinds = [type(value) for value in asdict(record).values()]
    if kinds != [str, str, int, int, int, bool, int]:
        raise ValueError("not the record of a file")
    return record

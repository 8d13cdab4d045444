"""Files on their way: a process writes only what it made, and leaves it for others to copy.

    tokenizer.json.partial.4711-1f9c0a33        being written by process 4711
    tokenizer.json.partial.4711-1f9c0a33.json   what it belongs to (below)
    tokenizer.json.partial                      left behind by a process that stopped, resumable
    tokenizer.json.partial.json                 what that one belongs to

The sidecar binds the bytes to one version of one file: address, ETag, commit, size. A killed
process leaves its files under their own names; they are found and copied just the same. Nobody
ever writes into, or renames, a file somebody else made, so two processes that both believe to hold
the lock cannot mix their bytes.
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import re
import sys
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from bitnet.hub.ranges import Ranges
from bitnet.locks import Owner

if TYPE_CHECKING:
    from bitnet.hub.repository import FileFacts

__all__ = ["Partial", "find_leftover", "sweep"]

logger = logging.getLogger(__name__)

_COPY_BYTES = 1 << 22
_FLUSH_BYTES = 16 << 20
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h
_ABANDONED_S = 24 * 3600.0  # silence after which a process on another host counts as gone
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Sidecar:
    """What the bytes of a partial file belong to.

    Attributes:
        url: where they come from.
        etag: strong ETag as the hub gave it.
        commit: commit as the hub gave it.
        size: bytes of the whole file.
        sent_etag: strong ETag of the server that sent the bytes, for ``If-Range``.
        done: parts that are written; ``None``: everything up to the end of the partial file.
        inode: the partial file's number, so that a sidecar is never taken for another file's.
        owner: who wrote it.
    """

    url: str
    etag: str | None
    commit: str | None
    size: int | None
    sent_etag: str | None
    done: list[list[int]] | None
    inode: int
    owner: dict[str, Any]

    def fits(self, facts: FileFacts) -> bool:
        """Whether the bytes are of the version that *facts* describes."""
        if facts.size is not None and self.size is not None and facts.size != self.size:
            return False
        if facts.etag is not None or self.etag is not None:
            same_place = self.url == facts.url or bool(_SHA256.fullmatch(facts.etag or ""))
            return self.etag == facts.etag and same_place
        bound = facts.commit is not None and facts.size is not None
        return bound and (self.url, self.commit, self.size) == (facts.url, facts.commit, facts.size)


class Partial:
    """A file being written by this process, and by nobody else."""

    def __init__(self, destination: Path, facts: FileFacts) -> None:
        unique = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.destination = destination
        self.path = destination.with_name(f"{destination.name}.partial.{unique}")
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
        self.done = Ranges()
        self._contiguous = True
        self._sidecar = Sidecar(
            url=facts.url,
            etag=facts.etag,
            commit=facts.commit,
            size=facts.size,
            sent_etag=None,
            done=None,
            inode=os.fstat(self.fd).st_ino,
            owner=asdict(Owner.me()),
        )
        self._seeking = threading.Lock()
        self._flushed = 0
        self.note()

    @property
    def is_contiguous(self) -> bool:
        """Whether the bytes are written in the order of the file."""
        return self._contiguous

    @property
    def sent_etag(self) -> str | None:
        """Strong ETag of the server the bytes come from."""
        return self._sidecar.sent_etag

    def bind(self, sent_etag: str | None) -> None:
        """Say which version the server sends; from now on the bytes are worth keeping."""
        self._sidecar = replace(self._sidecar, sent_etag=sent_etag)
        self.note()

    def scatter(self) -> None:
        """Allow parts to be written in any order; :meth:`note` then tells which are there."""
        if self._contiguous:
            self._contiguous = False
            self.note()

    def write(self, offset: int, chunk: bytes) -> None:
        """Write *chunk* at *offset*; the caller then adds it to :attr:`done`."""
        view = memoryview(chunk)
        at = offset
        while view:
            written = self._write(view, at)
            at += written
            view = view[written:]

    def _write(self, view: memoryview, at: int) -> int:
        if hasattr(os, "pwrite"):
            return os.pwrite(self.fd, view, at)
        with self._seeking:
            os.lseek(self.fd, at, os.SEEK_SET)
            return os.write(self.fd, view)

    def flush_behind(self) -> None:
        """Let the disk start on what has come, so that publishing need not wait for all of it."""
        frontier = self.done.frontier
        if frontier - self._flushed >= _FLUSH_BYTES:
            _start_writing(self.fd, self._flushed, frontier - self._flushed)
            self._flushed = frontier

    def note(self) -> None:
        """Write the sidecar, atomically."""
        done = None if self._contiguous else [list(part) for part in self.done]
        self._sidecar = replace(self._sidecar, done=done)
        fresh = Path(f"{self.path}.json.new")
        fresh.write_text(json.dumps(asdict(self._sidecar), indent=1), encoding="utf-8")
        fresh.replace(f"{self.path}.json")

    def copy_from(self, leftover: Path, sidecar: Sidecar) -> int:
        """Take over what *leftover* holds, by copying; bytes taken.

        Another process may have published or deleted it by now: then nothing is taken.
        """
        if sidecar.done is not None:
            self.scatter()  # else a kill while copying would leave gaps that look like bytes
        self.bind(sidecar.sent_etag)
        try:
            with open(leftover, "rb") as source:
                length = os.fstat(source.fileno()).st_size
                parts = sidecar.done if sidecar.done is not None else [[0, length]]
                for start, stop in parts:
                    self._copy(source, start, min(stop, length))
        except FileNotFoundError:
            self.restart()
            return 0
        self.note()
        return self.done.total

    def _copy(self, source: BinaryIO, start: int, stop: int) -> None:
        """Copy bytes *start* to *stop* of *source*, inside the kernel where it can."""
        in_kernel = hasattr(os, "copy_file_range")
        at = start
        while at < stop:
            count = min(_COPY_BYTES, stop - at)
            if in_kernel:
                try:
                    copied = os.copy_file_range(source.fileno(), self.fd, count, at, at)
                except OSError as error:
                    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                        raise
                    in_kernel = False  # between file systems, or one that cannot
                    continue
            else:
                source.seek(at)
                chunk = source.read(count)
                self.write(at, chunk)
                copied = len(chunk)
            if not copied:
                raise FileNotFoundError  # truncated under us: as good as gone
            at += copied
        self.done.add(start, stop)

    def restart(self) -> None:
        """Forget every byte."""
        os.ftruncate(self.fd, 0)
        self.done = Ranges()
        self._flushed = 0
        self._contiguous = True
        self.bind(None)

    def publish(self) -> None:
        """Give the file its name; whatever had the name is replaced in the same instant."""
        os.fsync(self.fd)
        self.close()
        self.path.replace(self.destination)
        _sync_folder(self.destination.parent)
        _unlink(Path(f"{self.path}.json"))

    def leave(self) -> None:
        """Stop, and leave what there is as ``<file>.partial`` for the next process."""
        sidecar = self._sidecar
        bound = sidecar.etag is not None or None not in (sidecar.commit, sidecar.size)
        if not (bound and self.done.total):
            self.discard()
            return
        rest = self.destination.with_name(f"{self.destination.name}.partial")
        self.close()
        with suppress(OSError):  # for example a full disk: the sidecar from the start is enough
            self.note()
        with suppress(OSError):
            _unlink(Path(f"{rest}.json"))
            self.path.replace(rest)
            Path(f"{self.path}.json").replace(f"{rest}.json")

    def discard(self) -> None:
        """Stop, and delete what there is."""
        self.close()
        _unlink(self.path)
        _unlink(Path(f"{self.path}.json"))
        _unlink(Path(f"{self.path}.json.new"))

    def close(self) -> None:
        """Close the file; the last step of every ending."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def find_leftover(destination: Path, facts: FileFacts) -> tuple[Path, Sidecar] | None:
    """The partial file beside *destination* with the most bytes of the version in *facts*."""
    best: tuple[int, Path, Sidecar] | None = None
    for path in _partials(destination):
        sidecar = _read_sidecar(path)
        if sidecar is None or not sidecar.fits(facts):
            logger.debug("%s: not a part of what is asked for", path.name)
            continue
        with suppress(OSError):
            length = path.stat().st_size
            parts = sidecar.done if sidecar.done is not None else [[0, length]]
            usable = sum(max(0, min(stop, length) - start) for start, stop in parts)
            too_long = facts.size is not None and length > facts.size
            if usable and not too_long and (best is None or usable > best[0]):
                best = (usable, path, sidecar)
    return best[1:] if best is not None else None


def sweep(destination: Path) -> None:
    """Delete the partial files beside *destination* whose processes are gone."""
    for path in _partials(destination):
        sidecar = _read_sidecar(path)
        owner = Owner.parse(json.dumps(sidecar.owner)) if sidecar is not None else None
        with suppress(OSError):
            silent_s = time.time() - path.stat().st_mtime
            stopped = path.name == f"{destination.name}.partial"
            if stopped or (owner is not None and owner.is_dead) or silent_s > _ABANDONED_S:
                _unlink(path)
                _unlink(Path(f"{path}.json"))
                _unlink(Path(f"{path}.json.new"))


def _partials(destination: Path) -> list[Path]:
    name = re.escape(destination.name)
    pattern = re.compile(rf"{name}\.partial(\.\d+-[0-9a-f]+)?")
    try:
        return [path for path in destination.parent.iterdir() if pattern.fullmatch(path.name)]
    except OSError:
        return []


def _read_sidecar(path: Path) -> Sidecar | None:
    """The sidecar of the partial file *path*, if it has one that is its own."""
    try:
        fields = json.loads(Path(f"{path}.json").read_text(encoding="utf-8"))
        sidecar = Sidecar(**fields)
        parts = sidecar.done if sidecar.done is not None else []
        sound = all(0 <= start <= stop for start, stop in parts)
        return sidecar if sound and sidecar.inode == path.stat().st_ino else None
    except (OSError, ValueError, TypeError):
        return None


def _sync_folder(folder: Path) -> None:
    """Make a rename in *folder* last; file systems without that promise are left alone."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _start_writing(fd: int, start: int, length: int) -> None:
    """Start writing a part of a file to disk without waiting for it (Linux; nothing elsewhere)."""
    if sys.platform == "linux":
        with suppress(AttributeError):
            offset, count = ctypes.c_int64(start), ctypes.c_int64(length)
            ctypes.CDLL(None).sync_file_range(fd, offset, count, _SYNC_FILE_RANGE_WRITE)


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


_BINARY = getattr(os, "O_BINARY", 0)

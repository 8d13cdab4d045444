"""Partial downloads: one per version, resumed in place by the next process that fetches it.

    model.gguf.partial.4711-1f9c0a33        being written by process 4711
    model.gguf.partial.4711-1f9c0a33.json   its sidecar (below)
    model.gguf.partial                      left behind by a process that stopped, resumable
    model.gguf.partial.json                 its sidecar

The sidecar binds the bytes to one version of one file. A process takes over a partial file by
renaming it, which only one process can do, and writes only under a name of its own.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from bitnet.base.locks import boot_id
from bitnet.store.links import fresh_name, remove, replace_file, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

logger = logging.getLogger(__name__)

_FLUSH_BYTES = 16 << 20  # new bytes after which the disk is told to write
_COPY_BYTES = 1 << 20  # of one read
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h
_FORGOTTEN_S = 14 * 24 * 3600.0  # silence after which a partial file is deleted
_ABANDONED_S = 900.0  # silence after which a process on another machine counts as gone

_BINARY = getattr(os, "O_BINARY", 0)


class Ranges:
    """A set of half-open byte ranges, merged and in order."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._parts)

    def add(self, start: int, stop: int) -> None:
        """Add bytes *start* to *stop* (exclusive)."""
        touching = [part for part in self._parts if part[0] <= stop and start <= part[1]]
        if start < stop:
            apart = [part for part in self._parts if part not in touching]
            edges = [start, stop, *(edge for part in touching for edge in part)]
            self._parts = sorted([*apart, (min(edges), max(edges))])

    def overlaps(self, start: int, stop: int) -> bool:
        """True if one of the bytes *start* to *stop* (exclusive) is in the set."""
        return any(max(start, part[0]) < min(stop, part[1]) for part in self._parts)

    @property
    def total(self) -> int:
        """Total bytes of all ranges."""
        return sum(stop - start for start, stop in self._parts)

    @property
    def frontier(self) -> int:
        """Number of bytes from the beginning without a gap."""
        return self._parts[0][1] if self._parts and self._parts[0][0] == 0 else 0

    def missing(self, size: int) -> list[tuple[int, int]]:
        """Gaps in the first *size* bytes."""
        # Starts and stops alternate, so every second pair of neighbours is a gap.
        edges = [0, *(min(edge, size) for part in self._parts for edge in part), size]
        gaps = zip(edges[::2], edges[1::2], strict=True)
        return [(start, stop) for start, stop in gaps if start < stop]


@dataclass(frozen=True)
class Version:
    """One version of one file as described by its server; unknown values are ``None``."""

    url: str  # where to fetch it; names the commit if the hub reported one
    commit: str | None = None  # commit of the repository
    etag: str | None = None  # strong, without quotes; the hub's, else the file server's
    size: int | None = None  # bytes
    sha256: str | None = None  # hexadecimal, lower case
    accepts_ranges: bool = False  # the server accepts range requests
    git_oid: str | None = None  # blob id of the content, if the hub keeps it in git
    is_digest_announced: bool = False  # a server named *sha256*; else it may be from a pin

    @property
    def key(self) -> str:
        """Identity of the version; the digest if it is known."""
        if self.sha256 is not None:
            return self.sha256
        # A signed address changes every time; an ETag identifies a version as well.
        address = _strip_secrets(self.url) if self.etag else self.url
        text = json.dumps([address, self.etag, None if self.etag else self.commit, self.size])
        return f"version-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    @property
    def is_bound(self) -> bool:
        """True if bytes fetched now can be distinguished from another version's bytes later."""
        has_validator = self.sha256 is not None or self.etag is not None
        return has_validator or None not in (self.commit, self.size)


@dataclass(frozen=True)
class Sidecar:
    """Record of the version that a partial file belongs to."""

    url: str  # source of the bytes, without secrets
    key: str  # identity of the version
    size: int | None  # bytes of the whole file
    sent_etag: str | None  # strong ETag of the server that sent the bytes, for ``If-Range``
    done: list[list[int]] | None  # parts already written; ``None``: all up to the file's end
    inode: int  # of the partial file, so that a sidecar is never applied to another file
    boot: str  # of the machine whose process wrote it
    # what is fetched, so that a removal finds it: repository, revision and file; or an address
    # without its query, and the key of the whole address (bitnet.hub.ref.address_key)
    name: list[str] = field(default_factory=list)


class Partial:
    """A file that only this process writes; :meth:`begin` creates one."""

    def __init__(
        self, path: Path, version: Version, fd: int, source_name: Sequence[str] = ()
    ) -> None:
        self.path = path  # until it is published or left for another process
        self.fd = fd
        self.done = Ranges()  # parts already written
        self.resumed = 0  # bytes fetched by an earlier process
        self.is_left = False  # for the next process
        # written from the beginning without a gap; else in any order, as :meth:`note` records
        self.is_contiguous = True
        self.server_etag: str | None = None  # strong ETag of the server that sends the bytes
        self._version = version
        self._source_name = list(source_name)
        self._seeking = threading.Lock()  # held from a seek to its write, where pwrite is missing
        self._flushed = 0  # bytes that the disk was told to write

    @classmethod
    def begin(
        cls,
        folder: Path,
        name: str,
        version: Version,
        *,
        alone: bool,
        fresh: bool = False,
        source_name: Sequence[str] = (),
    ) -> Partial:
        """A partial file in *folder* for *version*, resuming what earlier processes left.

        Other leftovers are deleted; with *fresh* all are, since they proved wrong. *alone*: locks
        work, and no other process of this machine fetches *version*. *source_name* is the name that
        is fetched, without secrets, as :attr:`Sidecar.name`.
        """
        own_path = folder / fresh_name(name)
        leftovers = [path for path in _partials(folder) if _is_free(path, alone=alone)]
        partial = None
        usable = [] if fresh else _usable(leftovers, version)
        for path, sidecar in usable:
            partial = cls._take(path, sidecar, own_path, version, source_name)
            if partial is not None:
                break
        for path in leftovers:
            _delete(path)
        if partial is None and not alone and not fresh and version.sha256 is not None:
            partial = cls._copy(folder, own_path, version, source_name)
        if partial is None:
            partial = cls(own_path, version, _create(own_path), source_name)
            partial.note()
        return partial

    @classmethod
    def _take(
        cls, path: Path, sidecar: Sidecar, own: Path, version: Version, source_name: Sequence[str]
    ) -> Partial | None:
        """Rename *path* to *own* to continue it; None if another process or user has it.

        The sidecar exists under both names before the file is renamed, so whenever this process is
        killed, a file and its sidecar share a name.
        """
        try:
            fd = os.open(path, os.O_RDWR | _BINARY)
        except (FileNotFoundError, PermissionError) as error:
            logger.debug("%s is not continued: %s", path, error)
            return None
        try:
            partial = cls(own, version, fd, source_name)
            for start, stop in _parts(sidecar, os.fstat(fd).st_size):
                partial.done.add(start, stop)
            partial.resumed = partial.done.total
            partial.is_contiguous = sidecar.done is None
            partial.bind(sidecar.sent_etag)
            if os.name == "nt":  # pragma: no cover  # an open file cannot be renamed there
                os.close(fd)
                fd = -1  # not to be closed again if the next line fails
                path.replace(own)
                partial.fd = os.open(own, os.O_RDWR | _BINARY)
            else:
                path.replace(own)
        except OSError as error:
            with suppress(OSError):
                os.close(fd)
            _delete(own)
            if isinstance(error, (FileNotFoundError, PermissionError)):
                return None
            raise
        _unlink(_sidecar_of(path))
        return partial

    @classmethod
    def _copy(
        cls, folder: Path, own: Path, version: Version, source_name: Sequence[str]
    ) -> Partial | None:
        """A copy of what another process has fetched so far, to continue it; None if there is none.

        Without working locks it is not known whether that process is still writing. Its bytes from
        the beginning do not change, and the digest of the whole file decides in the end.
        """
        usable = _usable(_partials(folder), version)
        path = next((path for path, sidecar in usable if sidecar.done is None), None)
        if path is None:
            return None
        partial = cls(own, version, _create(own), source_name)
        try:
            with path.open("rb") as source:
                while chunk := source.read(_COPY_BYTES):
                    at = partial.done.total
                    partial.write(at, chunk)
                    partial.done.add(at, at + len(chunk))
        except OSError as error:
            logger.debug("%s is not continued: %s", path, error)
            os.ftruncate(partial.fd, 0)
            partial.done = Ranges()
        partial.resumed = partial.done.total
        partial.note()
        return partial

    @property
    def size(self) -> int:
        """Bytes already written."""
        return self.done.total

    def bind(self, sent_etag: str | None) -> None:
        """Record the ETag of the server that sends the bytes, for ``If-Range``, if it has one."""
        self.server_etag = sent_etag
        self.note()

    def write(self, offset: int, chunk: bytes) -> None:
        """Write *chunk* at *offset*; the caller then adds it to :attr:`done`."""
        view = memoryview(chunk)
        at = offset
        while view:
            if hasattr(os, "pwrite"):
                written = os.pwrite(self.fd, view, at)
            else:
                with self._seeking:
                    os.lseek(self.fd, at, os.SEEK_SET)
                    written = os.write(self.fd, view)
            at += written
            view = view[written:]

    def flush_behind(self) -> None:
        """Let the disk start writing, so that publishing has less to wait for; Linux only."""
        count = self.done.frontier - self._flushed
        if count >= _FLUSH_BYTES and sys.platform == "linux":
            part = ctypes.c_int64(self._flushed), ctypes.c_int64(count)
            with suppress(AttributeError):
                ctypes.CDLL(None).sync_file_range(self.fd, *part, _SYNC_FILE_RANGE_WRITE)
            self._flushed += count

    def note(self, future_path: Path | None = None) -> None:
        """Write the sidecar atomically, for the present or the *future_path* of the file."""
        sidecar = Sidecar(
            url=_strip_secrets(self._version.url),
            key=self._version.key,
            size=self._version.size,
            sent_etag=self.server_etag,
            done=None if self.is_contiguous else [list(part) for part in self.done],
            inode=os.fstat(self.fd).st_ino,
            boot=boot_id(),
            name=self._source_name,
        )
        draft = Path(f"{self.path}.json.new")
        draft.write_text(json.dumps(asdict(sidecar), indent=1), encoding="utf-8")
        draft.replace(_sidecar_of(future_path or self.path))

    def restart(self) -> None:
        """Discard every byte."""
        os.ftruncate(self.fd, 0)
        self.done = Ranges()
        self._flushed = 0
        self.is_contiguous = True
        self.bind(None)

    def publish(self, destination: Path) -> None:
        """Rename the file to *destination*, replacing an existing file atomically."""
        os.fsync(self.fd)
        self.close()
        replace_file(self.path, destination)
        sync_folder(destination.parent)
        self.discard()

    def leave(self) -> None:
        """Stop, and leave the file as ``<file>.partial`` for the next process.

        A file that could not be resumed is deleted.
        """
        if not (self._version.is_bound and self.done.total):
            self.discard()
            return
        resumable = self.path.with_name(self.path.name.rpartition(".")[0])
        try:
            self.is_left = True
            self.note(resumable)
            self.close()
            self.path.replace(resumable)
            _unlink(_sidecar_of(self.path))
        except OSError:  # for example a full disk: the last sidecar that was written is enough
            self.close()

    def discard(self) -> None:
        """Stop, and delete the file with its records, and its folder if that is empty."""
        self.close()
        _delete(self.path)
        with suppress(OSError):
            self.path.parent.rmdir()

    def close(self) -> None:
        """Close the file, if it is still open."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def name_of(path: Path) -> list[str]:
    """Name that the partial file *path* is fetched for (:attr:`Sidecar.name`); empty if unknown."""
    sidecar = _read_sidecar(path)
    return sidecar.name if sidecar is not None else []


def sweep(folder: Path) -> None:
    """Delete partial files below *folder* that were not resumed for weeks."""
    with suppress(OSError):
        folders = [path for path in folder.iterdir() if path.is_dir()]
        for inner in folders:
            if inner.name.startswith("."):
                continue  # temporary files of pip, which may be empty yet
            for path in _partials(inner):
                if _silence_s(path) > _FORGOTTEN_S:
                    _delete(path)
            with suppress(OSError):
                inner.rmdir()  # fails unless it is empty


def _partials(folder: Path) -> list[Path]:
    """Partial files in *folder*, without sidecars; sidecars without a file are deleted."""
    try:
        paths = {path for path in folder.iterdir() if ".partial" in path.name}
    except OSError:
        return []
    notes = {path for path in paths if path.name.endswith((".json", ".json.new"))}
    for note in notes:
        owner = note.with_name(note.name.removesuffix(".new").removesuffix(".json"))
        if owner not in paths and _silence_s(note) > _ABANDONED_S:
            _unlink(note)
    return sorted(paths - notes)


def _is_free(path: Path, *, alone: bool) -> bool:
    """True if no process writes into *path* any more.

    *alone*: no other process of this machine can be writing.
    """
    sidecar = _read_sidecar(path)
    if path.name.endswith(".partial") and sidecar is not None:
        return True
    is_of_this_machine = sidecar is None or sidecar.boot == boot_id()
    if alone and is_of_this_machine:
        return True
    return _silence_s(path) > _ABANDONED_S


def _silence_s(path: Path) -> float:
    """Seconds since *path* was changed; 0 if it is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _usable(paths: list[Path], version: Version) -> list[tuple[Path, Sidecar]]:
    """Those of *paths* with bytes of *version*, and their sidecars; most bytes first."""
    candidates: list[tuple[int, Path, Sidecar]] = []
    for path in paths:
        sidecar = _read_sidecar(path)
        if sidecar is None or sidecar.key != version.key or not version.is_bound:
            logger.debug("%s: not a part of what is asked for", path.name)
            continue
        with suppress(OSError):
            length = path.stat().st_size
            count = sum(stop - start for start, stop in _parts(sidecar, length))
            if count and (version.size is None or length <= version.size):
                candidates.append((count, path, sidecar))
    return [entry[1:] for entry in sorted(candidates, key=lambda entry: -entry[0])]


def _create(path: Path) -> int:
    """The new file *path*, open; a process that sweeps the empty folder may interfere."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)


def _parts(sidecar: Sidecar, length: int) -> list[tuple[int, int]]:
    """Parts that *sidecar* records as written, cut to the file's *length* in bytes."""
    noted = sidecar.done if sidecar.done is not None else [[0, length]]
    return [(start, min(stop, length)) for start, stop in noted if start < min(stop, length)]


def _sidecar_of(path: Path) -> Path:
    return Path(f"{path}.json")


def _read_sidecar(path: Path) -> Sidecar | None:
    """Sidecar of the partial file *path*; ``None`` if it is missing or of another file."""
    try:
        fields = json.loads(_sidecar_of(path).read_text(encoding="utf-8"))
        sidecar = Sidecar(**fields)
        parts = sidecar.done if sidecar.done is not None else []
        sound = all(0 <= start <= stop for start, stop in parts)
        sound = sound and all(isinstance(part, str) for part in sidecar.name)
        return sidecar if sound and sidecar.inode == path.stat().st_ino else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _delete(path: Path) -> None:
    _unlink(path)
    _unlink(_sidecar_of(path))
    _unlink(Path(f"{path}.json.new"))


def _strip_secrets(url: str) -> str:
    """*url* without login, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _unlink(path: Path) -> None:
    with suppress(OSError):
        remove(path)

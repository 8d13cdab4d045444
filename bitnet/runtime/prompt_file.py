"""Files that hold a KV cache, its pages and states, after a prefix of token ids.

    magic, version, sizes and a checksum    32 bytes, little-endian
    header                                  JSON: what the file is bound to, and what it holds
    ids                                     uint32, one for each position
    zeros                                   up to a multiple of 4,096 bytes
    pages                                   of each table, by page number, as they are in memory
    states                                  of fixed size, each after a prefix, shortest first

The pages of a restored cache are views of the mapped file. Two threads read it from its beginning
and compare the checksum of each page, which is as fast as reading alone. The first pass waits until
they have finished, because attention reads pages in another order, which is slower from a disk. Its
results count only if :meth:`MappedState.problem` reports none.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bitnet.base.errors import BitnetError, InvalidFormat, from_os_error
from bitnet.base.files import open_file
from bitnet.formats.mapped_file import MappedFile
from bitnet.kernels.kv_cache import CacheContent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from bitnet.kernels.kv_cache import KVCache

    #: A function that computes a checksum, and the checksum that the file states.
    Check = tuple[Callable[[], int], int]

MAGIC = b"BITNETKV"
VERSION = 2
_ALIGNMENT = 4096  # bytes: pages of the cache begin at a page of the operating system
_LARGEST_HEADER = 1 << 26  # bytes, with the ids
_START = struct.Struct("<8sIIQII")  # magic, version, bytes of the header, ids, checksum, unused
_READERS = 2  # threads that compare checksums
_SECTOR = 512  # bytes of a page that one sum of words covers


def encode(
    content: CacheContent, ids: Sequence[int], facts: Mapping[str, str]
) -> list[bytes | memoryview]:
    """The file of *content*, the cache after *ids*, in parts to write one after the other.

    Only a model with the same *facts* may use it.
    """
    if len(ids) != content.length:
        raise ValueError(f"{len(ids)} ids for {content.length} positions")
    lengths = sorted(content.states)
    header = {
        "facts": dict(facts),
        "reach": content.reach,
        "kept": list(content.kept),
        "tables": [_describe_table(table) for table in content.tables],
        "states": {
            "lengths": lengths,
            "size": content.states[lengths[0]].size if lengths else 0,
            "dtype": content.states[lengths[0]].dtype.str if lengths else "<f4",
            "checks": [zlib.crc32(_bytes_of(content.states[length])) for length in lengths],
        },
    }
    text = json.dumps(header, sort_keys=True).encode()
    id_bytes = np.asarray(ids, dtype="<u4").tobytes()
    check = zlib.crc32(id_bytes, zlib.crc32(text))
    start = _START.pack(MAGIC, VERSION, len(text), len(ids), check, 0)
    zeros = bytes(-(len(start) + len(text) + len(id_bytes)) % _ALIGNMENT)
    pages = [
        _bytes_of(table[page_number]) for table in content.tables for page_number in sorted(table)
    ]
    states = [_bytes_of(content.states[length]) for length in lengths]
    return [start, text, id_bytes, zeros, *pages, *states]


def _describe_table(held: Mapping[int, NDArray[Any]]) -> dict[str, Any]:
    """Entry of the header about the pages *held*: their numbers, shape, dtype and checksums."""
    places = sorted(held)
    pages = [held[page_number] for page_number in places]
    return {
        "places": places,
        "shape": list(pages[0].shape) if pages else [],
        "dtype": pages[0].dtype.str if pages else "<i2",
        "checks": [_check_of_page(page) for page in pages],
    }


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).data.cast("B")


def _check_of_page(page: NDArray[Any]) -> int:
    """The checksum of a page: CRC-32 of the sums, modulo 2^64, of the words of its sectors.

    A change of a single word changes it, and so does an exchange of sectors. It is computed as fast
    as memory is read, unlike a CRC-32 of all bytes.
    """
    content = _bytes_of(page)
    covered = len(content) // _SECTOR * _SECTOR  # bytes in whole sectors
    sectors = np.frombuffer(content[:covered], "<u8").reshape(-1, _SECTOR // 8)
    sums = sectors.sum(axis=1, dtype=np.uint64).astype("<u8", copy=False)
    return zlib.crc32(content[covered:], zlib.crc32(sums.data))


@dataclass(frozen=True, eq=False)
class PromptFile:
    """The head of a file: everything before its pages."""

    path: Path
    facts: Mapping[str, str]  # what it is bound to
    ids: NDArray[np.uint32]  # one for each position
    reach: int  # as in :class:`CacheContent`
    kept: tuple[int, ...]  # as in :class:`CacheContent`
    tables: tuple[dict[str, Any], ...]  # description of each table of pages
    states: dict[str, Any]  # description of the states
    start: bytes  # its first bytes, with the checksum of its head
    offset: int  # of the first page
    status: os.stat_result  # of the file when it was opened

    @classmethod
    def open(cls, path: Path) -> PromptFile:
        """The head of the file *path*; pages are not read.

        A head that is damaged, or of another version of this format, is an :class:`InvalidFormat`.
        """
        try:
            with open_file(path) as file:
                status = os.fstat(file.fileno())
                start = file.read(_START.size)
                magic, version, header_bytes, count, check, _ = _START.unpack(start)
                if (magic, version) != (MAGIC, VERSION):
                    raise InvalidFormat(f"it is not a stored prompt of version {VERSION}")
                if header_bytes + 4 * count > _LARGEST_HEADER:
                    raise InvalidFormat("its head is too large")
                text = file.read(header_bytes)
                id_bytes = file.read(4 * count)
                file_bytes = file.seek(0, 2)
            if zlib.crc32(id_bytes, zlib.crc32(text)) != check:
                raise InvalidFormat("the checksum of its head does not match")
            header = json.loads(text)
            head_bytes = _START.size + header_bytes + len(id_bytes)
            opened = cls(
                path,
                facts=header["facts"],
                ids=np.frombuffer(id_bytes, "<u4"),
                reach=header["reach"],
                kept=tuple(header["kept"]),
                tables=tuple(header["tables"]),
                states=header["states"],
                start=start,
                offset=head_bytes + -head_bytes % _ALIGNMENT,
                status=status,
            )
            if opened.size_bytes != file_bytes:
                raise InvalidFormat(f"it has {file_bytes:,} bytes, expected {opened.size_bytes:,}")
        except OSError as error:
            raise from_os_error(error, path) from error
        except (struct.error, ValueError, TypeError, LookupError, RecursionError) as error:
            raise InvalidFormat(f"its head cannot be read: {error}") from error
        return opened

    @property
    def is_current(self) -> bool:
        """True if the path still names the file that was opened, unchanged."""
        return _compare_file(self.path, self.status) == "unchanged"

    @property
    def size_bytes(self) -> int:
        """Bytes that the whole file has."""
        pages = sum(_page_bytes(table) * len(table["places"]) for table in self.tables)
        states = _state_bytes(self.states) * len(self.states["lengths"])
        return self.offset + pages + states

    def restore(self, cache: KVCache) -> MappedState:
        """Fill the empty *cache* and return the mapped file, whose checksums are not yet compared.

        A file that is damaged, or of a cache of another shape, is an :class:`InvalidFormat`.
        """
        mapped = MappedFile.open(self.path)
        if len(mapped) != self.size_bytes or mapped[: len(self.start)] != self.start:
            raise InvalidFormat("it was replaced while it was opened")
        if hasattr(mapped, "madvise"):
            import mmap

            mapped.madvise(mmap.MADV_WILLNEED)  # the system reads ahead of the checksum threads
        try:
            content, backing = self.map(mapped)
            cache.restore(content, backing)
        except (ValueError, TypeError, LookupError) as error:
            raise InvalidFormat(f"its pages are not what its head says: {error}") from error
        cache.ids = self.ids.tolist()
        return backing

    def map(self, mapped: MappedFile) -> tuple[CacheContent, MappedState]:
        """Pages and states as views of *mapped*, this file, and the check of their checksums."""
        checks: list[Check] = []
        tables, at = self._map_tables(mapped, checks)
        states = self._map_states(mapped, at, checks)
        content = CacheContent(len(self.ids), self.reach, self.kept, tables, states)
        return content, MappedState(mapped, checks)

    def _map_tables(
        self, mapped: MappedFile, checks: list[Check]
    ) -> tuple[tuple[dict[int, NDArray[Any]], ...], int]:
        """Pages of each table, and the offset after them; *checks* is extended."""
        tables: list[dict[int, NDArray[Any]]] = []
        at = self.offset
        for table in self.tables:
            size = _page_bytes(table)
            held: dict[int, NDArray[Any]] = {}
            for page_number in table["places"]:
                page = np.frombuffer(mapped, np.uint8, size, at)
                held[int(page_number)] = page.view(table["dtype"]).reshape(table["shape"])
                at += size
            tables.append(held)
            for page, check in zip(held.values(), table["checks"], strict=True):
                checks.append((partial(_check_of_page, page), check))
        return tuple(tables), at

    def _map_states(
        self, mapped: MappedFile, at: int, checks: list[Check]
    ) -> dict[int, NDArray[Any]]:
        """States from offset *at* on, by length; *checks* is extended."""
        states: dict[int, NDArray[Any]] = {}
        size = _state_bytes(self.states)
        for length, check in zip(self.states["lengths"], self.states["checks"], strict=True):
            state = np.frombuffer(mapped, np.uint8, size, at)
            states[int(length)] = state.view(self.states["dtype"])
            checks.append((partial(zlib.crc32, state.data), check))
            at += size
        return states


def _compare_file(path: Path, status: os.stat_result) -> Literal["unchanged", "changed", "another"]:
    """Compare the file that *path* names by now with the one that had *status*."""
    try:
        now = path.stat()
    except OSError:
        return "another"
    if (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino):
        return "another"
    is_unchanged = (now.st_size, now.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    return "unchanged" if is_unchanged else "changed"


def _page_bytes(table: Mapping[str, Any]) -> int:
    """Bytes of one page of the described *table*; a wrong description is refused."""
    shape = table["shape"]
    if len(table["checks"]) != len(table["places"]):
        raise InvalidFormat("a page has no checksum")
    if bool(shape) != bool(table["places"]) or min(shape, default=1) < 1:
        raise InvalidFormat("a table has no shape")
    size = np.dtype(table["dtype"]).itemsize
    for extent in shape:
        size *= int(extent)
    return size if shape else 0


def _state_bytes(states: Mapping[str, Any]) -> int:
    return int(states["size"]) * np.dtype(states["dtype"]).itemsize


class MappedState:
    """A mapped prompt file, of which pages of caches are views, and the check of its checksums.

    ``State`` in the name is the whole file, not only the states of fixed size in it.
    """

    def __init__(self, mapped: MappedFile, checks: Sequence[Check]) -> None:
        self.is_checked = False
        self._mapped = mapped
        self._checks = checks
        self._wrong_counts: list[Future[int]] | None = None  # of wrong checksums, by thread

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._mapped.path

    @property
    def is_replaced(self) -> bool:
        """True if the path names another file by now, or none."""
        return _compare_file(self.path, self._mapped.status) == "another"

    def begin(self) -> None:
        """Compare the checksums in threads, in the order of the file."""
        if self._wrong_counts is not None:
            return
        pool = ThreadPoolExecutor(_READERS, thread_name_prefix="bitnet-prompt-check")
        parts = [self._checks[first::_READERS] for first in range(_READERS)]
        self._wrong_counts = [pool.submit(_count_wrong, part) for part in parts]
        pool.shutdown(wait=False)

    @property
    def is_read(self) -> bool:
        """True if the threads of :meth:`begin` have read the whole file."""
        return self.is_checked or (
            self._wrong_counts is not None and all(future.done() for future in self._wrong_counts)
        )

    def wait(self) -> None:
        """Wait for the threads of :meth:`begin`."""
        if not self.is_checked:
            self.begin()
            wait(self._wrong_counts or ())

    def problem(self) -> str:
        """The reason why results of passes over these pages are wrong; empty: they are right.

        Waits until every checksum was compared.
        """
        if not self.is_checked:
            self.begin()
            assert self._wrong_counts is not None, "begin() sets them"
            wrong = sum(future.result() for future in self._wrong_counts)
            if wrong:
                return f"{wrong:,} of {len(self._checks):,} checksums do not match"
            self._checks = ()
        try:
            self._mapped.check()
        except BitnetError as error:
            return error.message
        self.is_checked = True
        return ""


def _count_wrong(checks: Sequence[Check]) -> int:
    """Number of *checks* whose computed checksum is not the expected one."""
    return sum(compute() != expected for compute, expected in checks)


def problem_of(path: Path) -> str:
    """The reason why the file *path* cannot be used, after reading all of it; empty: it can."""
    try:
        _, backing = PromptFile.open(path).map(MappedFile.open(path))
        return backing.problem()
    except BitnetError as error:
        return error.message
    except (ValueError, TypeError, LookupError) as error:
        return f"its pages are not what its head says: {error}"

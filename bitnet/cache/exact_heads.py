"""Copies of output heads, by which an exact head finds logits: written once, then reused.

``<cache>/exact-heads/<fingerprint>.copy``: eight letters, a version and a digest of the rest. The
fingerprint is a digest of every byte of the head, so a changed model file never uses the copy of
another one, not even on purpose. An invalid file is made again; without a writable cache, loading
is slower.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from bitnet.base import settings

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

_MAGIC = b"BNXHEAD\0"
_VERSION = 3
_HEADER = struct.Struct("<8sQ32s16x")
_PIECE_BYTES = 8 << 20  # read or hashed at once by one thread
_THREADS = min(4, os.cpu_count() or 1)


def content_digest(content: NDArray[np.uint8]) -> bytes:
    """SHA-256 of the SHA-256 digests of pieces of *content*, computed by several threads."""
    pieces = range(0, len(content), _PIECE_BYTES)

    def digest(begin: int) -> bytes:
        return hashlib.sha256(content[begin : begin + _PIECE_BYTES].data).digest()

    whole = hashlib.sha256(len(content).to_bytes(8, "little"))
    with ThreadPoolExecutor(_THREADS) as pool:
        for piece in pool.map(digest, pieces):
            whole.update(piece)
    return whole.digest()


def copy_path(fingerprint: str) -> Path:
    """Path of the copy of a head with this fingerprint."""
    return settings.cache_dir() / "exact-heads" / f"{fingerprint}.copy"


def read_copy(path: Path, out: NDArray[np.uint8]) -> bool:
    """Fill *out*, bytes, with the copy at *path*; false if it is missing or invalid."""
    try:
        with path.open("rb", buffering=0) as file:
            header = file.read(_HEADER.size)
            size = os.fstat(file.fileno()).st_size
            problem = _header_problem(header)
            if not problem and size - _HEADER.size != out.nbytes:
                problem = f"{size - _HEADER.size:,} bytes, expected {out.nbytes:,}"
            if not problem:
                _read_pieces(path, out)
                problem = _digest_problem(header, out)
    except FileNotFoundError:
        return False
    except OSError as error:
        problem = str(error)
    if problem:
        logger.debug("%s cannot be used, made again: %s", path, problem)
    return not problem


def write_copy(path: Path, content: NDArray[np.uint8]) -> None:
    """Write *content*, bytes, to *path* atomically; without space or permission do nothing."""
    from bitnet.store.tag import keep_in_cache

    header = _HEADER.pack(_MAGIC, _VERSION, content_digest(content))
    if problem := keep_in_cache(path, header, content.data):
        logger.debug("copy of the output head not kept: %s", problem)


def problem_of(path: Path) -> str:
    """The problem of the file at *path*; empty if it is valid."""
    import numpy as np

    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    problem = _header_problem(header)
    if problem or size <= _HEADER.size:
        return problem or "it ends after its header"
    return _digest_problem(header, np.memmap(path, np.uint8, "r", offset=_HEADER.size))


def _read_pieces(path: Path, out: NDArray[np.uint8]) -> None:
    """Fill *out* with the content after the header, several reads at once."""
    view = out.data

    def read(begin: int) -> None:
        end = min(begin + _PIECE_BYTES, len(view))
        with path.open("rb", buffering=0) as file:
            file.seek(_HEADER.size + begin)
            while begin < end:
                count = file.readinto(view[begin:end])
                if not count:
                    raise OSError("it became shorter")
                begin += count

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(read, range(0, len(view), _PIECE_BYTES)))


def _header_problem(header: bytes) -> str:
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        return "it does not begin as a copy of a head does"
    version = _HEADER.unpack(header)[1]
    return "" if version == _VERSION else f"version {version}, expected {_VERSION}"


def _digest_problem(header: bytes, content: NDArray[np.uint8]) -> str:
    return "" if content_digest(content) == _HEADER.unpack(header)[2] else "the digest does not fit"

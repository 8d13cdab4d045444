"""Copies of output heads as files in the cache.

``<cache>/exact-heads/<fingerprint>.copy`` is a header and the bytes of a copy. The header has eight
letters, a version and a digest of those bytes. The fingerprint is a digest of every byte of the
head and of the importance of its columns, so a changed model never uses another's copy.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base import settings
from bitnet.base.files import open_file
from bitnet.store import tree
from bitnet.store.root import keep_in_cache

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

_MAGIC = b"BNXHEAD\0"
_VERSION = 3
_HEADER = struct.Struct("<8sQ32s16x")
PIECE_BYTES = 8 << 20  # read or hashed at once by one thread
_THREADS = min(4, os.cpu_count() or 1)


def content_digest(content: NDArray[np.uint8], out: NDArray[np.uint8] | None = None) -> bytes:
    """SHA-256 of the length of *content* and of the SHA-256 digests of its pieces.

    Several threads compute the digests. With *out* each piece is copied there first, and the copy
    is read: what was verified is what is used.
    """

    def digest(begin: int) -> bytes:
        piece = content[begin : begin + PIECE_BYTES]
        if out is not None:
            out[begin : begin + PIECE_BYTES] = piece
            piece = out[begin : begin + PIECE_BYTES]
        return hashlib.sha256(piece.data).digest()

    whole = hashlib.sha256(len(content).to_bytes(8, "little"))
    with ThreadPoolExecutor(_THREADS) as pool:
        for part in pool.map(digest, range(0, len(content), PIECE_BYTES)):
            whole.update(part)
    return whole.digest()


def copy_path(fingerprint: str) -> Path:
    """Path of the copy of a head with this fingerprint."""
    return tree.exact_head_path(settings.cache_dir(), fingerprint)


def read_copy(path: Path, out: NDArray[np.uint8]) -> bool:
    """Fill *out*, bytes, with the copy at *path*; false if it is missing or invalid."""
    try:
        problem = problem_of(path, out)
    except FileNotFoundError:
        return False
    except OSError as error:
        problem = str(error)
    if problem:
        logger.debug("%s cannot be used, made again: %s", path, problem)
    return not problem


def write_copy(path: Path, content: NDArray[np.uint8]) -> None:
    """Write *content*, bytes, to *path* atomically; without space or permission do nothing."""
    header = _HEADER.pack(_MAGIC, _VERSION, content_digest(content))
    if problem := keep_in_cache(path, header, content.data):
        logger.debug("copy of the output head not kept: %s", problem)


def problem_of(path: Path, out: NDArray[np.uint8] | None = None) -> str:
    """The problem of the file at *path*; empty if it is valid, and now in *out*."""
    with open_file(path) as file:
        header = file.read(_HEADER.size)
    size = path.stat().st_size - _HEADER.size
    if size <= 0 or (out is not None and size != out.nbytes):
        return f"{size:,} bytes follow its header"
    magic, version, digest = _HEADER.unpack(header)
    if (magic, version) != (_MAGIC, _VERSION):
        return f"it does not begin as version {_VERSION} of a copy does"
    content = np.memmap(path, np.uint8, "r", offset=_HEADER.size)
    return "" if content_digest(content, out) == digest else "the digest does not fit"

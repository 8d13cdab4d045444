"""Mapped files: where their bytes lie, and the memory they take in this process."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["give_back_pages", "open_again"]


def give_back_pages(data: NDArray[np.uint8]) -> None:
    """Let go of the whole pages of a file, mapped to be read, that *data* lies in."""
    base: object = data
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if not isinstance(base, memoryview) or not base.readonly or not hasattr(mmap, "MADV_DONTNEED"):
        return
    mapped = base.obj
    if not isinstance(mapped, mmap.mmap):
        return
    start = data.ctypes.data - np.frombuffer(mapped, dtype=np.uint8).ctypes.data
    begin = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (start + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if length > 0:
        mapped.madvise(mmap.MADV_DONTNEED, begin, length)


def open_again(data: NDArray[np.uint8]) -> tuple[int, int] | None:
    """The file that *data* is mapped from, opened to be read, and the offset of *data* there.

    The caller closes it. ``None`` where the system does not tell, or the file has been replaced.
    """
    if sys.platform != "linux" or not data.nbytes:
        return None
    try:
        path, offset, identity = _mapping(data.ctypes.data, data.ctypes.data + data.nbytes)
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    found = os.fstat(file)
    if (found.st_dev, found.st_ino) == identity:
        return file, offset
    os.close(file)
    return None


def _mapping(start: int, end: int) -> tuple[bytes, int, tuple[int, int]]:
    """Path, offset, and device and inode of the file that has these addresses.

    Raises:
        ValueError: none has.
    """
    for line in Path("/proc/self/maps").read_bytes().splitlines():
        addresses, _, offset, device, inode, *path = line.split(maxsplit=5)
        first, last = (int(address, 16) for address in addresses.split(b"-"))
        if path and first <= start and end <= last:
            major, minor = (int(number, 16) for number in device.split(b":"))
            return path[0], int(offset, 16) + start - first, (os.makedev(major, minor), int(inode))
    raise ValueError("no file is mapped there")

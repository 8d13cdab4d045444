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
    start = data.ctypes.data
    try:
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            addresses, _, offset, device, inode, *path = line.split(maxsplit=5)
            begin, end = (int(address, 16) for address in addresses.split("-"))
            if not begin <= start < start + data.nbytes <= end or inode == "0" or not path:
                continue
            file = os.open(path[0], os.O_RDONLY | os.O_CLOEXEC)
            found = os.fstat(file)
            major, minor = (int(number, 16) for number in device.split(":"))
            if (found.st_ino, found.st_dev) == (int(inode), os.makedev(major, minor)):
                return file, int(offset, 16) + start - begin
            os.close(file)
    except (OSError, ValueError):
        pass
    return None

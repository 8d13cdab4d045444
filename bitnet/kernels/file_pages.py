"""Memory that a mapped file takes in this process once its content was copied."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["give_back_pages"]


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

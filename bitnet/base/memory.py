"""Memory of this machine and of this process, as the system counts it."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bitnet.base.errors import InferenceError, Unsupported
from bitnet.base.progress import human_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray


class PageReads(NamedTuple):
    """Pages of files that this process waited for, and bytes that were read from disks for it."""

    faults: int
    read_bytes: int


def free_memory() -> int | None:
    """Bytes of memory available without swapping; ``None`` if the system does not say."""
    return _memory("MemAvailable")


def free_swap() -> int:
    """Bytes of memory that can still be swapped out; 0 if the system does not say."""
    return _memory("SwapFree") or 0


def peak_memory() -> int:
    """Peak resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def page_reads(before: PageReads | None = None) -> PageReads:
    """Reads of this process so far; zeros if the system does not count them.

    Args:
        before: an earlier result, which is returned if there was no fault since.
    """
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows
        return PageReads(0, 0)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    if before is not None and faults == before.faults:
        return before
    return PageReads(faults, _read_bytes())


def lock_pages(arrays: Iterable[NDArray[np.uint8]]) -> int:
    """Keep the pages of *arrays* in memory until they are freed; the number of their bytes."""
    total = 0
    for array in arrays:
        try:
            library = ctypes.CDLL(None, use_errno=True)
            failed = library.mlock(
                ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
            )
        except (AttributeError, OSError, TypeError) as error:  # pragma: no cover - Windows
            raise Unsupported(
                "memory cannot be locked on this system", hint="leave out --lock-memory"
            ) from error
        if failed:
            raise _not_locked(total + array.nbytes, os.strerror(ctypes.get_errno()))
        total += array.nbytes
    return total


def _not_locked(size: int, why: str) -> InferenceError:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    shown = "none" if limit == resource.RLIM_INFINITY else human_size(limit)
    return InferenceError(
        f"{human_size(size)} of weights cannot be locked in memory: {why} (limit: {shown})",
        hint="raise the limit (ulimit -l unlimited), or leave out --lock-memory",
    )


def _read_bytes() -> int:
    try:
        text = Path("/proc/self/io").read_text(encoding="ascii")
    except OSError:
        return 0
    lines = dict(line.split(": ", 1) for line in text.splitlines())
    return int(lines.get("read_bytes", 0))


def _memory(name: str) -> int | None:
    """A number of ``/proc/meminfo``, in bytes."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0]) * 1024
    return None

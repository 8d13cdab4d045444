"""Cores and memory of this machine that this process may use, as the system counts them.

A container started with ``--cpus=2`` sees all cores of its host but may use the time of two: more
threads would stall each other when the quota of a period is used up. Limits are those of control
groups (Linux, version 2), from the process's group to the root.
"""

from __future__ import annotations

import math
import os
import re
import sys
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from bitnet.base import settings
from bitnet.base.errors import InferenceError, Unsupported
from bitnet.base.progress import human_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

# Activations, logits and the interpreter, besides weights and cache.
OVERHEAD_BYTES = 200_000_000
_LIMITED = ("max", "current")  # files of a group: limit and use


def thread_count() -> int:
    """Compute threads to use: ``BITNET_THREADS``, else the cores this process may use."""
    return settings.threads() or usable_cores()


def usable_cores(root: Path = Path("/")) -> int:
    """Cores this process may run on, or its quota in cores, rounded up, if that is less.

    *root* is the parent of the system's ``proc`` and ``sys``.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    for folder in _groups(root):
        with suppress(OSError, ValueError, ZeroDivisionError):  # "max": no quota
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            cores = min(cores, max(1, math.ceil(quota / period)))
    return cores


class PageReads(NamedTuple):
    """Pages of files that this process waited for, and bytes that were read from disks for it."""

    faults: int
    read_bytes: int


def total_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may use: the machine's or its container's; ``None``: unknown."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # pragma: no cover - Windows
        return None
    for folder in _groups(root):
        with suppress(OSError, ValueError):
            total = min(total, int((folder / "memory.max").read_text()))
    return total


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes available without swapping, here and in the container; ``None``: unknown."""
    available = _meminfo(root, "MemAvailable")
    return None if available is None else max(0, min([available, *_headroom(root, "memory")]))


def fits_in_memory(size: int) -> bool | None:
    """True if a model file of *size* bytes can run here, roughly; ``None`` if unknown."""
    free = free_memory()
    return None if free is None else size + OVERHEAD_BYTES <= free


def free_swap(root: Path = Path("/")) -> int:
    """Bytes of memory that can still be swapped out; 0 if the system does not say."""
    return max(0, min([_meminfo(root, "SwapFree") or 0, *_headroom(root, "memory.swap")]))


def _headroom(root: Path, what: str) -> Iterator[int]:
    """Bytes of memory or swap that each control group with a limit leaves this process."""
    for folder in _groups(root):
        with suppress(OSError, ValueError, KeyError):  # "max": no limit
            limit, used = (int((folder / f"{what}.{name}").read_text()) for name in _LIMITED)
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            files = int(stat["active_file"]) + int(stat["inactive_file"])  # they make room
            yield limit - used + (files if what == "memory" else 0)


def peak_memory() -> int:
    """Peak resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def page_reads() -> PageReads:
    """Reads of this process so far; 0 if unknown."""
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows
        return PageReads(0, 0)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    with suppress(OSError):
        if read := re.search(r"(?m)^read_bytes: (\d+)", Path("/proc/self/io").read_text("ascii")):
            return PageReads(faults, int(read[1]))
    return PageReads(faults, 0)


def lock_pages(arrays: Iterable[NDArray[np.uint8]]) -> int:
    """Keep the pages of *arrays* in memory until they are freed; the number of their bytes."""
    import ctypes

    total = 0
    for array in arrays:
        address, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        try:
            failed = ctypes.CDLL(None, use_errno=True).mlock(address, size)
        except (AttributeError, OSError, TypeError) as error:  # pragma: no cover - Windows
            raise Unsupported(
                "memory cannot be locked on this system", hint="leave out --lock-memory"
            ) from error
        total += array.nbytes
        if failed:
            raise InferenceError(
                f"{human_size(total)} of weights cannot be locked in memory: "
                f"{os.strerror(ctypes.get_errno())}",
                hint="raise the limit (ulimit -l unlimited), or leave out --lock-memory",
            )
    return total


def _meminfo(root: Path, name: str) -> int | None:
    """A number of ``/proc/meminfo``, in bytes."""
    try:
        text = (root / "proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(rf"(?m)^{name}:\s+(\d+)", text)
    return int(found[1]) * 1024 if found else None


def _groups(root: Path) -> Iterator[Path]:
    """Folders of the control groups of this process, from its own to the top.

    In a container its own may be what is mounted: then the folders below are not there.
    """
    with suppress(OSError, UnicodeDecodeError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                group = PurePosixPath(line.removeprefix("0::/"))
                yield from (root / "sys/fs/cgroup" / part for part in (group, *group.parents))

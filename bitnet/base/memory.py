"""Memory of this machine, of this process and of its container, as the system counts it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bitnet.base.control_groups import group_folders
from bitnet.base.errors import InferenceError, Unsupported
from bitnet.base.progress import human_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray


_NO_LIMIT = 1 << 60  # from here on, as version 1 writes it
# By "is it version 2": limit, use, limit and use of swap, prefix of names in memory.stat.
_FILES = {
    False: (
        *("memory.limit_in_bytes", "memory.usage_in_bytes"),
        *("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", "total_"),
    ),
    True: ("memory.max", "memory.current", "memory.swap.max", "memory.swap.current", ""),
}


class PageReads(NamedTuple):
    """Pages of files that this process waited for, and bytes that were read from disks for it."""

    faults: int
    read_bytes: int


def total_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may use: the machine's or its container's; ``None``: unknown."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # pragma: no cover - Windows
        return None
    return min([machine, *(group.limit for group in _groups(root))])


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes available without swapping, here and in the container; ``None``: unknown.

    *root* is the parent of the system's ``proc`` and ``sys``.
    """
    available = _meminfo(root, "MemAvailable")
    if available is None:
        return None
    return max(0, min([available, *(group.free for group in _groups(root))]))


def free_swap(root: Path = Path("/")) -> int:
    """Bytes of memory that can still be swapped out; 0 if the system does not say."""
    left = [group.swap for group in _groups(root) if group.swap is not None]
    return max(0, min([_meminfo(root, "SwapFree") or 0, *left]))


class _Group(NamedTuple):
    """Bytes of a control group; pages of files make room, so they are free."""

    limit: int
    free: int
    swap: int | None  # left; None: no limit


def _groups(root: Path) -> Iterator[_Group]:
    """Control groups of this process whose memory has a limit."""
    for folder, version_2 in group_folders("memory", root):
        limit_file, used_file, swap_limit, swap_used, prefix = _FILES[version_2]
        try:
            limit = int((folder / limit_file).read_text())
            used = int((folder / used_file).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            files = sum(int(stat[f"{prefix}{kind}_file"]) for kind in ("active", "inactive"))
        except (OSError, ValueError, KeyError):  # "max", or another controller's group
            continue
        if limit >= _NO_LIMIT:
            continue
        try:
            swap = int((folder / swap_limit).read_text()) - int((folder / swap_used).read_text())
        except (OSError, ValueError):
            yield _Group(limit, limit - used + files, None)
        else:  # version 1 counts memory and swap together
            yield _Group(limit, limit - used + files, swap if version_2 else swap - limit + used)


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
    import ctypes

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


def _meminfo(root: Path, name: str) -> int | None:
    """A number of ``/proc/meminfo``, in bytes."""
    try:
        text = (root / "proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0]) * 1024
    return None

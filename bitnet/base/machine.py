"""Cores and memory that this process may use, as the system reports them.

A container started with ``--cpus=2`` sees all cores of its host but may use the time of two: more
threads would use up the quota of a period, and all of them would stall until the next one. Limits
are read from both versions of Linux's control groups, from the group of the process up to the root.
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
from bitnet.base.quantities import human_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

# Estimate of the memory besides weights and cache: activations, logits and the interpreter.
OVERHEAD_BYTES = 200_000_000

# Bytes. Without a limit, version 1 reports a number near 2**63, which depends on the page size.
_NO_LIMIT = 1 << 60


class _GroupFiles(NamedTuple):
    """Names of the files in which a control group reports its memory, in bytes."""

    limit: str
    used: str
    swap_limit: str  # in version 1, this and *swap_used* are sums of memory and swap
    swap_used: str
    stat_prefix: str  # of the names in memory.stat


_VERSION_1 = _GroupFiles(
    limit="memory.limit_in_bytes",
    used="memory.usage_in_bytes",
    swap_limit="memory.memsw.limit_in_bytes",
    swap_used="memory.memsw.usage_in_bytes",
    stat_prefix="total_",
)
_VERSION_2 = _GroupFiles(
    limit="memory.max",
    used="memory.current",
    swap_limit="memory.swap.max",
    swap_used="memory.swap.current",
    stat_prefix="",
)


def thread_count() -> int:
    """Compute threads to use: ``BITNET_THREADS``, else the cores this process may use."""
    return settings.threads() or usable_cores()


def usable_cores(root: Path = Path("/")) -> int:
    """Cores this process may run on, or its quota in cores, rounded up, if that is less.

    *root* is the parent of the system's ``proc`` and ``sys``.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    for folder, version_2 in group_folders("cpu", root):
        names = ["cpu.max"] if version_2 else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        with suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            if int(quota) > 0:  # no quota: -1, or "max", which is a ValueError
                cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    return cores


class PageReads(NamedTuple):
    """Major page faults of this process, and bytes read from disks for it."""

    faults: int
    read_bytes: int


def total_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may use: the machine's or its container's; ``None``: unknown."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # pragma: no cover - Windows
        return None
    limits = [group.limit for group in _groups(root) if group.limit is not None]
    return min([machine, *limits])


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes available without swapping, here and in the container; ``None``: unknown.

    *root* is the parent of the system's ``proc`` and ``sys``.
    """
    available = _meminfo(root, "MemAvailable")
    if available is None:
        return None
    left = [group.free for group in _groups(root) if group.free is not None]
    return max(0, min([available, *left]))


def fits_in_memory(size: int) -> bool | None:
    """True if a model file of *size* bytes can run here, roughly; ``None`` if unknown."""
    free = free_memory()
    return None if free is None else size + OVERHEAD_BYTES <= free


def free_swap(root: Path = Path("/")) -> int:
    """Bytes of swap that are free, here and in the container; 0 if the system does not say."""
    left = [group.swap for group in _groups(root) if group.swap is not None]
    return max(0, min([_meminfo(root, "SwapFree") or 0, *left]))


class _Group(NamedTuple):
    """Memory and swap of a control group in bytes; None: no limit."""

    limit: int | None
    free: int | None  # unused memory and the page cache, which can be evicted
    swap: int | None  # unused swap


def _groups(root: Path) -> Iterator[_Group]:
    """Memory and swap of each control group of this process."""
    for folder, version_2 in group_folders("memory", root):
        names = _VERSION_2 if version_2 else _VERSION_1
        limit = _number_in(folder / names.limit)
        used = _number_in(folder / names.used)
        page_cache = _page_cache(folder, names)
        if limit is not None and limit >= _NO_LIMIT:
            limit = None
        unused = None if limit is None or used is None else limit - used
        free = limit  # no more than that is free, if the use of the group is unknown
        if unused is not None and page_cache is not None:
            free = unused + page_cache
        swap_limit = _number_in(folder / names.swap_limit)
        swap_used = _number_in(folder / names.swap_used)
        swap = None if swap_limit is None or swap_used is None else swap_limit - swap_used
        if swap is not None and not version_2:
            # Version 1 limits the sum of memory and swap: what is left of it includes the memory
            # that is left. No limit of memory means none of the sum, which is never the lower one.
            swap = None if unused is None else swap - unused
        yield _Group(limit, free, swap)


def _number_in(file: Path) -> int | None:
    """The number in *file*; ``None`` if it says "max", or if memory is not controlled."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _page_cache(folder: Path, names: _GroupFiles) -> int | None:
    """Bytes of files that the group of *folder* holds in memory; ``None``: unknown."""
    try:
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        kinds = ("active_file", "inactive_file")
        return sum(int(stat[f"{names.stat_prefix}{kind}"]) for kind in kinds)
    except (OSError, ValueError, KeyError):
        return None


def peak_memory() -> int:
    """Peak resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def page_reads() -> PageReads:
    """Page reads of this process since its start; 0 where the system does not report them."""
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
    """Lock *arrays* in memory until they are freed; return the number of locked bytes."""
    import ctypes

    total = 0  # bytes, including those that the failing call would have locked
    for array in arrays:
        address = ctypes.c_void_p(array.ctypes.data)
        size = ctypes.c_size_t(array.nbytes)
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
    match = re.search(rf"(?m)^{name}:\s+(\d+)", text)
    return int(match[1]) * 1024 if match else None


def group_folders(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, bool]]:
    """Folders of the control groups of this process that have *controller*.

    Each comes with True if it is of version 2. The process's own group is first, the root is last.
    *root* is the parent of the system's ``proc`` and ``sys``.
    """
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
        lines = (root / "proc/self/mountinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    mounts = []
    for line in lines:
        # proc(5): ID PARENT MAJOR:MINOR ROOT MOUNT_POINT OPTIONS... - TYPE SOURCE SUPER_OPTIONS
        before_dash, _, after_dash = line.partition(" - ")
        mount = before_dash.split(" ")
        file_system = after_dash.split(" ")
        is_readable = len(mount) >= 5 and len(file_system) >= 3
        if is_readable and file_system[0] in ("cgroup", "cgroup2"):
            kind, _, super_options = file_system[:3]
            mounted_group, mount_point = mount[3:5]
            mounts.append((kind, super_options.split(","), mounted_group, mount_point))
    for line in memberships:
        _, controllers, group = line.split(":", 2)
        version_2 = not controllers
        if not version_2 and controller not in controllers.split(","):
            continue
        for kind, options, mounted_group, mount_point in mounts:
            is_ours = kind == ("cgroup2" if version_2 else "cgroup")
            if not (is_ours and (version_2 or controller in options)):
                continue
            try:
                inside = PurePosixPath(group).relative_to(mounted_group)
            except ValueError:  # in a container whose own group is the only one that is mounted
                inside = PurePosixPath()
            for part in (inside, *inside.parents):
                yield root / mount_point.lstrip("/") / part, version_2

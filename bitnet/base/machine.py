"""Cores and memory of this machine that this process may use, as the system counts them.

A container started with ``--cpus=2`` sees all cores of its host but may use the time of two: more
threads would stall each other when the quota of a period is used up. Limits are read from both
versions of control groups (Linux), from the process's group to the root.
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

# Activations, logits and the interpreter, besides weights and cache.
OVERHEAD_BYTES = 200_000_000

_NO_LIMIT = 1 << 60  # from here on, as version 1 writes it


class _GroupFiles(NamedTuple):
    """Files of a control group with numbers of bytes."""

    limit: str
    used: str
    swap_limit: str  # in version 1 of memory and swap together
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
            if int(quota) > 0:  # "max" and -1 mean none
                cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    return cores


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


def fits_in_memory(size: int) -> bool | None:
    """True if a model file of *size* bytes can run here, roughly; ``None`` if unknown."""
    free = free_memory()
    return None if free is None else size + OVERHEAD_BYTES <= free


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
        names = _VERSION_2 if version_2 else _VERSION_1
        try:
            limit = int((folder / names.limit).read_text())
            used = int((folder / names.used).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            kinds = ("active_file", "inactive_file")
            files = sum(int(stat[f"{names.stat_prefix}{kind}"]) for kind in kinds)
        except (OSError, ValueError, KeyError):  # "max", or another controller's group
            continue
        if limit >= _NO_LIMIT:
            continue
        free = limit - used
        swap = None
        with suppress(OSError, ValueError):
            swap_limit = int((folder / names.swap_limit).read_text())
            swap_used = int((folder / names.swap_used).read_text())
            swap = swap_limit - swap_used
            if not version_2:  # which counts memory and swap together
                swap -= free
        yield _Group(limit, free + files, swap)


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
    """Folders of the groups with *controller*, from the process's own to the top; true: version 2.

    *root* is the parent of the system's ``proc`` and ``sys``.
    """
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
        lines = (root / "proc/self/mountinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    mounts = []
    for line in lines:
        mount_fields, _, source = line.partition(" - ")
        fields = mount_fields.split(" ")
        about = source.split(" ")
        if len(fields) >= 5 and len(about) >= 3 and about[0] in ("cgroup", "cgroup2"):
            mounts.append((about[0], about[2].split(","), fields[3], fields[4]))
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
            except ValueError:  # a container whose own group is mounted
                inside = PurePosixPath()
            for part in (inside, *inside.parents):
                yield root / mount_point.lstrip("/") / part, version_2

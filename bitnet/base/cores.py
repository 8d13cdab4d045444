"""Cores available to this process: its affinity, and the quota of its control group.

A container started with ``--cpus=2`` sees all cores of its host but may use the time of two: more
threads would stall each other when the quota of a period is used up. Both versions of control
groups are read (Linux, ``cpu.max`` and ``cpu.cfs_quota_us``), from the process's group to the root.
"""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from bitnet.base import settings

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    return min([cores, *(max(1, math.ceil(quota)) for quota in _quotas(root))])


def _quotas(root: Path) -> Iterator[float]:
    """Quotas, in cores, of the control groups of this process."""
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = list(_mounts((root / "proc/self/mountinfo").read_text()))
    except (OSError, UnicodeDecodeError):
        return
    for line in memberships:
        _, controllers, group = line.split(":", 2)
        version_2 = not controllers
        if not version_2 and "cpu" not in controllers.split(","):
            continue
        for kind, options, mounted_group, mount_point in mounts:
            if kind == ("cgroup2" if version_2 else "cgroup") and (version_2 or "cpu" in options):
                for folder in _folders(root, group, mounted_group, mount_point):
                    quota = _read_max(folder) if version_2 else _read_cfs(folder)
                    if quota is not None:
                        yield quota


def _mounts(mountinfo: str) -> Iterator[tuple[str, list[str], str, str]]:
    """Kind, options, mounted group and mount point of each mount of control groups."""
    for line in mountinfo.splitlines():
        place, _, source = line.partition(" - ")
        fields, kind = place.split(" "), source.split(" ")
        if len(fields) >= 5 and len(kind) >= 3 and kind[0] in ("cgroup", "cgroup2"):
            yield kind[0], kind[2].split(","), fields[3], fields[4]


def _folders(root: Path, group: str, mounted_group: str, mount_point: str) -> Iterator[Path]:
    """Folders of *group* and its parents, as far as they are mounted."""
    top = root / mount_point.lstrip("/")
    try:
        inside = PurePosixPath(group).relative_to(mounted_group)
    except ValueError:  # a container whose own group is mounted
        inside = PurePosixPath()
    for part in (inside, *inside.parents):
        yield top / part


def _read_max(folder: Path) -> float | None:
    """Quota of a group of version 2, ``None`` if there is none."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _read_cfs(folder: Path) -> float | None:
    """Quota of a group of version 1, ``None`` if there is none."""
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return None if quota <= 0 else quota / period
    except (OSError, ValueError, ZeroDivisionError):
        return None

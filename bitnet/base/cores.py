"""Cores available to this process: its affinity, and the quota of its control group.

A container started with ``--cpus=2`` sees all cores of its host but may use the time of two: more
threads would stall each other when the quota of a period is used up (``cpu.max`` and
``cpu.cfs_quota_us``, from the process's group to the root).
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet.base import settings
from bitnet.base.control_groups import group_folders

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
    for folder, version_2 in group_folders("cpu", root):
        quota = _read_max(folder) if version_2 else _read_cfs(folder)
        if quota is not None:
            yield quota


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

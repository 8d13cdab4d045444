"""Conditions under which a measurement of kernels holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base import native

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["conditions"]


def conditions(module: ModuleType) -> dict[str, Any]:
    """Processor, level, threads and build of *module*; a new build is measured again."""
    built = Path(module.__file__ or "").stat()
    return {
        "processor": native.processor(),
        "cores": os.cpu_count(),
        "level": module.kernel_level(),
        "threads": module.threads(),
        "kernels": f"{built.st_size}-{built.st_mtime_ns}",
    }

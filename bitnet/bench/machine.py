"""The machine a benchmark runs on, in words, and how fast it reads its memory."""

from __future__ import annotations

import math
import os
import platform
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

import bitnet
from bitnet import native
from bitnet.cores import thread_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Machine", "describe_machine"]

READ_BYTES = 256 << 20  # more than any cache holds


@dataclass(frozen=True)
class Machine:
    """What was measured on.

    Attributes:
        cpu: name of the processor.
        cores: those this process may use.
        memory_bytes: memory of the machine; 0 if it does not say.
        features: instruction sets the compiled module can use.
        backend: what computed, with the level of its kernels.
        read_bytes_per_s: bandwidth of a plain sum over memory, by number of threads.
        system: operating system and processor family.
        python: version.
        bitnet: version.
    """

    cpu: str
    cores: int
    memory_bytes: int
    features: tuple[str, ...]
    backend: str
    read_bytes_per_s: Mapping[int, float]
    system: str = field(default_factory=platform.platform)
    python: str = field(default_factory=platform.python_version)
    bitnet: str = bitnet.__version__


def describe_machine(threads: Sequence[int] = (), *, backend: str = "") -> Machine:
    """This machine, its memory read with each number of *threads* by the compiled module."""
    return Machine(
        cpu=native.processor(),
        cores=thread_count(),
        memory_bytes=_memory(),
        features=tuple(native.cpu_features()),
        backend=backend or native.backend_name(),
        read_bytes_per_s={count: _read_rate(count) for count in threads if count},
    )


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system has these names
        return 0


def _read_rate(threads: int) -> float:
    """Bytes per second of the best of five sums over memory; 0 without the compiled module."""
    module = native.module()
    if module is None:
        return 0.0
    module.set_threads(threads)
    memory = np.ones(READ_BYTES, dtype=np.uint8)
    best = math.inf
    for _ in range(5):
        started = time.perf_counter()
        module.sum_bytes(memory)
        best = min(best, time.perf_counter() - started)
    return READ_BYTES / best

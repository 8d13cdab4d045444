"""Description of the machine a benchmark runs on, and its memory bandwidth."""

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
from bitnet.base.cores import thread_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

READ_BYTES = 256 << 20  # more than any cache holds


@dataclass(frozen=True)
class Machine:
    """The machine of a benchmark.

    Attributes:
        cpu: name of the processor.
        cores: available to this process.
        memory_bytes: memory of the machine; 0 if unknown.
        features: instruction sets that the native module can use.
        backend: compute backend, with the level of its kernels.
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
    """This machine, with memory bandwidth measured for each of *threads* by the native module."""
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
    except (AttributeError, ValueError, OSError):  # not every system defines these names
        return 0


def _read_rate(threads: int) -> float:
    """Bytes per second, the best of five sums over memory; 0 without the native module."""
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

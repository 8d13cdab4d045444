"""Packing of ternary weights: two bits each, or five in a byte, whichever is multiplied faster.

Five in a byte are a fifth fewer bytes, but take more operations to unpack. They are worth it where
the cores together wait for memory, which depends on the machine, its memory and what else runs on
it. So both are measured, once per machine and number of threads, over more memory than a cache
holds. Results are the same bits either way.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base import settings
from bitnet.kernels.measured import conditions
from bitnet.store.tag import read_measurement, write_measurement

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["dense_pays", "measure"]

logger = logging.getLogger(__name__)

SMALLEST = 256 << 20  # weights of a model below which its packing is not worth a measurement
ADVANTAGE = 1.05  # how much faster the denser packing must be to be used
COLUMNS, ROWS = 2560, 12_800  # of a matrix that is multiplied: 8 MB with two bits
POOL_BYTES = 128 << 20  # of the memory the matrices lie in
AT_LEAST, SECONDS = 5, 0.5  # rounds, and how long: memory has slow and fast moments


def dense_pays(module: ModuleType, weights: int) -> bool:
    """True if *weights* ternary weights of a model should be packed five to a byte.

    Args:
        module: the compiled module, with its threads and level as they will be used.
        weights: how many there are.

    Raises:
        UsageError: ``BITNET_TERNARY_LAYOUT`` names no layout.
    """
    setting = settings.ternary_layout()
    fast = module.has_kernel(module.kernel_types().index("TERNARY_DENSE"))
    if setting == "dense" and not fast:
        logger.warning(
            "BITNET_TERNARY_LAYOUT=dense is slow here: %s has no kernel for it",
            module.kernel_level(),
        )
    if setting != "auto":
        return setting == "dense"
    if weights < SMALLEST or not fast:
        return False
    held = conditions(module)
    speeds = read_measurement("ternary-layout", held) or {}
    if speeds.keys() != {"two_bit", "dense"}:
        speeds = measure(module)
        write_measurement("ternary-layout", held, speeds)
    worth_it = speeds["dense"] >= ADVANTAGE * speeds["two_bit"]
    logger.info(
        "ternary weights in memory: %s; with %d threads 2 bits give %.0f and 1.6 bits %.0f "
        "billion weights/s",
        "1.6 bits" if worth_it else "2 bits",
        held["threads"],
        speeds["two_bit"] / 1e9,
        speeds["dense"] / 1e9,
    )
    return worth_it


def measure(module: ModuleType) -> dict[str, float]:
    """Weights per second with two bits and five to a byte: medians of many products.

    The two are measured in turn, so that both meet the same neighbours on the machine, and go
    through one piece of memory, so that neither finds in a cache what it reads.
    """
    kinds = [module.kernel_types().index(name) for name in ("TERNARY", "TERNARY_DENSE")]
    sizes = [ROWS * module.row_bytes(kind, COLUMNS) for kind in kinds]
    pool = module.allocate_weights(POOL_BYTES)
    pool.fill(0x91)  # any bytes will do
    x, out = np.ones((1, COLUMNS), dtype=np.float32), np.empty((1, ROWS), dtype=np.float32)
    times: list[list[float]] = [[], []]
    begin, started = 0, time.perf_counter()
    while len(times[0]) < AT_LEAST or time.perf_counter() - started < SECONDS:
        for kind, size, took in zip(kinds, sizes, times, strict=True):
            begin = begin if begin + size <= POOL_BYTES else 0
            before = time.perf_counter()
            module.linear(kind, pool[begin : begin + size], ROWS, COLUMNS, 1.0, x, out)
            took.append(time.perf_counter() - before)
            begin += size
    two_bit, dense = (ROWS * COLUMNS / float(np.median(took)) for took in times)
    return {"two_bit": two_bit, "dense": dense}

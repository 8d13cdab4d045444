"""Kernels for prefill of two units of one processor: whichever is faster there.

Tiles multiply more numbers at once than vectors, but their sums have to be fetched from them, and a
processor may slow down for either. So both are measured for each encoding, once per machine and
number of threads. Results are the same bits either way.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import numpy as np

from bitnet.cache.measurements import read_measurement, write_measurement
from bitnet.kernels.measured import conditions

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["choose_prefill", "measure"]

logger = logging.getLogger(__name__)

# Levels that must prove faster than another one.
RIVALS = {"amx": "avx512_vnni", "neon_i8mm": "neon_dotprod"}
ROWS, COLUMNS, TOKENS = 256, 1280, 40  # of the products that are measured: 13 million
ROUNDS = 7


def choose_prefill(module: ModuleType) -> None:
    """Use the kernels of the rival of *module*'s level for the encodings it is faster with.

    Only where levels compete (``RIVALS``); kernels that failed their self-test are not used again.
    """
    level = module.kernel_level()
    rival = RIVALS.get(level)
    if rival is None or rival not in module.kernel_levels():
        return
    held = conditions(module)
    found = read_measurement("prefill-kernels", held)
    if found is None:
        found = measure(module, rival)
        write_measurement("prefill-kernels", held, found)
    types = module.kernel_types()
    for name, gain in found.items():
        if name in types and gain < 1.0 and module.take_prefill(types.index(name), rival):
            logger.info(
                "prefill of %s: %s, %.2f times as fast as %s", name, rival, 1.0 / gain, level
            )


def measure(module: ModuleType, rival: str) -> dict[str, float]:
    """Speed of the level in use over that of *rival*, by the encoding in which they differ.

    The shortest of several products each, in turns, so that both meet the same neighbours.
    """
    level = module.kernel_level()
    x = np.random.default_rng(0).standard_normal((TOKENS, COLUMNS)).astype(np.float32)
    out = np.empty((TOKENS, ROWS), dtype=np.float32)
    gains = {}
    for kind, name in enumerate(module.kernel_types()):
        if not module.take_prefill(kind, rival):
            continue
        weight = np.full(ROWS * module.row_bytes(kind, COLUMNS), 0x11, dtype=np.uint8)
        best = {rival: float("inf"), level: float("inf")}
        for _ in range(ROUNDS):
            for one in best:  # ends with the level in use
                module.take_prefill(kind, one)
                started = time.perf_counter()
                module.linear(kind, weight, ROWS, COLUMNS, 1.0, x, out)
                best[one] = min(best[one], time.perf_counter() - started)
        gains[name] = best[rival] / best[level]
    return gains

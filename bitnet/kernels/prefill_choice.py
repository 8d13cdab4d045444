"""Kernels for prefill of two units of one processor: whichever is faster there.

Tiles multiply more numbers at once than vectors, but their sums have to be fetched from them, and a
processor may slow down for either. So both are measured for each encoding and for attention, once
per machine and number of threads. Results are the same bits either way.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import numpy as np

from bitnet.kernels.kv_codes import pages_of
from bitnet.kernels.measured import conditions
from bitnet.store.tag import read_measurement, write_measurement

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["choose_prefill", "measure"]

logger = logging.getLogger(__name__)

# Levels that must prove faster than another one.
RIVALS = {"amx": "avx512_vnni", "neon_i8mm": "neon_dotprod"}
ROWS, COLUMNS, TOKENS = 256, 1280, 40  # of the products that are measured: 13 million
HEADS, HEAD_DIM, CACHED = 4, 128, 256  # of the attention that is measured: 12 million
ROUNDS = 7
ATTENTION = "attention"  # its name beside those of encodings


def choose_prefill(module: ModuleType) -> bool:
    """Use the kernels of the rival of *module*'s level for what it is faster with.

    Only where levels compete (``RIVALS``); kernels that failed their self-test are not used again.

    Returns:
        True if there are any; they have not been tested on this machine.
    """
    level = module.kernel_level()
    rival = RIVALS.get(level)
    if rival is None or rival not in module.kernel_levels():
        return False
    held = conditions(module)
    gains = read_measurement("prefill-kernels", held)
    if gains is None:
        gains = measure(module, rival)
        write_measurement("prefill-kernels", held, gains)
    taken = [name for name, gain in gains.items() if gain < 1.0 and _take(module, name, rival)]
    for name in taken:
        logger.info(
            "prefill of %s: %s, %.2f times as fast as %s", name, rival, 1.0 / gains[name], level
        )
    return bool(taken)


def measure(module: ModuleType, rival: str) -> dict[str, float]:
    """Speed of the level in use over that of *rival*, by the encoding in which they differ.

    The shortest of several products each, in turns, so that both meet the same neighbours.
    Attention, where they differ in it, is one more name.
    """
    level = module.kernel_level()
    gains = {}
    for name in (*module.kernel_types(), ATTENTION):
        if not _take(module, name, rival):
            continue
        work = _work(module, name)
        best = {rival: float("inf"), level: float("inf")}
        for _ in range(ROUNDS):
            for one in best:  # ends with the level in use
                _take(module, name, one)
                started = time.perf_counter()
                work()
                best[one] = min(best[one], time.perf_counter() - started)
        gains[name] = best[rival] / best[level]
    return gains


def _take(module: ModuleType, name: str, level: str) -> bool:
    """Use *level* for an encoding, or for attention; False where that changes nothing."""
    types = module.kernel_types()
    if name == ATTENTION:
        return bool(module.take_attention(level))
    return name in types and bool(module.take_prefill(types.index(name), level))


def _work(module: ModuleType, name: str) -> Callable[[], None]:
    """Attention of ``TOKENS`` tokens, or their product with a matrix of an encoding."""
    rng = np.random.default_rng(0)
    if name == ATTENTION:
        keys, values = rng.standard_normal((2, 1, CACHED + TOKENS, HEAD_DIM)).astype(np.float32)
        pages = pages_of(keys, values)
        q = rng.standard_normal((TOKENS, HEADS, HEAD_DIM)).astype(np.float32)
        seen = np.empty_like(q)
        return lambda: module.attention(q, pages, CACHED, HEAD_DIM**-0.5, 0, 0.0, seen)
    kind = module.kernel_types().index(name)
    x = rng.standard_normal((TOKENS, COLUMNS)).astype(np.float32)
    weight = np.full(ROWS * module.row_bytes(kind, COLUMNS), 0x11, dtype=np.uint8)
    out = np.empty((TOKENS, ROWS), dtype=np.float32)
    return lambda: module.linear(kind, weight, ROWS, COLUMNS, 1.0, x, out)

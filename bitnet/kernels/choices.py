"""Choices measured on this machine: kernels for prefill, and the packing of ternary weights.

Results are the same bits either way, so both are measured once per machine and number of threads.

Tiles multiply more numbers at once than vectors, but their sums have to be fetched from them, and a
processor may slow down for either: prefill has two units of one processor to choose from, for each
encoding and for attention.

Ternary weights take two bits each, or five a byte. Five in a byte are a fifth fewer bytes, but take
more operations to unpack. They are worth it where the cores together wait for memory, which depends
on the machine, its memory and what else runs on it; so they are measured over more memory than a
cache holds.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base import native, settings
from bitnet.kernels.kv_codes import pages_of
from bitnet.store.tag import read_measurement, write_measurement

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

logger = logging.getLogger(__name__)

# Levels that must prove faster than another one.
RIVALS = {"amx": "avx512_vnni", "neon_i8mm": "neon_dotprod"}
# Of the products that are measured: 13 million.
PREFILL_ROWS, PREFILL_COLUMNS, TOKENS = 256, 1280, 40
HEADS, HEAD_DIM, CACHED = 4, 128, 256  # of the attention that is measured: 12 million
ROUNDS = 7
ATTENTION = "attention"  # its name beside those of encodings


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


def choose_prefill(module: ModuleType) -> bool:
    """Use the kernels of the rival of *module*'s level for what it is faster with; True if any are.

    Only where levels compete (``RIVALS``); kernels that failed their self-test are not used again.
    The new ones have not been tested on this machine.
    """
    level = module.kernel_level()
    rival = RIVALS.get(level)
    if rival is None or rival not in module.kernel_levels():
        return False
    held = conditions(module)
    gains = read_measurement("prefill-kernels", held)
    if gains is None:
        gains = measure_prefill(module, rival)
        write_measurement("prefill-kernels", held, gains)
    taken = [name for name, gain in gains.items() if gain < 1.0 and _take(module, name, rival)]
    for name in taken:
        logger.info(
            "prefill of %s: %s, %.2f times as fast as %s", name, rival, 1.0 / gains[name], level
        )
    return bool(taken)


def measure_prefill(module: ModuleType, rival: str) -> dict[str, float]:
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
    x = rng.standard_normal((TOKENS, PREFILL_COLUMNS)).astype(np.float32)
    weight = np.full(PREFILL_ROWS * module.row_bytes(kind, PREFILL_COLUMNS), 0x11, dtype=np.uint8)
    out = np.empty((TOKENS, PREFILL_ROWS), dtype=np.float32)
    return lambda: module.linear(kind, weight, PREFILL_ROWS, PREFILL_COLUMNS, 1.0, x, out)


SMALLEST = 256 << 20  # weights of a model below which its packing is not worth a measurement
ADVANTAGE = 1.05  # how much faster the denser packing must be to be used
PACKED_COLUMNS, PACKED_ROWS = 2560, 12_800  # of a matrix that is multiplied: 8 MB with two bits
POOL_BYTES = 128 << 20  # of the memory the matrices lie in
AT_LEAST, SECONDS = 5, 0.5  # rounds, and how long: memory has slow and fast moments


def dense_pays(module: ModuleType, weights: int) -> bool:
    """True if *weights* ternary weights of a model should be packed five to a byte.

    The *module* has its threads and level as they will be used.
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
        speeds = measure_packing(module)
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


def measure_packing(module: ModuleType) -> dict[str, float]:
    """Weights per second with two bits and five to a byte: medians of many products.

    The two are measured in turn, so that both meet the same neighbours on the machine, and go
    through one piece of memory, so that neither finds in a cache what it reads.
    """
    kinds = [module.kernel_types().index(name) for name in ("TERNARY", "TERNARY_DENSE")]
    sizes = [PACKED_ROWS * module.row_bytes(kind, PACKED_COLUMNS) for kind in kinds]
    pool = module.allocate_weights(POOL_BYTES)
    pool.fill(0x91)  # any bytes will do
    x = np.ones((1, PACKED_COLUMNS), dtype=np.float32)
    out = np.empty((1, PACKED_ROWS), dtype=np.float32)
    times: list[list[float]] = [[], []]
    begin, started = 0, time.perf_counter()
    while len(times[0]) < AT_LEAST or time.perf_counter() - started < SECONDS:
        for kind, size, took in zip(kinds, sizes, times, strict=True):
            begin = begin if begin + size <= POOL_BYTES else 0
            before = time.perf_counter()
            piece = pool[begin : begin + size]
            module.linear(kind, piece, PACKED_ROWS, PACKED_COLUMNS, 1.0, x, out)
            took.append(time.perf_counter() - before)
            begin += size
    two_bit, dense = (PACKED_ROWS * PACKED_COLUMNS / float(np.median(took)) for took in times)
    return {"two_bit": two_bit, "dense": dense}

"""Speed of every kernel: GB/s of weights in decode, GMAC/s in prefill, against reading memory.

    python benchmarks/kernels.py [--rows 2560] [--columns 2560] [--threads 1,2] [--level avx2]

Best of several short runs, to reduce the effect of other load. "of read" is the share of the
bandwidth that a plain sum over memory reaches in the same run, "of limit" the share of the rate at
which the instruction set multiplies bytes in registers (limits.py).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from limits import OF_BYTES, limit

from bitnet.base import native

DECODE_BYTES = 256 << 20  # weights read in a measurement, more than fit into any cache
PREFILL_TOKENS = 128


def best_s(work, repetitions):
    """Seconds of the fastest of *repetitions* calls."""
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def decode_gb_s(module, kind, rows, columns, row_bytes):
    """GB/s of weights with one activation row, each matrix read from memory."""
    count = max(1, DECODE_BYTES // (rows * row_bytes))
    # Any bytes do: speed does not depend on them.
    matrices = np.full((count, rows * row_bytes), 0x11, dtype=np.uint8)
    x = np.random.default_rng(0).standard_normal((1, columns)).astype(np.float32)
    out = np.empty((1, rows), dtype=np.float32)
    seconds = []
    for matrix in matrices:
        start = time.perf_counter()
        module.linear(kind, matrix, rows, columns, 1.0, x, out)
        seconds.append(time.perf_counter() - start)
    # The lower quartile: the matrix of the fastest product may have been in a cache.
    return rows * row_bytes / float(np.quantile(seconds, 0.25)) / 1e9


def prefill_gmac_s(module, kind, rows, columns, row_bytes):
    """Billions of multiply-adds per second with PREFILL_TOKENS activation rows."""
    matrix = np.full(rows * row_bytes, 0x11, dtype=np.uint8)
    x = np.random.default_rng(0).standard_normal((PREFILL_TOKENS, columns)).astype(np.float32)
    out = np.empty((PREFILL_TOKENS, rows), dtype=np.float32)
    seconds = best_s(lambda: module.linear(kind, matrix, rows, columns, 1.0, x, out), 7)
    return rows * columns * PREFILL_TOKENS / seconds / 1e9


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2560, help="a multiple of 16")
    parser.add_argument("--columns", type=int, default=2560)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--level", default="")
    parser.add_argument("--types", default="")
    options = parser.parse_args()
    module = native.module()
    if module is None:
        raise SystemExit("the compiled module is not installed")
    if options.level and not module.set_kernel_level(options.level):
        raise SystemExit(f"--level: one of {', '.join(module.kernel_levels())}")
    types = module.kernel_types()
    # An encoding that is repacked at load counts in the form that the fast kernels read, NAME_R16.
    names = [name for name in types if f"{name}_R16" not in types]
    if options.types:
        names = options.types.split(",")
    print(f"level {module.kernel_level()}, {options.rows} x {options.columns}")
    heading = f"{'type':8} {'threads':>7} {'decode GB/s':>12} {'of read':>8}"
    print(f"{heading} {'prefill GMAC/s':>15} {'of limit':>9}")
    memory = np.ones(DECODE_BYTES, dtype=np.uint8)
    peak = limit(module.kernel_level(), OF_BYTES)
    for threads in (int(n) for n in options.threads.split(",")):
        module.set_threads(threads)
        read = len(memory) / best_s(lambda: module.sum_bytes(memory), 5) / 1e9
        print(f"{'read':8} {threads:7} {read:12.1f}")
        for name in names:
            kind = types.index(name)
            size = module.row_bytes(kind, options.columns)
            if not size:
                raise SystemExit(f"--columns {options.columns}: no whole number of {name} blocks")
            decode = decode_gb_s(module, kind, options.rows, options.columns, size)
            prefill = prefill_gmac_s(module, kind, options.rows, options.columns, size)
            rates = f"{decode:12.1f} {decode / read:8.0%}"
            print(f"{name:8} {threads:7} {rates} {prefill:15.1f} {prefill / peak / threads:9.0%}")


if __name__ == "__main__":
    main()

"""Output head of BitNet 2B-4T's shape: the whole product against the exact head.

    python benchmarks/head.py [--rows 128256] [--columns 2560] [--threads 1,2]

Hidden states are random ("unsure": no logit is much larger than the others) or close to a row
("sure": a cosine of 0.2, as in trained models). Best of several runs, with the head in a mapped
file; "GB/s" counts the bytes that are read for every token: those of the head, or the first five
bits a weight of the copy in which the exact head searches.
"""

from __future__ import annotations

import argparse
import mmap
import tempfile
import time
from pathlib import Path

import numpy as np

from bitnet.kernels.native import NativeOps
from bitnet.kernels.packing import prepare_matrix
from bitnet.models.exact_head import Needed
from bitnet.models.exact_head.copy import HeadCopy
from bitnet.quants import types
from bitnet.quants.weight import Weight

RUNS = 7
SURE = 0.2  # cosine of a sure state and its row


def random_head(path, rows, columns):
    """Random f16 weights in a mapped file, ``(rows, columns)``, generated piece by piece."""
    random = np.random.default_rng(0)
    with path.open("w+b") as file:
        for start in range(0, rows, 4096):
            part = random.standard_normal((min(4096, rows - start), columns), dtype=np.float32)
            file.write((part * 0.02).astype(np.float16).tobytes())
        file.flush()
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    data = np.frombuffer(view, dtype=np.uint8)
    return Weight("output.weight", (rows, columns), types.by_name("F16"), data)


def states(weight):
    """One unsure and one sure hidden state by these names, each ``(1, columns)``."""
    rows, columns = weight.shape
    noise = np.random.default_rng(1).standard_normal((1, columns)).astype(np.float32)
    row = weight.data.view(np.float16).reshape(rows, columns)[rows // 2].astype(np.float32)
    noise /= np.linalg.norm(noise)
    return {"unsure": noise, "sure": SURE * row / np.linalg.norm(row) + noise}


def best_ms(work):
    """Milliseconds of the fastest of several calls."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=128256)
    parser.add_argument("--columns", type=int, default=2560)
    parser.add_argument("--threads", default="1,2")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        weight = random_head(Path(folder) / "head", args.rows, args.columns)
        compare(weight, map(int, args.threads.split(",")))


def compare(weight, thread_counts):
    """Print the size of the copy, and a table for each number of threads and instruction set."""
    ops = NativeOps()
    in_rows = prepare_matrix(ops.module, weight, in_rows=True)
    tiles = ops.prepare(weight)
    start = time.perf_counter()
    copy = HeadCopy.build(ops, in_rows)
    size = f"{copy.size_bytes / 1e6:.0f} MB, {copy.sixth_bytes / 1e6:.0f} of them sixth bits,"
    print(f"copy: {size} in {time.perf_counter() - start:.2f} s")
    print("| kernels | threads | work | ms | GB/s | rows refined | computed |")
    print("|---|---:|---|---:|---:|---:|---:|")
    for threads in thread_counts:
        ops.module.set_threads(threads)
        for level in ops.module.kernel_levels()[1:]:  # without the scalar kernels
            ops.module.set_kernel_level(level)
            report(f"| {level} | {threads}", ops, copy, tiles, in_rows, states(weight))


def report(begin, ops, copy, tiles, in_rows, hidden):
    """Print the rows of the table for one setting, each after the cells *begin*.

    *tiles* and *in_rows* are the head in two layouts, *hidden* the states of :func:`states`.
    """
    x = hidden["sure"]
    for name, matrix in (("full, interleaved", tiles), ("full, in rows", in_rows)):
        ms = best_ms(lambda matrix=matrix: ops.linear(x, matrix))
        print(
            f"{begin} | {name} | {ms:.1f} | {matrix.data.nbytes / ms / 1e6:.1f} | | |", flush=True
        )
    for name, state in hidden.items():
        for count in (1, 41):  # greedy, and top-k of 40: Sampler.needs asks for one more
            ms = best_ms(lambda s=state, n=count: copy.find(s, [Needed(n)]))
            (best,) = copy.find(state, [Needed(count)])
            # All rows are read with five bits a weight, few of them with the sixth as well.
            speed = (copy.size_bytes - copy.sixth_bytes) / ms / 1e6
            shares = f"{best.refined / best.vocab_size:.3%} | {len(best.ids) / best.vocab_size:.3%}"
            work = f"exact, {name}, {count} best"
            print(f"{begin} | {work} | {ms:.1f} | {speed:.1f} | {shares} |", flush=True)


if __name__ == "__main__":
    main()

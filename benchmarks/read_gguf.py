"""Time to read a GGUF header: ours, ours without compiled code, and gguf-py's reader.

    python benchmarks/read_gguf.py FILE [--runs 50] [--oracle-runs 3]

All readers run in one process with the file in the page cache, taking turns, so that other load
slows them down alike; it affects the p95 of processor time less than that of wall time. "header"
reads metadata and tensor directory: arrays are located and their bounds checked, but their items
are not read. "everything" also converts every array to Python strings or NumPy.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

from bitnet.formats.gguf import GGUF
from bitnet.formats.gguf_header import Array


def header(path):
    """Open the file and close it; returned, so that freeing it is not timed."""
    with GGUF.open(path) as gguf:
        return gguf


def everything(path):
    """Values of all arrays in the metadata of the file."""
    values = []
    with GGUF.open(path) as gguf:
        for value in gguf.metadata.values():
            if isinstance(value, Array):
                is_text = value.item_type == "string"
                values.append(value.strings() if is_text else value.numpy())
    return values


def with_backend(name, read):
    """*read* with ``BITNET_BACKEND`` set to *name*."""

    def run(path):
        os.environ["BITNET_BACKEND"] = name
        return read(path)

    return run


def oracle(path):
    """Open the file with gguf-py, which has no lazy arrays."""
    from gguf import GGUFReader

    return GGUFReader(path)


def milliseconds(read, path):
    """Wall and processor time of one reading, without the time to free the result."""
    wall = time.perf_counter()
    processor = time.process_time()
    result = read(path)
    elapsed = (time.perf_counter() - wall) * 1e3, (time.process_time() - processor) * 1e3
    del result
    return elapsed


def percentiles(values):
    """Median and 95th percentile."""
    return statistics.median(values), sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def main():
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--runs", type=int, default=50, help="readings of each kind")
    parser.add_argument("--oracle-runs", type=int, default=3, help="readings with gguf-py; slow")
    options = parser.parse_args()
    ways = {
        "native, header": with_backend("native", header),
        "native, everything": with_backend("native", everything),
        "pure Python, header": with_backend("reference", header),
        "pure Python, everything": with_backend("reference", everything),
    }
    times = {name: [] for name in ways}
    for read in ways.values():
        read(options.file)  # warms caches and imports
    for _ in range(options.runs):
        for name, read in ways.items():
            times[name].append(milliseconds(read, options.file))
    times["gguf-py GGUFReader"] = [
        milliseconds(oracle, options.file) for _ in range(options.oracle_runs)
    ]
    print("| reader | runs | p50 ms | p95 ms | p95 ms of processor time |")
    print("|---|---:|---:|---:|---:|")
    for name, pairs in times.items():
        if pairs:
            p50, p95 = percentiles([wall for wall, _ in pairs])
            _, processor_p95 = percentiles([processor for _, processor in pairs])
            print(f"| {name} | {len(pairs)} | {p50:,.2f} | {p95:,.2f} | {processor_p95:,.2f} |")


if __name__ == "__main__":
    main()

"""Peak memory of ``bitnet embed`` for few and for many texts.

    python benchmarks/embedding_memory.py MODEL [--texts 500,20000]

Texts and vectors are files: if both are streamed, the peak does not grow with their number.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def peak(model: Path, count: int, folder: Path) -> tuple[float, float]:
    """Peak memory in MB and seconds of a command that embeds *count* short texts."""
    texts = folder / f"{count}.txt"
    texts.write_text("".join(f"a short text, number {n}\n" for n in range(count)), encoding="utf-8")
    output = folder / f"{count}.npy"
    command = [sys.executable, "-m", "bitnet", "embed", model, "--input", texts, "--output", output]
    started = time.perf_counter()
    silent = subprocess.DEVNULL
    process = subprocess.Popen(list(map(str, command)), stdout=silent, stderr=silent)
    _, status, usage = os.wait4(process.pid, 0)
    if status or len(np.load(output, mmap_mode="r")) != count:
        raise SystemExit(f"{command} failed")
    return usage.ru_maxrss / 1024, time.perf_counter() - started


def main() -> None:
    """Print a row for each number of texts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", default="500,20000")
    options = parser.parse_args()
    print("| texts | peak (MB) | seconds |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for count in map(int, options.texts.split(",")):
            peak_mb, seconds = peak(options.model, count, Path(folder))
            print(f"| {count:,} | {peak_mb:.0f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()

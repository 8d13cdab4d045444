"""How long a tokenizer takes to load and to encode, ours beside the libraries.

    python benchmarks/tokenizer.py DATA [--runs 20] > benchmarks/results/tokenizer.md

DATA is the folder BITNET_TEST_DATA points at. Loading is measured in fresh processes with the
files in the page cache; "discovery" opens the GGUF file, decides and encodes a first text.
Encoding is measured in this process, engines taking turns on the same megabyte of text.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LLAMA3 = "vocab/ggml-vocab-llama-bpe.gguf"
MEGABYTE = 1_000_000

# Runs in a process of its own; prints the times in ms, the memory added and the peak in MB.
LOAD = """
import json, sys, time
from bitnet.formats.gguf import GGUF
from bitnet.tokenizer.from_gguf import spec_from_gguf
from bitnet.tokenizer import Tokenizer
Tokenizer
def megabytes(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
before = megabytes("VmRSS")
start = time.perf_counter()
with GGUF.open(sys.argv[1]) as gguf:
    spec = spec_from_gguf(gguf)
    found = time.perf_counter()
    tokenizer = Tokenizer.from_spec(spec)
    loaded = time.perf_counter()
    tokenizer.encode("Hello world")
    ready = time.perf_counter()
print(json.dumps([1e3 * (loaded - found), 1e3 * (ready - start),
                  megabytes("VmRSS") - before, megabytes("VmHWM")]))
"""
LIBRARY = """
import json, sys, time
import tokenizers
def megabytes(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
before = megabytes("VmRSS")
start = time.perf_counter()
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
loaded = time.perf_counter()
tokenizer.encode("Hello world")
ready = time.perf_counter()
print(json.dumps([1e3 * (loaded - start), 1e3 * (ready - start),
                  megabytes("VmRSS") - before, megabytes("VmHWM")]))
"""


def measure(code, path, cache):
    """What *code* prints in a fresh process."""
    environment = os.environ | {"BITNET_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def row(name, samples):
    """A line of the table: p50 and p95 of the times, medians of the memory."""
    cells = []
    for values in list(zip(*samples, strict=True))[:2]:
        ordered = sorted(values)
        p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
        cells.append(f"{statistics.median(ordered):.1f} / {p95:.1f}")
    cells += [f"{statistics.median(values):.0f}" for values in list(zip(*samples, strict=True))[2:]]
    return f"| {name} | {' | '.join(cells)} |"


def loading(data, runs):
    """The table of loading times for LLaMA-3's vocabulary."""
    cold, warm, library = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(runs):
            warm.append(measure(LOAD, data / LLAMA3, Path(folder) / "warm"))
            if i < max(3, runs // 5):
                cold.append(measure(LOAD, data / LLAMA3, Path(folder) / f"cold{i}"))
                library.append(measure(LIBRARY, data / "tokenizers/llama3/tokenizer.json", folder))
    return [
        "| LLaMA-3, 128,256 tokens | load p50 / p95 (ms) | until the first ids p50 / p95 (ms)"
        " | memory added (MB) | peak of the process (MB) |",
        "|---|---|---|---|---|",
        row("ours, compiled form in the cache", warm[1:]),
        row("ours, first use (compiles)", cold),
        row("`tokenizers` from `tokenizer.json`", library),
    ]


def text_of(data):
    """A megabyte of prose, code, numbers and many scripts."""
    with gzip.open(data / "expected/llama3.jsonl.gz", "rt") as file:
        text = " ".join(json.loads(line)["text"] for line in file)
    text += Path(json.__file__).read_text() * 8
    while len(text.encode()) < MEGABYTE:
        text += text
    return text.encode()[:MEGABYTE].decode("utf-8", "ignore")


def encoding(data, runs):
    """The table of encoding speeds."""
    import tokenizers

    from bitnet.tokenizer import Tokenizer
    from bitnet.tokenizer.from_files import spec_from_file

    text = text_of(data)
    lines = [
        "| 1 MB of text | ours (MB/s) | `tokenizers` (MB/s) | ratio | same ids |",
        "|---|---|---|---|---|",
    ]
    for name in ("llama3", "phi3"):
        path = data / f"tokenizers/{name}/tokenizer.json"
        ours = Tokenizer.from_spec(spec_from_file(path))
        library = tokenizers.Tokenizer.from_file(str(path))
        times = ([], [])
        for _ in range(runs):
            start = time.perf_counter()
            ids = ours.encode(text, add_special=False)
            between = time.perf_counter()
            expected = library.encode(text, add_special_tokens=False).ids
            times[0].append(between - start)
            times[1].append(time.perf_counter() - between)
        speeds = [len(text.encode()) / 1e6 / statistics.median(samples) for samples in times]
        same = "yes" if ids == expected else "NO"
        ratio = speeds[0] / speeds[1]
        lines.append(f"| {name} | {speeds[0]:.1f} | {speeds[1]:.1f} | {ratio:.1f} | {same} |")
    return lines


def main():
    """Print the result as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    os.environ["BITNET_CACHE_DIR"] = tempfile.mkdtemp()
    lines = [
        "# Tokenizers: loading and encoding",
        "",
        f"`python benchmarks/tokenizer.py $BITNET_TEST_DATA --runs {options.runs}` on a shared "
        f"x86-64 virtual machine with {os.cpu_count()} cores; read the ratios, not the times.",
        "",
        *loading(options.data, options.runs),
        "",
        *encoding(options.data, 5),
    ]
    print("\n".join(lines))


if __name__ == "__main__":
    main()

"""Time to load a tokenizer and to encode text, for ours and for other packages.

    python benchmarks/tokenizer.py DATA [--runs 20] [--also NAME=tokenizer.json]... [--svg FILE]
        [--turns 5] [--packages ours,gigatoken] [--json FILE]

DATA is the folder of BITNET_TEST_DATA. Loading is measured in new processes with the files in the
page cache. Encoding is measured in this process with one thread, in processor time, which other
load affects less than wall time: the first call of a new tokenizer on a megabyte of text, and in
brackets a second one; medians of --turns, in which the packages take turns. Most packages return a
list of ids; those that return an array are to be compared with "ours (array)". Packages that are
not installed are named. FILE of --json is written after every vocabulary.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tokenizer_peers as peers
from arguments import at_least

from bitnet.base.errors import Unsupported

LLAMA3 = "vocab/ggml-vocab-llama-bpe.gguf"
MEGABYTE = 1_000_000
#: Vocabularies that DATA has only as GGUF files; they are exported to ``tokenizer.json``.
EXPORTED = {
    "Qwen 2": "ggml-vocab-qwen2.gguf",
    "DeepSeek LLM": "ggml-vocab-deepseek-llm.gguf",
    "GPT-2": "ggml-vocab-gpt-2.gguf",
    "StarCoder": "ggml-vocab-starcoder.gguf",
    "BGE (BERT)": "ggml-vocab-bert-bge.gguf",
}

# Runs in a process of its own; prints the times in ms, the memory added and the peak in MB.
LOAD = """
import json, sys, time
from bitnet.formats.gguf import GGUF
from bitnet.tokenizer.from_gguf import spec_from_gguf
from bitnet.tokenizer import Tokenizer
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
    """Value that *code* prints as JSON, run on *path* in a new process with the folder *cache*."""
    environment = os.environ | {"BITNET_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def row(name, samples):
    """A line of the table: p50 and p95 of the times, medians of the memory.

    A sample has two times in ms, and two sizes in MB.
    """
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
            if i < max(3, runs // 5):  # these take longer
                cold.append(measure(LOAD, data / LLAMA3, Path(folder) / f"cold{i}"))
                library.append(measure(LIBRARY, data / "tokenizers/llama3/tokenizer.json", folder))
    return [
        "| LLaMA-3, 128,256 tokens | load (ours from the specification, `tokenizers` from the file)"
        " p50 / p95 (ms) | from the file until the first ids p50 / p95 (ms)"
        " | memory added (MB) | peak of the process (MB) |",
        "|---|---|---|---|---|",
        row("ours, compiled form in the cache", warm[1:]),
        row("ours, first use (compiles)", cold),
        row("`tokenizers` from `tokenizer.json`", library),
    ]


def texts_of(data):
    """A megabyte each of code, of English prose and of many languages (repetitive)."""
    library = Path(json.__file__).parents[1]
    code = "".join(path.read_text(errors="ignore") for path in sorted(library.glob("*.py")))
    prose = lzma.decompress((data / "austen/emma.txt.xz").read_bytes()).decode() * 2
    with gzip.open(data / "expected/llama3.jsonl.gz", "rt") as file:
        many = " ".join(json.loads(line)["text"] for line in file) * 10
    texts = {"code": code, "English": prose, "many languages": many}
    return {
        name: text.encode()[:MEGABYTE].decode("utf-8", "ignore") for name, text in texts.items()
    }


def vocabularies(data, more, folder):
    """Yield ``(name, file, packages)`` of every vocabulary; *more* are the words of --also."""
    yield "LLaMA-3", data / "tokenizers/llama3/tokenizer.json", peers.JSON
    for name, file in EXPORTED.items():
        yield from of_gguf(name, data / "vocab" / file, folder)
    yield "Phi-3", data / "tokenizers/phi3/tokenizer.json", peers.JSON
    for entry in more:
        name, _, path = entry.partition("=")
        if path.endswith(".gguf"):
            yield from of_gguf(name, Path(path), folder)
        else:
            yield name, Path(path), peers.JSON
    for name in ("cl100k_base", "o200k_base"):
        path = peers.ranks_file(name, folder)
        if path is not None:
            yield name, path, peers.of_openai(name)
    yield "LLaMA-2", data / "tokenizers/llama2/tokenizer.model", peers.MODEL


def of_gguf(name, gguf, folder):
    """Yield the entry of the vocabulary in *gguf*, exported to a ``tokenizer.json`` in *folder*.

    If this format cannot represent the vocabulary, only this project encodes with it.
    """
    target = Path(folder) / name
    command = [sys.executable, "-m", "bitnet", "export-tokenizer", gguf, "--output", target]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode == 0:
        yield name, target / "tokenizer.json", peers.JSON
    elif done.returncode == Unsupported.exit_code:
        print(f"{name}: {done.stderr}", file=sys.stderr)
        yield name, gguf, {"ours": peers.ours}
    else:
        raise SystemExit(f"{name}: {done.stderr}")


def speed(load, path, text):
    """MB/s of processor time of two calls of a new tokenizer, and the ids of the second one."""
    encode = load(path)
    size = len(text.encode()) / 1e6
    times = []
    for _ in range(2):
        start = time.process_time()
        ids = encode(text)
        times.append(time.process_time() - start)
    return size / times[0], size / times[1], ids


def median_speeds(packages, path, texts, turns):
    """Cells of every package by text: two median speeds, and True if its ids are those expected.

    Expected are those of the first package that works, usually ours. A package that fails has the
    error instead of its cells.
    """
    measured = {package: {name: [] for name in texts} for package in packages}
    cells = {}
    for _ in range(turns):
        for name, text in texts.items():
            expected = None
            for package, load in packages.items():
                if package in cells:
                    continue
                try:
                    *both, ids = speed(load, path, text)
                except BaseException as error:  # a panic of Rust code is not an Exception
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    cells[package] = " ".join(f"{type(error).__name__}: {error}"[:80].split())
                    continue
                expected = list(ids) if expected is None else expected
                measured[package][name].append((*both, list(ids) == expected))
    for package, by_text in measured.items():
        if package not in cells:
            cells[package] = {name: median_cell(samples) for name, samples in by_text.items()}
    return cells


def median_cell(measured):
    """Median speeds of the two calls, and True if the ids agreed in every turn."""
    first, second, same = zip(*measured, strict=True)
    return statistics.median(first), statistics.median(second), all(same)


def encoding(data, options):
    """Rows of the table: vocabulary, package, and the cells of :func:`median_speeds`."""
    texts = texts_of(data)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for vocabulary, path, packages in vocabularies(data, options.also, folder):
            chosen = options.packages.split(",") if options.packages else list(packages)
            packages = {name: load for name, load in packages.items() if name in chosen}
            cells = median_speeds(packages, path, texts, options.turns)
            rows += [(vocabulary, package, cells[package]) for package in packages]
            print(vocabulary, cells, file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


def table(rows):
    """*rows* as Markdown."""
    names = next(list(row[2]) for row in rows if isinstance(row[2], dict))
    yield f"| vocabulary | package | {' | '.join(names)} | ids as ours |"
    yield f"|---|---|{'---:|' * len(names)}---|"
    for vocabulary, package, cells in rows:
        if isinstance(cells, str):
            yield f"| {vocabulary} | {package} |{' |' * len(names)} not run: {cells} |"
            continue
        speeds = " | ".join(f"{first:.0f} ({again:.0f})" for first, again, _ in cells.values())
        differ = [name for name, (_, _, same) in cells.items() if not same]
        same = f"no: {', '.join(differ)}" if differ else "yes"
        yield f"| {vocabulary} | {package} | {speeds} | {same} |"


def plot(rows):
    """SVG with bars of the speed on code: the first call and, lighter, a second one."""
    bars = [(v, p, c["code"]) for v, p, c in rows if isinstance(c, dict)]
    most = max(again for _, _, (_, again, _) in bars)
    width, left, step = 760, 220, 18
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {step * len(bars) + 40}" '
        'font-family="sans-serif" font-size="12">',
        '<text x="10" y="16">MB of code per second of CPU time: first call, and lighter a later '
        "one</text>",
    ]
    for i, (vocabulary, package, (first, again, _)) in enumerate(bars):
        y = 28 + i * step
        colour = "#c2410c" if package.startswith("ours") else "#475569"
        parts.append(
            f'<text x="{left - 8}" y="{y + 11}" text-anchor="end">{vocabulary}, {package}</text>'
        )
        for mb_s, opacity in ((again, 0.35), (first, 1)):
            bar = max((width - left - 60) * mb_s / most, 1)
            parts.append(
                f'<rect x="{left}" y="{y}" width="{bar:.0f}" height="13" fill="{colour}" '
                f'opacity="{opacity}"/>'
            )
        end = left + max((width - left - 60) * max(first, again) / most, 1)
        parts.append(f'<text x="{end + 4:.0f}" y="{y + 11}">{first:.0f} ({again:.0f})</text>')
    return "\n".join([*parts, "</svg>", ""])


def main():
    """Print the result as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=at_least(2), default=20, help="the first is a warm-up")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--turns", type=at_least(1), default=5, help="measurements of encoding")
    parser.add_argument("--packages", default="", help="packages to run, separated by commas")
    parser.add_argument("--json", type=Path, help="write the rows of encoding")
    parser.add_argument("--no-loading", action="store_true", help="measure encoding only")
    parser.add_argument("--svg", type=Path, help="write a plot")
    options = parser.parse_args()
    os.environ |= {"BITNET_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "0"}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["BITNET_CACHE_DIR"] = cache
        text = result(options)
    print(text)


def command():
    """The command line of this run, with the variable for the folder of the data."""
    words = ["python", "benchmarks/tokenizer.py", *sys.argv[1:]]
    data = os.environ.get("BITNET_TEST_DATA")
    return " ".join("$BITNET_TEST_DATA" if word == data else shlex.quote(word) for word in words)


def result(options):
    """The result as Markdown; a plot is written on request."""
    rows = encoding(options.data, options)
    lines = [
        "# Tokenizers: loading and encoding",
        "",
        f"`{command()}` on a virtual machine with {os.cpu_count()} cores; read the ratios.",
        "",
        *([] if options.no_loading else loading(options.data, options.runs)),
        "",
        f"MB/s of CPU time with one thread, first call (second call), {options.turns} turns:",
        "",
        *table(rows),
    ]
    if options.svg:
        options.svg.write_text(plot(rows))
    return "\n".join(lines)


if __name__ == "__main__":
    main()

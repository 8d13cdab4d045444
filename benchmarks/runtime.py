"""Prefill, decode, memory and start of real models, beside llama.cpp and ik_llama.cpp.

    python benchmarks/runtime.py MODEL... [--peers FOLDER] [--peer-python PYTHON]
        [--tests pp128,pp512,pp4096,tg128,tg32@4096] [--q8] [--json FILE] [--table FILE]

FOLDER has what was built for this machine: llama.cpp, by peers.py, and ik_llama.cpp. PYTHON is the
interpreter of an environment with the packages ``xllamacpp`` and ``ik-llama-cpp-python``, which are
taken where FOLDER has no such engine, and ``openvino-genai``; a peer that cannot be had is reported
as absent, one that does not load a model is left out there. Every engine runs in a process of its
own; they take turns test by test, so that a machine that is slower for a while is so for all. The
first turn does not count. With --q8 ours runs a second time, with keys and values of 8 bits.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from peers import library

from bitnet.base import native
from bitnet.bench import describe_machine

ENGINES = {
    "llama.cpp": "xllamacpp",
    "ik_llama.cpp": "ik_llama_cpp",
    "OpenVINO GenAI": "openvino_genai",
}
WORKER = Path(__file__).with_name("peer_engine.py")
INFER = [sys.executable, "-m", "bitnet", "infer", "--prompt", "Hello", "--max-tokens", "1"]


class Engine:
    """A running engine."""

    def __init__(self, name, python, model, threads, context):
        arguments = [python, WORKER, name, model, str(threads), str(context)]
        self.process = subprocess.Popen(
            [str(word) for word in arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.load_s = self.reply()["load_s"]

    def reply(self):
        """Next output of the engine."""
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"an engine died: {' '.join(map(str, self.process.args))}")
        return json.loads(line)

    def seconds(self, test):
        """Seconds of ``pp128``, ``tg64`` ..."""
        print(test[:2], test[2:], file=self.process.stdin, flush=True)
        return self.reply()["seconds"]

    def stop(self):
        """Its peak memory in MB."""
        print(file=self.process.stdin, flush=True)
        peak = self.reply()["peak_mb"]
        self.process.wait()
        return peak


def present(peer_python, folder=None):
    """Interpreter and argument of each engine that there is, and the names of the others.

    Those that were built in *folder* count before those that can be imported.
    """
    found, absent = {"bitnet": (sys.executable, "bitnet")}, []
    for name, module in ENGINES.items():
        built = library(folder, name) if folder else None
        code = [peer_python or sys.executable, "-c", f"import {module}"]
        if built:
            found[name] = (sys.executable, str(built))
        elif subprocess.run(code, capture_output=True, check=False).returncode:
            absent.append(name)
        else:
            found[name] = (code[0], name)
    return found, absent


def started(name, entry, model, threads, context):
    """The engine *name* with *model*; ``None`` for a peer that does not load it."""
    python, argument = entry
    try:
        return Engine(argument, python, model, threads, context)
    except SystemExit as error:
        if name == "bitnet":
            raise
        print(f"{name} is left out: {error}", file=sys.stderr)
        return None


def measure(model, threads, engines, options):
    """Rates, load times and peaks of every engine with one number of threads."""
    tests = options.tests.split(",")
    context = max(1024, *(sum(map(int, test[2:].split("@"))) + 64 for test in tests))
    begun = {name: started(name, entry, model, threads, context) for name, entry in engines.items()}
    running = {name: engine for name, engine in begun.items() if engine}
    rates = {name: {test: [] for test in tests} for name in running}
    for turn in range(options.turns + 1):
        for test in tests:
            for name, engine in running.items():
                seconds = engine.seconds(test)
                if turn:
                    rates[name][test].append(int(test[2:].partition("@")[0]) / seconds)
    return {
        name: {
            "rates": rates[name],
            "load_s": engine.load_s,
            "peak_mb": engine.stop(),
        }
        for name, engine in running.items()
    }


def start_s(model):
    """Seconds of a whole command that writes one token, files in the page cache."""
    times = []
    for _ in range(4):
        begin = time.perf_counter()
        subprocess.run([*INFER, "--quiet", "--model", str(model)], check=True, capture_output=True)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def table(results, tests):
    """The results in Markdown: medians, and ours over the best peer."""
    lines = []
    head = ["model", "threads", "engine", *(f"{t} tok/s" for t in tests), "load (s)", "peak (MB)"]
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for model, by_threads in results.items():
        for threads, by_engine in by_threads.items():
            medians = {
                name: {test: statistics.median(found["rates"][test]) for test in tests}
                for name, found in by_engine.items()
            }
            for name, found in by_engine.items():
                cells = [f"{medians[name][test]:.1f}" for test in tests]
                cells += [f"{found['load_s']:.2f}", f"{found['peak_mb']:.0f}"]
                lines.append(f"| {model} | {threads} | {name} | " + " | ".join(cells) + " |")
            peers = [name for name in medians if name != "bitnet"]
            if peers:
                ratio = [
                    f"{medians['bitnet'][test] / max(medians[p][test] for p in peers):.2f}"
                    for test in tests
                ]
                lines.append(f"| | | ours / best peer | {' | '.join(ratio)} | | |")
    return "\n".join(lines)


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--tests", default="pp128,pp512,tg128")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--level", default="", help="instruction set of our kernels")
    parser.add_argument("--no-start", action="store_true")
    parser.add_argument("--q8", action="store_true")
    options = parser.parse_args()
    if options.level:
        os.environ["BENCHMARK_LEVEL"] = options.level
    engines, absent = present(options.peer_python, options.peers)
    if options.q8:
        engines["bitnet q8"] = (sys.executable, "bitnet:::q8")
    threads = [int(count) for count in options.threads.split(",")]
    results, starts = {}, {}
    for model in options.models:
        results[model.name] = {n: measure(model, n, engines, options) for n in threads}
        if not options.no_start:
            starts[model.name] = start_s(model)
    machine = describe_machine(threads)
    level = options.level or native.module().kernel_level()
    lines = [f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}; ours: {level}"]
    lines += [f"read {n}: {rate / 1e9:.1f} GB/s" for n, rate in machine["read_bytes_per_s"].items()]
    lines += [f"absent: {name} (package {ENGINES[name]})" for name in absent]
    lines += ["", table(results, options.tests.split(",")), ""]
    lines += [f"`inv infer`, start to first token, {n}: {s:.2f} s" for n, s in starts.items()]
    text = "\n".join(lines)
    print(text)
    if options.table:
        options.table.write_text(text + "\n")
    if options.json:
        facts = {"machine": machine, "absent": absent, "results": results, "start_s": starts}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()

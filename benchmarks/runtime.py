"""Prefill, decode, memory and start of real models, beside llama.cpp and ik_llama.cpp.

    python benchmarks/runtime.py MODEL... [--peers FOLDER] [--peer-python PYTHON]
        [--tests pp128,pp512,pp4096,tg128,tg32@4096,pp512@4096] [--kv-types f16,q8]
        [--json FILE] [--table FILE]

FOLDER has engines built for this machine: llama.cpp, by peers.py, and ik_llama.cpp. PYTHON is the
interpreter of an environment with the packages ``openvino-genai`` and ``mistralrs``, and for the
engines that FOLDER lacks ``xllamacpp`` and ``ik-llama-cpp-python``. A peer that is not installed
is reported as absent; one that fails to load a model is left out for that model. Every
engine runs in a process of its own; they take turns test by test, so that a temporary slowdown of
the machine affects all. The first turn does not count. With --kv-types f16,q8 each engine runs once
with each of them; without, ours and llama.cpp use f16, OpenVINO its own default (8 bits) and
mistral.rs floats. A measurement during which other processes used a tenth of a core or more is
repeated, up to --tries times; ``busy`` in the JSON counts those that stayed disturbed.

Depths beyond a model's context need --context N, which writes a copy of the file with a longer
context (speed does not depend on what the positions mean). --states FOLDER saves the states of long
prompts in llama.cpp and its forks, so that a second run does not read them again. With --wait-for
FILE the prompts are read at once, and measuring begins when FILE exists: reading takes minutes on a
machine that may be busy, and measuring needs an idle one. Such a run needs tests of one depth only:
an engine keeps the prompt of one depth.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path

from arguments import at_least, tests_with_depths
from contexts import with_context
from idle import MOST_CORES, Others
from peers import library

from bitnet.base import native
from bitnet.bench import describe_machine

# Peers, and the module whose import shows that a peer is installed.
ENGINES = {
    "llama.cpp": "xllamacpp",
    "ik_llama.cpp": "ik_llama_cpp",
    "OpenVINO GenAI": "openvino_genai",
    "mistral.rs": "mistralrs",
}
ONE_KV_TYPE = ("mistral.rs",)  # peers whose form of keys and values cannot be chosen
KV_TYPES = ("f16", "q8")
WORKER = Path(__file__).with_name("peer_engine.py")
INFER = [sys.executable, "-m", "bitnet", "infer", "--prompt", "Hello", "--max-tokens", "1"]


class Engine:
    """A process with an engine; our own one may come from the source tree *folder*."""

    def __init__(self, name, python, model, threads, context, kv_type="", folder=None):
        worker = folder / "benchmarks" / WORKER.name if folder else WORKER
        arguments = [python, worker, name, model, str(threads), str(context), kv_type]
        self.process = subprocess.Popen(
            [str(word) for word in arguments],
            env=os.environ | {"PYTHONPATH": str(folder)} if folder else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self.load_s = self.reply()["load_s"]
        except BaseException:
            kill(self.process)
            raise
        self.process.send_signal(signal.SIGSTOP)
        self.busy = 0  # measurements that other processes disturbed, without those of warm-ups

    def reply(self):
        """Next output of the engine."""
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"an engine died: {' '.join(map(str, self.process.args))}")
        return json.loads(line)

    def warm_up(self, test):
        """Run *test* once; ``busy`` does not count it."""
        busy = self.busy
        self.seconds(test)
        self.busy = busy

    def seconds(self, test, tries=1):
        """Seconds of a *test* such as ``pp128``, measured up to *tries* times if others disturb it.

        Between measurements the process is paused (SIGSTOP): idle threads of some engines spin.
        """
        self.process.send_signal(signal.SIGCONT)
        try:
            return self._seconds(test, tries)
        finally:
            self.process.send_signal(signal.SIGSTOP)

    def _seconds(self, test, tries):
        """Seconds of *test* in the last attempt; another one follows if others disturbed it."""
        for attempt in range(tries):
            others = Others([self.process.pid])
            print(test[:2], test[2:], file=self.process.stdin, flush=True)
            seconds = self.reply()["seconds"]
            share = others.share()
            if share < MOST_CORES:
                return seconds
            print(f"{test}: others used {share:.2f} cores", file=sys.stderr)
            time.sleep(attempt)
        self.busy += 1
        return seconds

    def stop(self):
        """End the process, and return its peak memory in MB."""
        self.process.send_signal(signal.SIGCONT)
        print(file=self.process.stdin, flush=True)
        peak = self.reply()["peak_mb"]
        self.process.wait()
        return peak


@contextmanager
def killed_at_last(engines):
    """A block after which every process of *engines*, a dictionary, has ended, whatever happens.

    A paused process would not end by itself, and keep its model in memory.
    """
    try:
        yield
    finally:
        for engine in engines.values():
            if engine is not None:
                kill(engine.process)


def kill(process):
    """Kill *process*, also a paused one; without effect if it has ended."""
    process.kill()
    process.wait()
    process.stdout.close()
    with suppress(BrokenPipeError):
        process.stdin.close()


def available_engines(peer_python, folder=None):
    """Interpreter and argument of each engine that is available, and the names of the others.

    A build in *folder* is preferred to a package that can be imported.
    """
    engines = {"bitnet": (sys.executable, "bitnet")}
    absent = []
    for name, module in ENGINES.items():
        built = library(folder, name) if folder else None
        code = [peer_python or sys.executable, "-c", f"import {module}"]
        if built:
            engines[name] = (sys.executable, str(built))
        elif subprocess.run(code, capture_output=True, check=False).returncode:
            absent.append(name)
        else:
            engines[name] = (code[0], name)
    return engines, absent


def with_kv_types(engines, kv_types):
    """*engines* once with each of *kv_types*; those without a choice once."""
    if not kv_types:
        return engines
    plain = {name: entry for name, entry in engines.items() if name in ONE_KV_TYPE}
    typed = {
        f"{name} {kv_type}": (*entry, kv_type)
        for kv_type in kv_types
        for name, entry in engines.items()
        if name not in ONE_KV_TYPE
    }
    return typed | plain


def is_ours(name):
    """True if the engine *name*, which may end with the form of its keys and values, is ours."""
    return name.partition(" ")[0] == "bitnet"


def kv_type_of(name):
    """Form of keys and values that ends the *name* of an engine; empty if it has no choice."""
    kv_type = name.rpartition(" ")[2]
    return kv_type if kv_type in KV_TYPES else ""


def start_engine(name, entry, model, threads, context):
    """The engine *name* with *model*, or None for a peer that does not load it."""
    python, argument, *kv_type = entry
    try:
        return Engine(argument, python, model, threads, context, *kv_type)
    except SystemExit as error:
        if is_ours(name):
            raise
        print(f"{name} is left out: {error}", file=sys.stderr)
        return None


def measure(model, threads, engines, options):
    """Results by engine with one number of threads: rates, load time, peak memory and ``busy``."""
    tests = options.tests
    # Positions of the longest test, with a margin.
    context = max(1024, *(sum(map(int, test[2:].split("@"))) + 64 for test in tests))
    engine_by_name = {}
    with killed_at_last(engine_by_name):
        for name, entry in engines.items():
            engine_by_name[name] = start_engine(name, entry, model, threads, context)
        running = {name: engine for name, engine in engine_by_name.items() if engine}
        rates = measure_rates(running, tests, options)
        return {
            name: {
                "rates": {test: per_turn for test, per_turn in rates[name].items() if per_turn},
                "load_s": engine_by_name[name].load_s,
                "busy": engine_by_name[name].busy,
                "peak_mb": engine_by_name[name].stop() if name in running else 0.0,
            }
            for name in rates
            if any(rates[name].values())
        }


def measure_rates(running, tests, options):
    """Rates of *running* engines by name and test; a peer that fails is removed from them."""
    rates = {name: {test: [] for test in tests} for name in running}
    # Depth by depth, since the cache of an engine contains the prompt of one depth.
    tests = sorted(tests, key=lambda test: int(test.partition("@")[2] or 0))
    minutes = math.inf if options.wait_for else options.minutes
    deadline_s = time.monotonic() + 60 * minutes
    has_waited = False
    for test, turn in in_turns(tests, options.turns):
        if turn == 1 and options.wait_for and not has_waited:
            wait_for(options.wait_for)
            deadline_s = time.monotonic() + 60 * options.minutes
            has_waited = True
        if time.monotonic() > deadline_s:
            print(f"stopped before turn {turn} of {test}", file=sys.stderr)
            break
        for name in list(running):
            seconds = run_or_leave(running, name, test, turn=turn, tries=options.tries)
            if seconds is not None:
                rates[name][test].append(int(test[2:].partition("@")[0]) / seconds)
    return rates


def wait_for(path):
    """Wait until the file *path* exists."""
    print(f"waiting for {path}", file=sys.stderr, flush=True)
    while not path.exists():
        time.sleep(0.2)


def run_or_leave(running, name, test, *, turn, tries):
    """Seconds of *test* by the engine *name* in up to *tries* attempts; None in *turn* 0.

    A peer that fails is removed: None.
    """
    try:
        if turn:
            return running[name].seconds(test, tries)
        running[name].warm_up(test)
        return None
    except (SystemExit, BrokenPipeError) as error:  # the latter: it ended between two tests
        if is_ours(name):
            raise
        print(f"{name} is left out from {test} on: {error}", file=sys.stderr)
        del running[name]
        return None


def in_turns(tests, turns):
    """Yield each of *tests* with the number of the turn, 0 to *turns*; turn 0 is the warm-up.

    Tests of one depth that follow each other take turns.
    """
    for _, group in groupby(tests, key=lambda test: test.partition("@")[2]):
        of_one_depth = list(group)
        for turn in range(turns + 1):
            yield from ((test, turn) for test in of_one_depth)


def start_s(model):
    """Median seconds of three commands that generate one token, after a first one as warm-up."""
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
                name: {test: statistics.median(facts["rates"].get(test, [0])) for test in tests}
                for name, facts in by_engine.items()
            }
            for name, facts in by_engine.items():
                cells = [f"{medians[name][test]:.1f}" for test in tests]
                cells += [f"{facts['load_s']:.2f}", f"{facts['peak_mb']:.0f}"]
                lines.append(f"| {model} | {threads} | {name} | " + " | ".join(cells) + " |")
            lines += ratio_lines(medians, tests)
    return "\n".join(lines)


def ratio_lines(medians, tests):
    """A row of Markdown for each of our engines: its rates over those of the best peer.

    Peers with a form of keys and values count if it is that of ours.
    """
    lines = []
    for ours in filter(is_ours, medians):
        kv_type = kv_type_of(ours)
        peers = [
            name for name in medians if not is_ours(name) and kv_type_of(name) in ("", kv_type)
        ]
        if not peers:
            continue
        label = f"ours {kv_type} / best peer" if kv_type else "ours / best peer"
        best = {test: max(medians[peer][test] for peer in peers) for test in tests}
        cells = [f"{medians[ours][test] / best[test]:.2f}" if best[test] else "" for test in tests]
        lines.append(f"| | | {label} | {' | '.join(cells)} | | |")
    return lines


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--tests", type=tests_with_depths, default="pp128,pp512,tg128")
    parser.add_argument("--turns", type=at_least(1), default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--level", default="", help="instruction set of our kernels")
    parser.add_argument("--no-start", action="store_true")
    parser.add_argument("--kv-types", default="", help="of keys and values: f16,q8")
    parser.add_argument("--tries", type=at_least(1), default=4, help="most attempts at a test")
    parser.add_argument("--context", type=int, help="positions of the models, if not their own")
    parser.add_argument("--states", type=Path, help="folder for llama.cpp's states of prompts")
    parser.add_argument(
        "--minutes", type=float, default=600, help="longest time for a model and number of threads"
    )
    parser.add_argument("--wait-for", type=Path, help="begin to measure when this file exists")
    parser.add_argument("--only", default="", help="engines to run, separated by commas")
    options = parser.parse_args()
    if options.level:
        os.environ["BENCHMARK_LEVEL"] = options.level
    engines, absent = available_engines(options.peer_python, options.peers)
    if options.only:
        only = options.only.split(",")
        if missing := [name for name in only if name not in engines]:
            parser.error(f"--only: {missing[0]!r} is not here; there are: {', '.join(engines)}")
        engines = {name: engines[name] for name in only}
    if options.states:
        options.states.mkdir(parents=True, exist_ok=True)
        os.environ["BENCHMARK_STATES"] = str(options.states.absolute())
    engines = with_kv_types(engines, options.kv_types.split(",") if options.kv_types else [])
    threads = [int(count) for count in options.threads.split(",")]
    results = {}
    starts = {}
    for model in options.models:
        with with_context(model, options.context) as path:
            results[model.name] = {n: measure(path, n, engines, options) for n in threads}
        if not options.no_start:
            starts[model.name] = start_s(model)
    machine = describe_machine(threads)
    level = options.level or native.module().kernel_level()
    lines = [f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}; ours: {level}"]
    lines += [f"read {n}: {rate / 1e9:.1f} GB/s" for n, rate in machine["read_bytes_per_s"].items()]
    lines += [f"absent: {name} (no module {ENGINES[name]})" for name in absent]
    lines += ["", table(results, options.tests), ""]
    lines += [f"`bitnet infer`, start to first token, {n}: {s:.2f} s" for n, s in starts.items()]
    text = "\n".join(lines)
    print(text)
    if options.table:
        options.table.write_text(text + "\n")
    if options.json:
        facts = {"machine": machine, "absent": absent, "results": results, "start_s": starts}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()

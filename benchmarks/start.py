"""Processor time of whole commands with warm caches, and of a pass outside the model.

    python benchmarks/start.py MODEL [--turns 11] [--passes 300] [--json FILE]

Each command runs in a process of its own, after a first run that writes bytecode and compiled
forms; processor time is that of all its threads. ``overhead`` is the time of a pass of one sequence
outside the compiled graph and the head: scheduling, sampling, text. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from arguments import at_least

import bitnet
from bitnet.runtime.request import Request

LEFT_OUT = 10  # of the passes, the last ones
PROMPT = [100 + 7 * i % 1000 for i in range(32)]  # ordinary tokens of every vocabulary in use


def main() -> None:
    """Print the times as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--turns", type=at_least(1), default=11)
    parser.add_argument("--passes", type=at_least(LEFT_OUT + 1), default=300)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = {
        "model": options.model.name,
        "turns": options.turns,
        "run": command_times(["run", str(options.model), "Hi", "--max-tokens", "1"], options.turns),
        "help": command_times(["--help"], options.turns),
        "python": process_times([sys.executable, "-c", "pass"], options.turns),
        "overhead": overhead(options.model, options.passes),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


def command_times(arguments: list[str], turns: int) -> dict[str, float]:
    """Times of ``bitnet`` with *arguments*."""
    return process_times([sys.executable, "-m", "bitnet", *arguments], turns)


def process_times(command: list[str], turns: int) -> dict[str, float]:
    """Medians of processor and wall time, in seconds, of *turns* runs after a first one."""
    cpu_s: list[float] = []
    wall_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for turn in range(turns + 1):
            before = cpu_of_children()
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, env=environment)
            if turn:
                wall_s.append(time.perf_counter() - started)
                cpu_s.append(cpu_of_children() - before)
    return {"cpu_s": statistics.median(cpu_s), "wall_s": statistics.median(wall_s)}


def cpu_of_children() -> float:
    """Processor seconds of all children of this process that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Timed:
    """A function that adds up the time of its calls."""

    def __init__(self, function: Any) -> None:
        self.seconds = 0.0
        self._function = function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function."""
        started = time.perf_counter()
        try:
            return self._function(*arguments, **named)
        finally:
            self.seconds += time.perf_counter() - started


class TimedGraph:
    """A compiled graph whose passes are timed."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.run = Timed(graph.run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)


def overhead(path: Path, passes: int) -> dict[str, float]:
    """Milliseconds of a decoding pass of one sequence, and of its part outside C++; medians."""
    from bitnet.kernels.native import CompiledProgram

    graphs: list[TimedGraph] = []
    original = CompiledProgram.__init__

    # Replaced for good: this process measures nothing afterwards.
    def begin(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        self._graph = TimedGraph(self._graph)
        graphs.append(self._graph)

    CompiledProgram.__init__ = begin  # type: ignore[method-assign]
    with bitnet.load(path) as model:
        head = Timed(model.engine.model.head.logits)
        model.engine.model.head.logits = head  # type: ignore[method-assign]
        engine = model.engine
        request = Request(max_tokens=passes, lookup=0, temperature=0.0)
        pieces = engine.run(engine.prepare(PROMPT, request))
        next(pieces)  # the prompt is read
        pass_ms: list[float] = []
        beside_ms: list[float] = []
        for _ in range(passes - LEFT_OUT):  # ends before the limit of tokens is reached
            inside_s = head.seconds + sum(graph.run.seconds for graph in graphs)
            started = time.perf_counter()
            if next(pieces).finish_reason:  # a small model may end its answer
                break
            passed_s = time.perf_counter() - started
            inside_s = head.seconds + sum(graph.run.seconds for graph in graphs) - inside_s
            pass_ms.append(1e3 * passed_s)
            beside_ms.append(1e3 * (passed_s - inside_s))
        pieces.close()
    if not pass_ms:
        raise SystemExit(f"{path.name} ends its answer at once: no pass was measured")
    return {"pass_ms": statistics.median(pass_ms), "beside_ms": statistics.median(beside_ms)}


if __name__ == "__main__":
    main()

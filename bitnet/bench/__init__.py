"""Benchmarks of loading, prefill and decode on this machine.

    pp128   prefill of 128 tokens, up to the first generated token: tokens per second
    tg128   128 tokens generated one after the other, after a prompt of one
    tg32@4096, pp512@4096
            the same behind 4,096 positions, whose time does not count

Everything runs through the engine, as an answer does. Tests and thread counts alternate, so that a
temporary slowdown of the machine affects all of them.
"""

from __future__ import annotations

import math
import platform
import re
import statistics
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet import __version__
from bitnet.base import native
from bitnet.base.errors import (
    BenchmarkError,
    InferenceError,
    InvalidFormat,
    Unsupported,
    UsageError,
)
from bitnet.base.files import read_json
from bitnet.base.machine import peak_memory, thread_count, total_memory, usable_cores
from bitnet.base.quantities import human_size
from bitnet.base.tables import quantity, table
from bitnet.formats.gguf import part_paths
from bitnet.runtime.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.scheduler import Scheduler
    from bitnet.runtime.text_ids import TokenIds

READ_BYTES = 256 << 20  # more than caches hold, but for those of a few servers

SCHEMA = 1  # version of the report's form

MAX_TOKENS = 1 << 20
WRITTEN_TOKENS = 64  # of the answer in which the share of tokenizing is measured
TEXT = (
    "The old lighthouse keeper counted the ships that passed in the night, and wrote their names "
    "into a book with a blue cover. When the fog came in from the sea he lit the great lamp and "
    "waited, because someone out there was always looking for the way home.\n"
)
_TEST = re.compile(r"(pp|tg)([1-9]\d{0,9})(?:@([1-9]\d{0,9}))?")


def describe_machine(threads: Sequence[int] = (), *, backend: str = "") -> dict[str, Any]:
    """This machine, with memory bandwidth measured by the native module.

    *threads* are the numbers of threads to measure with; 0 is left out.
    """
    return {
        "cpu": native.processor(),
        "cores": usable_cores(),
        "memory_bytes": total_memory() or 0,
        "features": native.cpu_features(),
        "backend": backend or native.backend_name(),
        "read_bytes_per_s": {count: _read_rate(count) for count in threads if count},
        "system": platform.platform(),
        "python": platform.python_version(),
        "bitnet": __version__,
    }


def _read_rate(threads: int) -> float:
    """Bytes per second, the best of five sums over memory; 0 without the native module."""
    module = native.module()
    if module is None:
        return 0.0
    module.set_threads(threads)
    memory = np.ones(READ_BYTES, dtype=np.uint8)
    best = math.inf
    for _ in range(5):
        started = time.perf_counter()
        module.sum_bytes(memory)
        best = min(best, time.perf_counter() - started)
    return READ_BYTES / best


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """Repeated measurements of one quantity: their median, extremes and every sample."""
    median = statistics.median(samples)
    return {"median": median, "min": min(samples), "max": max(samples), "samples": [*samples]}


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The report of :func:`measure` as a table."""
    model = report["model"]
    machine = report["machine"]
    load = report["load_s"]
    size = human_size(model["size_bytes"])
    yield f"{model['name']}, {size}, {model['architecture']}; {machine['backend']}"
    reads = ", ".join(
        f"{human_size(rate)}/s with {quantity(count, 'thread')}"
        for count, rate in machine["read_bytes_per_s"].items()
    )
    yield f"{machine['cpu']}, {machine['cores']} cores; reads {reads or 'at an unknown speed'}"
    yield ""
    rows = [
        (
            result["test"],
            f"{result['threads'] or '-'}",
            *(f"{result['tokens_per_s'][name]:.1f}" for name in ("median", "min", "max")),
        )
        for result in report["results"]
    ]
    yield from table(("test", "threads", "tok/s", "min", "max"), rows, right=(1, 2, 3, 4))
    yield ""
    yield (
        f"load {load['median']:.3f} s ({load['min']:.3f} to {load['max']:.3f}), "
        f"peak memory {human_size(report['peak_memory_bytes'])}, "
        f"text to ids and back {report['tokenize_share']:.2%} of the time"
    )


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Metrics of both reports: speeds, load time, memory; a ratio above one is an improvement."""

    def metrics(report: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        # The report may come from a file: dividing raises if an entry is not a number.
        for result in report["results"]:
            yield (
                f"{result['test']} @{result['threads']} tok/s",
                result["tokens_per_s"]["median"] / 1,
            )
        yield "load s", report["load_s"]["median"] / 1
        yield "peak memory MB", report["peak_memory_bytes"] / 1e6

    old = dict(metrics(before))
    compared = []
    for name, now in metrics(after):
        if (was := old.get(name)) and now:
            ratio = now / was if name.endswith("tok/s") else was / now
            compared.append({"what": name, "before": was, "after": now, "ratio": ratio})
    return compared


def read_report(path: Path) -> dict[str, Any]:
    """Report that ``bench --json`` printed into the file *path*."""
    hint = "make one: bitnet bench MODEL --json >before.json"
    report = read_json(path, hint=hint)
    if report.get("schema") != SCHEMA:
        raise Unsupported(
            f"{path} has schema {report.get('schema')!r}, expected {SCHEMA}",
            hint="measure again with this version: bitnet bench MODEL --json",
        )
    try:
        changes(report, report)
        _ = report["model"]["name"], report["machine"]["cpu"], report["machine"]["backend"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        text = f"{path} is not a report of bench: {type(error).__name__}: {error}"
        raise InvalidFormat(text, hint=hint) from None
    return report


@dataclass(frozen=True)
class Test:
    """A benchmark: ``pp`` is prefill of *tokens*, ``tg`` generates them one by one.

    Before it, *depth* positions of the context are filled, which is not timed.
    """

    kind: str
    tokens: int
    depth: int
    name: str  # ``pp128``, ``tg32@4096``

    @classmethod
    def parse(cls, name: str) -> Test:
        """The test called *name*."""
        name = name.strip()
        match = _TEST.fullmatch(name)
        if match is None or max(int(match[2]), int(match[3] or 0)) > MAX_TOKENS:
            raise UsageError(
                f"no test {name!r}",
                hint="write ppN, tgN, ppN@DEPTH or tgN@DEPTH, for example: --tests pp512,tg32@4096",
            )
        return cls(match[1], int(match[2]), int(match[3] or 0), name)

    @property
    def prompt(self) -> int:
        """Positions that are filled before the clock starts; ``tg`` needs one to begin from."""
        return self.depth or int(self.kind == "tg")

    @property
    def positions(self) -> int:
        """Positions of the context that it needs."""
        return self.prompt + self.tokens


@dataclass(frozen=True)
class BenchPlan:
    """The tests, repetitions and thread counts to measure."""

    tests: tuple[Test, ...]
    threads: tuple[int, ...]
    repetitions: int

    @classmethod
    def of(cls, tests: str, thread_counts: str, repetitions: int, *, threads: int = 0) -> BenchPlan:
        """A plan from comma-separated texts.

        By default one thread and *threads*, or if that is 0, as many as ``BITNET_THREADS`` says,
        else one per core.
        """
        if not 1 <= repetitions <= 1000:
            raise UsageError(f"--repetitions is {repetitions}, expected 1 to 1000")
        counts = dict.fromkeys([1, threads or thread_count()])
        if thread_counts:
            words = thread_counts.split(",")
            if not all(re.fullmatch(r" *0*[1-9]\d{0,2} *", word, re.ASCII) for word in words):
                raise UsageError(
                    f"--thread-counts expects numbers from 1 to 999, got {thread_counts!r}",
                    hint="for example: --thread-counts 1,2,4",
                )
            counts = dict.fromkeys(map(int, words))
        named = dict.fromkeys(Test.parse(name) for name in tests.split(","))
        if native.module() is None:  # NumPy manages its own threads
            counts = {0: None}
        return cls(tuple(named), tuple(counts), repetitions)


def measure(
    model: LanguageModel,
    plan: BenchPlan,
    *,
    reload: Callable[[], LanguageModel],
    on_step: Callable[[str], None] = lambda _text: None,
) -> dict[str, Any]:
    """Run the measurements of *plan*; the report as JSON values, its rates in tokens per second.

    *model* was loaded once, so that the disk cache is warm; it is closed, and *reload* loads it
    again. 0 threads are the backend's own choice.
    """
    path = model.path
    engine = model.engine
    files = part_paths(path) if path.is_file() else path.glob("*.safetensors")
    facts = {
        "name": path.name,
        "size_bytes": sum(file.stat().st_size for file in files),
        "architecture": model.config.architecture,
        "context": engine.context,
        **({"ignored_keys": list(model.ignored_keys)} if model.ignored_keys else {}),
    }
    longest = max(plan.tests, key=lambda test: test.positions)
    if longest.positions > engine.context:
        raise BenchmarkError(
            f"{longest.name} needs {longest.positions:,} positions, "
            f"the context holds {engine.context:,}",
            hint="choose shorter tests: --tests pp32,tg16",
        )
    model.close()
    del engine
    try:
        load_s = []
        for count in range(plan.repetitions):
            model.close()  # two models at once would double the memory
            on_step(f"load {count + 1}/{plan.repetitions}")
            model = reload()
            load_s.append(model.load_s)
        results = _rates(model, plan, on_step)
        prompt = TEXT[: max(1, model.engine.context // 2)]
        model.engine.forget()
        answer = model.stream(prompt, max_tokens=WRITTEN_TOKENS, lookup=0, temperature=0.0)
        deque(answer, maxlen=0)
        share = answer.tokenize_share
        memory = peak_memory()
        backend = model.backend
        model.close()
    except (InferenceError, MemoryError) as error:
        raise BenchmarkError(
            f"{path.name} cannot be measured: {error}", hint=getattr(error, "hint", "")
        ) from error
    return {
        "schema": SCHEMA,
        "model": facts,
        "machine": describe_machine(plan.threads, backend=backend),
        "load_s": spread(load_s),
        "results": results,
        "peak_memory_bytes": memory,
        "tokenize_share": share,
    }


def _rates(
    model: LanguageModel, plan: BenchPlan, on_step: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Rates of every test with every number of threads, in alternation.

    The first round is a warm-up and does not count.
    """
    longest = max(test.positions for test in plan.tests)
    ids = np.resize(model.tokenizer.encode_array(TEXT), longest)  # repeated as often as needed
    samples: dict[tuple[Test, int], list[float]] = {
        (test, threads): [] for test in plan.tests for threads in plan.threads
    }
    module = native.module()
    for round_number in range(plan.repetitions + 1):
        on_step(f"speed {round_number}/{plan.repetitions}" if round_number else "warm-up")
        for (test, threads), rates in samples.items():
            if module is not None and threads:
                module.set_threads(threads)
            time_of = _prefill_s if test.kind == "pp" else _decode_s
            seconds = time_of(model.engine, ids, test)
            if round_number:
                rates.append(test.tokens / seconds)
    return [
        {"test": test.name, "threads": threads, "tokens_per_s": spread(rates)}
        for (test, threads), rates in samples.items()
    ]


def _prefill_s(engine: Scheduler, ids: TokenIds, test: Test) -> float:
    """Seconds from the prompt of *test* to its first token, without the time for its depth."""
    engine.forget()
    started = 0.0
    # The first run fills *depth* positions, which the second one reuses: only that one is timed.
    for end in filter(None, (test.depth, test.positions)):
        started = time.perf_counter()
        deque(engine.generate(ids[:end], Request(max_tokens=1, lookup=0)), maxlen=0)
    return time.perf_counter() - started


def _decode_s(engine: Scheduler, ids: TokenIds, test: Test) -> float:
    """Seconds for the tokens of *test*, counted from the one before them."""
    engine.forget()
    pieces = engine.generate(ids[: test.prompt], Request(max_tokens=test.tokens + 1, lookup=0))
    next(pieces)
    started = time.perf_counter()
    count = sum(1 for _ in pieces)
    elapsed = time.perf_counter() - started
    if count != test.tokens:
        raise BenchmarkError(f"{test.name} wrote {count:,} tokens instead of {test.tokens:,}")
    return elapsed

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
from dataclasses import asdict, dataclass, field
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
from bitnet.base.machine import peak_memory, thread_count, total_memory
from bitnet.base.progress import human_size
from bitnet.base.tables import quantity, table
from bitnet.runtime.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.scheduler import Scheduler

READ_BYTES = 256 << 20  # more than any cache holds


@dataclass(frozen=True)
class Machine:
    """The machine of a benchmark."""

    cpu: str  # name of the processor
    cores: int  # available to this process
    memory_bytes: int  # of the machine; 0 if unknown
    features: tuple[str, ...]  # instruction sets that the native module can use
    backend: str  # compute backend, with the level of its kernels
    read_bytes_per_s: Mapping[int, float]  # of a plain sum over memory, by number of threads
    system: str = field(default_factory=platform.platform)  # and processor family
    python: str = field(default_factory=platform.python_version)
    bitnet: str = __version__


def describe_machine(threads: Sequence[int] = (), *, backend: str = "") -> Machine:
    """This machine, with memory bandwidth measured for each of *threads* by the native module."""
    return Machine(
        cpu=native.processor(),
        cores=thread_count(),
        memory_bytes=total_memory() or 0,
        features=tuple(native.cpu_features()),
        backend=backend or native.backend_name(),
        read_bytes_per_s={count: _read_rate(count) for count in threads if count},
    )


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


SCHEMA = 1


@dataclass(frozen=True)
class Spread:
    """Repeated measurements of one quantity."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median sample."""
        return statistics.median(self.samples)

    def facts(self) -> dict[str, Any]:
        """Median, extremes and every sample as JSON values."""
        return {
            "median": self.median,
            "min": min(self.samples),
            "max": max(self.samples),
            "samples": list(self.samples),
        }


@dataclass(frozen=True)
class Measured:
    """Tokens per second of one test with one number of threads; 0: the backend's own choice."""

    test: str
    threads: int
    tokens_per_s: Spread


@dataclass(frozen=True)
class BenchReport:
    """Result of a benchmark."""

    model: Mapping[str, Any]  # name, size in bytes, architecture and context
    machine: Machine
    load_s: Spread  # seconds to load tokenizer and model, from a warm disk
    results: tuple[Measured, ...]
    peak_memory_bytes: int  # of the process, before the machine was measured
    tokenize_share: float  # of an answer's time, 0 to 1

    def facts(self) -> dict[str, Any]:
        """The report as JSON values; :func:`read_report` reads them back."""
        results = [vars(it) | {"tokens_per_s": it.tokens_per_s.facts()} for it in self.results]
        its = {"machine": asdict(self.machine), "load_s": self.load_s.facts(), "results": results}
        return {"schema": SCHEMA, **vars(self), **its}

    def lines(self) -> Iterator[str]:
        """The report as a table."""
        machine, load = self.machine, self.load_s
        yield (
            f"{self.model['name']}, {human_size(self.model['size_bytes'])}, "
            f"{self.model['architecture']}; {machine.backend}"
        )
        reads = ", ".join(
            f"{human_size(rate)}/s with {quantity(count, 'thread')}"
            for count, rate in machine.read_bytes_per_s.items()
        )
        yield f"{machine.cpu}, {machine.cores} cores; reads {reads or 'at an unknown speed'}"
        yield ""
        rows = []
        for one in self.results:
            rates = one.tokens_per_s
            shown = (rates.median, min(rates.samples), max(rates.samples))
            rows.append((one.test, f"{one.threads or '-'}", *(f"{rate:.1f}" for rate in shown)))
        yield from table(("test", "threads", "tok/s", "min", "max"), rows, right=(1, 2, 3, 4))
        yield ""
        yield (
            f"load {load.median:.3f} s ({min(load.samples):.3f} to {max(load.samples):.3f}), "
            f"peak memory {human_size(self.peak_memory_bytes)}, "
            f"text to ids and back {self.tokenize_share:.2%} of the time"
        )


def changes(before: BenchReport, after: BenchReport) -> list[dict[str, Any]]:
    """Metrics in both reports, with a ratio above one if it is better: speeds, load and memory."""
    old = {(result.test, result.threads): result.tokens_per_s.median for result in before.results}
    metrics = []
    for result in after.results:
        if was := old.get((result.test, result.threads)):
            now = result.tokens_per_s.median
            metrics.append((f"{result.test} @{result.threads} tok/s", was, now, now / was))
    for label, was, now in (
        ("load s", before.load_s.median, after.load_s.median),
        ("peak memory MB", before.peak_memory_bytes / 1e6, after.peak_memory_bytes / 1e6),
    ):
        if was and now:
            metrics.append((label, was, now, was / now))
    names = ("what", "before", "after", "ratio")
    return [dict(zip(names, metric, strict=True)) for metric in metrics]


def read_report(path: Path) -> BenchReport:
    """Report that ``bench --json`` printed into the file *path*."""
    hint = "make one: bitnet bench MODEL --json >before.json"
    facts = read_json(path, hint=hint)
    if facts.get("schema") != SCHEMA:
        raise Unsupported(
            f"{path} has schema {facts.get('schema')!r}, expected {SCHEMA}",
            hint="measure again with this version: bitnet bench MODEL --json",
        )
    try:
        machine = facts["machine"]
        rates = {int(count): float(rate) for count, rate in machine["read_bytes_per_s"].items()}
        features = tuple(map(str, machine["features"]))
        return BenchReport(
            model={"name": str(facts["model"]["name"]), **facts["model"]},
            machine=Machine(**{**machine, "read_bytes_per_s": rates, "features": features}),
            load_s=_spread(facts["load_s"]),
            results=tuple(
                Measured(str(it["test"]), int(it["threads"]), _spread(it["tokens_per_s"]))
                for it in facts["results"]
            ),
            peak_memory_bytes=int(facts["peak_memory_bytes"]),
            tokenize_share=float(facts["tokenize_share"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        text = f"{path} is not a report of bench: {type(error).__name__}: {error}"
        raise InvalidFormat(text, hint=hint) from None


def _spread(facts: Mapping[str, Any]) -> Spread:
    samples = tuple(float(sample) for sample in facts["samples"])
    if not samples or not all(0 < sample < math.inf for sample in samples):
        raise ValueError("samples that are not positive numbers")
    return Spread(samples)


MAX_TOKENS = 1 << 20
WRITTEN_TOKENS = 64  # of the answer for which the tokenizer's share is measured
TEXT = (
    "The old lighthouse keeper counted the ships that passed in the night, and wrote their names "
    "into a book with a blue cover. When the fog came in from the sea he lit the great lamp and "
    "waited, because someone out there was always looking for the way home.\n"
)
_TEST = re.compile(r"(pp|tg)([1-9]\d*)(?:@([1-9]\d*))?")


@dataclass(frozen=True)
class Test:
    """A benchmark: ``pp`` is prefill of *tokens*, ``tg`` generates them one by one.

    Before it, *depth* positions of the context are filled, which is not timed.
    """

    kind: str
    tokens: int
    depth: int = 0

    @classmethod
    def parse(cls, name: str) -> Test:
        """The test named ``pp128``, ``tg32``, ``tg32@4096`` ..."""
        match = _TEST.fullmatch(name.strip())
        if match is None or max(int(match[2]), int(match[3] or 0)) > MAX_TOKENS:
            raise UsageError(
                f"no test {name!r}",
                hint="write ppN, tgN or tgN@DEPTH, for example: --tests pp512,tg128,tg32@4096",
            )
        return cls(match[1], int(match[2]), int(match[3] or 0))

    @property
    def name(self) -> str:
        """``pp128``, ``tg32@4096``."""
        return f"{self.kind}{self.tokens}" + (f"@{self.depth}" if self.depth else "")

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

        By default one thread and as many as ``BITNET_THREADS`` says, else one per core.
        """
        if not 1 <= repetitions <= 1000:
            raise UsageError(f"--repetitions is {repetitions}, expected 1 to 1000")
        counts = dict.fromkeys([1, threads or thread_count()])
        if thread_counts:
            try:
                counts = dict.fromkeys(int(word) for word in thread_counts.split(","))
            except ValueError:
                counts = {0: None}
            if min(counts) < 1 or max(counts) > 1024:
                raise UsageError(
                    f"--thread-counts expects numbers from 1 to 1024, got {thread_counts!r}",
                    hint="for example: --thread-counts 1,2,4",
                )
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
) -> BenchReport:
    """Run the measurements of *plan*.

    *model* was loaded once, so that the disk cache is warm; it is closed, and *reload* loads it
    again.
    """
    path, engine = model.path, model.engine
    files = [path] if path.is_file() else path.glob("*.safetensors")
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
        answer = model.stream(prompt, max_tokens=WRITTEN_TOKENS, lookup=0)
        for _ in answer:
            pass
        share = answer.tokenize_share
        memory, backend = peak_memory(), model.backend
        model.close()
    except (InferenceError, MemoryError) as error:
        raise BenchmarkError(
            f"{path.name} cannot be measured: {error}", hint=getattr(error, "hint", "")
        ) from error
    machine = describe_machine(plan.threads, backend=backend)
    return BenchReport(facts, machine, Spread(tuple(load_s)), results, memory, share)


def _rates(
    model: LanguageModel, plan: BenchPlan, on_step: Callable[[str], None]
) -> tuple[Measured, ...]:
    """Every test with every number of threads, in alternation; the first round is not counted."""
    longest = max(test.positions for test in plan.tests)
    ids = model.tokenizer.encode(TEXT)
    ids = (ids * math.ceil(longest / len(ids)))[:longest]
    samples: dict[tuple[Test, int], list[float]] = {
        (test, threads): [] for test in plan.tests for threads in plan.threads
    }
    module = native.module()
    for turn in range(plan.repetitions + 1):
        on_step(f"speed {turn}/{plan.repetitions}" if turn else "warm-up")
        for (test, threads), rates in samples.items():
            if module is not None and threads:
                module.set_threads(threads)
            time_of = _prefill_s if test.kind == "pp" else _decode_s
            seconds = time_of(model.engine, ids, test)
            if turn:
                rates.append(test.tokens / seconds)
    return tuple(
        Measured(test.name, threads, Spread(tuple(rates)))
        for (test, threads), rates in samples.items()
    )


def _prefill_s(engine: Scheduler, ids: Sequence[int], test: Test) -> float:
    engine.forget()
    if test.depth:
        _write(engine, ids[: test.depth])
    started = time.perf_counter()
    _write(engine, ids[: test.positions])  # the engine has the first *depth* of them
    return time.perf_counter() - started


def _decode_s(engine: Scheduler, ids: Sequence[int], test: Test) -> float:
    engine.forget()
    pieces = engine.generate(ids[: test.prompt], Request(test.tokens + 1, lookup=0))
    next(pieces)
    started = time.perf_counter()
    count = sum(1 for _ in pieces)
    elapsed = time.perf_counter() - started
    if count != test.tokens:
        raise BenchmarkError(f"{test.name} wrote {count:,} tokens instead of {test.tokens:,}")
    return elapsed


def _write(engine: Scheduler, ids: Sequence[int]) -> None:
    for _ in engine.generate(ids, Request(1, lookup=0)):
        pass

"""Time loading, prefill and decode according to a plan, in alternation."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet.base import native
from bitnet.base.errors import BenchmarkError, InferenceError, UsageError
from bitnet.base.machine import peak_memory, thread_count
from bitnet.bench.report import BenchReport, Measured, Spread, describe_machine
from bitnet.runtime.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.scheduler import Scheduler


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
    facts = {
        "name": path.name,
        "size_bytes": _size(path),
        "architecture": model.config.architecture,
        "context": engine.context,
        **({"ignored_keys": list(model.ignored_keys)} if model.ignored_keys else {}),
    }
    _check_context(engine, plan.tests)
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
        share = _tokenize_share(model)
        memory, backend = peak_memory(), model.backend
        model.close()
    except (InferenceError, MemoryError) as error:
        raise BenchmarkError(
            f"{path.name} cannot be measured: {error}", hint=getattr(error, "hint", "")
        ) from error
    machine = describe_machine(plan.threads, backend=backend)
    return BenchReport(facts, machine, Spread(tuple(load_s)), results, memory, share)


def _check_context(engine: Scheduler, tests: Sequence[Test]) -> None:
    longest = max(tests, key=lambda test: test.positions)
    if longest.positions > engine.context:
        raise BenchmarkError(
            f"{longest.name} needs {longest.positions:,} positions, "
            f"the context holds {engine.context:,}",
            hint="choose shorter tests: --tests pp32,tg16",
        )


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
    for turn in range(plan.repetitions + 1):
        on_step(f"speed {turn}/{plan.repetitions}" if turn else "warm-up")
        for (test, threads), rates in samples.items():
            _use_threads(threads)
            time_of = _prefill_s if test.kind == "pp" else _decode_s
            seconds = time_of(model.engine, ids, test)
            if turn:
                rates.append(test.tokens / seconds)
    return tuple(
        Measured(test.name, threads, Spread(tuple(rates)))
        for (test, threads), rates in samples.items()
    )


def _use_threads(count: int) -> None:
    module = native.module()
    if module is not None and count:
        module.set_threads(count)


def _prefill_s(engine: Scheduler, ids: Sequence[int], test: Test) -> float:
    engine.forget()
    if test.depth:
        _write(engine, ids[: test.depth], 1)
    started = time.perf_counter()
    _write(engine, ids[: test.positions], 1)  # the engine has the first *depth* of them
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


def _write(engine: Scheduler, ids: Sequence[int], tokens: int) -> None:
    for _ in engine.generate(ids, Request(tokens, lookup=0)):
        pass


def _tokenize_share(model: LanguageModel) -> float:
    prompt = TEXT[: max(1, model.engine.context // 2)]
    model.engine.forget()
    answer = model.stream(prompt, max_tokens=WRITTEN_TOKENS, lookup=0)
    for _ in answer:
        pass
    return answer.tokenize_share


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)

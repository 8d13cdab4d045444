"""Report of a benchmark and its machine as a table and as JSON; comparison with an earlier one."""

from __future__ import annotations

import json
import math
import platform
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet import __version__
from bitnet.base import native
from bitnet.base.errors import BenchmarkError, InvalidFormat, Unsupported, from_os_error
from bitnet.base.machine import thread_count, total_memory
from bitnet.base.progress import human_size
from bitnet.base.tables import quantity, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


READ_BYTES = 256 << 20  # more than any cache holds


@dataclass(frozen=True)
class Machine:
    """The machine of a benchmark.

    Attributes:
        cpu: name of the processor.
        cores: available to this process.
        memory_bytes: memory of the machine; 0 if unknown.
        features: instruction sets that the native module can use.
        backend: compute backend, with the level of its kernels.
        read_bytes_per_s: bandwidth of a plain sum over memory, by number of threads.
        system: operating system and processor family.
        python: version.
        bitnet: version.
    """

    cpu: str
    cores: int
    memory_bytes: int
    features: tuple[str, ...]
    backend: str
    read_bytes_per_s: Mapping[int, float]
    system: str = field(default_factory=platform.platform)
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
    """Result of a benchmark.

    Attributes:
        model: name, size in bytes, architecture and context of the model.
        machine: the machine it ran on.
        load_s: seconds to load tokenizer and model, from a warm disk.
        results: tokens per second.
        peak_memory_bytes: peak memory of the process, before the machine was measured.
        tokenize_share: share of an answer's time spent in the tokenizer, 0 to 1.
    """

    model: Mapping[str, Any]
    machine: Machine
    load_s: Spread
    results: tuple[Measured, ...]
    peak_memory_bytes: int
    tokenize_share: float

    def facts(self) -> dict[str, Any]:
        """The report as JSON values; :func:`read_report` reads them back."""
        return {
            "schema": SCHEMA,
            "model": dict(self.model),
            "machine": asdict(self.machine),
            "load_s": self.load_s.facts(),
            "results": [
                {"test": one.test, "threads": one.threads, "tokens_per_s": one.tokens_per_s.facts()}
                for one in self.results
            ],
            "peak_memory_bytes": self.peak_memory_bytes,
            "tokenize_share": self.tokenize_share,
        }

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


@dataclass(frozen=True)
class Change:
    """One metric before and after; a *ratio* above one is better."""

    what: str
    before: float
    after: float
    ratio: float


def changes(before: BenchReport, after: BenchReport) -> list[Change]:
    """Metrics in both reports: speeds first, then load time and memory."""
    old = {(result.test, result.threads): result.tokens_per_s.median for result in before.results}
    metrics = []
    for result in after.results:
        was = old.get((result.test, result.threads))
        if was is not None:
            rate, label = result.tokens_per_s.median, f"{result.test} @{result.threads} tok/s"
            metrics.append(Change(label, was, rate, rate / was))
    for label, was, now in (
        ("load s", before.load_s.median, after.load_s.median),
        ("peak memory MB", before.peak_memory_bytes / 1e6, after.peak_memory_bytes / 1e6),
    ):
        if was and now:
            metrics.append(Change(label, was, now, was / now))
    return metrics


def change_lines(found: Sequence[Change]) -> Iterator[str]:
    """*found* as a table."""
    rows = [
        (one.what, f"{one.before:.4g}", f"{one.after:.4g}", f"x{one.ratio:.2f}") for one in found
    ]
    return table(("metric", "before", "after", "ratio"), rows, right=(1, 2, 3))


def slowdown(found: Sequence[Change], *, at_most: float) -> BenchmarkError | None:
    """Error if a speed fell by more than *at_most* percent, or none could be compared."""
    speeds = [change for change in found if change.what.endswith("tok/s")]
    if not speeds:
        return BenchmarkError(
            "the two reports have no test in common",
            hint="measure the same --tests and --thread-counts",
        )
    slower = [change for change in speeds if change.ratio < 1 - at_most / 100]
    if not slower:
        return None
    shown = ", ".join(f"{change.what} x{change.ratio:.2f}" for change in slower)
    return BenchmarkError(
        f"slower by more than {at_most:g} %: {shown}",
        hint="measure again on a quiet machine, or accept the new results",
    )


def read_report(path: Path) -> BenchReport:
    """Report that ``bench --json`` printed into the file *path*."""
    try:
        facts = json.loads(path.read_text("utf-8"))
        if facts["schema"] != SCHEMA:
            raise Unsupported(
                f"{path} has schema {facts['schema']!r}, expected {SCHEMA}",
                hint="measure again with this version: bitnet bench MODEL --json",
            )
        return _report(facts)
    except OSError as error:
        raise from_os_error(error, path) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidFormat(
            f"{path} is not a report of bench: {type(error).__name__}: {error}",
            hint="make one: bitnet bench MODEL --json >before.json",
        ) from None


def _report(facts: Mapping[str, Any]) -> BenchReport:
    machine = facts["machine"]
    rates = {int(count): float(rate) for count, rate in machine["read_bytes_per_s"].items()}
    features = tuple(map(str, machine["features"]))
    return BenchReport(
        model={"name": str(facts["model"]["name"]), **facts["model"]},
        machine=Machine(**{**machine, "read_bytes_per_s": rates, "features": features}),
        load_s=_spread(facts["load_s"]),
        results=tuple(
            Measured(str(one["test"]), int(one["threads"]), _spread(one["tokens_per_s"]))
            for one in facts["results"]
        ),
        peak_memory_bytes=int(facts["peak_memory_bytes"]),
        tokenize_share=float(facts["tokenize_share"]),
    )


def _spread(facts: Mapping[str, Any]) -> Spread:
    samples = tuple(float(sample) for sample in facts["samples"])
    if not samples or not all(0 < sample < math.inf for sample in samples):
        raise ValueError("samples that are not positive numbers")
    return Spread(samples)

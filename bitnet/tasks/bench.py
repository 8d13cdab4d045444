"""``inv bench``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from invoke.exceptions import Exit

from bitnet.errors import UsageError
from bitnet.options import option
from bitnet.runtime.options import ModelOptions
from bitnet.tables import LiveLine, show
from bitnet.tasks.context import Context
from bitnet.tasks.declare import task
from bitnet.tasks.running import load_again, open_model, say
from bitnet.terminal import as_json


@dataclass(frozen=True)
class BenchOptions:
    """Measurements, and a report to compare with."""

    tests: str = option(
        "pp128,pp512,tg128",
        "ppN runs a prompt of N tokens, tgN generates N tokens; ppN@D and tgN@D behind D others",
        metavar="LIST",
    )
    thread_counts: str = option(
        "", "numbers of threads to measure with; default: 1 and --threads", metavar="LIST"
    )
    repetitions: int = option(5, "times each test is measured, after one that does not count")
    against: str = option(
        "",
        "earlier output of --json; adds what became faster and slower",
        formerly=("compare",),
        metavar="FILE",
    )
    max_slowdown: float | None = option(
        None, "with --against: fail when a test became slower by more percent", metavar="PERCENT"
    )

    def __post_init__(self) -> None:
        """Check what a type cannot say.

        Raises:
            UsageError: a number is out of range, or options do not go together.
        """
        if self.max_slowdown is not None and not self.against:
            raise UsageError("--max-slowdown needs --against", hint="add --against FILE")
        if self.max_slowdown is not None and not 0 <= self.max_slowdown < 100:
            raise UsageError(
                f"--max-slowdown is {self.max_slowdown:g}, expected 0 to less than 100"
            )


@task(
    group="Run",
    example="bitnet bench smollm2-135m --tests pp128,tg32",
)
def bench(
    c,
    options=BenchOptions(),
    model=ModelOptions(),
    common=Context(),
):
    """Measure how fast a model loads, reads a prompt and writes.

    The table, or the report with --json, goes to stdout. Other work on the machine falsifies it.
    """
    from bitnet.bench import BenchPlan, changes, measure, read_report, slowdown

    plan = BenchPlan.of(
        options.tests, options.thread_counts, options.repetitions, threads=model.threads
    )
    before = read_report(Path(options.against)) if options.against else None
    running = open_model(model, common)
    with LiveLine() as line:
        found = measure(
            running,
            plan,
            reload=lambda: load_again(running, model, common),
            on_step=(lambda _text: None) if common.output.no_progress else line.tell,
        )
    compared = changes(before, found) if before else []
    _show(found, before, compared, in_json=common.output.json)
    limit = options.max_slowdown
    problem = None if limit is None else slowdown(compared, at_most=limit)
    if problem is not None and common.output.json:
        raise Exit(problem.message, code=problem.exit_code)  # one document is on stdout already
    if problem is not None:
        raise problem


def _show(found, before, compared, *, in_json):
    from bitnet.bench.report import change_lines

    if in_json:
        told = {"changes": [vars(change) for change in compared]} if before else {}
        print(as_json(found.facts() | told))
        return
    show(*found.lines())
    if before is None:
        return
    for name, was, now in (
        ("model", before.model["name"], found.model["name"]),
        ("processor", before.machine.cpu, found.machine.cpu),
        ("backend", before.machine.backend, found.machine.backend),
    ):
        if was != now:
            say(f"Note: the earlier report is of another {name}: {was}")
    show("", *change_lines(compared))

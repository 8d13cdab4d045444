"""Check a report: derive its verdict again, and compare its evidence with new evidence.

Where an engine of the report is missing, or is another one on this machine, nothing can be computed
again: that check is skipped, and never passes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, UsageError
from bitnet.base.files import read_json
from bitnet.base.findings import Finding
from bitnet.crossval.crossval_options import CrossvalOptions
from bitnet.crossval.evidence import SCHEMA_VERSION, Evidence
from bitnet.crossval.judge import judge
from bitnet.crossval.records import from_json, to_json
from bitnet.crossval.references import REFERENCES
from bitnet.crossval.report import DERIVED, as_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Tolerances for numbers that reports store with six digits, computed again by the same engines on
# the same processor.
_RELATIVE = 1e-3
_ABSOLUTE = 1e-13
_SHOWN = 5  # differences in a message
# Fields of a row: divergences, gaps and negative logarithms of probabilities.
_AT_LEAST_ZERO = ("gap", "kl", "nll", "theirs_nll", "ours_kl", "theirs_kl")

# Prefixes of the fields about the machine and the engines of the report. If one of them differs
# here, the numbers of the report cannot be computed again.
_MAKERS = (
    "machine",
    "ours.version",
    "ours.library",
    "backend",
    "no_answer",
    "reference.version",
    "reference.library",
)


def read_report(path: Path) -> tuple[Evidence, dict[str, Any]]:
    """The evidence in the report *path*, and the derived values stored in it."""
    values = read_json(path, hint="name a report.json")
    if not set(DERIVED) <= set(values):
        raise InvalidFormat(f"{path.name} is not a report", hint="name a report.json")
    claimed = {name: values.pop(name) for name in DERIVED}
    evidence = from_json(Evidence, values, path.name)
    _check_rows(evidence, path.name)
    return evidence, claimed


def _check_rows(evidence: Evidence, name: str) -> None:
    """Refuse rows with numbers that no comparison gives; *name* is the file, for messages."""
    for part, rows in (("rows", evidence.rows), ("greedy", evidence.greedy)):
        for number, row in enumerate(rows):
            for field in _AT_LEAST_ZERO:
                value = getattr(row, field)
                if value is not None and value < 0:
                    raise InvalidFormat(
                        f"{name}.{part}[{number}].{field} is {value!r}, expected at least 0",
                        hint="write the report again",
                    )


def check_report(evidence: Evidence, claimed: dict[str, Any]) -> list[Finding]:
    """Findings on the report's version, and on what follows from its evidence.

    *claimed* has ``verdict``, ``summary`` and the digest of the evidence in the file.
    """
    version = evidence.schema_version
    derived = as_json(evidence, judge(evidence))
    text = f"version {version} of the report's format, expected {SCHEMA_VERSION}"
    findings = [Finding.from_check("form", version == SCHEMA_VERSION, text)]
    for name, value in claimed.items():
        same = value == derived[name]
        text = "as it follows from the evidence" if same else "another follows from the evidence"
        if name == "verdict":
            theirs = value.get("status") if isinstance(value, dict) else None
            text += f": {derived[name]['status']}; the report says {str(theirs)!r:.20}"
        findings.append(Finding.from_check(name, same, text))
    return findings


def options_of(evidence: Evidence) -> CrossvalOptions:
    """The options of a run that makes *evidence* again."""
    plan = evidence.plan
    if plan.against not in REFERENCES and plan.live:
        raise InvalidFormat(
            f"the report names the reference {plan.against!r}, expected one of "
            f"{', '.join(REFERENCES)}",
            hint="compare again: bitnet crossval MODEL --report-dir DIR",
        )
    try:
        return CrossvalOptions(
            against=plan.against if plan.live else "",
            # A recording brings its own positions and continuations.
            max_positions=plan.limit if plan.live else None,
            greedy=plan.greedy if plan.live else None,
            tokenizer_only=plan.tokenizer_only,
            require_real=plan.require_real,
        )
    except UsageError as error:
        raise InvalidFormat(
            f"the plan of the report cannot be repeated: {error.message}",
            hint="compare again: bitnet crossval MODEL --report-dir DIR",
        ) from error


def compare_again(evidence: Evidence, again: Evidence) -> Finding:
    """Compare every field of *evidence* with that of *again*, made with the same plan here.

    The time of the report is not compared: there is nothing to compare it with.
    """
    values = to_json(evidence)
    others = to_json(again)
    del values["created"], others["created"]
    differences = list(_differences(values, others, ""))
    if evidence.model.sha256 != again.model.sha256:
        text = (
            f"the file has SHA-256 {again.model.sha256[:16]}..., "
            f"the report's {evidence.model.sha256[:16]}..."
        )
        return Finding("failed", "replay", text, "name the model of the report, too")
    of_makers = [difference for difference in differences if difference.startswith(_MAKERS)]
    if of_makers:
        listed = "; ".join(of_makers[:_SHOWN])
        text = f"not made: another engine or machine made the report: {listed}"
        hint = "use the engines and the machine of the report"
        return Finding("skipped", "replay", text, hint)
    if differences:
        ending = "" if len(differences) <= _SHOWN else f"; and {len(differences) - _SHOWN:,} more"
        return Finding("failed", "replay", "; ".join(differences[:_SHOWN]) + ending)
    text = f"all {len(evidence.rows):,} positions and everything else computed again, and equal"
    return Finding("ok", "replay", text)


def _differences(reported: Any, computed: Any, path: str) -> Iterator[str]:
    """Differences of the *computed* values from the *reported* ones, each with both values.

    *path* names the field of the report that has the values; it is empty for the whole report.
    """
    # The type of both values, None if they differ in it.
    kind = type(reported) if type(reported) is type(computed) else None
    if kind is dict and reported.keys() == computed.keys():
        for key in reported:
            yield from _differences(reported[key], computed[key], f"{path}.{key}".lstrip("."))
    elif kind is list and len(reported) == len(computed):
        for number, pair in enumerate(zip(reported, computed, strict=True)):
            yield from _differences(*pair, f"{path}[{number}]")
    elif kind is float and math.isclose(reported, computed, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE):
        return
    elif kind is None or reported != computed:
        yield f"{path} is {_shorten(computed)}, the report says {_shorten(reported)}"


def _shorten(value: Any) -> str:
    """*value* as text for a message."""
    if isinstance(value, (list, dict)):
        return f"{len(value)} entries"
    return str(value)[:60] or "empty"

"""Check a report against its own rows: derive the verdict again, and compute some rows again.

This protects against mistakes: a report that was cut, edited or merged wrongly, or written with
other thresholds. Consistently invented rows are found by the replay, which needs the model.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from bitnet.cores import thread_count
from bitnet.crossval.bounds import bounds_for
from bitnet.crossval.inconsistencies import count_faults, identity_faults, row_faults
from bitnet.crossval.records import to_json
from bitnet.crossval.references import EngineFailed, Question
from bitnet.crossval.run import SCHEMA_VERSION, rows_of
from bitnet.errors import ReferenceUnavailable
from bitnet.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bitnet.crossval.compare import Row
    from bitnet.crossval.evidence import Evidence
    from bitnet.crossval.references import Reference
    from bitnet.crossval.report import Report
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.runtime.language_model import LanguageModel

__all__ = ["check_report", "replay"]

# Tolerance for a divergence recomputed on another processor, with other rounding.
_RELATIVE, _ABSOLUTE = 0.25, 1e-5


def check_report(report: Report, claimed: dict[str, Any]) -> list[Finding]:
    """Findings on the report's schema, thresholds, rows, verdict and summary.

    Args:
        report: as read from its file.
        claimed: ``verdict`` and ``summary`` of the file.
    """
    evidence, derived = report.evidence, report.as_json()
    version = evidence.schema_version
    said = f"version {version} of the form" + (
        "" if version == SCHEMA_VERSION else f", expected {SCHEMA_VERSION}"
    )
    found = [Finding.judged("form", version == SCHEMA_VERSION, said), _thresholds(evidence)]
    is_passed = report.verdict.status == "passed"
    for subject, wrong, right in (
        ("identity", identity_faults(evidence), "model, tokenizer and engines have their digests"),
        ("counts", count_faults(evidence), "planned, asked and answered agree"),
        (
            "rows",
            row_faults(evidence, whole=is_passed),
            f"{len(evidence.rows):,} positions, each once and in its prompt",
        ),
    ):
        told = list(wrong)
        found.append(Finding.judged(subject, not told, "; ".join(told[:5]) or right))
    status, said = report.verdict.status, f"{report.verdict.status}, as the report says"
    if claimed["verdict"] != derived["verdict"]:
        theirs = claimed["verdict"].get("status") if isinstance(claimed["verdict"], dict) else None
        said = f"{status} follows from the rows, with other findings than the report has"
        if theirs != status:
            said = f"{status} follows from the rows, and the report says {theirs!r}"
    found.append(Finding.judged("verdict", claimed["verdict"] == derived["verdict"], said))
    same = claimed["summary"] == derived["summary"]
    said = "as the rows give them" if same else "other metrics follow from the rows"
    return [*found, Finding.judged("summary", same, said)]


def replay(
    report: Report,
    model: LanguageModel,
    checkpoint: Checkpoint,
    reference: Reference,
    *,
    count: int,
    sha256: str,
    notify: Callable[[str], None],
) -> list[Finding]:
    """Compute *count* random positions of *report* again.

    Args:
        report: the report.
        model: the model, loaded.
        checkpoint: the same model on disk.
        reference: the engine named in the report.
        count: number of positions; at most all.
        sha256: digest of the model's file.
        notify: called with the current step.
    """
    evidence = report.evidence
    if sha256 != evidence.model.sha256:
        text = (
            f"the file has SHA-256 {sha256[:16]}..., the report's {evidence.model.sha256[:16]}..."
        )
        return [Finding("failed", "replay", text, "name the model of the report, too")]
    chosen = random.SystemRandom().sample(evidence.rows, min(count, len(evidence.rows)))
    if not chosen:
        return [Finding("skipped", "replay", "the report has no positions")]
    question = _question(evidence, chosen, checkpoint, notify)
    about: list[Finding] = []
    try:
        again = rows_of(model, reference, question, evidence.ours.arithmetic or "int8").rows
    except (ReferenceUnavailable, EngineFailed) as error:
        about = [Finding("skipped", "replay of the reference", error.message, error.hint)]
        again = rows_of(model, None, question, evidence.ours.arithmetic or "int8").rows
    numbers = sorted({row.prompt for row in chosen})
    known = {(numbers[row.prompt], row.position): row for row in again}
    wrong = [
        fault
        for row in chosen
        for fault in _differences(row, known.get((row.prompt, row.position)), whole=not about)
    ]
    said = f"{len(chosen)} of {len(evidence.rows)} positions computed again"
    return [Finding.judged("replay", not wrong, "; ".join([said, *wrong[:5]])), *about]


def _question(
    evidence: Evidence, rows: Sequence[Row], checkpoint: Checkpoint, notify: Callable[[str], None]
) -> Question:
    """The prompts of *rows*, each up to its last position among them."""
    ends = {row.prompt: 0 for row in sorted(rows, key=lambda row: row.prompt)}
    for row in rows:
        ends[row.prompt] = max(ends[row.prompt], row.position + 1)
    prompts = [(evidence.prompts[number], end) for number, end in ends.items()]
    return Question(
        checkpoint,
        prompts=tuple((one.text, one.ids[:end]) for one, end in prompts),
        threads=thread_count(),
        notify=notify,
    )


def _thresholds(evidence: Evidence) -> Finding:
    """Check that the bounds are those of this version, whatever the file says."""
    ours, theirs = evidence.ours.arithmetic, evidence.reference.arithmetic
    if ours is None or theirs is None:
        needed = bool(evidence.rows or evidence.greedy)
        said = "nothing says how the engines multiply" if needed else "none were needed"
        return Finding.judged("thresholds", not needed, said)
    right = to_json(evidence.bounds) == to_json(bounds_for(ours, theirs))
    said = "those of this version" if right else "other bounds than this version has"
    return Finding.judged("thresholds", right, said)


def _differences(row: Row, again: Row | None, *, whole: bool) -> Iterator[str]:
    """Differences between *row* and its recomputation *again*; *whole*: by both engines."""
    where = f"prompt {row.prompt}, position {row.position}"
    if again is None:
        yield f"{where}: no answer"
        return
    if row.ours != again.ours:
        yield f"{where}: our token is {again.ours}, the report says {row.ours}"
    pairs = [("KL to ours", row.exact_ours, again.exact_ours)]
    if whole:
        pairs.append(("KL to the reference", row.exact_theirs, again.exact_theirs))
        if not _alike(row.kl, again.kl):
            yield f"{where}: KL is {again.kl}, the report says {row.kl}"
    for name, one, other in pairs:
        if one is not None and not _alike(one.kl, other.kl if other else None):
            yield f"{where}: {name} is {other.kl if other else None}, the report says {one.kl}"


def _alike(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= max(_RELATIVE * max(abs(one), abs(other)), _ABSOLUTE)

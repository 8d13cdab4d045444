"""``report.json``, ``report.md`` and ``report.html`` of a cross-validation.

``report.schema.json`` next to this module is the schema of the first: the evidence, and the verdict
and the summary that follow from it. The other two are made from the same record. Reports contain no
paths or addresses of the machine: files are identified by name and SHA-256.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from bitnet.crossval.evidence import Evidence
from bitnet.crossval.judge import Verdict, judge, kind_of, mean
from bitnet.crossval.records import from_json, to_json
from bitnet.errors import InvalidFormat, from_os_error

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Report", "Summary", "read_report", "schema"]

_OUTCOMES = {"ok": "passed", "failed": "failed", "skipped": "not run"}
_DERIVED = ("verdict", "summary")


@dataclass(frozen=True)
class Summary:
    """Metrics over all positions; ``None`` if a position lacks the number.

    Attributes:
        positions: number of positions compared.
        prompts: number of their prompts.
        same_top1: both prefer the same token.
        near_ties: the reference barely prefers its best token to its second.
        different_in_near_ties: of these, positions where we prefer another token.
        excused: we prefer another where the reference was sure, but float64 agrees with us.
        wrong: we prefer another without an excuse.
        mean_kl: from the reference to ours.
        worst_kl: the largest of these.
        mean_overlap: of the ten likeliest tokens.
        min_cosine: of logits.
        max_difference: of a log-probability.
        exact_to_ours: mean KL divergence from the float64 pass.
        exact_to_reference: the same to the reference.
        closer_to_float64: ``ours`` or ``reference``.
    """

    positions: int
    prompts: int
    same_top1: int
    near_ties: int
    different_in_near_ties: int
    excused: int
    wrong: int
    mean_kl: float | None
    worst_kl: float | None
    mean_overlap: float | None
    min_cosine: float | None
    max_difference: float | None
    exact_to_ours: float | None
    exact_to_reference: float | None
    closer_to_float64: str | None


@dataclass(frozen=True)
class Report:
    """A cross-validation as it is displayed and stored.

    Attributes:
        evidence: all results, with numbers rounded as in the file.
    """

    evidence: Evidence

    @classmethod
    def of(cls, evidence: Evidence) -> Report:
        """Report of *evidence*; numbers are rounded first, so a file gives the same report."""
        return cls(from_json(Evidence, to_json(evidence)))

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict."""
        return judge(self.evidence)

    @cached_property
    def summary(self) -> Summary | None:
        """Metrics over all positions; ``None`` if none were compared."""
        return _summary(self.evidence) if self.evidence.rows else None

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        verdict = self.verdict
        derived = {
            "verdict": {
                "status": verdict.status,
                "reference_rejected": verdict.reference_rejected,
                "excused": verdict.excused,
                "reasons": verdict.reasons,
                "findings": [
                    {
                        "check": one.subject,
                        "outcome": _OUTCOMES[one.severity],
                        "said": one.text,
                        "hint": one.hint,
                    }
                    for one in verdict.findings
                ],
            },
            "summary": to_json(self.summary),
        }
        facts: dict[str, Any] = derived | to_json(self.evidence)
        return facts


def schema() -> dict[str, Any]:
    """The JSON Schema of ``report.json``."""
    text = files("bitnet.crossval").joinpath("report.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def read_report(path: Path) -> tuple[Report, dict[str, Any]]:
    """The report in the file *path*, and the verdict and summary stored in it.

    Raises:
        NotFound: the file does not exist.
        InvalidFormat: it is not a report of this version.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise from_os_error(error, path) from error
    except (ValueError, RecursionError) as error:
        raise InvalidFormat(
            f"{path.name} is not JSON: {error}", hint="name a report.json"
        ) from error
    if not isinstance(values, dict) or not set(_DERIVED) <= set(values):
        raise InvalidFormat(f"{path.name} is not a report", hint="name a report.json")
    claimed = {name: values.pop(name) for name in _DERIVED}
    return Report(from_json(Evidence, values, path.name)), claimed


def _summary(evidence: Evidence) -> Summary:
    rows, bounds = evidence.rows, evidence.bounds
    kinds = [kind_of(row, bounds) for row in rows]
    ours = mean(row.exact_ours.kl if row.exact_ours else None for row in rows)
    theirs = mean(row.exact_theirs.kl if row.exact_theirs else None for row in rows)
    closer = None if ours is None or theirs is None else "ours" if ours < theirs else "reference"

    def known(name: str) -> list[float] | None:
        found = [getattr(row, name) for row in rows]
        return None if None in found else found

    kl, cosine, apart = known("kl"), known("cosine"), known("max_difference")
    found = Summary(
        positions=len(rows),
        prompts=len({row.prompt for row in rows}),
        same_top1=kinds.count("same"),
        near_ties=sum(row.gap is not None and row.gap < bounds.near_tie for row in rows),
        different_in_near_ties=kinds.count("tie"),
        excused=kinds.count("excused"),
        wrong=kinds.count("wrong"),
        mean_kl=mean(row.kl for row in rows),
        worst_kl=max(kl) if kl else None,
        mean_overlap=mean(row.overlap for row in rows),
        min_cosine=min(cosine) if cosine else None,
        max_difference=max(apart) if apart else None,
        exact_to_ours=ours,
        exact_to_reference=theirs,
        closer_to_float64=closer,
    )
    return from_json(Summary, to_json(found))

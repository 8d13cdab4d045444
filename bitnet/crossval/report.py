"""``report.json``, ``report.md`` and ``report.html`` of a cross-validation.

The first is the evidence, with the verdict and the summary that follow from it; the other two show
the same record. Reports contain no paths or addresses of the machine: files are identified by name
and SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from statistics import median
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, from_os_error
from bitnet.base.files import write_text
from bitnet.crossval.evidence import Evidence, mean
from bitnet.crossval.judge import Verdict, judge, kind_of
from bitnet.crossval.records import from_json, to_json

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.crossval.compare import Row

__all__ = ["Report", "append_summary", "as_html", "as_markdown", "read_report", "write"]

_OUTCOMES = {"ok": "passed", "failed": "failed", "skipped": "not run"}
DERIVED = ("verdict", "summary", "evidence_sha256")  # follow from the evidence
_WORST = 8  # positions shown


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
    def summary(self) -> dict[str, Any]:
        """Metrics over all positions by name, empty if none were compared."""
        return to_json(_summary(self.evidence)) if self.evidence.rows else {}

    @property
    def not_checked(self) -> str:
        """One line that names the checks that were not run; empty if all were."""
        names = [one.subject for one in self.verdict.findings if one.severity == "skipped"]
        return f"NOT CHECKED: {', '.join(names)}" if names else ""

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        verdict = self.verdict
        findings = [
            {
                "check": finding.subject,
                "outcome": _OUTCOMES[finding.severity],
                "said": finding.text,
                "hint": finding.hint,
            }
            for finding in verdict.findings
        ]
        derived: dict[str, Any] = {
            "verdict": {
                "status": verdict.status,
                "reference_rejected": verdict.reference_rejected,
                "excused": verdict.excused,
                "reasons": verdict.reasons,
                "findings": findings,
            },
            "summary": self.summary,
        }
        facts: dict[str, Any] = to_json(self.evidence)
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return derived | {"evidence_sha256": digest} | facts


def read_report(path: Path) -> tuple[Report, dict[str, Any]]:
    """The report in the file *path*, and the derived values stored in it.

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
    if not isinstance(values, dict) or not set(DERIVED) <= set(values):
        raise InvalidFormat(f"{path.name} is not a report", hint="name a report.json")
    claimed = {name: values.pop(name) for name in DERIVED}
    return Report(from_json(Evidence, values, path.name)), claimed


def write(report: Report, folder: Path) -> list[Path]:
    """Write the three files to *folder*, which is created; return their paths."""
    texts = {
        "report.json": json.dumps(report.as_json(), indent=1) + "\n",
        "report.md": as_markdown(report),
        "report.html": as_html(report),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def append_summary(report: Report, path: Path) -> None:
    """Append *report* as text to the file *path*, which a CI job shows."""
    try:
        with path.open("a", encoding="utf-8", newline="\n") as out:
            out.write(as_markdown(report) + "\n")
    except OSError as error:
        raise from_os_error(error, path) from error


def as_markdown(report: Report) -> str:
    """*report* as Markdown; its last line names checks that were not run."""
    marks = {"ok": "passed", "failed": "**failed**", "skipped": "**not run**"}
    lines = [f"# Cross-validation: {report.verdict.status}", "", _plain(_title(report)), ""]
    lines += ["| check | | |", "|---|---|---|"]
    for one in report.verdict.findings:
        hint = f" ({one.hint})" if one.hint and one.severity != "ok" else ""
        lines.append(f"| {one.subject} | {marks[one.severity]} | {_cell(one.text + hint)} |")
    if report.summary:
        lines += ["", "| metric | |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in _metrics(report.summary)]
        lines += ["", "| worst positions | after | KLD | gap | ours | reference |"]
        lines.append("|---|---|---|---|---|---|")
        for cells in _worst(report.evidence):
            lines.append(f"| {' | '.join(_cell(_plain(cell)) for cell in cells)} |")
    lines.append("")
    lines += [f"- {name}: {_plain(value)}" for name, value in _provenance(report.evidence)]
    return "\n".join([*lines, *(["", report.not_checked] if report.not_checked else [])]) + "\n"


def as_html(report: Report) -> str:
    """*report* as a self-contained page without scripts."""
    from jinja2 import Environment, StrictUndefined

    text = files("bitnet.crossval").joinpath("report.html.j2").read_text(encoding="utf-8")
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    evidence = report.evidence
    kinds = {(row.prompt, row.position): kind_of(row, evidence.bounds) for row in evidence.rows}
    return page.from_string(text).render(
        report=report,
        verdict=report.verdict,
        evidence=evidence,
        title=_title(report),
        outcomes=_OUTCOMES,
        metrics=_metrics(report.summary),
        worst=_worst(evidence) if evidence.rows else [],
        provenance=_provenance(evidence),
        kinds=kinds,
        shown=_show_blanks,
    )


def _summary(evidence: Evidence) -> dict[str, Any]:
    """Metrics over all positions; those of which a position lacks the number are None.

    The first have the names of ``llama-perplexity --kl-divergence``: KLD is the KL divergence from
    the reference to ours, dp the difference of the probabilities of the actual next token.
    """
    rows, bounds = evidence.rows, evidence.bounds
    kinds = [kind_of(row, bounds) for row in rows]
    ours = mean(row.exact_ours.kl if row.exact_ours else None for row in rows)
    theirs = mean(row.exact_theirs.kl if row.exact_theirs else None for row in rows)
    closer = None if ours is None or theirs is None else "ours" if ours < theirs else "reference"
    klds = sorted(row.kl for row in rows if row.kl is not None)
    complete = len(klds) == len(rows)
    squared = mean(
        (math.exp(-row.surprise) - math.exp(-row.theirs_surprise)) ** 2
        for row in rows
        if row.surprise is not None and row.theirs_surprise is not None
    )
    return {
        "positions": len(rows),
        "prompts": len({row.prompt for row in rows}),
        "mean_kld": mean(row.kl for row in rows),
        "maximum_kld": klds[-1] if complete else None,
        "kld_99": klds[math.ceil(0.99 * len(klds)) - 1] if complete else None,
        "median_kld": median(klds) if complete else None,
        "rms_dp": None if squared is None else math.sqrt(squared),
        "same_top": kinds.count("same") / len(rows),
        "near_ties": sum(row.gap is not None and row.gap < bounds.near_tie for row in rows),
        "excused": kinds.count("excused"),
        "wrong": kinds.count("wrong"),
        "exact_to_ours": ours,
        "exact_to_reference": theirs,
        "closer_to_float64": closer,
    }


def _title(report: Report) -> str:
    evidence = report.evidence
    backend = "" if evidence.ours.backend == "none" else f" {evidence.ours.backend}"
    reference = f"{evidence.reference.name} {evidence.reference.version}".rstrip()
    return (
        f"{evidence.model.file} ({evidence.model.architecture}), bitnet {evidence.ours.version}"
        f"{backend} against {reference}; compute path: {evidence.compute_path}"
    )


def _metrics(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values; the first are those of ``llama-perplexity --kl-divergence``."""
    if not summary:
        return []
    counts = (summary[name] for name in ("near_ties", "excused", "wrong"))
    rows = [
        ("Mean KLD", _number(summary["mean_kld"])),
        ("Maximum KLD", _number(summary["maximum_kld"])),
        ("99.0% KLD", _number(summary["kld_99"])),
        ("Median KLD", _number(summary["median_kld"])),
        ("RMS Δp", _number(summary["rms_dp"], ".3%")),
        ("Same top p", _number(summary["same_top"], ".3%")),
        ("positions (prompts)", f"{summary['positions']} ({summary['prompts']})"),
        ("near-ties, excused, wrong", ", ".join(map(str, counts))),
    ]
    if summary["closer_to_float64"] is not None:
        both = f"{_number(summary['exact_to_ours'])}, {_number(summary['exact_to_reference'])}"
        rows.append(("mean KLD from float64 to ours, to the reference", both))
        rows.append(("closer to float64", summary["closer_to_float64"]))
    return rows


def _worst(evidence: Evidence) -> list[tuple[str, ...]]:
    """The positions that differ most, as text; first those without numbers."""
    worst = sorted(evidence.rows, key=lambda row: (row.kl is not None, -(row.kl or 0.0)))
    return [_cells(evidence, row) for row in worst[:_WORST]]


def _cells(evidence: Evidence, row: Row) -> tuple[str, ...]:
    prompt = evidence.prompts[row.prompt] if row.prompt < len(evidence.prompts) else None
    tokens = prompt.tokens if prompt else ()
    token = _show_blanks(tokens[row.position]) if row.position < len(tokens) else "?"

    def name_of(id: int | None) -> str:
        return (
            "no numbers"
            if id is None
            else f"{_show_blanks(evidence.spellings.get(str(id), ''))} {id}"
        )

    where = f"prompt {row.prompt}, position {row.position}"
    gap = _number(row.gap, ".2f")
    return where, token, _number(row.kl), gap, name_of(row.ours), name_of(row.theirs)


def _provenance(evidence: Evidence) -> list[tuple[str, str]]:
    """Names and values of what ran."""
    model, reference, ours = evidence.model, evidence.reference, evidence.ours
    processor = evidence.machine.get("processor", ""), evidence.machine.get("features", "")
    kernels = ", ".join(f"{name} x {count:,}" for name, count in ours.kernels.items())
    facts = [
        ("model", f"{model.origin}, SHA-256 {model.sha256}"),
        ("attestation", model.attestation),
        ("tokenizer", f"{model.tokenizer}, SHA-256 {model.tokenizer_sha256}"),
        ("processor", ", ".join(filter(None, processor))),
        ("kernels that ran", kernels or "none"),
        ("compiled module", ours.module_sha256 and f"SHA-256 {ours.module_sha256}"),
        (reference.library, reference.library_sha256 and f"SHA-256 {reference.library_sha256}"),
        ("KLD", evidence.kl if evidence.rows else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _show_blanks(text: str) -> str:
    """*text* of a token with spaces and line ends made visible."""
    return "".join("␣" if c == " " else "⏎" if c == "\n" else c for c in text) or "(empty)"


def _number(value: float | None, form: str = ".1e") -> str:
    return "none" if value is None else format(value, form)


def _plain(text: str) -> str:
    """*text* without the characters that Markdown or a terminal would interpret."""
    return "".join(c if c.isprintable() and c not in "`<>|[]" else " " for c in text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")

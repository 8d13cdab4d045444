"""``report.json``, ``report.md`` and ``report.html`` of a cross-validation.

The first is the evidence, with the verdict and the summary that follow from it; the other two show
the same record. Reports contain no paths or addresses of the machine: files are identified by name
and SHA-256. :mod:`bitnet.crossval.check` reads the first again.
"""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from bitnet.base.files import open_file
from bitnet.base.outputs import OutputFile, OutputKind, begins_with, json_in
from bitnet.crossval.records import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from bitnet.crossval.evidence import Evidence
    from bitnet.crossval.judge import Verdict

_OUTCOMES = {"ok": "passed", "failed": "failed", "skipped": "not run"}
DERIVED = ("verdict", "summary", "evidence_sha256")  # follow from the evidence
_WORST = 8  # positions shown
_KLD = (
    "in nats, over the stored tokens with all others as one event: never more than the "
    "divergence over the whole vocabulary"
)

# Name and format of each metric of a verdict's summary.
_METRICS = {
    "mean_kld": ("Mean KLD", ".1e"),
    "maximum_kld": ("Maximum KLD", ".1e"),
    "kld_99": ("99.0% KLD", ".1e"),
    "median_kld": ("Median KLD", ".1e"),
    "rms_dp": ("RMS Δp", ".3%"),
    "same_top": ("Same top p", ".3%"),
    "positions": ("positions", "d"),
    "prompts": ("prompts", "d"),
    "near_ties": ("near-ties", "d"),
    "excused": ("excused: the float64 pass agrees with us", "d"),
    "wrong": ("wrong", "d"),
    "exact_to_ours": ("mean KLD from float64 to ours", ".1e"),
    "exact_to_reference": ("mean KLD from float64 to the reference", ".1e"),
}


def as_json(evidence: Evidence, verdict: Verdict) -> dict[str, Any]:
    """The report as JSON values: the *verdict*, its summary, and the *evidence* itself."""
    facts: dict[str, Any] = to_json(evidence)
    canonical = json.dumps(facts, sort_keys=True).encode()
    return {
        "verdict": {
            "status": verdict.status,
            "findings": to_json(verdict.findings),
            "excused": verdict.excused,
            "reasons": verdict.reasons,
        },
        "summary": to_json(verdict.summary),
        "evidence_sha256": hashlib.sha256(canonical).hexdigest(),
        **facts,
    }


def _is_report(path: Path) -> bool:
    values = json_in(path)
    return isinstance(values, dict) and set(DERIVED) <= set(values)


def _is_page(path: Path) -> bool:
    with open_file(path) as file:
        return b"\n<title>Cross-validation: " in file.read(1000)


_KINDS = {
    "report.json": OutputKind("a report", _is_report),
    "report.md": OutputKind("a report", lambda path: begins_with(path, b"# Cross-validation: ")),
    "report.html": OutputKind("a report", _is_page),
}


def report_files(folder: Path, inputs: Iterable[Path], *, force: bool) -> list[OutputFile]:
    """The three files of a report in *folder*; *force* replaces other files of these names."""
    inputs = tuple(inputs)
    return [
        OutputFile(folder / name, kind, "--report-dir", inputs, force)
        for name, kind in _KINDS.items()
    ]


def write(evidence: Evidence, verdict: Verdict, files: Sequence[OutputFile]) -> None:
    """Write the report to *files*, in the order of :func:`report_files`."""
    texts = [
        json.dumps(as_json(evidence, verdict), indent=1) + "\n",
        as_markdown(evidence, verdict),
        as_html(evidence, verdict),
    ]
    for file in files:
        file.check()  # each before the first is written
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)


def as_markdown(evidence: Evidence, verdict: Verdict) -> str:
    """The report as Markdown; its last line names checks that were not run."""
    lines = [f"# Cross-validation: {verdict.status}", "", _plain(_title(evidence)), ""]
    lines += ["| check | | |", "|---|---|---|"]
    for finding in verdict.findings:
        hint = f" ({finding.hint})" if finding.hint and finding.severity != "ok" else ""
        mark = "passed" if finding.severity == "ok" else f"**{_OUTCOMES[finding.severity]}**"
        lines.append(f"| {finding.subject} | {mark} | {_cell(finding.text + hint)} |")
    if evidence.rows:
        lines += ["", "| metric | |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in _metrics(verdict)]
        lines += ["", "| worst positions | after | KLD | gap | ours | reference |"]
        lines.append("|---|---|---|---|---|---|")
        for cells in _worst(evidence):
            lines.append(f"| {' | '.join(_cell(_plain(cell)) for cell in cells)} |")
    lines.append("")
    lines += [f"- {name}: {_plain(value)}" for name, value in _provenance(evidence)]
    if verdict.not_checked:
        lines += ["", verdict.not_checked]
    return "\n".join(lines) + "\n"


def as_html(evidence: Evidence, verdict: Verdict) -> str:
    """The report as a self-contained page without scripts."""
    from jinja2 import Environment, StrictUndefined

    text = files("bitnet.crossval").joinpath("report.html.j2").read_text(encoding="utf-8")
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return page.from_string(text).render(
        verdict=verdict,
        evidence=evidence,
        title=_title(evidence),
        outcomes=_OUTCOMES,
        metrics=_metrics(verdict),
        worst=_worst(evidence),
        provenance=_provenance(evidence),
        shown=_show_blanks,
    )


def _title(evidence: Evidence) -> str:
    plan = evidence.plan
    ours = evidence.ours
    reference = evidence.reference
    backend = "" if evidence.backend == "none" else f" {evidence.backend}"
    recorded = "" if plan.live else "recorded "
    against = f"{recorded}{reference.name} {reference.version}".rstrip()
    return (
        f"{evidence.model.file} ({evidence.model.architecture}), bitnet {ours.version}{backend} "
        f"against {against}; compute path: {evidence.compute_path}"
    )


def _metrics(verdict: Verdict) -> list[tuple[str, str]]:
    """Names and values of the metrics of *verdict*, as text."""
    return [
        (_METRICS[key][0], _number(value, _METRICS[key][1]))
        for key, value in verdict.summary.items()
    ]


def _worst(evidence: Evidence) -> Iterator[tuple[str, ...]]:
    """The positions that differ most, as text; first those without numbers."""
    worst = sorted(evidence.rows, key=lambda row: (row.kl is not None, -(row.kl or 0.0)))

    def show(id: int | None) -> str:
        return _show_blanks(evidence.spellings.get(str(id), ""))

    for row in worst[:_WORST]:
        ids = evidence.prompts[row.prompt].ids if row.prompt < len(evidence.prompts) else ()
        best = ("no numbers" if id is None else f"{show(id)} {id}" for id in (row.ours, row.theirs))
        where = f"prompt {row.prompt}, position {row.position}"
        after = show(ids[row.position] if row.position < len(ids) else None)
        yield where, after, _number(row.kl), _number(row.gap, ".2f"), *best


def _provenance(evidence: Evidence) -> list[tuple[str, str]]:
    """Names and values of the facts about what ran."""
    model = evidence.model
    machine = evidence.machine
    processor = [machine.get("processor", ""), machine.get("features", "")]
    kernels = ", ".join(f"{name} x {count:,}" for name, count in evidence.kernels.items())
    facts = [
        ("model", f"{model.origin}, SHA-256 {model.sha256}"),
        ("attestation", model.attestation),
        ("tokenizer", f"{model.tokenizer}, SHA-256 {model.tokenizer_sha256}"),
        ("processor", ", ".join(filter(None, processor))),
        ("kernels that ran", kernels or "none"),
    ]
    facts += [
        (engine.library, f"SHA-256 {engine.library_sha256}")
        for engine in (evidence.ours, evidence.reference)
        if engine.library_sha256
    ]
    if evidence.rows:
        facts.append(("KLD", _KLD))
    return [(name, value) for name, value in facts if value]


def _show_blanks(text: str) -> str:
    """*text* of a token with spaces and line ends made visible."""
    return text.replace(" ", "␣").replace("\n", "⏎") or "(empty)"


def _number(value: float | None, form: str = ".1e") -> str:
    return "none" if value is None else format(value, form)


def _plain(text: str) -> str:
    """*text* with a space for each control, and for what begins code, a link, a tag or a cell."""
    return "".join(c if c.isprintable() and c not in "`<>|[]" else " " for c in text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")

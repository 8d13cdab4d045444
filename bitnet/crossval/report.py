"""``report.json``, ``report.md`` and ``report.html`` of a cross-validation.

The first is the evidence, with the verdict and the summary that follow from it; the other two show
the same record. Reports contain no paths or addresses of the machine: files are identified by name
and SHA-256.

A report is checked by deriving its verdict again, and by comparing every field of the evidence with
a new one, made with the same plan; what cannot be computed again, because an engine is missing or
another, is not made and never passes.
"""

from __future__ import annotations

import hashlib
import json
import math
from importlib.resources import files
from statistics import median
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat
from bitnet.base.files import read_json
from bitnet.base.findings import Finding
from bitnet.base.outputs import OutputFile, OutputKind, begins_with, json_in
from bitnet.crossval.evidence import SCHEMA_VERSION, Evidence, mean
from bitnet.crossval.judge import judge, kind_of, near_tie, rows_to_judge
from bitnet.crossval.operations import describe
from bitnet.crossval.options import CrossvalOptions
from bitnet.crossval.references import REFERENCES
from bitnet.crossval.trace import from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_OUTCOMES = {"ok": "passed", "failed": "failed", "skipped": "not run"}
DERIVED = ("verdict", "summary", "evidence_sha256")  # follow from the evidence
_WORST = 8  # positions shown
_KLD = (
    "in nats, over the stored tokens with all others as one event: never more than the "
    "divergence over the whole vocabulary"
)


def as_json(evidence: Evidence) -> dict[str, Any]:
    """The report on *evidence* as JSON values."""
    facts: dict[str, Any] = to_json(evidence)
    verdict = judge(evidence)
    return {
        "verdict": to_json(verdict) | {"reasons": verdict.reasons},
        "summary": to_json(_summary(evidence)),
        "evidence_sha256": hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest(),
        **facts,
    }


def read_report(path: Path) -> tuple[Evidence, dict[str, Any]]:
    """The evidence in the report *path*, and the derived values stored in it."""
    values = read_json(path, hint="name a report.json")
    if not set(DERIVED) <= set(values):
        raise InvalidFormat(f"{path.name} is not a report", hint="name a report.json")
    claimed = {name: values.pop(name) for name in DERIVED}
    return from_json(Evidence, values, path.name), claimed


def _is_report(path: Path) -> bool:
    values = json_in(path)
    return isinstance(values, dict) and set(DERIVED) <= set(values)


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
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


def write(evidence: Evidence, files: Sequence[OutputFile]) -> None:
    """Write the report on *evidence* to *files*, in the order of :func:`report_files`."""
    texts = [
        json.dumps(as_json(evidence), indent=1) + "\n",
        as_markdown(evidence),
        as_html(evidence),
    ]
    for file in files:
        file.check()  # each before the first is written
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)


def as_markdown(evidence: Evidence) -> str:
    """The report as Markdown; its last line names checks that were not run."""
    verdict = judge(evidence)
    lines = [f"# Cross-validation: {verdict.status}", "", _plain(_title(evidence)), ""]
    lines += ["| check | | |", "|---|---|---|"]
    for one in verdict.findings:
        hint = f" ({one.hint})" if one.hint and one.severity != "ok" else ""
        mark = "passed" if one.severity == "ok" else f"**{_OUTCOMES[one.severity]}**"
        lines.append(f"| {one.subject} | {mark} | {_cell(one.text + hint)} |")
    if evidence.rows:
        lines += ["", "| metric | |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in _metrics(evidence)]
        lines += ["", "| worst positions | after | KLD | gap | ours | reference |"]
        lines.append("|---|---|---|---|---|---|")
        for cells in _worst(evidence):
            lines.append(f"| {' | '.join(_cell(_plain(cell)) for cell in cells)} |")
    lines.append("")
    lines += [f"- {name}: {_plain(value)}" for name, value in _provenance(evidence)]
    return "\n".join([*lines, *(["", verdict.not_checked] if verdict.not_checked else [])]) + "\n"


def as_html(evidence: Evidence) -> str:
    """The report as a self-contained page without scripts."""
    from jinja2 import Environment, StrictUndefined

    text = files("bitnet.crossval").joinpath("report.html.j2").read_text(encoding="utf-8")
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    rows, operations = rows_to_judge(evidence), evidence.operations
    return page.from_string(text).render(
        verdict=judge(evidence),
        evidence=evidence,
        title=_title(evidence),
        outcomes=_OUTCOMES,
        metrics=_metrics(evidence),
        worst=_worst(evidence),
        provenance=_provenance(evidence),
        kinds={(row.prompt, row.position): kind_of(row, near_tie(evidence)) for row in rows},
        results={
            name: describe(name, operations[name], evidence.model.layers)[1] for name in operations
        },
        shown=_show_blanks,
    )


def _summary(evidence: Evidence) -> dict[str, Any]:
    """Metrics over all positions, none without any; None where a position lacks the number.

    The first have the names of ``llama-perplexity --kl-divergence``: KLD is the KL divergence from
    the reference to ours, dp the difference of the probabilities of the actual next token.
    """
    rows, tie = evidence.rows, near_tie(evidence)
    if not rows:
        return {}
    kinds = [kind_of(row, tie) for row in rows]
    ours, theirs = mean(row.ours_kl for row in rows), mean(row.theirs_kl for row in rows)
    klds = sorted(row.kl for row in rows if row.kl is not None)
    complete = len(klds) == len(rows)
    squared = mean(
        (math.exp(-row.nll) - math.exp(-row.theirs_nll)) ** 2
        for row in rows
        if row.nll is not None and row.theirs_nll is not None
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
        "near_ties": sum(row.gap is not None and row.gap < tie for row in rows),
        "excused": kinds.count("excused"),
        "wrong": kinds.count("wrong"),
        "exact_to_ours": ours,
        "exact_to_reference": theirs,
    }


def _title(evidence: Evidence) -> str:
    plan, ours, reference = evidence.plan, evidence.ours, evidence.reference
    backend = "" if evidence.backend == "none" else f" {evidence.backend}"
    recorded = "" if plan.live else "recorded "
    against = f"{recorded}{reference.name} {reference.version}".rstrip()
    return (
        f"{evidence.model.file} ({evidence.model.architecture}), bitnet {ours.version}{backend} "
        f"against {against}; compute path: {evidence.compute_path}"
    )


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


def _metrics(evidence: Evidence) -> list[tuple[str, str]]:
    """Names and values; the first are those of ``llama-perplexity --kl-divergence``."""
    summary = _summary(evidence)
    return [(_METRICS[key][0], _number(it, _METRICS[key][1])) for key, it in summary.items()]


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
    """Names and values of what ran."""
    model, machine = evidence.model, evidence.machine
    processor = machine.get("processor", ""), machine.get("features", "")
    kernels = ", ".join(f"{name} x {count:,}" for name, count in evidence.kernels.items())
    facts = [
        ("model", f"{model.origin}, SHA-256 {model.sha256}"),
        ("attestation", model.attestation),
        ("tokenizer", f"{model.tokenizer}, SHA-256 {model.tokenizer_sha256}"),
        ("processor", ", ".join(filter(None, processor))),
        ("kernels that ran", kernels or "none"),
        *(
            (engine.library, engine.library_sha256 and f"SHA-256 {engine.library_sha256}")
            for engine in (evidence.ours, evidence.reference)
        ),
        ("KLD", _KLD if evidence.rows else ""),
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


# Of numbers in six digits, by the same engines on the same processor.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-13
_SHOWN = 5

# What made the report. Where it is another here, its numbers cannot be computed again.
_MAKERS = (
    *("machine", "ours.version", "ours.library", "backend", "no_answer"),
    *("reference.version", "reference.library"),
)


def check_report(evidence: Evidence, claimed: dict[str, Any]) -> list[Finding]:
    """Findings on the report's version, and on what follows from its evidence.

    *claimed* has ``verdict``, ``summary`` and the digest of the evidence in the file.
    """
    version, derived = evidence.schema_version, as_json(evidence)
    text = f"version {version} of the form, expected {SCHEMA_VERSION}"
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
    return CrossvalOptions(
        against=plan.against if plan.live else "",
        max_positions=plan.limit,
        greedy=plan.greedy,
        tokenizer_only=plan.tokenizer_only,
        require_real=plan.require_real,
    )


def compare_again(evidence: Evidence, again: Evidence) -> Finding:
    """Compare every field of *evidence* with that of *again*, made with the same plan here.

    The time of the report is not compared: there is nothing to compare it with.
    """
    values, others = to_json(evidence), to_json(again)
    del values["created"], others["created"]
    different = list(_differences(values, others, ""))
    if evidence.model.sha256 != again.model.sha256:
        both = (evidence.model.sha256[:16], again.model.sha256[:16])
        text = f"the file has SHA-256 {both[1]}..., the report's {both[0]}..."
        return Finding("failed", "replay", text, "name the model of the report, too")
    makers = [one for one in different if one.startswith(_MAKERS)]
    if makers:
        text = f"not made: another engine or machine made the report: {'; '.join(makers[:_SHOWN])}"
        hint = "use the engines and the machine of the report"
        return Finding("skipped", "replay", text, hint)
    if different:
        more = "" if len(different) <= _SHOWN else f"; and {len(different) - _SHOWN:,} more"
        return Finding("failed", "replay", "; ".join(different[:_SHOWN]) + more)
    text = f"all {len(evidence.rows):,} positions and everything else computed again, and equal"
    return Finding("ok", "replay", text)


def _differences(reported: Any, computed: Any, place: str) -> Iterator[str]:
    """Places where *reported*, the report, and *computed* differ, with both values."""
    kind = type(reported) if type(reported) is type(computed) else None
    if kind is dict and reported.keys() == computed.keys():
        for key in reported:
            yield from _differences(reported[key], computed[key], f"{place}.{key}".lstrip("."))
    elif kind is list and len(reported) == len(computed):
        for number, pair in enumerate(zip(reported, computed, strict=True)):
            yield from _differences(*pair, f"{place}[{number}]")
    elif kind is float and math.isclose(reported, computed, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE):
        return
    elif kind is None or reported != computed:
        both = (
            f"{len(it)} entries" if isinstance(it, (list, dict)) else str(it)[:60] or "empty"
            for it in (computed, reported)
        )
        yield f"{place} is {', the report says '.join(both)}"

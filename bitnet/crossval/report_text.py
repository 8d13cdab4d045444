"""``report.md``: a report as text, for people and for the summary of a CI job."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitnet.crossval.compare import Row
    from bitnet.crossval.evidence import Evidence
    from bitnet.crossval.report import Report, Summary
    from bitnet.findings import Finding

__all__ = ["as_markdown", "named", "not_checked", "shown_token", "spelled", "worst_rows"]

_SHOWN = 8  # worst positions
_MARKS = {"ok": "passed", "failed": "**failed**", "skipped": "**not run**"}


def as_markdown(report: Report) -> str:
    """*report* as Markdown; its last line names checks that were not run."""
    evidence, verdict = report.evidence, report.verdict
    backend = "" if evidence.ours.backend == "none" else f" {evidence.ours.backend}"
    reference = evidence.reference
    lines = [
        f"# Cross-validation: {verdict.status}",
        "",
        f"`{_plain(evidence.model.file)}` ({_plain(evidence.model.architecture)}), "
        f"bitnet {evidence.ours.version}{backend} against "
        f"{reference.name} {reference.version}".rstrip()
        + f"; compute path: {evidence.compute_path}",
        "",
        "| check | | |",
        "|---|---|---|",
        *(_line(one) for one in verdict.findings),
    ]
    if report.summary:
        lines += ["", *_metrics(report.summary), "", *_worst(evidence)]
    lines += ["", *_provenance(evidence)]
    left = not_checked(report)
    return "\n".join([*lines, *(["", left] if left else [])]) + "\n"


def not_checked(report: Report) -> str:
    """One line that names checks that were not run; empty if all were."""
    names = [one.subject for one in report.verdict.findings if one.severity == "skipped"]
    return f"NOT CHECKED: {', '.join(names)}" if names else ""


def worst_rows(evidence: Evidence, count: int = _SHOWN) -> list[Row]:
    """The positions that differ most; first those without numbers."""
    worst = sorted(evidence.rows, key=lambda row: (row.kl is not None, -(row.kl or 0.0)))
    return worst[:count]


def shown_token(text: str) -> str:
    """*text* of a token with spaces and line ends made visible."""
    return "".join("␣" if c == " " else "⏎" if c == "\n" else c for c in text) or "(empty)"


def named(evidence: Evidence, token: int | None) -> str:
    """Text of *token*, with its id."""
    if token is None:
        return "no numbers"
    text = evidence.spellings.get(str(token))
    return f"id {token}" if text is None else f"{shown_token(text)} ({token})"


def spelled(evidence: Evidence, prompt: int, position: int) -> str:
    """The token at a position of a prompt, by its text if known."""
    if prompt >= len(evidence.prompts):
        return f"prompt {prompt}"
    one = evidence.prompts[prompt]
    if position < len(one.tokens):
        return shown_token(one.tokens[position])
    return f"id {one.ids[position]}" if position < len(one.ids) else f"position {position}"


def _line(one: Finding) -> str:
    hint = f" ({one.hint})" if one.hint and one.severity != "ok" else ""
    return f"| {one.subject} | {_MARKS[one.severity]} | {_cell(one.text + hint)} |"


def _metrics(summary: Summary) -> list[str]:
    rows = [
        ("positions (prompts)", f"{summary.positions} ({summary.prompts})"),
        ("same likeliest token", str(summary.same_top1)),
        (
            "near-ties (of them different)",
            f"{summary.near_ties} ({summary.different_in_near_ties})",
        ),
        ("excused, wrong", f"{summary.excused}, {summary.wrong}"),
        ("mean KL, worst position", f"{_kl(summary.mean_kl)}, {_kl(summary.worst_kl)}"),
        ("overlap of the ten likeliest", _number(summary.mean_overlap, ".1%")),
        ("smallest cosine", _number(summary.min_cosine, ".4f")),
        ("largest difference of a log-probability", _number(summary.max_difference, ".2f")),
    ]
    if summary.closer_to_float64 is not None:
        both = f"{_kl(summary.exact_to_ours)}, {_kl(summary.exact_to_reference)}"
        rows.append(("mean KL from float64 to ours, to the reference", both))
        rows.append(("closer to float64", summary.closer_to_float64))
    return ["| figure | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _worst(evidence: Evidence) -> list[str]:
    lines = [
        "| worst positions | after | KL | top-2 gap | ours | reference |",
        "|---|---|---|---|---|---|",
    ]
    for row in worst_rows(evidence):
        token = _cell(_plain(spelled(evidence, row.prompt, row.position)))
        where = f"prompt {row.prompt}, position {row.position} | {token}"
        gap = _number(row.gap, ".2f")
        ours, theirs = (_cell(_plain(named(evidence, id))) for id in (row.ours, row.theirs))
        lines.append(f"| {where} | {_kl(row.kl)} | {gap} | {ours} | {theirs} |")
    return lines


def _provenance(evidence: Evidence) -> list[str]:
    model, tokenizer, reference = evidence.model, evidence.tokenizer, evidence.reference
    ours = evidence.ours
    kernels = ", ".join(f"{name} x {count:,}" for name, count in ours.kernels.items())
    features = ", ".join(evidence.machine.cpu_features) or "no known features"
    lines = [f"- model: {_plain(model.origin)}, SHA-256 `{model.sha256}`"]
    if model.attestation:
        lines.append(f"- attestation: `{model.attestation}`")
    lines += [
        f"- tokenizer: {_plain(tokenizer.source)}, SHA-256 `{tokenizer.sha256}`",
        f"- processor: {evidence.machine.machine}, {features}",
        f"- kernels that ran: {kernels or 'none'}",
    ]
    if ours.module_sha256:
        lines.append(f"- compiled module: SHA-256 `{ours.module_sha256}`")
    if reference.library_sha256:
        lines.append(f"- {_plain(reference.library)}: SHA-256 `{reference.library_sha256}`")
    return [*lines, f"- KL: {evidence.kl}"] if evidence.rows else lines


def _kl(value: float | None) -> str:
    return _number(value, ".1e")


def _number(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)


def _plain(text: str) -> str:
    """*text* with characters escaped that Markdown or a terminal would interpret."""
    return "".join(c if c.isprintable() and c not in "`<>|[]" else " " for c in text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")

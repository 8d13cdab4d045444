"""``report.html``: one file with its plots as inline SVG; without scripts or external resources."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from bitnet.crossval.judge import kind_of, mean
from bitnet.crossval.plots import Line, Point, scatter, shape
from bitnet.crossval.report_text import named, not_checked, shown_token, spelled, worst_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.crossval.bisect import Bisection
    from bitnet.crossval.compare import Row
    from bitnet.crossval.evidence import Evidence
    from bitnet.crossval.judge import Kind
    from bitnet.crossval.report import Report
    from bitnet.findings import Finding

__all__ = ["as_html"]

_WORST = 12
_CONTEXT = 6  # tokens shown before a position

_KINDS: dict[Kind, str] = {
    "same": "both prefer the same token",
    "tie": "another token, in a near-tie",
    "excused": "another token, and the float64 pass sides with us",
    "wrong": "another token, and the reference was sure",
}
_MARKS = {"ok": "✓ passed", "failed": "✗ failed", "skipped": "– not run"}

_STYLE = """
:root{--text:#1b1f24;--soft:#57606a;--back:#fff;--line:#d8dee4;--good:#116329;--bad:#a40e26;
--open:#7d4e00;--blue:#0969da;--yellow:#9a6700;--purple:#8250df}
@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--soft:#9198a1;--back:#0d1117;--line:#30363d;
--good:#3fb950;--bad:#f85149;--open:#d29922;--blue:#58a6ff;--yellow:#d29922;--purple:#bc8cff}}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color:var(--text);background:var(--back)}
h1{margin-bottom:.3rem}h2{margin-top:2.2rem}
table{border-collapse:collapse;margin:1rem 0;width:100%}
td,th{padding:.25rem .8rem .25rem 0;text-align:left;border-bottom:1px solid var(--line);
vertical-align:top}td:first-child,.number{white-space:nowrap}
.ok{color:var(--good)}.failed{color:var(--bad)}.skipped{color:var(--open)}
.mark{white-space:nowrap;font-weight:600}.hint{color:var(--soft)}
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
svg .title{font-size:12px;fill:var(--text)}.axis{stroke:var(--soft);fill:none}
.grid{stroke:var(--line);fill:none}.border{stroke:var(--soft);stroke-dasharray:1 3;fill:none}
.bound{stroke:var(--bad);stroke-dasharray:5 4;fill:none}
.same{fill:var(--blue);stroke:none}.tie{fill:none;stroke:var(--yellow);stroke-width:1.6}
.excused{fill:none;stroke:var(--purple);stroke-width:1.6}
.wrong{fill:none;stroke:var(--bad);stroke-width:2}
.legend svg{width:14px;height:14px;vertical-align:-2px}.legend span{margin-right:1.4rem}
code,.tokens{font-family:ui-monospace,monospace;font-size:13px;overflow-wrap:anywhere}
.tokens{line-height:2}.tokens span{border-bottom:2px solid transparent;padding:1px}
.tokens .tie{border-color:var(--yellow);border-bottom-style:dotted}
.tokens .excused{border-color:var(--purple);border-bottom-style:dashed}
.tokens .wrong{border-color:var(--bad);border-bottom-style:double;border-bottom-width:4px}
"""


def as_html(report: Report) -> str:
    """*report* as a self-contained page."""
    evidence, verdict = report.evidence, report.verdict
    model, reference = evidence.model, evidence.reference
    tone = {"passed": "ok", "failed": "failed", "not run": "skipped"}[verdict.status]
    left = not_checked(report)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Cross-validation: {escape(verdict.status)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f'<h1>Cross-validation: <span class="{tone}">{escape(verdict.status)}</span></h1>',
        f"<p><code>{escape(model.file)}</code> ({escape(model.architecture)}): "
        f"bitnet {escape(evidence.ours.version)} {escape(evidence.ours.backend)} against "
        f"{escape(f'{reference.name} {reference.version}'.strip())}. Compute path: "
        f"<strong>{escape(evidence.compute_path)}</strong>. {escape(evidence.created)}.</p>",
        f'<p class="skipped"><strong>{escape(left)}</strong></p>' if left else "",
        _findings(verdict.findings),
        _answers(evidence),
    ]
    if evidence.rows:
        parts += [*_plots(evidence), _worst(evidence), _prompts(evidence)]
    parts += [_bisection(one) for one in evidence.bisections]
    parts += [_provenance(evidence), "</body></html>"]
    return "\n".join(part for part in parts if part) + "\n"


def _findings(findings: Sequence[Finding]) -> str:
    rows = []
    for one in findings:
        hint = f'<br><span class="hint">{escape(one.hint)}</span>' if one.hint else ""
        mark = f'<span class="mark {one.severity}">{_MARKS[one.severity]}</span>'
        rows.append((escape(one.subject), mark, escape(one.text) + hint))
    return _table(("check", "outcome", "found"), rows)


def _answers(evidence: Evidence) -> str:
    if not evidence.answers:
        return ""
    rows = [
        (escape(one.side), *map(str, (one.prompts, one.positions, one.steps, one.texts)))
        for one in evidence.answers
    ]
    head = ("answered, of what was asked", "prompts", "positions", "greedy steps", "texts")
    note = ""
    if evidence.plan.positions < evidence.plan.positions_there:
        note = (
            f"<p>{evidence.plan.positions:,} of the prompts' {evidence.plan.positions_there:,} "
            "positions were compared (--max-positions).</p>"
        )
    return _table(head, rows) + note


def _plots(evidence: Evidence) -> list[str]:
    rows, bounds = evidence.rows, evidence.bounds
    kinds = [kind_of(row, bounds) for row in rows]
    points = [
        Point(number, row.kl, kind, _told(evidence, row))
        for number, (row, kind) in enumerate(zip(rows, kinds, strict=True))
        if row.kl is not None
    ]
    gaps = [
        Point(row.gap, row.kl, kind, _told(evidence, row))
        for row, kind in zip(rows, kinds, strict=True)
        if row.kl is not None and row.gap is not None
    ]
    borders = [
        (number, f"{row.prompt}")
        for number, row in enumerate(rows)
        if not number or rows[number - 1].prompt != row.prompt
    ]
    legend = "".join(
        f"<span>{shape(kind)} {text}</span>" for kind, text in _KINDS.items() if kind in kinds
    )
    if not points:
        return ["<p>No position has numbers on both sides.</p>"]
    return [
        "<h2>KL divergence along the prompts</h2>",
        f'<p class="legend">{legend}</p>',
        scatter(
            points,
            "position, all prompts in a row; above: where each prompt begins",
            "KL divergence (nats)",
            across=Line(bounds.worst_kl, "bound at one position"),
            borders=borders,
        ),
        "<h2>How sure the reference was</h2>",
        "<p>Left of the line the reference hardly prefers its best token to its second, so "
        "their order does not count.</p>",
        scatter(
            gaps,
            "gap between the reference's two best tokens (logits)",
            "KL divergence (nats)",
            down=Line(bounds.near_tie, "near-tie"),
        ),
    ]


def _told(evidence: Evidence, row: Row) -> str:
    after = spelled(evidence, row.prompt, row.position)
    kl = "no numbers" if row.kl is None else f"KL {row.kl:.1e}"
    return (
        f"prompt {row.prompt}, position {row.position}, after {after}: ours "
        f"{named(evidence, row.ours)}, reference {named(evidence, row.theirs)}, {kl}"
    )


def _worst(evidence: Evidence) -> str:
    rows = []
    for row in worst_rows(evidence, _WORST):
        kind = kind_of(row, evidence.bounds)
        start = max(row.position - _CONTEXT + 1, 0)
        before = [spelled(evidence, row.prompt, at) for at in range(start, row.position + 1)]
        rows.append(
            (
                f"{row.prompt} / {row.position}",
                f"<code>{escape(('…' if start else '') + ''.join(before))}</code>",
                f'<span class="number">{"none" if row.kl is None else f"{row.kl:.1e}"}</span>',
                "none" if row.gap is None else f"{row.gap:.2f}",
                f"<code>{escape(named(evidence, row.ours))}</code>",
                f"<code>{escape(named(evidence, row.theirs))}</code>",
                f'<span class="mark" title="{_KINDS[kind]}">{shape(kind)} {kind}</span>',
            )
        )
    head = ("prompt / position", "after", "KL", "gap", "ours", "reference", "tokens")
    return f'<h2>The worst positions</h2><div class="legend">{_table(head, rows)}</div>'


def _prompts(evidence: Evidence) -> str:
    """Every prompt with its metrics, and with tokens underlined where the next one differs."""
    bounds = evidence.bounds
    by_prompt: dict[int, list[Row]] = {}
    for row in evidence.rows:
        by_prompt.setdefault(row.prompt, []).append(row)
    parts = ["<h2>Prompt by prompt</h2>"]
    for number, rows in by_prompt.items():
        kinds = {row.position: kind_of(row, bounds) for row in rows}
        average = mean(row.kl for row in rows)
        said = ", ".join(
            f"{count} {kind}" for kind in _KINDS if (count := list(kinds.values()).count(kind))
        )
        kl = "no numbers" if average is None else f"mean KL {average:.1e}"
        spans = "".join(
            f'<span class="{kinds[row.position]}" title="{escape(_told(evidence, row))}">'
            f"{escape(spelled(evidence, number, row.position))}</span>"
            for row in rows
        )
        parts.append(
            f'<p>Prompt {number}: {kl}; {said}.<br><span class="tokens">{spans}</span></p>'
        )
    return "\n".join(parts)


def _bisection(found: Bisection) -> str:
    points = [
        Point(number, step.error, "same", f"{step.name}: {step.error:.1e}")
        for number, step in enumerate(found.steps)
    ]
    layers: dict[int, int] = {}
    for number, step in enumerate(found.steps):
        if step.layer is not None:
            layers.setdefault(step.layer, number)
    every = max(1, len(layers) // 8)
    borders = [(at, f"layer {one}") for one, at in layers.items() if one % every == 0]
    head = (
        f"<h2>Intermediates: {escape(found.ours)} and {escape(found.theirs)}</h2>"
        f"<p>{escape(str(found))}.</p>"
    )
    if not points:
        return head
    return head + scatter(
        points,
        "intermediate, in the order of computation",
        "relative error",
        across=Line(found.bound, "bound"),
        borders=borders,
    )


def _provenance(evidence: Evidence) -> str:
    model, tokenizer, reference = evidence.model, evidence.tokenizer, evidence.reference
    machine = evidence.machine
    features = ", ".join(machine.cpu_features) or "no known processor features"
    digests = [
        ("model", model.origin, model.sha256),
        ("attestation", "of the model's content", model.attestation),
        ("tokenizer", tokenizer.source, tokenizer.sha256),
        ("compiled module", f"bitnet {evidence.ours.version}", evidence.ours.module_sha256),
        ("reference", f"{reference.version} {reference.library}", reference.library_sha256),
    ]
    rows = [
        (escape(name), escape(what), f"<code>{escape(digest)}</code>")
        for name, what, digest in digests
        if digest
    ]
    kernels = [(escape(name), f"{calls:,}") for name, calls in evidence.ours.kernels.items()]
    bounds = evidence.bounds
    return (
        "<h2>What ran</h2>"
        + _table(("", "", "SHA-256"), rows)
        + (_table(("kernel", "calls"), kernels) if kernels else "")
        + f"<p>{escape(machine.system)} {escape(machine.machine)}, Python "
        f"{escape(machine.python)}, {escape(features)}. Bounds: mean "
        f"KL {bounds.mean_kl:.1e}, worst position {bounds.worst_kl:.1e}, near-tie "
        f"{bounds.near_tie:.2f}; from the float64 pass {bounds.ours.mean_kl:.1e} to ours and "
        f"{bounds.reference.mean_kl:.1e} to the reference. KL is {escape(evidence.kl)}. "
        f"{shown_token(' ')} stands for a space, {shown_token(chr(10))} for a line end.</p>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of *rows*, whose cells are HTML."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"

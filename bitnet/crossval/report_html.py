"""``report.html``: one file with its plots as inline SVG; no script, nothing from elsewhere."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["as_html"]

_WIDTH, _HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 14, 30
_DECADES = 1e-9  # the bottom of logarithmic axes

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;
color:#1b1f24;background:#fff}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .7rem;text-align:left;
border-bottom:1px solid #d8dee4;vertical-align:top}
.passed{color:#116329}.failed{color:#a40e26}.not{color:#7d4e00}
svg{max-width:100%;height:auto}text{font:11px system-ui,sans-serif;fill:#57606a}
.axis{stroke:#8c959f;fill:none}.bound{stroke:#a40e26;stroke-dasharray:4 3}
.same{fill:#0969da}.tie{fill:#bf8700}.wrong{fill:#a40e26}code{overflow-wrap:anywhere}
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}td,th{border-color:#30363d}
text{fill:#9198a1}.passed{color:#3fb950}.failed{color:#f85149}.not{color:#d29922}}
"""


def as_html(report: dict[str, Any]) -> str:
    """*report* as a page that needs nothing but itself."""
    verdict = report["verdict"]
    model = report["model"]
    kind = verdict["status"].partition(" ")[0]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Cross-validation: {escape(verdict['status'])}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f'<h1>Cross-validation: <span class="{kind}">{escape(verdict["status"])}</span></h1>',
        f"<p><code>{escape(model['file'])}</code> ({escape(model['architecture'])}), "
        f"bitnet {escape(report['ours']['version'])} {escape(report['ours']['backend'])} against "
        f"{escape(report['reference']['name'])} {escape(report['reference']['version'] or '')}. "
        f"Compute path: <strong>{escape(report['compute_path'])}</strong>. "
        f"{escape(report['created'])}.</p>",
        _table(
            ("check", "outcome", "found"),
            [
                (one["check"], "passed" if one["passed"] else "failed", one["said"])
                for one in verdict["findings"]
            ],
        ),
    ]
    if report["rows"]:
        parts += _plots(report)
    parts += [_bisection(one) for one in report["bisections"]]
    parts += [
        "<h2>What ran</h2>",
        _table(("kernel", "calls"), [(n, f"{c:,}") for n, c in report["ours"]["kernels"].items()]),
        f"<p>Model: {escape(model['origin'])}, SHA-256 <code>{model['sha256']}</code>. "
        f"Tokenizer: {escape(report['tokenizer']['source'])}, SHA-256 "
        f"<code>{escape(report['tokenizer']['sha256'])}</code>. "
        f"KL {escape(report['kl'])}.</p>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _plots(report: dict[str, Any]) -> list[str]:
    rows, bounds = report["rows"], report["bounds"]
    kl = [(number, row["kl"], _kind(row)) for number, row in enumerate(rows)]
    gaps = [(row["gap"], row["kl"], _kind(row)) for row in rows]
    legend = (
        "<p>Blue: same likeliest token; yellow: another one in a "
        "near-tie; red: another one where the reference was sure. Dashed: bound at a position.</p>"
    )
    share = _running_share(rows)
    return [
        "<h2>KL along the positions</h2>",
        _scatter(kl, "position, all prompts in a row", "KL in nats", line=bounds["worst_kl"]),
        legend,
        "<h2>Agreement along the positions</h2>",
        _line(share, "position, all prompts in a row", "share of equal likeliest tokens so far"),
        "<h2>Top-2 gap of the reference against KL and agreement</h2>",
        _scatter(gaps, "gap in logits", "KL in nats", at=bounds["near_tie"]),
        legend.replace("bound at a position", "gap below which either order is right"),
    ]


def _kind(row: dict[str, Any]) -> str:
    if row["ours"] == row["theirs"]:
        return "same"
    return "tie" if row["near_tie"] or row["exact_agrees"] else "wrong"


def _running_share(rows: list[dict[str, Any]]) -> list[float]:
    equal, shares = 0, []
    for number, row in enumerate(rows, 1):
        equal += row["ours"] == row["theirs"]
        shares.append(equal / number)
    return shares


def _scatter(
    points: Sequence[tuple[float, float, str]],
    x_name: str,
    y_name: str,
    *,
    line: float | None = None,
    at: float | None = None,
) -> str:
    """Points on a logarithmic vertical axis; a dashed *line* across or *at* a place."""
    logs = [math.log10(max(y, _DECADES)) for _, y, _ in points]
    top = math.ceil(max([*logs, math.log10(line) if line else -_HEIGHT]))
    low = min(math.floor(min(logs)), top - 1)
    widest = max(*(x for x, _, _ in points), at or 0, 1e-9)

    def place(x: float, log_y: float) -> tuple[float, float]:
        across = _LEFT + (_WIDTH - _LEFT - _RIGHT) * x / widest
        return across, _TOP + (_HEIGHT - _TOP - _BOTTOM) * (top - log_y) / (top - low)

    marks = [_axes(x_name, y_name, f"0 to {widest:.3g}")]
    for decade in range(low, top + 1, max(1, (top - low) // 5)):
        _, y = place(0, decade)
        marks.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">1e{decade}</text>')
    if line:
        _, y = place(0, math.log10(line))
        marks.append(f'<path class="bound" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
    if at:
        x, _ = place(at, low)
        marks.append(f'<path class="bound" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
    for (x, _, kind), log_y in zip(points, logs, strict=True):
        across, down = place(x, log_y)
        marks.append(f'<circle class="{kind}" cx="{across:.1f}" cy="{down:.1f}" r="2.4"/>')
    return _svg(marks, f"{y_name} by {x_name}")


def _line(values: list[float], x_name: str, y_name: str) -> str:
    inside = _WIDTH - _LEFT - _RIGHT
    tall = _HEIGHT - _TOP - _BOTTOM
    low = min(0.9, *values)
    path = " ".join(
        f"{'M' if not at else 'L'}{_LEFT + inside * at / max(len(values) - 1, 1):.1f} "
        f"{_TOP + tall * (1 - value) / (1 - low):.1f}"
        for at, value in enumerate(values)
    )
    marks = [
        _axes(x_name, y_name, f"0 to {len(values) - 1}"),
        f'<text x="{_LEFT - 6}" y="{_TOP + 4}" text-anchor="end">100 %</text>',
        f'<text x="{_LEFT - 6}" y="{_TOP + tall + 4}" text-anchor="end">{low:.0%}</text>',
        f'<path d="{path}" fill="none" stroke="#0969da" stroke-width="1.5"/>',
    ]
    return _svg(marks, f"{y_name} by {x_name}")


def _axes(x_name: str, y_name: str, extent: str) -> str:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    return (
        f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>'
        f'<text x="{right}" y="{bottom + 18}" text-anchor="end">{x_name}, {extent}</text>'
        f'<text x="{_LEFT + 6}" y="{_TOP + 2}">{y_name}</text>'
    )


def _svg(marks: list[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(marks)}</svg>"
    )


def _bisection(found: dict[str, Any]) -> str:
    points = [(number, step["error"], "same") for number, step in enumerate(found["steps"])]
    head = (
        f"<h2>Intermediates: {escape(found['ours'])} and {escape(found['theirs'])}</h2>"
        f"<p>{escape(found['said'])}.</p>"
    )
    if not points:
        return head
    return head + _scatter(points, "intermediate, in order", "relative error", line=found["bound"])


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"

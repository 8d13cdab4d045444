"""``report.json``, ``report.md`` and ``report.html`` of a cross-validation.

``report.schema.json`` beside this module is the form of the first; the other two are made from it.
No path of the machine and no address gets into a report: files are named, and known by SHA-256.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import bitnet
from bitnet import native
from bitnet.crossval.report_html import as_html
from bitnet.errors import from_os_error
from bitnet.files import write_text

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.crossval.bisect import Bisection
    from bitnet.crossval.compare import Comparison
    from bitnet.crossval.judge import Verdict
    from bitnet.crossval.run import Outcome
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.tokenizer import Tokenizer

__all__ = [
    "SCHEMA_VERSION",
    "append_summary",
    "as_markdown",
    "build_report",
    "schema",
    "write_report",
]

SCHEMA_VERSION = 1
_DIGITS = 6  # significant ones of a measured number
_SHOWN = 8  # worst positions in the text form


def schema() -> dict[str, Any]:
    """The JSON Schema of ``report.json``."""
    text = files("bitnet.crossval").joinpath("report.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def build_report(
    outcome: Outcome,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    *,
    reference: str,
    origin: str,
) -> dict[str, Any]:
    """*outcome* as JSON values.

    Args:
        outcome: of :func:`bitnet.crossval.run.cross_validate`.
        checkpoint: the model that was judged.
        tokenizer: its tokenizer.
        reference: name of the reference asked for.
        origin: where the model's file comes from, for people; no path.
    """
    greedy = outcome.comparison.greedy if outcome.comparison else ()
    prompts = outcome.ours.prompts if outcome.ours else ()
    return {
        "schema_version": SCHEMA_VERSION,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "verdict": _verdict(outcome.verdict),
        "compute_path": outcome.receipt.compute_path,
        "model": {
            "file": checkpoint.path.name,
            "sha256": outcome.model_sha256,
            "architecture": checkpoint.architecture,
            "origin": origin,
        },
        "tokenizer": {
            "sha256": tokenizer.fingerprint,
            "source": _without_folders(tokenizer.source),
            "vocab_size": tokenizer.vocab_size,
        },
        **_engines(outcome, reference),
        "machine": _machine(),
        "bounds": asdict(outcome.bounds),
        "kl": "in nats, over the stored tokens with all others as one event: never more than the "
        "divergence over the whole vocabulary",
        "tokenizer_parity": asdict(outcome.tokenizer) if outcome.tokenizer else None,
        "summary": _summary(outcome.comparison) if outcome.comparison else None,
        "prompts": [{"text": one.prompt, "ids": list(one.ids)} for one in prompts],
        "rows": [_rounded(asdict(row)) for row in _rows(outcome.comparison)],
        "greedy": [_rounded(asdict(one)) for one in greedy],
        "bisections": [_bisection(one) for one in outcome.bisections],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "status": verdict.status,
        "reference_rejected": verdict.rejected,
        "reasons": verdict.reasons,
        "findings": [
            {"check": one.subject, "passed": not one.failed, "said": one.text}
            for one in verdict.findings
        ],
    }


def _engines(outcome: Outcome, reference: str) -> dict[str, Any]:
    """Who was compared with whom."""
    theirs = outcome.theirs
    return {
        "ours": {
            "engine": "bitnet",
            "version": bitnet.__version__,
            "backend": outcome.receipt.backend,
            "arithmetic": outcome.ours.arithmetic if outcome.ours else None,
            "kernels": outcome.receipt.kernels,
        },
        "reference": {
            "name": reference,
            "engine": theirs.engine if theirs else None,
            "version": theirs.version if theirs else None,
            "arithmetic": theirs.arithmetic if theirs else None,
        },
    }


def _machine() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpu_features": native.cpu_features(),
    }


def _bisection(found: Bisection) -> dict[str, Any]:
    return {
        "ours": found.ours,
        "theirs": found.theirs,
        "bound": found.bound,
        "first": found.first.name if found.first else None,
        "said": str(found),
        "steps": [_rounded(asdict(step)) for step in found.steps],
    }


def _rows(comparison: Comparison | None) -> Any:
    return comparison.rows if comparison else ()


def _without_folders(source: str) -> str:
    """*source* without the folders of the machine."""
    words = source.replace("\\", "/").split(" ")
    return " ".join(word.rpartition("/")[2] if "/" in word else word for word in words)


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    def short(value: Any) -> Any:
        # JSON has no infinity: an unlimited difference is its largest number.
        if isinstance(value, float):
            return float(f"{min(max(value, -1e300), 1e300):.{_DIGITS}g}")
        return value

    return {name: short(value) for name, value in values.items()}


def _summary(comparison: Comparison) -> dict[str, Any]:
    rows = comparison.rows
    if not rows:
        return {"positions": 0, "prompts": 0}
    ours, theirs = (
        comparison.mean(lambda row: row.exact_ours),
        comparison.mean(lambda row: row.exact_theirs),
    )
    closer = None if ours is None or theirs is None else "ours" if ours < theirs else "reference"
    numbers = {
        "mean_kl": comparison.mean(lambda row: row.kl),
        "worst_kl": max(row.kl for row in rows),
        "mean_overlap": comparison.mean(lambda row: row.overlap),
        "min_cosine": min(row.cosine for row in rows),
        "max_difference": max(row.max_difference for row in rows),
        "exact_to_ours": ours,
        "exact_to_reference": theirs,
    }
    return {
        "positions": len(rows),
        "prompts": len({row.prompt for row in rows}),
        "same_top1": sum(row.agrees for row in rows),
        "near_ties": sum(row.near_tie for row in rows),
        "different_in_near_ties": sum(row.near_tie and not row.agrees for row in rows),
        "wrong": sum(row.wrong for row in rows),
        "closer_to_float64": closer,
        **_rounded(numbers),
    }


def as_markdown(report: dict[str, Any]) -> str:
    """*report* as text for people and for ``$GITHUB_STEP_SUMMARY``."""
    verdict, summary = report["verdict"], report["summary"]
    backend = report["ours"]["backend"]
    backend = "" if backend == "none" else f" {backend}"
    lines = [
        f"# Cross-validation: {verdict['status']}",
        "",
        f"`{_plain(report['model']['file'])}` ({report['model']['architecture']}), "
        f"bitnet {report['ours']['version']}{backend} against "
        f"{report['reference']['name']} {report['reference']['version'] or ''}".rstrip()
        + f"; compute path: {report['compute_path']}",
        "",
        "| check | | |",
        "|---|---|---|",
    ]
    mark = {True: "passed", False: "**failed**"}
    lines += [
        f"| {one['check']} | {mark[one['passed']]} | {_cell(one['said'])} |"
        for one in verdict["findings"]
    ]
    if summary and summary["positions"]:
        lines += ["", *_figures(summary)]
        lines += ["", *_worst(report)]
    lines += [f"\n{one['said']}." for one in report["bisections"]]
    model, tokenizer = report["model"], report["tokenizer"]
    lines += [
        "",
        f"- model: {_plain(model['origin'])}, SHA-256 `{model['sha256']}`",
        f"- tokenizer: {_plain(tokenizer['source'])}, SHA-256 `{tokenizer['sha256']}`",
        f"- processor: {report['machine']['machine']}, "
        f"{', '.join(report['machine']['cpu_features']) or 'no known features'}",
        f"- kernels that ran: {_kernels(report['ours']['kernels'])}",
        *([f"- KL: {report['kl']}"] if summary else []),
    ]
    return "\n".join(lines) + "\n"


def _figures(summary: dict[str, Any]) -> list[str]:
    closer = summary["closer_to_float64"]
    rows = [
        ("positions (prompts)", f"{summary['positions']} ({summary['prompts']})"),
        ("same likeliest token", str(summary["same_top1"])),
        (
            "near-ties (of them different)",
            f"{summary['near_ties']} ({summary['different_in_near_ties']})",
        ),
        ("mean KL, worst position", f"{summary['mean_kl']:.1e}, {summary['worst_kl']:.1e}"),
        ("overlap of the ten likeliest", f"{summary['mean_overlap']:.1%}"),
        ("smallest cosine", f"{summary['min_cosine']:.4f}"),
        ("largest difference of a log-probability", f"{summary['max_difference']:.2f}"),
    ]
    if closer is not None:
        to_ours, to_theirs = summary["exact_to_ours"], summary["exact_to_reference"]
        rows.append(
            ("mean KL from float64 to ours, to the reference", f"{to_ours:.1e}, {to_theirs:.1e}")
        )
        rows.append(("closer to float64", closer))
    return ["| figure | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _worst(report: dict[str, Any]) -> list[str]:
    rows = sorted(report["rows"], key=lambda row: -row["kl"])[:_SHOWN]
    lines = ["| worst positions | KL | top-2 gap | ours | reference |", "|---|---|---|---|---|"]
    for row in rows:
        where = f"prompt {row['prompt']}, position {row['position']}"
        gap, kl = f"{row['gap']:.2f}", f"{row['kl']:.1e}"
        lines.append(f"| {where} | {kl} | {gap} | {row['ours']} | {row['theirs']} |")
    return lines


def _kernels(kernels: dict[str, int]) -> str:
    return ", ".join(f"{name} x {count:,}" for name, count in kernels.items()) or "none"


def _plain(text: str) -> str:
    """*text* without what Markdown or a terminal would act on."""
    return "".join(c if c.isprintable() and c not in "`<>|[]" else " " for c in text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def write_report(report: dict[str, Any], folder: Path) -> list[Path]:
    """The three files in *folder*, which is made; their paths."""
    written = []
    for name, text in (
        ("report.json", json.dumps(report, indent=1) + "\n"),
        ("report.md", as_markdown(report)),
        ("report.html", as_html(report)),
    ):
        write_text(folder / name, text)
        written.append(folder / name)
    return written


def append_summary(report: dict[str, Any], path: Path) -> None:
    """*report* as text at the end of the file *path*, which a CI job shows."""
    try:
        with path.open("a", encoding="utf-8", newline="\n") as out:
            out.write(as_markdown(report) + "\n")
    except OSError as error:
        raise from_os_error(error, path) from error

"""Write the three files of a report, and the summary of a CI job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bitnet.crossval.report_html import as_html
from bitnet.crossval.report_text import as_markdown
from bitnet.errors import from_os_error
from bitnet.files import write_text

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.crossval.report import Report

__all__ = ["append_summary", "write_report"]


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write the three files to *folder*, which is created; return their paths."""
    written = []
    for name, text in (
        ("report.json", json.dumps(report.as_json(), indent=1) + "\n"),
        ("report.md", as_markdown(report)),
        ("report.html", as_html(report)),
    ):
        write_text(folder / name, text)
        written.append(folder / name)
    return written


def append_summary(report: Report, path: Path) -> None:
    """Append *report* as text to the file *path*, which a CI job shows."""
    try:
        with path.open("a", encoding="utf-8", newline="\n") as out:
            out.write(as_markdown(report) + "\n")
    except OSError as error:
        raise from_os_error(error, path) from error

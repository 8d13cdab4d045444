"""Findings and their presentation, shared by all commands that check something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from bitnet.base.invocation import as_started
from bitnet.base.tables import wrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bitnet.base.errors import BitnetError

Severity = Literal["failed", "skipped", "warning", "note", "ok"]
Status = Literal["passed", "failed", "not run"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # the worst first

_MARKS: dict[Severity, str] = {
    "failed": "✗",
    "warning": "!",
    "note": "·",
    "skipped": "-",
    "ok": "✓",
}


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    # ``failed`` (wrong), ``warning`` (unusual, but may be right), ``note`` (harmless), ``skipped``
    # (not run; the text gives the reason) or ``ok``
    severity: Severity
    subject: str  # what was checked, or the kind of finding for scripts: ``tensor-overlap``
    text: str  # the result, with names and numbers; never contains a secret
    hint: str = ""  # the step that helps; empty without a problem
    exit_code: int = 0  # of a command that fails because of this finding; 0: the command chooses
    duration_s: float | None = None  # time the check took, ``None`` if irrelevant
    details: tuple[str, ...] = ()  # further lines, such as one for each file

    @classmethod
    def of(cls, subject: str, error: BitnetError) -> Finding:
        """The failure *error* as a finding."""
        return cls("failed", subject, error.message, error.hint, error.exit_code)

    @classmethod
    def from_check(cls, subject: str, right: bool, text: str) -> Finding:
        """``ok`` if *right*, else ``failed``."""
        return cls("ok" if right else "failed", subject, text)

    @property
    def failed(self) -> bool:
        """True if it is a failure."""
        return self.severity == "failed"

    def __str__(self) -> str:
        took = "" if self.duration_s is None else f" ({self.duration_s * 1000:.0f} ms)"
        return f"{_MARKS[self.severity]} {self.subject}: {self.text}{took}"

    def facts(self) -> dict[str, Any]:
        """The finding as JSON values."""
        facts: dict[str, Any] = {
            "severity": self.severity,
            "subject": self.subject,
            "text": self.text,
            "hint": as_started(self.hint),
            "duration_s": self.duration_s,
        }
        if self.details:
            facts["details"] = list(self.details)
        return facts


def status_of(findings: Iterable[Finding]) -> Status:
    """The worst of *findings* as a verdict; a skipped check, or none at all, is ``not run``."""
    first = worst(findings)[:1]
    severity = first[0].severity if first else "skipped"
    if severity == "failed":
        return "failed"
    return "not run" if severity == "skipped" else "passed"


def worst(findings: Iterable[Finding]) -> list[Finding]:
    """*findings* sorted by severity, the worst first."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def render(findings: Iterable[Finding]) -> Iterator[str]:
    """Findings as text, each with its details below, failures and warnings also with their hints.

    On a terminal, sentences are wrapped; hints are commands, and are not.
    """
    for finding in findings:
        yield from wrap(str(finding))
        for line in finding.details:
            yield from wrap(line, first="  ", indent="    ")
        if finding.hint and finding.severity in ("failed", "warning"):
            yield f"  {as_started(finding.hint)}"

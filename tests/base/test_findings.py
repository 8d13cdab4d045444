"""Findings of a check: their status together, their order and their lines."""

import pytest

from bitnet.base.errors import NotFound
from bitnet.base.findings import Finding, render, status_of, worst

OK, NOTE, WARNING, FAILED, SKIPPED = (
    Finding(severity, severity, "text", "hint")
    for severity in ("ok", "note", "warning", "failed", "skipped")
)


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([OK], "passed"),
        ([OK, NOTE, WARNING], "passed"),
        ([OK, SKIPPED, WARNING], "not run"),
        ([OK, SKIPPED, FAILED], "failed"),
        ([SKIPPED, SKIPPED], "not run"),
        ([], "not run"),
    ],
)
def test_findings_pass_only_if_none_failed_and_none_was_skipped(findings, expected):
    assert status_of(findings) == expected


def test_the_hint_is_shown_below_a_warning_or_a_failure_only():
    assert list(render([OK, NOTE, WARNING, FAILED, SKIPPED])) == [
        "✓ ok: text",
        "· note: text",
        "! warning: text",
        "  hint",
        "✗ failed: text",
        "  hint",
        "- skipped: text",
    ]


def test_findings_are_ordered_by_severity_and_otherwise_stay_in_order():
    second_failure = Finding("failed", "again", "")
    assert worst([OK, FAILED, SKIPPED, second_failure]) == [FAILED, second_failure, SKIPPED, OK]


def test_a_failure_keeps_the_exit_code_of_its_error():
    finding = Finding.of("file", NotFound("gone", hint="look elsewhere"))
    assert (finding.severity, finding.text, finding.hint, finding.exit_code) == (
        "failed",
        "gone",
        "look elsewhere",
        19,
    )
    assert set(finding.facts()) == {"severity", "subject", "text", "hint", "duration_s"}

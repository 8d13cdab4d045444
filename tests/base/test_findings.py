"""One finding, and one way to show it."""

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
def test_what_was_not_checked_did_not_pass(findings, expected):
    assert status_of(findings) == expected


def test_the_hint_stands_below_what_is_wrong_or_unusual():
    assert list(render([OK, NOTE, WARNING, FAILED, SKIPPED])) == [
        "✓ ok: text",
        "· note: text",
        "! warning: text",
        "  hint",
        "✗ failed: text",
        "  hint",
        "- skipped: text",
    ]


def test_the_worst_comes_first_and_the_order_stays_otherwise():
    again = Finding("failed", "again", "")
    assert worst([OK, FAILED, SKIPPED, again]) == [FAILED, again, SKIPPED, OK]


def test_a_failure_keeps_the_exit_code_of_its_error():
    found = Finding.of("file", NotFound("gone", hint="look elsewhere"))
    assert (found.severity, found.text, found.hint, found.exit_code) == (
        "failed",
        "gone",
        "look elsewhere",
        19,
    )
    assert set(found.facts()) == {"severity", "subject", "text", "hint", "duration_s"}

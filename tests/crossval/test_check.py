"""A report is held to its own rows, and to a new one of the same model by the same engines.

Exit codes: 2 wrong options, 13 not a report, 15 a report that does not hold, 19 no such file, 22 a
replay that was not made.
"""

import contextlib
import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import tiny_gguf

from bitnet.base.errors import InvalidFormat
from bitnet.base.findings import Finding
from bitnet.crossval.check import check_report, compare_again, read_report
from bitnet.crossval.evidence import Evidence
from bitnet.crossval.judge import judge
from bitnet.crossval.records import from_json
from bitnet.crossval.report import DERIVED, as_html, as_json, as_markdown


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reports")


@pytest.fixture
def made(bitnet, folder, monkeypatch):
    """A report in a file, as JSON values, and the model it is about."""
    model = folder / "tiny.gguf"
    report = folder / "report" / "report.json"
    (folder / "prompts.txt").write_text("abc\nzyx wvu\n")
    if not report.exists():
        words = ("--reference", "float64", "--prompts", folder / "prompts.txt", "--greedy", 3)
        done = bitnet(
            "crossval", "--model", tiny_gguf(model), *words, "--report-dir", report.parent
        )
        assert done.code == 0, done.err
    monkeypatch.chdir(folder)
    return json.loads(report.read_text()), model


def report_on(evidence):
    """The report on *evidence* as JSON values, with the verdict that follows from it."""
    return as_json(evidence, judge(evidence))


@pytest.fixture
def check(bitnet, tmp_path):
    """A function that runs ``crossval --check`` on a report of these JSON values."""

    def run(values, *words):
        (tmp_path / "report.json").write_text(json.dumps(values))
        return bitnet("crossval", "--check", tmp_path / "report.json", *words)

    return run


def test_a_report_holds_and_ends_as_its_verdict_does(made, check):
    done = check(made[0])
    assert done.code == 0, done.err
    assert "the report holds; its verdict is: passed" in done.out


def changed(report, change):
    """A copy of *report* to which *change* was made."""
    edited_report = copy.deepcopy(report)
    change(edited_report)
    assert edited_report != report
    return edited_report


def put(place, value):
    """A change that puts *value* at a *place* like ``rows.0.kl``."""

    def change(report):
        *parents, last = [int(key) if key.isdigit() else key for key in place.split(".")]
        for key in parents:
            report = report[key]
        report[last] = value

    return change


TAMPERED = {
    "a row is gone": lambda r: r["rows"].pop(),
    "every row is gone": put("rows", []),
    "a worse divergence": put("rows.0.kl", 0.5),
    "no divergence": put("rows.0.kl", None),
    "another token": put("rows.0.ours", 63),
    "another arithmetic": put("ours.arithmetic", "int8"),
    "another time": put("created", "2026-01-01T00:00:00+00:00"),
    "a failed verdict called passed": put("rows.0.kl", 30.0),
    "passed called failed": put("verdict.status", "failed"),
    "a finding is gone": lambda r: r["verdict"]["findings"].pop(),
    "other metrics": put("summary.same_top", 0.5),
    "no answer checked": put("faults", {}),
    "an answer cut short": put("faults.reference", ["it was cut short"]),
    "planned were fewer": lambda r: r["prompts"].pop(),
    "planned were none": put("prompts.0.steps", 0),
    "another version": put("schema_version", 1),
    "not counted": put("kernels", {}),
    "an operation that is wrong": put("operations.bitnet.0.error", 1.0),
    "no operations": put("operations", {}),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_verdict_that_does_not_follow_from_the_rows_is_seen_without_the_model(made, check, name):
    done = check(changed(made[0], TAMPERED[name]))
    assert done.code == 15, done.out
    assert "does not hold" in done.err


COMMITTED = sorted(
    (Path(__file__).parents[2] / "benchmarks/results/crossval").glob("*/report.json")
)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name)
def test_the_reports_of_this_project_hold(path, bitnet):
    report = json.loads(path.read_text())
    done = bitnet("crossval", "--check", path)
    assert done.code == 0, done.err
    assert "the report holds; its verdict is: passed" in done.out
    assert report["compute_path"] == "real"
    assert {"operations", "greedy"} <= {entry["subject"] for entry in report["verdict"]["findings"]}
    record = read_report(path)[0]
    assert path.with_suffix(".md").read_text() == as_markdown(record, judge(record))
    assert path.with_suffix(".html").read_text() == as_html(record, judge(record))


@pytest.mark.parametrize(
    "change",
    [
        put("rows.0.kl", "0"),
        put("rows.0.kl", True),
        put("rows.0.kl", float("nan")),
        put("rows.0.more", 1),
        lambda r: r["rows"][0].pop("kl"),
        put("rows", {}),
        put("plan", None),
        put("compute_path", "very real"),
        put("ours.arithmetic", None),
        lambda r: r.pop("verdict"),
    ],
)
def test_a_report_with_a_field_of_a_wrong_type_or_value_is_refused(made, check, change):
    done = check(changed(made[0], change))
    assert done.code == 13
    assert "Traceback" not in done.err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"verdict": 1, "summary": 2}', "[" * 100_000])
def test_a_file_that_is_not_a_report_is_refused(bitnet, tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    assert bitnet("crossval", "--check", tmp_path / "report.json").code == 13
    assert bitnet("crossval", "--check", tmp_path / "none.json").code == 19


def test_everything_is_computed_again(made, check):
    report, model = made
    done = check(report, "--replay", "--model", model)
    assert done.code == 0, done.err
    assert f"all {len(report['rows'])} positions and everything else computed again" in done.out


def record_of(report):
    return from_json(Evidence, evidence_of(report))


def evidence_of(report):
    """The part of *report* that its verdict and its metrics are derived from."""
    return {name: value for name, value in report.items() if name not in DERIVED}


def leaves(value, place=()):
    """Places of every value in *value* that holds no others."""
    inside = value.items() if isinstance(value, dict) else ()
    inside = enumerate(value) if isinstance(value, list) else inside
    places = [leaf for key, entry in inside for leaf in leaves(entry, (*place, key))]
    return places or [place]


def leaf(values, place):
    """The value at *place* in *values*."""
    for key in place:
        values = values[key]
    return values


def other_values(value):
    """Values that an editor could put in the place of *value*."""
    if value is None:
        return [0, 0.5, "x"]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        # A number below 1e-10 is the rounding of a sum: 1 % of it would not be a difference.
        return [value + 1, value * 1.01 + (abs(value) < 1e-10) * 1e-6, None]
    return [f"{value}x", ""] if isinstance(value, str) and value else ["x"]


def edited(values, place, value):
    """A copy of *values* with *value* at *place*; all else is shared."""
    if not place:
        return value
    key, *rest = place
    copied = dict(values) if isinstance(values, dict) else list(values)
    copied[key] = edited(copied[key], rest, value)
    return copied


def is_caught(values, again):
    """True if a report of *values* is refused, does not hold, or is not equal to *again*."""
    values = dict(values)
    claimed = {name: values.pop(name) for name in DERIVED}
    try:
        evidence = from_json(Evidence, values)
    except InvalidFormat:
        return True
    findings = [*check_report(evidence, claimed), compare_again(evidence, again)]
    return {one.severity for one in findings} != {"ok"}


def test_an_edit_of_any_single_field_is_caught(made):
    report, _ = made
    again = record_of(report)
    assert not is_caught(report, again)
    places = [*leaves(report)]
    assert len(places) > 400  # of rows, settings, versions and operations
    missed = [
        (place, value)
        for place in places
        for value in other_values(leaf(report, place))
        if value != leaf(report, place) and not is_caught(edited(report, place, value), again)
    ]
    assert missed == []


EXTREMES = [-1e9, 0, 1e300, -1e300, 10**400]  # the last is beyond float64


def test_no_number_in_a_report_ends_in_an_internal_error(made, tmp_path):
    report, _ = made
    path = tmp_path / "report.json"
    numbers = [place for place in leaves(report) if type(leaf(report, place)) in (int, float)]
    # Of a list, only the first entry is changed: a field of the other entries is read alike.
    numbers = [place for place in numbers if not any(type(key) is int and key for key in place)]
    assert len(numbers) > 40
    for place in numbers:
        for value in EXTREMES:
            path.write_text(json.dumps(edited(report, place, value)))
            with contextlib.suppress(InvalidFormat):
                check_report(*read_report(path))
    # Numbers whose sum is infinite, in every row at once.
    rows = [dict.fromkeys(row, 1e300) | {"prompt": 0, "position": 0} for row in report["rows"]]
    rows = [row | dict.fromkeys(("ours", "theirs", "exact"), 0) for row in rows]
    path.write_text(json.dumps(report | {"rows": rows}))
    assert {one.severity for one in check_report(*read_report(path))} == {"ok", "failed"}


@pytest.mark.parametrize("field", ["kl", "nll", "theirs_nll", "ours_kl", "theirs_kl", "gap"])
def test_a_row_with_a_number_below_zero_is_refused_by_its_place(made, check, field):
    done = check(edited(made[0], ("rows", 1, field), -1e9))
    assert done.code == 13
    assert f"report.json.rows[1].{field} is -1000000000.0, expected at least 0" in done.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--record", "r.json"), "--record does not go with --check"),
        (("--report-dir", "reports"), "--report-dir does not go with --check"),
        (("--references",), "--references does not go with --check"),
        (("--against", "float64"), "--against does not go with --check"),
        (("--require-real", "--replay"), "--require-real does not go with --check"),
        (("--max-positions", 256), "--max-positions does not go with --check"),
        (("--greedy", 0), "--greedy does not go with --check"),
        (("--reference-timeout", 9), "--reference-timeout goes with --check only to repeat"),
        (("--recording", "r.json"), "--recording goes with --check only to repeat"),
        (("--recording", "r.json", "--replay"), "is not about a recording, but about float64"),
    ],
)
def test_options_that_a_check_would_not_heed_are_refused(made, check, words, reason):
    done = check(made[0], *words)
    assert done.code == 2, done.out
    assert reason in done.err


def test_a_replay_of_a_recording_names_it_at_once(made, check):
    report, model = made
    done = check(changed(report, put("plan.against", "recorded")), "--replay", "--model", model)
    assert done.code == 2
    assert "name the recording: --recording FILE" in done.err


def test_a_plan_that_no_command_has_is_refused(made, check):
    report, model = made
    for place, value in (("plan.limit", -1), ("plan.greedy", -3)):
        done = check(changed(report, put(place, value)), "--replay", "--model", model)
        assert done.code == 13
        assert "the plan of the report cannot be repeated" in done.err


def test_a_failing_report_made_to_pass_holds_and_is_caught_by_the_replay(made, check):
    """The rows claim other tokens for every side, and the verdict follows from the rows."""
    report, model = made
    evidence = evidence_of(report)
    for row in evidence["rows"]:
        row["ours"] = row["theirs"] = row["exact"] = (row["ours"] + 1) % 60
    invented = report_on(from_json(Evidence, evidence))
    assert check(invented).code == 0
    done = check(invented, "--replay", "--model", model)
    assert done.code == 15
    assert "rows[0].ours is" in done.err


def test_a_replay_needs_the_model_of_the_report(made, check, tmp_path):
    report, model = made
    other = tmp_path / "other.gguf"
    other.write_bytes(model.read_bytes() + b"\0")
    done = check(report, "--replay", "--model", other)
    assert done.code == 15
    assert "the file has SHA-256" in done.err


@pytest.mark.parametrize(
    "change",
    [
        put("ours.library_sha256", "0" * 64),
        put("ours.version", "0.0.1"),
        put("machine.features", "neon"),
        put("reference.version", "NumPy 1"),
    ],
)
def test_what_other_engines_made_cannot_be_replayed_and_does_not_pass(made, check, change):
    report, model = made
    elsewhere = report_on(record_of(changed(report, change)))
    done = check(elsewhere, "--replay", "--model", model)
    assert done.code == 22
    assert "not made: another engine or machine made the report" in done.err
    assert check(elsewhere, "--replay", "--model", model, "--json").code == 22


def test_an_engine_that_is_missing_here_makes_no_replay(made):
    report, _ = made
    record = record_of(report)
    missing = replace(record, no_answer=Finding("skipped", "reference", "missing"), rows=())
    assert compare_again(record, missing).severity == "skipped"


def test_a_replay_needs_a_report(bitnet):
    assert bitnet("crossval", "--replay").code == 2

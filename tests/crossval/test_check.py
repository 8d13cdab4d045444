"""A report is held to its own rows, and to the model it is about."""

import copy
import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from jsonschema import Draft202012Validator
from tiny_models import tiny_gguf

from bitnet.crossval.evidence import Evidence
from bitnet.crossval.report import Summary, read_report, schema
from bitnet.crossval.report_text import as_markdown


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reports")


@pytest.fixture
def made(bitnet, folder, monkeypatch):
    """A report in a file, as JSON values, and the model it is about."""
    model, report = folder / "tiny.gguf", folder / "report" / "report.json"
    (folder / "prompts.txt").write_text("abc\nzyx wvu\n")
    if not report.exists():
        words = ("--reference", "float64", "--prompts", folder / "prompts.txt", "--greedy", 3)
        done = bitnet(
            "crossval", "--model", tiny_gguf(model), *words, "--report-dir", report.parent
        )
        assert done.code == 0, done.err
    monkeypatch.chdir(folder)
    return json.loads(report.read_text()), model


@pytest.fixture
def check(bitnet, tmp_path):
    def run(values, *words):
        (tmp_path / "report.json").write_text(json.dumps(values))
        return bitnet("crossval", "--check", tmp_path / "report.json", *words)

    return run


def test_a_report_holds_and_ends_as_its_verdict_does(made, check):
    report, _ = made
    Draft202012Validator(schema()).validate(report)
    done = check(report)
    assert done.code == 0, done.err
    assert "the report holds; its verdict is: passed" in done.out


def changed(report, change):
    other = copy.deepcopy(report)
    change(other)
    assert other != report
    return other


def put(place, value):
    """A change that puts *value* at a *place* like ``rows.0.kl``."""

    def change(report):
        *path, last = [int(one) if one.isdigit() else one for one in place.split(".")]
        for one in path:
            report = report[one]
        report[last] = value

    return change


TAMPERED = {
    "a row is gone": lambda r: r["rows"].pop(),
    "a row is there twice": lambda r: r["rows"].append(r["rows"][0]),
    "a row takes the place of another": lambda r: put("rows.1", r["rows"][0])(r),
    "every row is gone": put("rows", []),
    "a worse divergence": put("rows.0.kl", 0.5),
    "no divergence": put("rows.0.kl", None),
    "another token": put("rows.0.ours", 63),
    "a kinder bound": put("bounds.mean_kl", 9.0),
    "a kinder near-tie": put("bounds.near_tie", 99.0),
    "a failed verdict called passed": lambda r: [
        put("rows.0.kl", 30.0)(r),
        put("summary.worst_kl", 30.0)(r),
    ],
    "passed called failed": put("verdict.status", "failed"),
    "a finding is gone": lambda r: r["verdict"]["findings"].pop(),
    "no findings": put("verdict.findings", []),
    "other metrics": put("summary.same_top1", 0),
    "no answer counted": put("answers", []),
    "an answer cut short": put("answers.1.positions.answered", 1),
    "planned were fewer": put("plan.positions", 1),
    "another version": put("schema_version", 1),
    "not counted": put("ours.kernels", {}),
    "not answered": put("reference.state", "missing"),
    "kinder bounds of an arithmetic that is not named": lambda r: [
        put("ours.arithmetic", None)(r),
        put("bounds.mean_kl", 9.0)(r),
    ],
    "no digest of the model": put("model.sha256", ""),
    "no digest of its content": put("model.attestation", ""),
    "no digest of the tokenizer": put("tokenizer.sha256", "x"),
    "no engine": put("reference.engine", ""),
    "no version": put("ours.version", ""),
    "no time": put("created", "yesterday"),
    "a number of the prompts": put("plan.prompts", 3),
    "fewer positions than were run": put("plan.positions_there", 0),
    "texts without an answer": put("plan.texts", 5),
    "no vocabulary": put("tokenizer.vocab_size", 0),
    "a token outside the vocabulary": put("prompts.0.ids.0", 64),
    "tokens of another prompt": lambda r: r["prompts"][0]["tokens"].pop(),
    "a continuation that is there twice": lambda r: put("greedy.1", r["greedy"][0])(r),
    "a continuation longer than planned": put("greedy.0.steps", 9),
    "steps below zero": lambda r: [put("greedy.0.steps", -1)(r), put("greedy.0.agreed", -1)(r)],
    "no gap": put("rows.0.gap", None),
    "no float64 pass": put("rows.0.exact", None),
    "a surprise below zero": put("rows.0.exact_surprise", -1.0),
    "a cosine of two": put("rows.0.cosine", 2.0),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_report_that_was_changed_does_not_hold(made, check, name):
    done = check(changed(made[0], TAMPERED[name]))
    assert done.code == 15, done.out
    assert "does not hold" in done.err


COMMITTED = sorted(
    (Path(__file__).parents[2] / "benchmarks/results/crossval").glob("*/report.json")
)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name)
def test_the_reports_of_this_project_hold(path, bitnet):
    report = json.loads(path.read_text())
    Draft202012Validator(schema()).validate(report)
    done = bitnet("crossval", "--check", path)
    assert done.code == 0, done.err
    assert "the report holds; its verdict is: passed" in done.out
    assert report["compute_path"] == "real"
    assert {"bisection", "greedy"} <= {one["check"] for one in report["verdict"]["findings"]}
    text = as_markdown(read_report(path)[0])
    assert path.with_suffix(".md").read_text() == text


@pytest.mark.parametrize(
    "change",
    [
        put("ours.module_sha256", ""),
        put("reference.library_sha256", ""),
        put("reference.library", ""),
        put("reference.arithmetic", None),
        put("bisections.0.steps.1.error", -1.0),
        put("bisections.0.least", 0),
        lambda r: r["ours"]["kernels"].update(dict.fromkeys(r["ours"]["kernels"], -1)),
    ],
)
def test_engines_are_known_by_the_digests_of_their_files(change, check):
    report = json.loads(COMMITTED[0].read_text())
    assert check(report).code == 0
    assert check(changed(report, change)).code == 15


def test_there_is_a_report_of_each_model_that_is_measured():
    assert [path.parent.name for path in COMMITTED] == [
        "bitnet-tiny-bitnet-cpp",
        "bitnet-tiny-ik",
        "bitnet-tiny-transformers",
        "gemma3",
        "smollm2",
    ]


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
        lambda r: r.pop("verdict"),
    ],
)
def test_what_is_not_a_report_is_refused(made, check, change):
    done = check(changed(made[0], change))
    assert done.code == 13
    assert "Traceback" not in done.err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"verdict": 1, "summary": 2}', "[" * 100_000])
def test_a_file_that_is_not_a_report_is_refused(bitnet, tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    assert bitnet("crossval", "--check", tmp_path / "report.json").code == 13
    assert bitnet("crossval", "--check", tmp_path / "none.json").code == 19


def test_positions_are_computed_again(made, check):
    report, model = made
    done = check(report, "--replay", 5, "--model", model)
    assert done.code == 0, done.err
    assert f"5 of {len(report['rows'])} positions computed again" in done.out


def test_a_consistent_invention_is_found_by_the_replay(made, check):
    """Every row of it, with the summary and the verdict that follow."""
    from bitnet.crossval.records import from_json
    from bitnet.crossval.report import Report

    report, model = made
    evidence = {name: report[name] for name in (one.name for one in fields(Evidence))}
    for row in evidence["rows"]:
        row["ours"] = row["theirs"] = row["exact"] = (row["ours"] + 1) % 60
    invented = Report(from_json(Evidence, evidence)).as_json()
    assert check(invented).code == 0
    done = check(invented, "--replay", 3, "--model", model)
    assert done.code == 15
    assert "our token is" in done.err


def test_a_replay_needs_the_model_of_the_report(made, check, tmp_path):
    report, model = made
    other = tmp_path / "other.gguf"
    other.write_bytes(model.read_bytes() + b"\0")
    done = check(report, "--replay", 2, "--model", other)
    assert done.code == 15
    assert "the file has SHA-256" in done.err


def test_a_replay_needs_a_report(bitnet):
    assert bitnet("crossval", "--replay", 3).code == 2


CONTRADICTIONS = {
    "passed without rows": lambda r: [put("rows", [])(r), put("summary", None)(r)],
    "passed with reasons": put("verdict.reasons", ["x"]),
    "passed with a failed check": put("verdict.findings.0.outcome", "failed"),
    "passed with a check not run": put("verdict.findings.0.outcome", "not run"),
    "passed with a row without numbers": put("rows.0.kl", None),
    "passed with a wrong position": put("summary.wrong", 1),
    "passed and nothing was asked": put("plan.positions", 0),
    "passed and nothing was counted": put("ours.kernels", {}),
    "passed by a mock": put("compute_path", "mock"),
    "passed with something missing": put("answers.0.missing", ["prompt 0"]),
    "passed and the engine was not there": put("reference.state", "missing"),
    "failed without a reason": lambda r: put("verdict.status", "failed")(r),
    "not run without a reason": lambda r: put("verdict.status", "not run")(r),
    "rows without a summary": put("summary", None),
    "a model without a digest": put("model.sha256", ""),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_the_schema_rejects_what_contradicts_itself(made, name):
    validator = Draft202012Validator(schema())
    assert not validator.is_valid(changed(made[0], CONTRADICTIONS[name]))


def names_of(kind):
    """Names of the fields of *kind* and of the records in it."""
    found = {}
    for one in fields(kind):
        hint = get_type_hints(kind)[one.name]
        inner = next((part for part in (hint, *get_args(hint)) if is_dataclass(part)), None)
        found[one.name] = names_of(inner) if inner else None
    return found


def properties_of(shape):
    shape = next((one for one in shape.get("anyOf", ()) if "properties" in one), shape)
    shape = shape.get("items", shape)
    if "properties" not in shape:
        return None
    assert set(shape["required"]) == set(shape["properties"])
    assert shape["additionalProperties"] is False
    return {name: properties_of(one) for name, one in shape["properties"].items()}


def test_the_schema_has_every_field_of_the_record():
    found = properties_of(schema())
    assert found.pop("verdict")
    assert found.pop("summary") == names_of(Summary)
    assert found == names_of(Evidence)

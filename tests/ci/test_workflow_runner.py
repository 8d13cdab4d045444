"""The runner of workflows in :mod:`workflow_runner`, where it must do as GitHub's."""

import os

import pytest
import yaml
from workflow_runner import CacheStore, Runner

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the runner needs bash")


def run_job(project, steps):
    """Outcomes of a job of these *steps* in the folder *project*."""
    (project / "w.yml").write_text(yaml.safe_dump({"jobs": {"one": {"steps": steps}}}))
    runner = Runner(project, None, environment=os.environ, github={"ref": "refs/heads/main"})
    return runner.run("w.yml", "one")


def test_a_cache_is_restored_by_its_name_before_one_that_begins_with_it(tmp_path):
    store = CacheStore(tmp_path / "store")
    for key in ("k-1", "k-12", "j-3"):
        (tmp_path / key).mkdir()
        store.save(key, [tmp_path / key])
    restored = {key: store.restore(key, ["k-", "j-"], []) for key in ("k-1", "k", "j-9", "x", "")}
    assert restored == {"k-1": "k-1", "k": "k-12", "j-9": "k-12", "x": "k-12", "": "k-12"}
    assert store.restore("x", ["y"], []) == ""


# GitHub ignores the case of texts, and compares values of different types as numbers.
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'Ab' == 'aB'", "true"),
        ("'1' == 1", "true"),
        ("1 == ' 1.0 '", "true"),
        ("'' == 0", "true"),
        ("'one' == 1", "false"),
        ("true == '1'", "true"),
        ("true == 'true'", "false"),
        ("github.none == ''", "true"),
        ("github.none == false", "true"),
        ("github.none == 'null'", "false"),
        ("github == github", "true"),
        ("github != ''", "true"),
        ("1", "1"),
        ("-2.5", "-2.5"),
    ],
)
def test_values_are_compared_and_shown_as_github_does(tmp_path, expression, expected):
    project = tmp_path / "project"
    project.mkdir()
    steps = [{"run": "echo ${{ " + expression + " }}"}]
    (step,) = run_job(project, steps)
    assert step.output == f"{expected}\n"


def test_an_action_after_a_failure_has_a_status_of_its_own(tmp_path):
    project = tmp_path / "project"
    for name, last in (("bad", "exit 1"), ("good", "true")):
        (project / name).mkdir(parents=True)
        steps = [{"run": "true", "name": f"begin {name}"}, {"run": last, "name": f"end {name}"}]
        action = {"inputs": {}, "outputs": {}, "runs": {"steps": steps}}
        (project / name / "action.yml").write_text(yaml.safe_dump(action))
    steps = [
        {"run": "exit 1", "name": "first"},
        {"uses": "./bad", "if": "always()"},
        {"uses": "./good", "if": "always()"},
        {"run": "true", "name": "last"},
    ]
    outcomes_by_name = {step.name: step.outcome for step in run_job(project, steps)}
    assert outcomes_by_name == {
        "first": "failure",
        "begin bad": "success",
        "end bad": "failure",
        "./bad": "failure",
        "begin good": "success",
        "end good": "success",
        "./good": "success",
        "last": "skipped",
    }

"""Each rule finds what it forbids, and the templates break none."""

import pytest

from bitnet.ci.rules import RULES, check_rules, read_workflows
from bitnet.ci.templates import EVERY, plan_files, write_files
from bitnet.errors import InvalidFormat, NotFound

PIN = "3d3c42e5aac5ba805825da76410c181273ba90b1"
GOOD = f"""name: good
on: push
permissions: {{}}
concurrency: {{group: good}}
jobs:
  job:
    runs-on: ubuntu-24.04
    timeout-minutes: 5
    permissions: {{contents: read}}
    steps:
      - uses: actions/checkout@{PIN} # v7.0.1
        with: {{persist-credentials: false}}
      - uses: actions/cache/save@{PIN} # v5.0.5
        if: github.ref == format('refs/heads/{{0}}', github.event.repository.default_branch)
        with:
          path: cache
          key: bitnet-${{{{ hashFiles('bitnet.lock.json') }}}}
      - uses: actions/cache/restore@{PIN} # v5.0.5
        id: restore
        with: {{path: cache, key: "bitnet-${{{{ hashFiles('bitnet.lock.json') }}}}"}}
      - run: bitnet cache.verify
        if: steps.restore.outputs.cache-hit == 'true'
      - run: bitnet sync
        env: {{HF_TOKEN: "${{{{ secrets.HF_TOKEN }}}}"}}
"""
SAVE = f"actions/cache/save@{PIN} # v5.0.5"


def problems(tmp_path, text):
    folder = tmp_path / ".github/workflows"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "one.yml").write_text(text)
    (workflow,) = read_workflows(tmp_path)
    return check_rules(workflow)


def test_a_workflow_that_follows_the_rules_has_no_problem(tmp_path):
    assert problems(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("pinned-actions", f"checkout@{PIN} # v7.0.1", "checkout@v7"),
        ("pinned-actions", f"checkout@{PIN} # v7.0.1", f"checkout@{PIN}"),
        ("pinned-actions", f"uses: actions/checkout@{PIN}", '"uses": actions/checkout@v7'),
        ("pinned-actions", "      - run: b", "      - {uses: docker://alpine}\n      - run: b"),
        ("permissions", "permissions: {}\n", ""),
        ("permissions", "permissions: {}\n", "permissions: write-all\n"),
        ("permissions", "    permissions: {contents: read}\n", ""),
        ("limits", "concurrency: {group: good}\n", ""),
        ("limits", "    timeout-minutes: 5\n", ""),
        ("checkout", "with: {persist-credentials: false}", "with: {fetch-depth: 0}"),
        ("secrets", "    permissions: {c", "    env: {A: '${{ secrets.A }}'}\n    permissions: {c"),
        ("secrets", "    timeout-minutes: 5\n", "    secrets: inherit\n"),
        ("secrets", "bitnet sync", "bitnet sync '${{ github.token }}'"),
        ("secrets", "bitnet sync", "bitnet sync '${{ secrets['A'] }}'"),
        ("secrets", "bitnet sync", "bitnet sync '${{ toJSON(secrets) }}'"),
        ("secrets", "bitnet sync", "bitnet sync '${{ github['token'] }}'"),
        ("no-expressions", "bitnet sync", "bitnet sync ${{ github.head_ref }}"),
        ("caches", "key: bitnet", "restore-keys: bitnet-\n          key: bitnet"),
        ("caches", "hashFiles('bitnet.lock.json')", "github.run_id"),
        ("caches", "default_branch", "name"),
        ("caches", SAVE, SAVE.replace("save", "restore")),
        ("caches", "cache-hit", "key"),
        ("caches", SAVE, SAVE.replace("/save", "")),
        ("caches", "{contents: read}", "{id-token: write}"),
        ("triggers", "on: push", "on: pull_request_target"),
        ("triggers", "on: push", "on: {workflow_run: {workflows: [x]}}"),
        ("machines", "ubuntu-24.04", "ubuntu-latest"),
    ],
)
def test_a_broken_rule_is_named(tmp_path, rule, old, new):
    assert old in GOOD
    found = problems(tmp_path, GOOD.replace(old, new))
    assert rule in {problem.rule for problem in found}
    assert f"[{rule}]" in str(found[0]) or len(found) > 1


def test_every_rule_is_tried_above():
    marks = test_a_broken_rule_is_named.pytestmark[0].args[1]
    assert {rule for rule, _, _ in marks} == set(RULES)


def test_the_templates_break_no_rule(tmp_path):
    write_files(tmp_path, plan_files(tmp_path, list(EVERY)))
    workflows = read_workflows(tmp_path)
    assert len(workflows) == len(EVERY) + 1
    assert [problem for workflow in workflows for problem in check_rules(workflow)] == []


def test_what_is_no_workflow_is_an_error(tmp_path):
    with pytest.raises(NotFound):
        read_workflows(tmp_path)
    for text in ("a: [", "- a\n- b\n"):
        with pytest.raises(InvalidFormat):
            problems(tmp_path, text)
    (tmp_path / ".github/workflows/one.yml").write_bytes(b"name: \xff\n")
    with pytest.raises(InvalidFormat, match="is not YAML"):
        read_workflows(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jobs: 5", "jobs is no mapping"),
        ("jobs: {a: 5}", "a is no mapping"),
        ("jobs: {a: {steps: {}}, b: {steps: 5}}", "b: steps is no list"),
        ("jobs: {a: {steps: [1]}}", "a: step 1 is no mapping"),
        ("jobs: {a: {steps: [{run: 5}]}}", "a: step 1: run is no text"),
        ("jobs: {a: {steps: [{run: x, shell: [a]}]}}", "a: step 1: shell is no text"),
        ("jobs: {a: {steps: [{uses: x, with: 5}]}}", "a: step 1: with is no mapping"),
        ("runs: 5", "runs is no mapping"),
    ],
)
def test_a_workflow_of_another_shape_says_where(tmp_path, text, said):
    with pytest.raises(InvalidFormat, match=said):
        problems(tmp_path, text)


def test_a_workflow_without_anything_breaks_rules_and_nothing_else(tmp_path):
    assert [problem.rule for problem in problems(tmp_path, "jobs:\n  a:\n    steps:\n")] == [
        "permissions", "permissions", "limits", "limits"
    ]  # fmt: skip

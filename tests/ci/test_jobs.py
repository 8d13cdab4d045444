"""The jobs of ``.ci/run`` and the workflows run what they name: no path, marker or name is gone."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import bitnet

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    *(path for path in sorted((ROOT / ".ci").iterdir()) if path.is_file()),
    *sorted((ROOT / ".github/workflows").glob("*.yml")),
    ROOT / "tasks.py",
]


def pytest_calls():
    """Arguments of each call of pytest in a shell script or workflow.

    Scripts in Python are left out: their code composes the arguments.
    """
    for script in SCRIPTS:
        if script.suffix == ".py":
            continue
        text = script.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            if call := re.search(r"(?:^|[\s/])pytest (-q .*|-m .*|tests/.*)", line):
                yield shlex.split(call[1], comments=True)


CALLS = list(pytest_calls())


def value_of(words, option):
    """The word that follows *option* in *words*, or an empty text without that option."""
    return words[words.index(option) + 1] if option in words else ""


# Calls that select tests by an expression.
EXPRESSIONS = [words for words in CALLS if value_of(words, "-k") or value_of(words, "-m")]


def test_the_calls_of_pytest_are_read():
    assert len(CALLS) >= 12
    assert {value_of(words, "-m") for words in CALLS} >= {"hypothesis and not slow", "not slow"}
    assert any(value_of(words, "-k") for words in CALLS)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_path_below_tests_that_a_job_names_is_there(script):
    # A path that goes on with "{" ends in a variable or in alternatives of the shell.
    paths = re.findall(r"(?<![\w/.-])tests/[\w./-]*\w(?![\w{])", script.read_text(encoding="utf-8"))
    absent = [path for path in paths if not (ROOT / path).exists()]
    assert absent == []


def collected(words):
    """Names of the tests that pytest collects with *words*."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize("words", EXPRESSIONS, ids=" ".join)
def test_every_expression_of_a_job_selects_tests(words):
    paths = [word for word in words if word.startswith("tests/")]
    paths = paths or ["tests/formats"]  # of the whole suite, a folder that has such tests
    options = [["-k", value_of(words, "-k")], ["-m", value_of(words, "-m")]]
    tests = collected([*paths, *(word for option in options if option[1] for word in option)])
    # Without -k the only alternative is the empty text: then any test will do.
    for alternative in value_of(words, "-k").split(" or "):
        assert any(alternative in test for test in tests), alternative


def test_a_job_runs_each_test_that_compares_with_the_source_of_llama_cpp():
    words = {word for call in CALLS for word in call}
    comparing = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if "BITNET_LLAMA_CPP" in path.read_text(encoding="utf-8") and path != Path(__file__)
    }
    assert comparing
    assert comparing <= words


def test_every_job_that_a_workflow_names_is_one_of_the_script():
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    every = re.search(r"(?m)^every=\((.*)\)$", script)[1].split()
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert re.search(r"job: \[(.*)\]", workflow)[1].split(", ") == every
    for job in every:
        assert f"\n{job}() {{" in script


def test_type_checkers_see_every_public_name_by_its_name():
    """A star import hides its names from them; ``inv types`` asks a type checker."""
    tree = ast.parse(Path(bitnet.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))  # `if TYPE_CHECKING`
    imported = [alias.name for statement in block.body for alias in statement.names]
    assert sorted(imported) == sorted(set(bitnet.__all__) - {"__version__"})

"""Lines that set up a virtual environment: they show their progress, and CI runs them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = [
    line
    for page in ("README.md", "CONTRIBUTING.md", "docs/tutorial.md")
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines()
    if "pip install" in line and "venv" in line
]


def test_there_are_set_up_lines():
    assert len(LINES) >= 4


@pytest.mark.parametrize("line", LINES)
def test_a_set_up_line_is_not_silent(line):
    assert not re.search(r"\s(-q+|--quiet)\b", line)


@pytest.mark.parametrize("marker", ["main", "tests"])
def test_ci_runs_the_line_of_the_readme(marker):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"^<!-- {marker} -->\n```sh\n.*pip install", readme, re.MULTILINE)
    assert f"$(readme_command {marker})" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_every_job_is_one_of_ci():
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    jobs = re.search(r"^every=\((.*)\)$", script, re.MULTILINE)[1].split()
    assert set(re.findall(r"^(\w+)\(\) \{$", script, re.MULTILINE)) >= set(jobs)
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert f"job: [{', '.join(jobs)}]" in workflow

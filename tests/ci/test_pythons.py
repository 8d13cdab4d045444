"""The Pythons that are promised are the ones that are built for, and the ones that are tried."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMISED = ["3.10", "3.11", "3.12", "3.13", "3.14"]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def by_number(versions):
    return sorted(versions, key=lambda version: int(version.partition(".")[2]))


def test_the_first_one_is_the_oldest_that_the_package_admits():
    assert f'requires-python = ">={PROMISED[0]}"' in text("pyproject.toml")


def test_wheels_are_built_for_each():
    (built,) = re.findall(r'^build = "(.*)"$', text("pyproject.toml"), re.MULTILINE)
    assert built.split() == [f"cp{version.replace('.', '')}-*" for version in PROMISED]


def test_each_is_started_as_a_newcomer_would():
    assert f"versions=({' '.join(PROMISED)})" in text(".ci/doors")


def test_ci_has_a_job_for_each_python():
    jobs = text(".github/workflows/ci.yml")
    (listed,) = re.findall(r"python-version: \|.*\n((?: +3\.\d+\n)+)", jobs)
    assert by_number(listed.split()) == PROMISED

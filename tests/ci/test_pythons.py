"""The Pythons that are promised are the ones that are built for, and the ones that are tried."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMISED = ["3.10", "3.11", "3.12", "3.13", "3.14"]


def text(name):
    """Text of the file *name* of this project."""
    return (ROOT / name).read_text(encoding="utf-8")


def by_number(versions):
    """*versions*, such as ``3.9`` and ``3.10``, in the order of their minor numbers."""
    return sorted(versions, key=lambda version: int(version.partition(".")[2]))


def test_the_oldest_promised_python_is_the_oldest_that_the_package_admits():
    assert f'requires-python = ">={PROMISED[0]}"' in text("pyproject.toml")


def test_wheels_are_built_for_each_promised_python():
    (tags,) = re.findall(r'^build = "(.*)"$', text("pyproject.toml"), re.MULTILINE)
    assert tags.split() == [f"cp{version.replace('.', '')}-*" for version in PROMISED]


def test_the_doors_script_starts_each_promised_python():
    assert f"versions=({' '.join(PROMISED)})" in text(".ci/doors")


def test_ci_has_a_job_for_each_promised_python():
    jobs = text(".github/workflows/ci.yml")
    (listed,) = re.findall(r"python-version: \|.*\n((?: +3\.\d+\n)+)", jobs)
    assert by_number(listed.split()) == PROMISED

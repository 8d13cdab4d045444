"""Write the lock files ``ci/lock/*.txt``: packages of the workflows by version and SHA-256.

    python ci/lock/make.py

The lock files do not list this program itself, which CI installs from another source. pip resolves
for the machine that the workflows run on (x86-64 Linux), whatever machine this runs on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
# Version of Python and extras, by the file's name. ik_llama.cpp has a wheel for Python 3.11 only.
LOCKS = {
    "requirements": ("3.12", ("crossval",)),
    "ik_llama.cpp": ("3.11", ("crossval-ternary",)),
}
# Tags of the wheels that may be locked.
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_28_x86_64", "manylinux_2_35_x86_64")
HEAD = "# Made by ci/lock/make.py for Python {python} on x86-64 Linux: install --require-hashes.\n"


def requirements_of(extras: tuple[str, ...]) -> list[str]:
    """Requirements to build this program, and to run it with *extras*."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    requirements = [*project["build-system"]["requires"], "cmake>=3.26", "ninja>=1.11"]
    requirements += project["project"]["dependencies"]
    for extra in extras:
        requirements += project["project"]["optional-dependencies"][extra]
    return requirements


def lock_lines(python: str, requirements: list[str]) -> Iterator[str]:
    """Lines of a lock file: every package with its version and the digest of its wheel."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-I", "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        command += ["--quiet", "--only-binary=:all:", "--target", folder, "--report", str(report)]
        command += ["--python-version", python]
        for platform in PLATFORMS:
            command += ["--platform", platform]
        subprocess.run([*command, *requirements], check=True)
        packages = json.loads(report.read_text(encoding="utf-8"))["install"]
    for package in sorted(packages, key=lambda package: package["metadata"]["name"].lower()):
        digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
        about = package["metadata"]
        yield f"{about['name'].lower()}=={about['version']} --hash=sha256:{digest}\n"


for name, (python, extras) in LOCKS.items():
    lines = [HEAD.format(python=python), *lock_lines(python, requirements_of(extras))]
    (ROOT / f"ci/lock/{name}.txt").write_text("".join(lines), encoding="utf-8")

"""Run four linters over workflows and scripts; the extra ``ci`` installs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet.base import settings
from bitnet.base.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class LintResult:
    """Result of one linter.

    Attributes:
        linter: its name.
        problems: its findings as text; empty if there are none.
        missing: it is not installed.
    """

    linter: str
    problems: str = ""
    missing: bool = False

    def __str__(self) -> str:
        if self.missing:
            return f"- {self.linter}: not installed"
        return f"✗ {self.linter}:\n{self.problems}" if self.problems else f"✓ {self.linter}"


@dataclass(frozen=True)
class _Files:
    """Files to lint, as absolute paths."""

    workflows: list[str]
    actions: list[str]
    scripts: list[str]


def lint(project: Path) -> list[LintResult]:
    """Run every linter over the workflows, actions and scripts of *project*; works offline.

    Raises:
        NotFound: there are no workflows.
    """
    folder = project.resolve()

    def there(*patterns: str) -> list[str]:
        return [str(path) for pattern in patterns for path in sorted(folder.glob(pattern))]

    files = _Files(
        there(".github/workflows/*.y*ml"),
        there(".github/actions/*/action.y*ml"),
        there("scripts/*.sh", ".github/actions/*/*.sh"),
    )
    if not files.workflows and not files.actions:
        raise NotFound(f"no workflow in {folder / '.github'}", hint="bitnet ci-init")
    outcomes = []
    for name, run in LINTERS.items():
        program = shutil.which(name, path=_path())
        said = "" if program is None else run(program, folder, files)
        outcomes.append(LintResult(name, said, missing=program is None))
    return outcomes


def _path() -> str:
    """Search path for programs: first those that pip installed for this Python or its user."""
    beside = str(Path(sys.executable).parent)
    user = sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))
    return os.pathsep.join([beside, user, settings.child_environment().get("PATH", "")])


def _run(command: list[str], folder: Path) -> str:
    """Output of *command* if it fails, else an empty text."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=settings.child_environment(PATH=_path()),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return ""
    return (done.stdout + done.stderr).strip() or f"ended with exit code {done.returncode}"


def _schema(program: str, project: Path, files: _Files) -> str:
    reports = []
    for schema, paths in (("workflows", files.workflows), ("actions", files.actions)):
        if paths:
            reports.append(
                _run([program, "--builtin-schema", f"vendor.github-{schema}", *paths], project)
            )
    return "\n".join(filter(None, reports))


def _zizmor(program: str, project: Path, files: _Files) -> str:
    words = ["--offline", "--no-progress", "--quiet", "--min-severity", "medium"]
    return _run([program, *words, *files.workflows, *files.actions], project)


def _actionlint(program: str, project: Path, files: _Files) -> str:
    """Run actionlint, which also passes every ``run:`` block to shellcheck."""
    return _run([program, "-no-color", *files.workflows], project) if files.workflows else ""


def _shellcheck(program: str, project: Path, files: _Files) -> str:
    return _run([program, *files.scripts], project) if files.scripts else ""


LINTERS: dict[str, Callable[[str, Path, _Files], str]] = {
    "check-jsonschema": _schema,
    "zizmor": _zizmor,
    "actionlint": _actionlint,
    "shellcheck": _shellcheck,
}

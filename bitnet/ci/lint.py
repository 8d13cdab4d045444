"""Workflows through every linter: our rules, and four programs that the extra ``ci`` installs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet import settings
from bitnet.ci.rules import check_rules, read_workflows, run_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.ci.rules import Workflow

__all__ = ["LINTERS", "Outcome", "lint"]

_SHELLS = {"sh": "sh", "bash": "bash"}


@dataclass(frozen=True)
class Outcome:
    """What one linter says.

    Attributes:
        linter: its name.
        problems: what it found, for people; empty when nothing is wrong.
        missing: it is not installed.
    """

    linter: str
    problems: str = ""
    missing: bool = False

    def __str__(self) -> str:
        if self.missing:
            return f"- {self.linter}: not installed"
        return f"✗ {self.linter}:\n{self.problems}" if self.problems else f"✓ {self.linter}"


def lint(project: Path) -> list[Outcome]:
    """Every linter over the workflows, actions and scripts of *project*; opens no connection.

    Raises:
        NotFound: there is no workflow, or no parser for YAML.
        InvalidFormat: a workflow is not YAML.
    """
    workflows = read_workflows(project)
    broken = [str(problem) for workflow in workflows for problem in check_rules(workflow)]
    outcomes = [Outcome("rules", "\n".join(broken))]
    for name, run in LINTERS.items():
        program = shutil.which(name, path=_path())
        if program is None:
            outcomes.append(Outcome(name, missing=True))
        else:
            outcomes.append(Outcome(name, run(program, project, workflows)))
    return outcomes


def _path() -> str:
    """Where programs are looked for: first those installed beside this Python."""
    beside = str(Path(sys.executable).parent)
    return os.pathsep.join([beside, settings.child_environment().get("PATH", "")])


def _run(command: list[str], folder: Path) -> str:
    """Output of *command* when it ends with an error, else nothing."""
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


def _schema(program: str, project: Path, workflows: list[Workflow]) -> str:
    found = []
    for schema, wanted in (("github-workflows", False), ("github-actions", True)):
        paths = [str(w.path.resolve()) for w in workflows if w.is_action is wanted]
        if paths:
            found.append(_run([program, "--builtin-schema", f"vendor.{schema}", *paths], project))
    return "\n".join(filter(None, found))


def _zizmor(program: str, project: Path, workflows: list[Workflow]) -> str:
    paths = [str(workflow.path.resolve()) for workflow in workflows]
    words = ["--offline", "--no-progress", "--quiet", "--min-severity", "medium"]
    return _run([program, *words, *paths], project)


def _actionlint(program: str, project: Path, workflows: list[Workflow]) -> str:
    paths = [str(workflow.path.resolve()) for workflow in workflows if not workflow.is_action]
    return _run([program, "-no-color", *paths], project) if paths else ""


def _shellcheck(program: str, project: Path, workflows: list[Workflow]) -> str:
    """Scripts of the project, and every ``run:`` block as a script of its own."""
    scripts = [*project.glob("scripts/*.sh"), *project.glob(".github/actions/*/*.sh")]
    found = [_run([program, str(path.resolve())], project) for path in sorted(scripts)]
    with tempfile.TemporaryDirectory(prefix="bitnet-ci-") as folder:
        for workflow in workflows:
            for block in run_blocks(workflow):
                shell = _SHELLS.get(block.shell)
                if shell is None:
                    continue
                script = Path(folder) / "run.sh"
                script.write_text(f"set -e\n{block.text}", encoding="utf-8")
                said = _run([program, f"--shell={shell}", str(script)], project)
                found.append(said.replace(str(script), f"{workflow.path} ({block.step})"))
    return "\n".join(filter(None, found))


LINTERS: dict[str, Callable[[str, Path, list[Workflow]], str]] = {
    "check-jsonschema": _schema,
    "zizmor": _zizmor,
    "actionlint": _actionlint,
    "shellcheck": _shellcheck,
}

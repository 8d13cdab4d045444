"""Our own rules for workflows, beyond what general linters check.

They keep a workflow from leaking a secret, from running code nobody pinned, from filling or
poisoning a cache, and from running for hours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.errors import InvalidFormat, NotFound, from_os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = [
    "RULES",
    "Problem",
    "RunBlock",
    "Workflow",
    "check_rules",
    "read_workflows",
    "run_blocks",
]

_PIN = re.compile(r"uses:\s*[\w.-]+/[\w./-]+@[0-9a-f]{40}\s+#\s*v?\d[\w.]*\s*$")
_USES = re.compile(r"^\s*(?:-\s+)?uses:\s*(?P<what>\S+)")
_COMMIT = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
_SECRET = re.compile(
    r"\$\{\{[^}]*(?:\bsecrets\b|\bgithub\s*(?:\.\s*token\b|\[)|toJSON\(\s*github\s*\))",
    re.IGNORECASE,
)
_UNTRUSTED = ("pull_request_target", "workflow_run")


@dataclass(frozen=True)
class Problem:
    """A rule that is broken: where, which one, and what would be right."""

    path: Path
    where: str
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.where}: {self.text} [{self.rule}]"


@dataclass(frozen=True)
class RunBlock:
    """A ``run:`` block: the file, the step's name and the shell it is for."""

    path: Path
    step: str
    shell: str
    text: str


@dataclass(frozen=True)
class Workflow:
    """A workflow or a composite action, parsed."""

    path: Path
    text: str
    content: dict[Any, Any]

    @property
    def is_action(self) -> bool:
        """Whether it is an action and no workflow."""
        return "runs" in self.content

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """The jobs; of an action its steps as one job."""
        if self.is_action:
            return {"runs": self.content["runs"]}
        return dict(self.content.get("jobs") or {})

    def steps(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every step with a name to call it by."""
        for job_name, job in self.jobs.items():
            for number, step in enumerate(job.get("steps") or [], 1):
                name = step.get("name") or step.get("id") or step.get("uses") or f"step {number}"
                yield f"{job_name}: {name}", step


def read_workflows(project: Path) -> list[Workflow]:
    """Every workflow and action below ``.github`` of *project*.

    Raises:
        NotFound: there is none, or no parser for YAML.
        InvalidFormat: a file is not YAML, or has another shape than a workflow.
    """
    try:
        import yaml
    except ImportError as error:
        raise NotFound(
            "the module yaml is not installed", hint="pip install 'bitnet-xtask[ci]'"
        ) from error
    folder = project / ".github"
    paths = [
        *sorted(folder.glob("workflows/*.y*ml")),
        *sorted(folder.glob("actions/*/action.y*ml")),
    ]
    if not paths:
        raise NotFound(f"no workflow in {folder}", hint="bitnet ci-init")
    found = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
            content = yaml.safe_load(text)
        except OSError as error:
            raise from_os_error(error, path) from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InvalidFormat(f"{path} is not YAML: {error}") from error
        if (wrong := next(_misshapen(content), None)) is not None:
            raise InvalidFormat(f"{path} is no workflow: {wrong}")
        found.append(Workflow(path, text, content))
    return found


def _misshapen(content: Any) -> Iterator[str]:
    """What in *content* is of another kind than the rules can look into."""
    if not isinstance(content, dict):
        yield "not a mapping"
        return
    jobs = {"runs": content["runs"]} if "runs" in content else content.get("jobs") or {}
    if not isinstance(jobs, dict):
        yield "jobs is no mapping"
        return
    for name, job in jobs.items():
        if not isinstance(job, dict):
            yield f"{name} is no mapping"
            continue
        steps = job.get("steps") or []
        if not isinstance(steps, list):
            yield f"{name}: steps is no list"
            continue
        for number, step in enumerate(steps, 1):
            if not isinstance(step, dict):
                yield f"{name}: step {number} is no mapping"
                continue
            if not isinstance(step.get("with") or {}, dict):
                yield f"{name}: step {number}: with is no mapping"
            for key in ("run", "shell"):
                if not isinstance(step.get(key, ""), str):
                    yield f"{name}: step {number}: {key} is no text"


def run_blocks(workflow: Workflow) -> Iterator[RunBlock]:
    """Every script in *workflow*; without ``shell:`` it is for bash."""
    for name, step in workflow.steps():
        if "run" in step:
            yield RunBlock(workflow.path, name, step.get("shell", "bash"), step["run"])


def check_rules(workflow: Workflow) -> list[Problem]:
    """What *workflow* does against :data:`RULES`."""
    return [
        Problem(workflow.path, where, name, text)
        for name, rule in RULES.items()
        for where, text in rule(workflow)
    ]


def _pinned(workflow: Workflow) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(workflow.text.splitlines(), 1):
        used = _USES.match(line)
        if used and not used["what"].startswith("./") and not _PIN.search(line):
            yield f"line {number}", f"{used['what']} is not pinned: @<40-digit commit> # vX.Y.Z"
    # However it is spelled in YAML: in braces, with a quoted key, through an anchor.
    for name, what in [*workflow.steps(), *workflow.jobs.items()]:
        uses = str(what.get("uses", "./"))
        if not uses.startswith("./") and not _COMMIT.fullmatch(uses):
            yield name, f"{uses} is not pinned: @<40-digit commit>"


def _permissions(workflow: Workflow) -> Iterator[tuple[str, str]]:
    if workflow.is_action:
        return
    if workflow.content.get("permissions") != {}:
        yield "top", "permissions: {} is missing: jobs name what they need"
    for name, job in workflow.jobs.items():
        if not isinstance(job.get("permissions"), dict):
            yield name, "the job does not name its permissions"


def _limits(workflow: Workflow) -> Iterator[tuple[str, str]]:
    if workflow.is_action:
        return
    if "concurrency" not in workflow.content:
        yield "top", "no concurrency group: runs pile up"
    for name, job in workflow.jobs.items():
        if "uses" not in job and "timeout-minutes" not in job:
            yield name, "no timeout-minutes: a hanging job runs for six hours"


def _checkout(workflow: Workflow) -> Iterator[tuple[str, str]]:
    for name, step in workflow.steps():
        is_checkout = str(step.get("uses", "")).startswith("actions/checkout@")
        if is_checkout and (step.get("with") or {}).get("persist-credentials") is not False:
            yield name, "persist-credentials: false is missing: the token stays on disk"


def _secrets(workflow: Workflow) -> Iterator[tuple[str, str]]:
    """A secret goes to one step's environment, or to a workflow that is called, nowhere else."""
    allowed = [str(step.get("env", "")) for _, step in workflow.steps()]
    allowed += [str(job.get("secrets", "")) for job in workflow.jobs.values()]
    used = sum(len(_SECRET.findall(text)) for text in allowed)
    everywhere = len(_SECRET.findall(str(workflow.content)))
    if "inherit" in [job.get("secrets") for job in workflow.jobs.values()]:
        yield "secrets", "secrets: inherit hands over every secret: name the ones it needs"
    if everywhere > used:
        yield "secrets", "a secret outside the env of the one step that needs it"


def _no_expressions(workflow: Workflow) -> Iterator[tuple[str, str]]:
    for block in run_blocks(workflow):
        if "${{" in block.text:
            yield block.step, "an expression inside run: is code for whoever controls its value"


def _caches(workflow: Workflow) -> Iterator[tuple[str, str]]:
    """Keys are contents; saved once, by the default branch, checked after restoring."""
    publishes = "id-token" in str([job.get("permissions") for job in workflow.jobs.values()])
    for name, step in workflow.steps():
        uses, given = str(step.get("uses", "")), step.get("with") or {}
        if not uses.startswith("actions/cache"):
            continue
        if publishes:
            yield name, "a release takes nothing from a cache"
        if "restore-keys" in given:
            yield name, "restore-keys restores something else than what the key names"
        if uses.startswith("actions/cache/restore@") and not _is_checked(workflow, step):
            yield name, "restored and not checked: a step `if: steps.<id>.outputs.cache-hit ...`"
        if uses.startswith("actions/cache@"):
            yield name, "saves from any branch: use actions/cache/restore and actions/cache/save"
        if uses.startswith("actions/cache/save@") and "default_branch" not in str(step.get("if")):
            yield name, "saves from any branch: ask for github.event.repository.default_branch"
        key = str(given.get("key"))
        if "hashFiles('bitnet.lock.json')" not in key and ".outputs.key" not in key:
            yield name, "the key is not the hash of bitnet.lock.json"


def _is_checked(workflow: Workflow, restore: dict[str, Any]) -> bool:
    """Whether a script runs where *restore* found something."""
    hit = f"steps.{restore.get('id')}.outputs.cache-hit"
    return any("run" in step and hit in str(step.get("if")) for _, step in workflow.steps())


def _triggers(workflow: Workflow) -> Iterator[tuple[str, str]]:
    # YAML 1.1 reads the key `on` as true.
    triggers = str(workflow.content.get("on", workflow.content.get(True)))
    for name in _UNTRUSTED:
        if name in triggers:
            yield "on", f"{name} gives code from a fork the secrets of this project"


def _machines(workflow: Workflow) -> Iterator[tuple[str, str]]:
    for name, job in workflow.jobs.items():
        if "-latest" in str(job.get("runs-on", "")) + str(job.get("strategy", "")):
            yield name, "a -latest machine changes without a commit"


RULES: dict[str, Callable[[Workflow], Iterator[tuple[str, str]]]] = {
    "pinned-actions": _pinned,
    "permissions": _permissions,
    "limits": _limits,
    "checkout": _checkout,
    "secrets": _secrets,
    "no-expressions": _no_expressions,
    "caches": _caches,
    "triggers": _triggers,
    "machines": _machines,
}

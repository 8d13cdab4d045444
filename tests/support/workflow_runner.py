"""Run the steps of a workflow job on this machine.

Every ``run:`` block runs as in GitHub's runner: with its shells and flags, the environment of
workflow, job and step, the files of GITHUB_OUTPUT, GITHUB_ENV, GITHUB_PATH and
GITHUB_STEP_SUMMARY, expressions and conditions. Local composite actions run step by step.

Actions that need GitHub are simulated: ``actions/checkout`` and ``actions/setup-python`` do nothing
(the workspace and this Python exist), ``actions/cache/restore`` and ``save`` copy from and to a
:class:`CacheStore` with immutable keys, ``actions/upload-artifact`` records the names of artifacts.
Any other action is an error.
"""

import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import yaml

SHELLS = {
    None: ["bash", "-e"],
    "bash": ["bash", "--noprofile", "--norc", "-eo", "pipefail"],
    "sh": ["sh", "-e"],
    "python": [sys.executable],
}
TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?)|(?P<op>&&|\|\||==|!=|[!(),.])"
    r"|(?P<name>[A-Za-z_][\w-]*))"
)


@dataclass
class CacheStore:
    """The store of ``actions/cache``: one immutable copy for each key."""

    folder: Path
    saved: list = field(default_factory=list)

    def save(self, key, paths):
        """Save *paths* as the entry *key*, unless there is one."""
        if (self.folder / key).exists():
            return
        for number, path in enumerate(paths):
            if path.exists():
                shutil.copytree(path, self.folder / key / str(number))
        self.saved.append(key)

    def restore(self, key, prefixes, paths):
        """Restore the entry *key*, or else the newest whose name begins with it or a prefix.

        *key* and then *prefixes* are tried in their order. Returns its name, or an empty text.
        """
        for prefix in (key, *prefixes):
            names = [name for name in self.saved if prefix and name.startswith(prefix)]
            if key in names:
                names = [key]
            if not names:
                continue
            for number, path in enumerate(paths):
                stored = self.folder / names[-1] / str(number)
                if stored.exists():
                    shutil.copytree(stored, path, dirs_exist_ok=True)
            return names[-1]
        return ""


@dataclass
class Step:
    """Outcome of a step: ``success``, ``failure`` or ``skipped``."""

    name: str
    outcome: str
    output: str = ""


class Runner:
    """One job on one machine; :meth:`run` gives its steps."""

    def __init__(
        self, workspace, cache, *, environment, github, secrets=None, inputs=None, matrix=None
    ):
        self.workspace = Path(workspace)
        self.cache = cache
        self.temp = self.workspace.parent / "runner-temp"
        shutil.rmtree(self.temp, ignore_errors=True)
        self.temp.mkdir()
        self.environment = dict(environment)
        self.github = github | {"workspace": str(self.workspace)}
        self.secrets = secrets or {}
        self.inputs = inputs or {}
        self.matrix = matrix or {}
        self.steps = []
        self.summary = self.temp / "summary.md"
        self.artifacts = []
        self.failed = False

    def run(self, workflow, job):
        """Run *job* of the file *workflow*, and return its steps with their outcomes."""
        content = yaml.safe_load((self.workspace / workflow).read_text())
        scope = _Scope(self, {}, self.inputs)
        for level in (content, content["jobs"][job]):
            for name, value in (level.get("env") or {}).items():
                scope.env[name] = scope.text(value)
        self._steps(content["jobs"][job]["steps"], scope)
        return self.steps

    def _steps(self, steps, scope):
        """Run *steps* one after the other, and record their outcomes."""
        for step in steps:
            name = step.get("name") or step.get("uses") or step["run"]
            condition = step.get("if", "success()")
            if not re.search(r"\b(always|failure|success|cancelled)\(\)", str(condition)):
                condition = f"success() && ({_bare(condition)})"
            if not scope.evaluate(_bare(condition)):
                self._record(step, scope, Step(name, "skipped"), {})
                continue
            local = scope.child({key: scope.text(v) for key, v in (step.get("env") or {}).items()})
            outcome, outputs = self._run_step(step, name, local)
            if outcome.outcome == "failure":
                self.failed = True
            self._record(step, scope, outcome, outputs)

    def _record(self, step, scope, outcome, outputs):
        """Record *outcome*, and make it known to expressions if the step has an id."""
        self.steps.append(outcome)
        if "id" in step:
            scope.steps[step["id"]] = {"outcome": outcome.outcome, "outputs": outputs}

    def _run_step(self, step, name, scope):
        """Outcome and outputs of a step whose condition holds."""
        if "run" in step:
            return self._script(step, name, scope)
        inputs = {key: scope.text(value) for key, value in (step.get("with") or {}).items()}
        uses = step["uses"]
        if uses.startswith("./"):
            return self._composite(uses, name, inputs, scope)
        action = uses.split("@")[0]
        paths = [self.workspace / line for line in inputs.get("path", "").split()]
        if action in ("actions/checkout", "actions/setup-python"):
            return Step(name, "success"), {}
        if action == "actions/cache/restore":
            match = self.cache.restore(inputs["key"], inputs.get("restore-keys", "").split(), paths)
            hit = str(match == inputs["key"]).lower()
            return Step(name, "success"), {"cache-hit": hit, "cache-matched-key": match}
        if action == "actions/cache/save":
            self.cache.save(inputs["key"], paths)
            return Step(name, "success"), {}
        if action == "actions/upload-artifact":
            match = any(path.exists() for path in paths)
            self.artifacts.append(inputs["name"])
            return Step(name, "success" if match else "failure"), {}
        raise AssertionError(f"the action {uses} is not simulated")

    def _composite(self, uses, name, given, scope):
        """Outcome and outputs of the local composite action *uses* with the inputs *given*."""
        content = yaml.safe_load((self.workspace / uses / "action.yml").read_text())
        defaults = {key: value.get("default", "") for key, value in content["inputs"].items()}
        inner = _Scope(self, dict(scope.env), defaults | given)
        # As on GitHub, success() and failure() in an action do not see the steps before it.
        job_failed = self.failed
        self.failed = False
        self._steps(content["runs"]["steps"], inner)
        outcome = "failure" if self.failed else "success"
        self.failed = job_failed
        outputs = {key: inner.text(value["value"]) for key, value in content["outputs"].items()}
        return Step(name, outcome), outputs

    def _script(self, step, name, scope):
        """Outcome and outputs of a ``run:`` block."""
        files = {key: self.temp / f"{key.lower()}.txt" for key in ("OUTPUT", "ENV", "PATH")}
        for path in files.values():
            path.write_text("")
        script = self.temp / "script"
        script.write_text(scope.text(step["run"]))
        environment = self.environment | scope.env | {
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_REF_NAME": self.github["ref"].split("/", 2)[-1],
            "RUNNER_TEMP": str(self.temp),
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            **{f"GITHUB_{key}": str(path) for key, path in files.items()},
        }  # fmt: skip
        done = subprocess.run(
            [*SHELLS[step.get("shell")], script],
            cwd=self.workspace,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        self.environment.update(_pairs(files["ENV"]))
        for folder in files["PATH"].read_text().split():
            self.environment["PATH"] = f"{folder}:{self.environment['PATH']}"
        outcome = "success" if done.returncode == 0 else "failure"
        return Step(name, outcome, done.stdout), _pairs(files["OUTPUT"])


def _pairs(path):
    """The lines ``NAME=VALUE`` of a file as a dictionary."""
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)


def _bare(condition):
    """*condition* without the marks of an expression."""
    text = str(condition).strip()
    return text[3:-2] if text.startswith("${{") and text.endswith("}}") else text


class _Scope:
    """The names an expression can use: those of a job, or of a composite action."""

    def __init__(self, runner, env, inputs):
        self.runner = runner
        self.env = env
        self.inputs = inputs
        self.steps = {}

    def child(self, env):
        """The same names with *env* added, for one step."""
        scope = _Scope(self.runner, self.env | env, self.inputs)
        scope.steps = self.steps
        return scope

    def text(self, value):
        """*value* with its expressions evaluated."""
        if not isinstance(value, str):
            return json.dumps(value)
        return re.sub(r"\$\{\{(.*?)\}\}", lambda m: _shown(self.evaluate(m[1])), value)

    def evaluate(self, expression):
        """Value of *expression*."""
        return _Expression(expression, self).value()

    def name(self, name):
        """Value of the context or constant *name*."""
        runner = self.runner
        contexts = {
            "github": runner.github,
            "env": runner.environment | self.env,
            "secrets": runner.secrets,
            "inputs": self.inputs,
            "matrix": runner.matrix,
            "steps": self.steps,
            "runner": {"temp": str(runner.temp), "os": "Linux"},
            "true": True,
            "false": False,
        }
        assert name in contexts, f"the context {name} is not known here"
        return contexts[name]

    def call(self, name, arguments):
        """Result of the function *name*."""
        runner = self.runner
        if name == "success":
            return not runner.failed
        if name == "failure":
            return runner.failed
        if name == "always":
            return True
        if name == "cancelled":
            return False
        if name == "format":
            return re.sub(r"\{(\d+)\}", lambda m: str(arguments[1:][int(m[1])]), arguments[0])
        assert name == "hashFiles", f"the function {name} is not known here"
        path = runner.workspace / arguments[0]
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _shown(value):
    """*value* as GitHub writes it into a text."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Expression:
    """``a.b == 'x' && !f(c) || d``, by recursive descent."""

    def __init__(self, text, scope):
        self.scope = scope
        self.tokens = []
        at = 0
        text = text.strip()
        while at < len(text):
            match = TOKEN.match(text, at)
            assert match, f"cannot read {text!r} at {at}"
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()

    def value(self):
        """Value of the whole expression."""
        value = self._or()
        assert not self.tokens, f"left over: {self.tokens}"
        return value

    def _take(self, *wanted):
        """Remove the next token if it is one of the operators *wanted*, and return it, or None."""
        if self.tokens and self.tokens[0][0] == "op" and self.tokens[0][1] in wanted:
            return self.tokens.pop(0)[1]
        return None

    def _or(self):
        left = self._and()
        while self._take("||"):
            right = self._and()
            left = left or right
        return left

    def _and(self):
        left = self._equal()
        while self._take("&&"):
            right = self._equal()
            left = left and right
        return left

    def _equal(self):
        left = self._not()
        while (op := self._take("==", "!=")) is not None:
            is_equal = _are_equal(left, self._not())
            left = is_equal if op == "==" else not is_equal
        return left

    def _not(self):
        if self._take("!"):
            return not self._not()
        return self._access()

    def _access(self):
        value = self._primary()
        while self._take("."):
            _, name = self.tokens.pop(0)
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def _primary(self):
        if self._take("("):
            value = self._or()
            assert self._take(")")
            return value
        kind, token = self.tokens.pop(0)
        if kind == "text":
            return token[1:-1].replace("''", "'")
        if kind == "number":
            return float(token)
        assert kind == "name", f"unexpected {token!r}"
        if not self._take("("):
            return self.scope.name(token)
        arguments = []
        while not self._take(")"):
            arguments.append(self._or())
            self._take(",")
        return self.scope.call(token, arguments)


def _are_equal(left, right):
    """True if GitHub takes both values for equal: texts without case, other types as numbers."""
    if isinstance(left, str) and isinstance(right, str):
        return left.lower() == right.lower()
    if isinstance(left, dict | list) or isinstance(right, dict | list):
        return left is right
    return _number(left) == _number(right)


def _number(value):
    """*value* as the number that GitHub compares with another type; NaN equals nothing."""
    if not isinstance(value, str):
        return float(value or 0)  # null is 0
    text = value.strip()
    assert not re.match(r"0[xo]|-?Infinity", text), f"the number {text} is not simulated"
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
        return float(text)
    return math.nan if text else 0.0

"""Templates for continuous integration: plan the files of a project, write them, and lint them.

In a checkout the templates are in ``ci/``; a wheel contains the same files next to this module.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bitnet.base import settings
from bitnet.base.errors import InvalidFormat, NotFound, UsageError, from_os_error
from bitnet.base.files import exists, open_file, read_bytes, real_path
from bitnet.base.findings import Finding
from bitnet.base.invocation import direct_url
from bitnet.base.outputs import OutputFile, OutputKind
from bitnet.base.tables import quantity

DEFAULT = ("parity-smoke", "tokenizer-cache", "verify-models", "crossval", "cache-warm")
EVERY = (*DEFAULT, "wheels", "release", "gitlab", "pre-commit", "docker")

_WITHOUT_ACTION = ("wheels", "release", "pre-commit")  # need neither the action nor the scripts
_NEEDS = {"release": ("wheels",)}  # template: others that it calls
_ELSEWHERE = {  # template: its path here, and in the project
    "gitlab": ("gitlab/bitnet-ci.yml", ".gitlab/bitnet-ci.yml"),
    "pre-commit": ("pre-commit/pre-commit-config.yaml", ".pre-commit-config.yaml"),
    "docker": ("docker/Dockerfile", "Dockerfile"),
}
_SOURCE = ".github/bitnet/source.txt"  # says where CI installs this program from
# Texts in the templates: the default branch, the line of the Dockerfile after which a source in the
# project is copied, and lines that name an image.
_BRANCH = "branches: [main]"
_COPIES = "COPY .github/bitnet .github/bitnet\n"
_IMAGE = re.compile(r"^((?:  image:|FROM) )(\S+)", re.MULTILINE)
_BY_DIGEST = re.compile(r"[\w.:/-]+@sha256:[0-9a-f]{64}")
_PINNED = re.compile(r"git\+https://[^\s@]+@[0-9a-f]{40}")  # a requirement of one commit

_BRANCH_NAME = re.compile(r"\w([\w./-]*\w)?")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z/_-]*")  # in YAML, unless it is one of the words
_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})

# A file of the project with other content may have been edited: it is never recognised as ours.
_TEMPLATE = OutputKind("as ci-init writes it", lambda _path: False)

State = Literal["new", "unchanged", "changed"]

_WORKFLOWS = ".github/workflows/*.y*ml"
_ACTIONS = ".github/actions/*/action.y*ml"
_SCRIPTS = ("scripts/*.sh", ".github/actions/*/*.sh")
# Linter: the options and the files of each of its runs. actionlint also passes every ``run:`` block
# to shellcheck.
_SCHEMA = "--builtin-schema"
_QUIET = ("--offline", "--no-progress", "--quiet")
LINTERS: dict[str, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = {
    "check-jsonschema": (
        ((_SCHEMA, "vendor.github-workflows"), (_WORKFLOWS,)),
        ((_SCHEMA, "vendor.github-actions"), (_ACTIONS,)),
    ),
    "zizmor": (((*_QUIET, "--min-severity", "medium"), (_WORKFLOWS, _ACTIONS)),),
    "actionlint": ((("-no-color",), (_WORKFLOWS,)),),
    "shellcheck": (((), _SCRIPTS),),
}


@dataclass(frozen=True)
class Planned:
    """One file to be written."""

    path: Path  # relative to the project
    text: str
    state: State  # ``changed``: it exists with other content
    executable: bool = False


def template_folder() -> Path:
    """The folder with the templates."""
    package = Path(__file__).parent
    for folder in (package, package.parents[1] / "ci"):
        if (folder / "github/bitnet-setup").is_dir():
            return folder
    raise NotFound(f"no templates in {package}", hint="install bitnet again")


def source_of_installation() -> str:
    """Requirement ``git+https://...@COMMIT`` that pip installed this program from.

    It is empty if the program was installed otherwise.
    """
    facts = direct_url()
    commit = facts.get("vcs_info", {}).get("commit_id", "")
    requirement = f"git+{facts.get('url', '')}@{commit}"
    return requirement if _PINNED.fullmatch(requirement) else ""


def plan_files(
    project: Path, names: list[str], *, branch: str = "main", source: str = "", image: str = ""
) -> list[Planned]:
    """Files for a project with the templates *names*, compared with existing ones.

    Files that the templates call are included. CI installs this program from *source*; by default
    from the source that the project records, else from that of this installation. *image* is a
    container image with Python, named by its digest, for templates that run in one; by default the
    image in the project's file. It is refused if no template runs in one.
    """
    if unknown := sorted(set(names) - set(EVERY)):
        text = f"no template {', '.join(unknown)}; there are {', '.join(EVERY)}"
        raise UsageError(text, hint=f"bitnet ci-init --with {EVERY[0]}")
    if not (exists(project) and project.is_dir()):
        raise NotFound(f"no folder {project}", hint="name the root of a project: --project DIR")
    required = {needed for name in names for needed in (name, *_NEEDS.get(name, ()))}
    chosen = [name for name in EVERY if name in required]
    files = [_paths_of(name) for name in chosen]
    records = []
    if any(name not in _WITHOUT_ACTION for name in chosen):
        files += _common_files()
        # The file that records the source stays as it is, unless *source* replaces it.
        path = project / _SOURCE
        recorded = ""
        if exists(path) and not source:
            recorded = _read_text(path)
        last_line = recorded.strip().rpartition("\n")[2]
        source = _find_source(project, source or last_line)
        text = recorded or f"# Where CI installs bitnet from; written by ci-init.\n{source}\n"
        records = [Planned(Path(_SOURCE), text, _state(path, text))]
    branch_in_yaml = _branch_in_yaml(branch)
    planned = []
    for template, target in files:
        text = (template_folder() / template).read_text(encoding="utf-8")
        text = _with_notice(text, template).replace(_BRANCH, f"branches: [{branch_in_yaml}]")
        text = _with_image(project / target, text, image)
        # Without a commit, bitnet is built from a folder or a wheel, which the image needs as well.
        if target == "Dockerfile" and not _PINNED.fullmatch(source):
            text = text.replace(_COPIES, f"{_COPIES}COPY {json.dumps([source, source])}\n")
        state = _state(project / target, text)
        planned.append(Planned(Path(target), text, state, target.endswith(".sh")))
    if image and not any(_IMAGE.search(file.text) for file in planned):
        raise UsageError(
            f"--image {image}: none of the templates {', '.join(chosen)} runs in a container",
            hint="leave it out, or add a template that does: --with gitlab, --with docker",
        )
    return planned + records


def write_files(project: Path, planned: list[Planned], *, force: bool = False) -> None:
    """Write new files, and with *force* those with other content.

    All are checked before the first is written: if one may not be written, none is.
    """
    changed = [str(file.path) for file in planned if file.state == "changed"]
    if changed and not force:
        reason = f"{quantity(len(changed), 'file')} with other content: {', '.join(changed)}"
        hint = "look at the differences, then: bitnet ci-init --force"
        raise UsageError(f"nothing was written: {reason}", hint=hint)
    files = [file for file in planned if file.state != "unchanged"]
    outputs = [OutputFile(project / file.path, _TEMPLATE, force=force) for file in files]
    for output in outputs:
        output.check()
    for file, output in zip(files, outputs, strict=True):
        output.write_text(file.text)
        if file.executable:
            try:
                output.path.chmod(0o755)
            except OSError as error:
                raise from_os_error(error, output.path) from error


def _paths_of(name: str) -> tuple[str, str]:
    """Path of a template here, and in the project."""
    return _ELSEWHERE.get(name, (f"github/{name}.yml", f".github/workflows/{name}.yml"))


def _common_files() -> list[tuple[str, str]]:
    """The action, the scripts and the lock files: paths here, and in the project."""
    folder = template_folder()
    targets = {
        "github/bitnet-setup/*": ".github/actions/bitnet-setup",
        "scripts/*.sh": "scripts",
        "lock/*.txt": ".github/bitnet",
    }
    return [
        (str(path.relative_to(folder)), f"{target}/{path.name}")
        for pattern, target in targets.items()
        for path in sorted(folder.glob(pattern))
    ]


def _with_notice(text: str, template: str) -> str:
    """*text* with a comment that says what wrote it, after a line that names an interpreter."""
    if template.startswith("lock/"):
        return text  # it begins with such a comment
    notice = f"# Written by `bitnet ci-init`; the template is ci/{template} of bitnet.\n"
    if text.startswith("#!"):
        interpreter, _, program = text.partition("\n")
        return f"{interpreter}\n{notice}{program}"
    return notice + text


def _state(path: Path, text: str) -> State:
    """State of the file *path*, which is to have the content *text*."""
    try:
        with open_file(path) as file:
            existing_text = file.read().decode()
    except FileNotFoundError:
        return "new"
    except NotADirectoryError as error:
        raise from_os_error(error, path) from error
    except (OSError, UnicodeDecodeError):
        return "changed"
    return "unchanged" if existing_text == text else "changed"


def _with_image(path: Path, text: str, image: str) -> str:
    """*text*, the template of *path*, with *image*, by default the one that the file *path* names.

    A text that names no image is unchanged. The image must be named by its digest, since a tag can
    be moved to another image.
    """
    tag = _IMAGE.search(text)
    if tag is None:
        return text
    if not image and exists(path):
        # Bytes that are not UTF-8 are in other lines, or else in an image that is refused below.
        existing_image = _IMAGE.search(read_bytes(path).decode(errors="replace"))
        if existing_image is not None:
            image = existing_image[2]
    if not _BY_DIGEST.fullmatch(image):
        raise UsageError(
            f"{path.name} runs in a container, and {image or tag[2]} names no digest of it",
            hint=f"name it by its digest with --image, which this prints: docker buildx imagetools "
            f"inspect {tag[2]}",
        )
    return _IMAGE.sub(rf"\g<1>{image}", text)


def _read_text(path: Path) -> str:
    """The text of the file *path*."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise InvalidFormat(
            f"{path} is not UTF-8 at byte {error.start:,}",
            hint="save it as UTF-8, or delete it and name the source with --from",
        ) from error


def _branch_in_yaml(branch: str) -> str:
    """*branch* as an entry of a list in YAML, quoted if it could be read as another value.

    The names of a workflow are patterns: one with a character of patterns is refused.
    """
    if not _BRANCH_NAME.fullmatch(branch):
        raise UsageError(
            f"--branch is {branch!r}, expected letters, digits and -, _, . or / between them",
            hint="for example --branch main",
        )
    is_plain = _PLAIN.fullmatch(branch) and branch.lower() not in _YAML_WORDS
    return branch if is_plain else json.dumps(branch, ensure_ascii=False)


def _find_source(project: Path, requirement: str) -> str:
    """Source from which CI installs this program: *requirement*, or that of this installation.

    It is pinned to a commit, or a folder or wheel inside *project*; any other one is refused.
    """
    source = requirement or source_of_installation()
    hint = "bitnet ci-init --from git+https://HOST/OWNER/REPO@COMMIT, or --from a folder or a wheel"
    if not source:
        raise UsageError("cannot tell where CI should install this program from", hint=hint)
    if _PINNED.fullmatch(source):
        return source
    is_inside = not Path(source).is_absolute() and ".." not in Path(source).parts
    if "://" in source or not is_inside or not exists(project / source):
        raise UsageError(
            f"--from is {source}, expected git+https:// with @ and a commit of 40 digits, or a "
            "folder or a wheel of the project",
            hint=hint,
        )
    if source.endswith(".whl") and not re.search(r"-(py3|\w+-abi3)-", source):
        raise UsageError(
            f"{source} is for one Python, and the templates run more than one",
            hint="name a commit, a folder, or a wheel for every Python (py3-none-any)",
        )
    return source


def lint(project: Path) -> list[Finding]:
    """A finding of each linter for the workflows, actions and scripts of *project*; offline."""
    folder = real_path(project)

    def find(*patterns: str) -> list[str]:
        return [str(path) for pattern in patterns for path in sorted(folder.glob(pattern))]

    if not find(_WORKFLOWS, _ACTIONS):
        raise NotFound(f"no workflow in {folder / '.github'}", hint="bitnet ci-init")
    findings = []
    for name, runs in LINTERS.items():
        program = shutil.which(name, path=_path())
        if program is None:
            findings.append(Finding("skipped", name, "not installed"))
            continue
        files = [(options, find(*patterns)) for options, patterns in runs]
        reports = [_run([program, *options, *paths], folder) for options, paths in files if paths]
        problems = "\n".join(filter(None, reports))
        findings.append(Finding.from_check(name, not problems, problems or "no problem"))
    return findings


def _path() -> str:
    """Search path for programs, with those that pip installed for this Python or its user first."""
    scripts = str(Path(sys.executable).parent)
    user_scripts = sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))
    return os.pathsep.join([scripts, user_scripts, settings.child_environment().get("PATH", "")])


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

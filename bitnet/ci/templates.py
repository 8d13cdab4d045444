"""The workflow templates, and what writing them into a project would change.

    .github/workflows/<name>.yml            one file for each template
    .github/actions/bitnet-setup/           installs, restores and checks; fetch.sh fetches
    .github/bitnet-requirements.txt         which version of this program CI installs; the project's
    scripts/*.sh                            what the workflows run, and a person can run as well

In a checkout the templates are in ``ci/``; a wheel carries the same files beside this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import bitnet
from bitnet.errors import NotFound, UsageError, from_os_error
from bitnet.files import write_text

__all__ = [
    "DEFAULT",
    "EVERY",
    "Planned",
    "plan_files",
    "summary_of",
    "template_folder",
    "write_files",
]

DEFAULT = (
    "parity-smoke",
    "tokenizer-cache",
    "verify-models",
    "crossval",
    "cache-warm",
    "cache-clean",
)
EVERY = (*DEFAULT, "wheels", "release")

_NEEDS = {"release": ("wheels",)}
_REQUIREMENTS = ".github/bitnet-requirements.txt"
_BRANCH = "branches: [main]"

State = Literal["new", "unchanged", "changed", "kept"]


@dataclass(frozen=True)
class Planned:
    """One file as it would be written.

    Attributes:
        path: relative to the project.
        text: its content.
        state: ``new``, ``unchanged``, ``changed`` (there, with other content) or ``kept`` (the
            project's own from the first run on).
        executable: it is a script.
    """

    path: Path
    text: str
    state: State
    executable: bool = False


def template_folder() -> Path:
    """The folder with the templates.

    Raises:
        NotFound: this installation has none.
    """
    package = Path(__file__).parent
    for folder in (package, package.parents[1] / "ci"):
        if (folder / "github/bitnet-setup").is_dir():
            return folder
    raise NotFound(
        f"no workflow templates in {package}", hint="install again: pip install bitnet-xtask"
    )


def summary_of(name: str) -> str:
    """What the template *name* is for, in one sentence."""
    path = template_folder() / f"github/{name}.yml"
    return path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def plan_files(project: Path, names: list[str], *, branch: str = "main") -> list[Planned]:
    """What a project gets with the templates *names*, and how that differs from what it has.

    Args:
        project: root of the project.
        names: of :data:`EVERY`; what they call comes with them.
        branch: the project's default branch.

    Raises:
        UsageError: there is no such template.
        NotFound: the project does not exist.
    """
    unknown = sorted(set(names) - set(EVERY))
    if unknown:
        raise UsageError(
            f"no workflow template {', '.join(unknown)}; there are {', '.join(EVERY)}",
            hint=f"bitnet ci-init --with {EVERY[0]}",
        )
    if not project.is_dir():
        raise NotFound(f"no folder {project}", hint="name the root of a project: --into DIR")
    wanted = [name for name in EVERY if name in _with_needs(names)]
    source = template_folder()
    files = {f".github/workflows/{name}.yml": source / f"github/{name}.yml" for name in wanted}
    if any(name in DEFAULT for name in wanted):
        setup = source / "github/bitnet-setup"
        files |= {f".github/actions/bitnet-setup/{p.name}": p for p in sorted(setup.iterdir())}
        files |= {f"scripts/{p.name}": p for p in sorted((source / "scripts").glob("*.sh"))}
    planned = []
    for name, path in files.items():
        text = path.read_text(encoding="utf-8").replace(_BRANCH, f"branches: [{branch}]")
        state = _state(project / name, text)
        planned.append(Planned(Path(name), text, state, executable=path.suffix == ".sh"))
    if any(name in DEFAULT for name in wanted):
        planned.append(_requirements(project, wanted))
    return planned


def write_files(project: Path, planned: list[Planned], *, force: bool = False) -> None:
    """Write what is new, and with *force* what has other content; all of it or nothing.

    Raises:
        UsageError: files have other content, and *force* is off.
        PermissionDenied: the project may not be written.
    """
    changed = [str(file.path) for file in planned if file.state == "changed"]
    if changed and not force:
        raise UsageError(
            f"nothing was written: {len(changed)} files are there with other content: "
            + ", ".join(changed),
            hint="look at the differences, then: bitnet ci-init --force",
        )
    for file in planned:
        if file.state in ("unchanged", "kept"):
            continue
        path = project / file.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, file.text)
            if file.executable:
                path.chmod(0o755)
        except OSError as error:
            raise from_os_error(error, path) from error


def _with_needs(names: list[str]) -> set[str]:
    return {needed for name in names for needed in (name, *_NEEDS.get(name, ()))}


def _state(path: Path, text: str) -> State:
    try:
        there = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return "new"
    except NotADirectoryError as error:
        raise from_os_error(error, path) from error
    except (OSError, UnicodeDecodeError):
        return "changed"
    return "unchanged" if there == text else "changed"


def _requirements(project: Path, wanted: list[str]) -> Planned:
    """What CI installs: this very version; a project may change it, and it is left alone then."""
    extra = "[crossval]" if "crossval" in wanted else ""
    text = f"bitnet-xtask{extra}=={bitnet.__version__}\n"
    state: State = "kept" if (project / _REQUIREMENTS).exists() else "new"
    return Planned(Path(_REQUIREMENTS), text, state)

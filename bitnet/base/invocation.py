"""Commands for hints, as the user can paste them: how this process was started and installed.

In the code, texts call the program ``bitnet``. When a text is shown, the command that started this
process replaces that name: ``inv`` in a checkout, ``.venv/bin/inv`` if ``inv`` is not on the search
path, or ``python -m bitnet``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROGRAMS = ("bitnet", "inv", "invoke")
# A command in a text: at the start, after a blank, bracket, backtick or quote; not a path, and not
# `bitnet` alone. The result of `program` does not match: `as_started` may see a text twice.
_COMMAND = re.compile(r"(?<![^\s(`'\"])(?<!-m )bitnet(?= (?:[a-z]|--|COMMAND)[\w.-]*)")

# C0 and C1 except tab and line feed, and characters that change the text direction.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

# ``-I`` ignores the working folder, but also PYTHONPATH and the user's packages: add them again.
_RUN = (
    "import runpy, sys; sys.path += sys.argv.pop(1).split({sep!r}); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)

PACKAGE = "bitnet-xtask"
# Keys of a package in the receipt of uv that its options can express.
_KEYS_OF_UV = {
    "name", "extras", "specifier", "marker", "directory", "editable", "path", "url", "git",
    "subdirectory",
}  # fmt: skip


def isolate(module: str, *words: str) -> list[str]:
    """Command that runs *module* with the packages of this process.

    Unlike ``python -m``, it does not search the working folder first, which may be that of a
    downloaded model: a ``json.py`` in it would be imported instead of Python's.
    """
    here = Path.cwd()
    places = [place for place in sys.path if place and Path(place).resolve() != here]
    places.append(str(Path(__file__).parents[2]))  # this program, whatever put it on the path
    command = [sys.executable, "-I", "-X", f"utf8={sys.flags.utf8_mode}"]
    return [*command, "-c", _RUN.format(sep=os.pathsep), os.pathsep.join(places), module, *words]


def program() -> str:
    """Words that start this program in a shell; ``bitnet`` if another program imported it."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py" and script.parent.name in _PROGRAMS:
        return f"{as_typed(sys.orig_argv[0])} -m {script.parent.name}"
    name = script.name.removesuffix(".exe")
    return as_typed(sys.argv[0]) if name in _PROGRAMS else "bitnet"


def as_typed(path: str) -> str:
    """*path* as a shell word: only its name if the search path finds it."""
    name = Path(path).name
    on_path = shutil.which(name)
    is_found = on_path is not None and Path(on_path).absolute() == Path(path).absolute()
    return name if is_found else shlex.quote(path)


def shell_quote(path: str | os.PathLike[str]) -> str:
    """*path* as one quoted word of a command."""
    return shlex.quote(os.fspath(path))


def harmless(text: str) -> str:
    """*text* with terminal control characters escaped, except line ends and tabs."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def as_started(text: str) -> str:
    """*text* with its commands as the user would type them; a second call changes nothing."""
    return _COMMAND.sub(lambda _: program(), text)


def extra_command(extra: str) -> str:
    """Command of pip, uv or pipx that installs the requirements of *extra*.

    It names the requirements instead of this package with the extra, so that no index needs to have
    this package, and nothing is compiled.
    """
    from importlib.metadata import PackageNotFoundError, requires

    # Metadata of a wheel: ``uvicorn>=0.32; extra == "serve"``.
    of_extra = re.compile(rf"([^;]+?) *;.*extra == ['\"]{re.escape(extra)}['\"]")
    required = []
    with suppress(PackageNotFoundError):  # it runs from its sources, without metadata
        required = [m[1] for text in requires(PACKAGE) or [] if (m := of_extra.match(text))]
    requirements = [shlex.quote(text) for text in required or [f"{PACKAGE}[{extra}]"]]
    packages = " ".join(requirements)
    if _has("pipx_metadata.json"):
        return f"pipx inject {PACKAGE} {packages}"
    if not _has("uv-receipt.toml"):
        return f"{_pip_install()} {packages}"
    receipt = _receipt_of_uv()
    if receipt is None:
        return f"uv pip install --python {as_typed(sys.executable)} {packages}"
    added, extras = receipt
    new = [f"--with {requirement}" for requirement in requirements]
    return f"uv tool install {' '.join([*added, *new])} {_source(extras)}"


def reinstall_command() -> str:
    """Command that installs this program again from its origin."""
    if _has("pipx_metadata.json"):
        return f"pipx reinstall {PACKAGE}"
    if _has("uv-receipt.toml"):
        receipt = _receipt_of_uv()
        if receipt is None:
            return f"uv tool upgrade --reinstall {PACKAGE}"
        added, extras = receipt
        return " ".join(["uv tool install --reinstall", *added, _source(extras)])
    editable = "-e " if direct_url().get("dir_info", {}).get("editable") else ""
    return f"{_pip_install()} --force-reinstall --no-deps {editable}{_source()}"


def direct_url() -> dict[str, Any]:
    """Origin of this installation as its installer recorded it (PEP 610); empty for an index."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        facts = json.loads(distribution(PACKAGE).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _receipt_of_uv() -> tuple[list[str], list[str]] | None:
    """Options that add again what ``uv tool install`` added before, and extras of this package.

    The next ``uv tool install`` removes the packages that it does not name again. None: the receipt
    cannot be read, or has a package that no option names.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    options: list[str] = []
    own_extras: list[str] = []
    try:
        receipt = tomllib.loads((Path(sys.prefix) / "uv-receipt.toml").read_text(encoding="utf-8"))
        for entry in receipt.get("tool", {}).get("requirements", []):
            if entry["name"] == PACKAGE:
                own_extras += entry.get("extras", [])
            else:
                options.append(_option_of_uv(entry))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return options, own_extras


def _option_of_uv(entry: dict[str, Any]) -> str:
    """Option of ``uv tool install`` for a package of its receipt (uv 0.13), from the same origin.

    A key of *entry* without a counterpart, such as that of an index, is a ``ValueError``.
    """
    if unknown := entry.keys() - _KEYS_OF_UV:
        raise ValueError(f"unknown keys: {unknown}")
    extras = ",".join(entry.get("extras", []))
    bracketed = f"[{extras}]" if extras else ""
    if "editable" in entry:
        return f"--with-editable {shlex.quote(entry['editable'] + bracketed)}"
    requirement = f"{entry['name']}{bracketed}{entry.get('specifier', '')}"
    if origin := _origin_of_uv(entry):
        requirement += f" @ {origin}"
    if "marker" in entry:
        requirement += f" ; {entry['marker']}"
    return f"--with {shlex.quote(requirement)}"


def _origin_of_uv(entry: dict[str, Any]) -> str:
    """Address from which uv installed the package *entry*; empty for one from an index.

    An unknown part in the address of a repository is a ``ValueError``.
    """
    path = entry.get("directory") or entry.get("path")
    if path:
        return Path(path).as_uri()
    if "git" not in entry:
        fragment = f"#subdirectory={entry['subdirectory']}" if "subdirectory" in entry else ""
        return f"{entry['url']}{fragment}" if "url" in entry else ""
    address = urlsplit(entry["git"])
    parts = dict(parse_qsl(address.query, strict_parsing=bool(address.query)))
    subdirectory = parts.pop("subdirectory", "")
    revisions = [parts.pop(kind) for kind in ("rev", "tag", "branch") if kind in parts]
    if parts or len(revisions) > 1:
        raise ValueError(f"unknown parts: {address.query}")
    repository = urlunsplit(address._replace(query="", fragment=""))
    revision = f"@{revisions[0]}" if revisions else ""
    fragment = f"#subdirectory={subdirectory}" if subdirectory else ""
    return f"git+{repository}{revision}{fragment}"


def _has(name: str) -> bool:
    """True if Python's environment has the file *name*, by which uv or pipx marks its own ones."""
    return (Path(sys.prefix) / name).exists()


def _pip_install() -> str:
    """Beginning of a command that installs packages for this Python: with pip, or else with uv."""
    python = as_typed(sys.executable)
    if importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {python}"
    return f"{python} -m pip install"


def _source(extras: Sequence[str] = ()) -> str:
    """Requirement that installs this package with *extras* from its origin, as one shell word.

    The origin is a path, an address or, if it came from an index, the name of the package.
    """
    facts = direct_url()
    address = facts.get("url", "")
    bracketed = f"[{','.join(extras)}]" if extras else ""
    if address.startswith("file:"):
        from urllib.request import url2pathname  # here: it imports modules that open connections

        return shlex.quote(f"{url2pathname(urlsplit(address).path)}{bracketed}")
    if commit := facts.get("vcs_info", {}).get("commit_id"):
        address = f"git+{address}@{commit}"
    if address and bracketed:
        address = f"{PACKAGE}{bracketed} @ {address}"
    return shlex.quote(address or f"{PACKAGE}{bracketed}")

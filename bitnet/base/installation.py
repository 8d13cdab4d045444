"""Installer of this program: hints name the command that changes this very installation.

The requirements of an extra are installed rather than the package with the extra: that works where
no index has the package, and compiles nothing again.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from bitnet.base.invocation import as_typed

PACKAGE = "bitnet-xtask"


def extra_command(extra: str) -> str:
    """Command that installs the requirements of *extra*: of pip, uv or pipx."""
    packages = " ".join(map(shlex.quote, _requirements(extra) or [f"{PACKAGE}[{extra}]"]))
    if _has("pipx_metadata.json"):
        return f"pipx inject {PACKAGE} {packages}"
    if _has("uv-receipt.toml"):
        more = " ".join(f"--with {package}" for package in [*_packages_of_uv(), *packages.split()])
        return f"uv tool install {more} {_source()}"
    return f"{_pip_install()} {packages}"


def reinstall_command() -> str:
    """Command that installs this program again from where it came."""
    if _has("pipx_metadata.json"):
        return f"pipx reinstall {PACKAGE}"
    if _has("uv-receipt.toml"):
        return f"uv tool install --reinstall {_source()}"
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


def _requirements(extra: str) -> list[str]:
    """Requirements of *extra*, without the marker that says so."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        declared = requires(PACKAGE) or []
    except PackageNotFoundError:  # run from its sources
        return []
    of_extra = re.compile(rf"([^;]+?) *;.*extra == ['\"]{re.escape(extra)}['\"]")
    return [match[1] for text in declared if (match := of_extra.match(text))]


def _packages_of_uv() -> list[str]:
    """Packages that ``uv tool install --with`` added before: it removes those it is not given."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    receipt = tomllib.loads((Path(sys.prefix) / "uv-receipt.toml").read_text(encoding="utf-8"))
    return [
        shlex.quote(f"{entry['name']}{_extras_of(entry)}{entry.get('specifier', '')}")
        for entry in receipt.get("tool", {}).get("requirements", [])
        if entry["name"] != PACKAGE
    ]


def _extras_of(entry: dict[str, Any]) -> str:
    """Extras of a requirement in a receipt of uv, as a requirement has them: ``[data]``."""
    return f"[{','.join(entry['extras'])}]" if entry.get("extras") else ""


def _has(name: str) -> bool:
    """True if the environment has the file *name*, with which its tool marks it."""
    return (Path(sys.prefix) / name).exists()


def _pip_install() -> str:
    python = as_typed(sys.executable)
    if importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {python}"
    return f"{python} -m pip install"


def _source() -> str:
    """Origin of this installation as one word of a shell: a path, an address or its name."""
    facts = direct_url()
    address = facts.get("url", "")
    if address.startswith("file:"):
        return shlex.quote(url2pathname(urlsplit(address).path))
    if commit := facts.get("vcs_info", {}).get("commit_id"):
        return shlex.quote(f"git+{address}@{commit}")
    return shlex.quote(address or PACKAGE)

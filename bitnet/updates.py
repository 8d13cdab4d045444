"""Newer versions of this program, as far as files on this machine tell; nothing is fetched."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import bitnet
from bitnet.base.findings import Finding
from bitnet.base.installation import direct_url, reinstall_command

_VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)
_SUBJECT = "updates"


def check_updates() -> Finding:
    """Finding on the source of this installation: whether it is known to have a newer version."""
    facts = direct_url()
    address = str(facts.get("url", ""))
    if not address.startswith("file:"):
        known = facts.get("vcs_info", {}).get("commit_id")
        origin = f"commit {known[:12]}" if known else "a package index"
        return Finding(
            "skipped", _SUBJECT, f"installed from {origin}; newer ones are not looked up"
        )
    folder = Path(url2pathname(urlsplit(address).path))
    if not folder.is_dir():
        return Finding(
            "skipped", _SUBJECT, f"installed from {folder}; newer ones are not looked up"
        )
    if facts.get("dir_info", {}).get("editable"):
        return _of_checkout(folder)
    try:
        source = (folder / "bitnet/__init__.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return Finding("skipped", _SUBJECT, f"installed from {folder}, which is gone")
    version = match[1] if (match := _VERSION.search(source)) else ""
    if version and version != bitnet.__version__:
        text = f"{folder} has version {version}, installed is {bitnet.__version__}"
        return Finding("note", _SUBJECT, text, f"install it again: {reinstall_command()}")
    return Finding("ok", _SUBJECT, f"{folder} has the version that is installed")


def _of_checkout(folder: Path) -> Finding:
    """Finding on a checkout: the last fetch of its branch against its commit.

    The files of git are read rather than git run: the configuration of a checkout names programs.
    """
    git = folder / ".git"
    branch = _line(git / "HEAD").removeprefix("ref: refs/heads/")
    local, remote = (_commit(git, f"refs/{kind}/{branch}") for kind in ("heads", "remotes/origin"))
    if not (local and remote):
        return Finding("skipped", _SUBJECT, f"{folder} has no branch that follows an origin")
    # A commit that was checked out here before is older.
    if remote == local or remote in _line(git / f"logs/refs/heads/{branch}", whole=True):
        return Finding("ok", _SUBJECT, f"{folder} has what was last fetched from origin/{branch}")
    text = f"origin/{branch} has other commits than {folder}, as of the last `git fetch`"
    return Finding("note", _SUBJECT, text, f"git pull; then: {reinstall_command()}")


def _commit(git: Path, ref: str) -> str:
    if loose := _line(git / ref):
        return loose
    packed = re.search(
        rf"^([0-9a-f]+) {re.escape(ref)}$", _line(git / "packed-refs", whole=True), re.M
    )
    return packed[1] if packed else ""


def _line(path: Path, *, whole: bool = False) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    return text if whole else text.strip()

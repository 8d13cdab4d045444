"""README and addresses for the page of a package index, where links have to be absolute.

A metadata provider of scikit-build-core. The repository is the one that the source was cloned from
(``remote "origin"`` in ``.git/config``), or the one that a source package names; if neither is
known, links stay relative and there are no addresses.
"""

from __future__ import annotations

import re
from email.parser import HeaderParser
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["absolute", "dynamic_metadata", "repository"]

ROOT = Path(__file__).parents[1]
PLACES = {
    "Source": "",
    "Documentation": "/tree/HEAD/docs",
    "Changelog": "/blob/HEAD/CHANGELOG.md",
    "Issues": "/issues",
}
_BY_SSH = re.compile(r"git@(?P<host>[\w.-]+):(?P<path>.+)")
# Lines of a git config, as its manual describes them.
_SECTION = re.compile(r'\[(?P<name>[\w.-]+)(?:\s+"(?P<part>(?:[^"\\]|\\.)*)")?\s*\]')
_ENTRY = re.compile(r"(?P<key>[A-Za-z][\w-]*)\s*=(?P<value>.*)")
_VALUE = re.compile(r'"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^"#;\\]+)|\\(?P<escaped>.)|[#;].*')
_TARGET = r"\((?P<target>(?!#|\w+:)[^)\s]+)(?P<title>\s+\"[^\"]*\")?\)"
_IMAGE = re.compile(r"(?P<text>!\[[^\]]*\])" + _TARGET)
# Of a text with or without images.
_LINK = re.compile(r"(?P<text>(?<!!)\[(?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*\])" + _TARGET)


def repository(root: Path) -> str:
    """Address of the repository that *root* was cloned from, without user or token, or empty."""
    try:
        text = (root / ".git/config").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _of_source_package(root)
    url = _origin_in(text)
    if by_ssh := _BY_SSH.fullmatch(url):
        host = by_ssh["host"]
        path = by_ssh["path"]
    else:
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
            # The port of an SSH server is not that of its pages.
            port = parts.port if parts.scheme == "https" else None
        except ValueError:
            return _of_source_package(root)
        is_ssh = parts.scheme == "ssh" and parts.username == "git"
        if not host or not (is_ssh or parts.scheme == "https"):
            return _of_source_package(root)
        if ":" in host:
            host = f"[{host}]"
        if port:
            host = f"{host}:{port}"
        path = parts.path
    return f"https://{host}/{path.strip('/').removesuffix('.git')}"


def _origin_in(config: str) -> str:
    """The first ``url`` of ``remote "origin"`` in the text of a git *config*, or an empty text."""
    is_origin = False
    for line in config.replace("\\\n", "").splitlines():
        entry_text = line.strip()
        if section := _SECTION.match(entry_text):
            is_origin = (section["name"].lower(), section["part"]) == ("remote", "origin")
            entry_text = entry_text[section.end() :].strip()
        entry = _ENTRY.fullmatch(entry_text)
        if is_origin and entry and entry["key"].lower() == "url":
            parts = [
                re.sub(r"\\(.)", r"\1", part["quoted"] or "")
                + (part["plain"] or "")
                + (part["escaped"] or "")
                for part in _VALUE.finditer(entry["value"])
            ]
            return "".join(parts).strip()
    return ""


def _of_source_package(root: Path) -> str:
    """Address that ``PKG-INFO`` in *root* has as ``Source``, or an empty text."""
    facts = root / "PKG-INFO"
    if not facts.is_file():
        return ""
    lines = HeaderParser().parsestr(facts.read_text(encoding="utf-8")).get_all("Project-URL", [])
    urls = dict(line.split(", ", 1) for line in lines)
    return urls.get("Source", "")


def absolute(markdown: str, address: str) -> str:
    """*markdown* with relative links to files of the repository made absolute, below *address*."""

    def below(kind: str, match: re.Match[str]) -> str:
        title = match["title"] or ""
        return f"{match['text']}({address}/{kind}/HEAD/{match['target']}{title})"

    with_images = _IMAGE.sub(partial(below, "raw"), markdown)
    return _LINK.sub(partial(below, "blob"), with_images)


def dynamic_metadata(field: str, _settings: Mapping[str, Any] | None = None) -> Any:
    """Value of *field* for scikit-build-core, which asks for ``urls`` and ``readme``."""
    address = repository(ROOT)
    if field == "urls":
        return {name: address + place for name, place in PLACES.items()} if address else {}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if address:
        text = absolute(text, address)
    return {"text": text, "content-type": "text/markdown"}

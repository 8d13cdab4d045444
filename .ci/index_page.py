"""README and addresses for the page of a package index, where links have to be absolute.

A metadata provider of scikit-build-core. The repository is the one that the source was cloned from
(``remote "origin"`` in ``.git/config``), or the one that a source package names; if neither is
known, links stay relative and there are no addresses.
"""

from __future__ import annotations

import configparser
import re
from email.parser import HeaderParser
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
_BY_SSH = re.compile(r"(?:ssh://)?git@(?P<host>[\w.-]+)[:/](?P<path>.+)")
_LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>(?!#|\w+:)[^)\s]+)\)")


def repository(root: Path) -> str:
    """Address of the repository that *root* was cloned from, without user or token, or empty."""
    config = configparser.ConfigParser(strict=False, interpolation=None)
    config.read(root / ".git/config", encoding="utf-8")
    url = config.get('remote "origin"', "url", fallback="")
    if by_ssh := _BY_SSH.fullmatch(url):
        host = by_ssh["host"]
        path = by_ssh["path"]
    else:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            return _of_source_package(root)
        host = parts.hostname
        path = parts.path
    return f"https://{host}/{path.strip('/').removesuffix('.git')}"


def _of_source_package(root: Path) -> str:
    facts = root / "PKG-INFO"
    if not facts.is_file():
        return ""
    lines = HeaderParser().parsestr(facts.read_text(encoding="utf-8")).get_all("Project-URL", [])
    urls = dict(line.split(", ", 1) for line in lines)
    return urls.get("Source", "")


def absolute(markdown: str, address: str) -> str:
    """*markdown* with relative links to files of the repository made absolute, below *address*."""

    def link(match: re.Match[str]) -> str:
        kind = "raw" if match["text"].startswith("!") else "blob"
        return f"{match['text']}({address}/{kind}/HEAD/{match['target']})"

    return _LINK.sub(link, markdown)


def dynamic_metadata(field: str, _settings: Mapping[str, Any] | None = None) -> Any:
    """The project's ``urls`` or ``readme``."""
    address = repository(ROOT)
    if field == "urls":
        return {name: address + place for name, place in PLACES.items()} if address else {}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if address:
        text = absolute(text, address)
    return {"text": text, "content-type": "text/markdown"}

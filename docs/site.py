"""Hooks of mkdocs: pages from outside ``docs/``, and the links between all of them.

A link in a page leads to a file of the repository. On the site it leads to the page made of that
file; a file without a page is named without a link, and what is not there at all fails the build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Pages and pictures outside of ``docs/``, and the folder of the site for them.
OUTSIDE = {
    "*.md": "",
    "benchmarks/results/*.md": "measurements/",
    "benchmarks/results/*.svg": "measurements/",
}
NOT_A_PAGE = "README.md"  # the site's own first page is docs/README.md
LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put all pages of a folder where the navigation names the folder."""
    for section in config.nav or ():
        for name, entries in section.items():
            if isinstance(entries, str):
                section[name] = _entries(entries)
            else:
                section[name] = [
                    {k: _entries(v) for k, v in entry.items()} if isinstance(entry, dict) else entry
                    for entry in entries
                ]
    return config


def _entries(named: str) -> str | list[str]:
    """The page *named*, or the sorted pages of the folder *named*, which ends with a slash."""
    if not named.endswith("/"):
        return named
    outside = [folder + path.name for folder, path in _outside() if path.suffix == ".md"]
    inside = [f"{named}{path.name}" for path in (ROOT / "docs" / named).glob("*.md")]
    return sorted(inside + [uri for uri in outside if uri.startswith(named)])


def _outside() -> Iterator[tuple[str, Path]]:
    """Yield ``(folder of the site, path)`` of each page and picture from outside ``docs/``."""
    for pattern, folder in OUTSIDE.items():
        for path in sorted(ROOT.glob(pattern)):
            if path.name != NOT_A_PAGE:
                yield folder, path


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages and pictures from outside."""
    for folder, path in _outside():
        files.append(File.generated(config, folder + path.name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead each link to the page of the site for the file that it names."""
    pages = {Path(file.abs_src_path).resolve(): file.src_uri for file in files if file.abs_src_path}
    here = Path(page.file.abs_src_path or config.docs_dir).parent

    def link(match: re.Match[str]) -> str:
        """The link of *match* for the site."""
        target = (here / match["target"]).resolve()
        uri = pages.get(target)
        if uri is None:
            return match["text"].lstrip("!")[1:-1] if target.exists() else match[0]
        relative = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
        return f"{match['text']}({relative}{match['anchor'] or ''})"

    return LINK.sub(link, markdown)

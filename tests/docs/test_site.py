"""The documentation's site: built strictly, without other hosts, and without broken links."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
# Attributes whose addresses must be of this site; only the href of an `a` may lead elsewhere.
LOCAL = ("src", "srcset", "poster", "data", "action", "href")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("material") is None,
        reason="mkdocs is not installed; pip install 'bitnet-xtask[site]'",
    ),
]


class Page(HTMLParser):
    """Links, assets, ids and classes of one page, given its HTML."""

    def __init__(self, text):
        super().__init__()
        self.links = []
        self.assets = []
        self.ids = set()
        self.classes = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id":
                self.ids.add(value)
            elif name == "class":
                self.classes |= set((value or "").split())
            elif name == "href" and tag == "a":
                self.links.append(value)
            elif name in LOCAL and value:
                self.assets.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder with the built site."""
    folder = tmp_path_factory.mktemp("site")
    words = ["-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "SITE_URL": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_every_page_of_the_tree_is_on_the_site(site):
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / str(name).replace("README", "index")).exists(), page
    assert (site / "measurements/runtime.html").exists()
    assert not [*site.rglob("*.py"), *site.rglob("__pycache__"), *site.rglob("*.pyc")]


def test_the_first_page_begins_with_install_command_picture_and_table(site):
    home = re.sub(r"</?(?:span|a)\b[^>]*>", "", (site / "index.html").read_text(encoding="utf-8"))
    signs = ("pip install", "bitnet run", "images/terminal.svg", "<table>")
    places = [home.index(sign, home.index("<h1")) for sign in signs]
    assert places == sorted(places)
    assert "0001-one-native-module" not in home[home.index("<h1") :]  # the list of decisions


def test_no_page_asks_another_host_for_anything(site, pages):
    assets = {(path.name, asset) for path, page in pages.items() for asset in page.assets}
    assert len(assets) > len(pages)
    assert not [(name, asset) for name, asset in assets if urlsplit(asset).netloc]
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert styles
    assert not [text for text in styles if "url(http" in text or "url(//" in text]
    # On a page with a Mermaid diagram, the theme's script loads the library from another host.
    assert not [path for path, page in pages.items() if "mermaid" in page.classes]


def test_every_link_within_the_site_leads_somewhere(site, pages):
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute: any address may be missing
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            known = pages[target].ids if target in pages else ()
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in known):
                broken.append((path.relative_to(site), link))
    assert broken == []


def test_a_measurement_is_linked_from_the_page_that_names_it(site, pages):
    links = pages[site / "how-to/crossval.html"].links
    assert "../measurements/crossval.html" in links

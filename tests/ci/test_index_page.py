"""Metadata for the page of a package index: absolute links, addresses, and no secret in them."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
HERE = "https://example.org/me/bitnet"


@pytest.fixture
def index_page():
    spec = importlib.util.spec_from_file_location("index_page", ROOT / ".ci/index_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cloned(folder, url):
    (folder / ".git").mkdir(exist_ok=True)
    (folder / ".git/config").write_text(
        f'[core]\n\tbare = false\n[remote "origin"]\n\turl = {url}\n'
    )
    return folder


@pytest.mark.parametrize(
    "url",
    [
        HERE,
        f"{HERE}.git",
        "https://user:secret@example.org/me/bitnet.git",
        "git@example.org:me/bitnet.git",
        "ssh://git@example.org/me/bitnet",
    ],
)
def test_the_repository_is_the_one_that_was_cloned(index_page, tmp_path, url):
    assert index_page.repository(cloned(tmp_path, url)) == HERE


@pytest.mark.parametrize("url", ["/home/me/bitnet", "file:///home/me/bitnet", "http://host/x", ""])
def test_a_folder_is_not_an_address(index_page, tmp_path, url):
    assert index_page.repository(cloned(tmp_path, url)) == ""


def test_a_source_package_keeps_the_address_it_was_made_with(index_page, tmp_path):
    assert index_page.repository(tmp_path) == ""
    facts = f"Name: x\nProject-URL: Issues, {HERE}/issues\nProject-URL: Source, {HERE}\n\nText\n"
    (tmp_path / "PKG-INFO").write_text(facts)
    assert index_page.repository(tmp_path) == HERE


def test_every_link_and_picture_of_the_readme_becomes_absolute(index_page, tmp_path, monkeypatch):
    monkeypatch.setattr(index_page, "ROOT", cloned(tmp_path, HERE))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    made = index_page.dynamic_metadata("readme")
    assert made["content-type"] == "text/markdown"
    links = re.findall(r"\]\(([^)]+)\)", made["text"])
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", text)) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert f"({HERE}/raw/HEAD/docs/images/speed.svg)" in made["text"]
    assert f"({HERE}/blob/HEAD/docs/tutorial.md)" in made["text"]


def test_the_addresses_are_known_or_left_out(index_page, tmp_path, monkeypatch):
    monkeypatch.setattr(index_page, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("[a](b.md)", encoding="utf-8")
    assert index_page.dynamic_metadata("urls") == {}
    assert index_page.dynamic_metadata("readme")["text"] == "[a](b.md)"
    cloned(tmp_path, HERE)
    urls = index_page.dynamic_metadata("urls")
    assert urls["Source"] == HERE
    assert urls["Changelog"] == f"{HERE}/blob/HEAD/CHANGELOG.md"


def test_they_are_a_part_of_the_build():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {"readme", "urls"} <= set(project["project"]["dynamic"])
    metadata = project["tool"]["scikit-build"]["metadata"]
    assert all(metadata[name]["provider"] == "index_page" for name in ("readme", "urls"))

"""Metadata for the page of a package index: absolute links, addresses, and no secret in them."""

import importlib.util
import re
import subprocess
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
    """The metadata provider ``.ci/index_page.py`` as a module."""
    spec = importlib.util.spec_from_file_location("index_page", ROOT / ".ci/index_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_git_config(folder, url):
    """Make *folder* look like a clone of *url*; returns *folder*."""
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
        "ssh://git@example.org:2222/me/bitnet.git",
    ],
)
def test_the_repository_is_the_one_that_was_cloned(index_page, tmp_path, url):
    assert index_page.repository(write_git_config(tmp_path, url)) == HERE


def test_an_address_keeps_its_port(index_page, tmp_path):
    for host in ("git.example.org:8443", "[::1]:8443"):
        write_git_config(tmp_path, f"https://user:secret@{host}/a/b.git")
        assert index_page.repository(tmp_path) == f"https://{host}/a/b"


# Each gives HERE as the first url of the remote "origin": a key without a value, names in any case
# and on one line, quotes and comments, other sections, a line that goes on, and damaged lines.
GIT_CONFIGS = (
    '[core]\n\tbare\n[remote "origin"]\n\turl = {url}\n\t\tfetch = x\n',
    '[Remote "origin"] URL={url} ; a comment\n',
    '[remote "origin"]\n\turl = "{url}" # a comment\n\turl = https://h/second\n',
    '[remote "other"]\n\turl = https://h/other\n[remote "origin"]\nurl = {url}\n[x]\nurl = y',
    '[remote "origin"]\n\turl = https://example.org/\\\nme/bitnet\n',
    '# [remote "origin"]\n%%%\n=\n[a\n[remote "origin"]\nurl = {url}\n\xff',
)


def write_git_config_of_text(project, text):
    """Make *text* the configuration of git in the folder *project*; its path."""
    path = project / ".git/config"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode("latin-1"))
    return path


@pytest.mark.parametrize("config", GIT_CONFIGS)
def test_every_form_of_a_git_config_is_read(config, index_page, tmp_path):
    write_git_config_of_text(tmp_path, config.format(url=HERE))
    assert index_page.repository(tmp_path) == HERE


@pytest.mark.slow  # the job of slow tests has git
@pytest.mark.needs("git")
@pytest.mark.parametrize("config", [text for text in GIT_CONFIGS if "%%%" not in text])
def test_git_reads_the_same_from_each_config_that_is_not_damaged(config, tmp_path):
    path = write_git_config_of_text(tmp_path, config.format(url=HERE))
    command = ["git", "config", "--file", path, "--get-all", "remote.origin.url"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == HERE


@pytest.mark.parametrize(
    "url",
    [
        "/home/me/bitnet", "file:///home/me/bitnet", "http://host/x", "", "https://h:x/a",
        "https://[/a", "ssh://me@host/home/me/bitnet",
    ],
)  # fmt: skip
def test_an_origin_that_is_not_a_web_address_gives_none(index_page, tmp_path, url):
    assert index_page.repository(write_git_config(tmp_path, url)) == ""


def test_a_source_package_keeps_the_address_it_was_made_with(index_page, tmp_path):
    assert index_page.repository(tmp_path) == ""
    facts = f"Name: x\nProject-URL: Issues, {HERE}/issues\nProject-URL: Source, {HERE}\n\nText\n"
    (tmp_path / "PKG-INFO").write_text(facts)
    assert index_page.repository(tmp_path) == HERE


def test_every_link_and_picture_of_the_readme_becomes_absolute(index_page, tmp_path, monkeypatch):
    monkeypatch.setattr(index_page, "ROOT", write_git_config(tmp_path, HERE))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    readme = index_page.dynamic_metadata("readme")
    assert readme["content-type"] == "text/markdown"
    links = re.findall(r"\]\(([^)]+)\)", readme["text"])
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", text)) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    # A picture needs the file itself, a link the page about it.
    assert f"({HERE}/raw/HEAD/docs/images/speed.svg)" in readme["text"]
    assert f"({HERE}/blob/HEAD/docs/tutorial.md)" in readme["text"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](b.md)", "[a](H/blob/HEAD/b.md)"),
        ('[a](b.md "title")', '[a](H/blob/HEAD/b.md "title")'),
        ("![a](b.svg)", "![a](H/raw/HEAD/b.svg)"),
        ("[![a](b.svg)](c.md)", "[![a](H/raw/HEAD/b.svg)](H/blob/HEAD/c.md)"),
        ("[![a](https://x/b.svg) c](d.md)", "[![a](https://x/b.svg) c](H/blob/HEAD/d.md)"),
        ("[a](#b) [c](https://x/d.md)", "[a](#b) [c](https://x/d.md)"),
    ],
)
def test_links_and_pictures_of_every_form_become_absolute(index_page, text, expected):
    assert index_page.absolute(text, "H") == expected


def test_the_addresses_are_known_or_left_out(index_page, tmp_path, monkeypatch):
    monkeypatch.setattr(index_page, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("[a](b.md)", encoding="utf-8")
    assert index_page.dynamic_metadata("urls") == {}
    assert index_page.dynamic_metadata("readme")["text"] == "[a](b.md)"
    write_git_config(tmp_path, HERE)
    urls = index_page.dynamic_metadata("urls")
    assert urls["Source"] == HERE
    assert urls["Changelog"] == f"{HERE}/blob/HEAD/CHANGELOG.md"


def test_the_build_takes_readme_and_urls_from_index_page():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {"readme", "urls"} <= set(project["project"]["dynamic"])
    metadata = project["tool"]["scikit-build"]["metadata"]
    assert all(metadata[name]["provider"] == "index_page" for name in ("readme", "urls"))

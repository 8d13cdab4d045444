"""A lock file of another author writes only to harmless places; messages have no secrets."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from cache_places import every_place
from hypothesis import given
from hypothesis import strategies as st

from bitnet.base import trust
from bitnet.base.errors import BitnetError, InvalidFormat, UsageError
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.orders import order_from_lock, order_of
from bitnet.hub.project import Project
from bitnet.hub.provide import fetch_source, provide
from bitnet.sources import Source
from bitnet.store import records
from bitnet.store.records import Pin
from bitnet.tokenizer.tokenizer_json import check_vocabulary

CONTENT = b"ours" * 100  # 400 bytes


@pytest.fixture
def project(hub, tmp_path):
    """A project with a cache beside it; the hub has CONTENT as ``model.gguf``."""
    hub.add("org/model", "model.gguf", CONTENT)
    (tmp_path / "work").mkdir()
    options = FetchOptions(base_url=hub.url, retries=1)
    return Project(tmp_path / "work", tmp_path / "cache", options, "none")


def write_foreign_lock(project, path=None, /, **changes):
    """Write a lock file of another author, with a model at *path* and *changes* to its record."""
    entry = Pin("model", "org/model", "main", "model.gguf", None, "0" * 64, 0, place=path)
    document = {
        "version": 1,
        "files": [records.to_record(entry) | {"sha256": digest(), "size": 400} | changes],
    }
    project.lock_path.write_text(json.dumps(document))


def digest():
    """SHA-256 of CONTENT."""
    import hashlib

    return hashlib.sha256(CONTENT).hexdigest()


def sync(project):
    """The pinned files of *project*, as `bitnet sync` provides them."""
    entries = records.read_lock(project.lock_path)
    orders = [order_from_lock(entry, project, check=check_vocabulary) for entry in entries]
    return provide(orders, project)


# --- what a lock file may not write to -----------------------------------------------------------

# Hidden files, code and configuration that other programs run or read, device names of Windows, and
# texts that are not a path below the project on every system.
REFUSED = [
    ".git/config",
    ".git/hooks/pre-commit",
    ".venv/bin/python",
    "a/.hidden/model.gguf",
    ".envrc",
    "tasks.py",
    "conftest.py",
    "sub/setup.cfg",
    "Makefile",
    "Gemfile",
    "wscript",
    "SConstruct",
    "build.gradle",
    "settings.gradle.kts",
    "venv/lib/python3.12/site-packages/evil.pth",
    "run.SH",
    "CON",
    "nul.txt",
    "com1.gguf",
    "sub/AUX/model.gguf",
    "evil.py.",
    "evil.py ",
    "lib.so",
    "package.json",
    "bitnet.lock.json",
    "bitnet.toml",
    "BITNET.TOML",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "a//b",
    "a/./b",
    "a/",
    "c:x",
    "a\\b",
    "a\nb",
    "a\0b",
    "\ud800",
    "x" * 300,
    "",
]


@pytest.mark.parametrize("path", REFUSED)
def test_a_lock_file_that_pins_a_file_at_a_dangerous_place_is_refused(project, path):
    write_foreign_lock(project, path)
    with pytest.raises(InvalidFormat, match="path"):
        sync(project)
    assert sorted(item.name for item in project.folder.iterdir()) == ["bitnet.lock.json"]


@pytest.mark.parametrize("folder", ["cache", "Cache", "link", "way/cache"])
def test_a_lock_file_that_pins_a_file_in_the_cache_within_the_project_is_refused(project, folder):
    cache = project.folder / "cache"
    cache.mkdir()
    (project.folder / "link").symlink_to("cache")
    (project.folder / "way").symlink_to(project.folder)
    inside = replace(project, cache=cache)
    for place in every_place():
        if place == "CACHEDIR.TAG":
            continue  # it lies in the cache itself, not in one of its folders
        write_foreign_lock(project, f"{folder}/{place}")
        with pytest.raises(UsageError, match="which is in the cache"):
            sync(inside)
    assert list(cache.rglob("*")) == []
    assert sorted(path.name for path in project.folder.iterdir()) == [
        "bitnet.lock.json", "cache", "link", "way",
    ]  # fmt: skip


def test_a_lock_file_is_read_as_utf_8_in_a_locale_that_cannot_encode_a_name(project):
    """A lock file, a list of a hub and an index are UTF-8 in every locale."""
    write_foreign_lock(project, "models/modèle ☃.gguf")
    program = (
        "import sys; from pathlib import Path; from bitnet.store.records import read_lock; "
        "print(ascii(read_lock(Path(sys.argv[1]))[0].place))"
    )
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(project.lock_path)],
        env=os.environ | environment,
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.stdout.strip(), done.stderr) == (ascii("models/modèle ☃.gguf"), "")


def test_a_download_into_the_cache_is_not_pinned(project):
    inside = replace(project, cache=project.folder / "cache")
    source = Source("m", "org/model", "model.gguf")
    with pytest.raises(UsageError, match=r"cannot pin .* at cache/models/"):
        fetch_source(source, inside, target=inside.cache / "models" / "m.gguf")
    assert [path.name for path in project.folder.iterdir()] == []


def test_a_lock_file_may_pin_files_beside_the_cache_within_the_project(project):
    inside = replace(project, cache=project.folder / "cache")
    for place in ("models/org-model/model.gguf", "cached/models/model.gguf"):
        write_foreign_lock(project, place)
        (file,) = sync(inside)
        assert file.path == project.folder / place


@given(st.text())
def test_an_accepted_place_is_below_the_project_and_not_hidden(text):
    if not trust.place_problem(text):
        assert not text.startswith(("/", "."))
        assert not {"..", ".git", ""} & set(text.split("/"))
        text.encode()  # without a lone surrogate


@pytest.mark.parametrize(
    "url",
    [
        "https://me:secret@hub.example.org/file?token=secret#secret",
        "https://me:secret@[hub/file#secret",  # no address, since the bracket is not closed
        "https://me:secret@[hub/file?token=secret",
    ],
)
def test_an_address_in_a_message_has_no_secrets(url):
    assert "secret" not in trust.redact_url(url)
    assert "hub" in trust.redact_url(url)


def test_a_text_in_a_message_is_cut_without_the_spaces_around_it():
    assert trust.printable(" " * 9 + "abcdef\n", longest=4) == "abcd..."
    assert trust.printable(" " * 9 + "abc\td" + " " * 9, longest=7) == r"abc\td"


def test_a_lock_file_does_not_replace_a_file_of_the_user_also_with_update(project):
    users_file = project.folder / "notes.txt"
    users_file.write_text("mine")
    write_foreign_lock(project, "notes.txt")
    for variant in (project, replace(project, update=True)):
        with pytest.raises(UsageError, match="it stays"):
            sync(variant)
        assert users_file.read_text() == "mine"


@pytest.mark.parametrize("name", ["authorized_keys", "new/deep/authorized_keys"])
def test_a_lock_file_that_pins_a_file_behind_a_link_out_of_the_project_is_refused(
    project, tmp_path, name
):
    (tmp_path / "ssh").mkdir()
    (project.folder / "models").symlink_to(tmp_path / "ssh")
    write_foreign_lock(project, f"models/{name}")
    with pytest.raises(UsageError, match="outside of"):
        sync(project)
    assert list((tmp_path / "ssh").iterdir()) == []


def test_a_link_to_a_folder_within_the_project_is_followed(project):
    (project.folder / "real").mkdir()
    (project.folder / "models").symlink_to("real")
    write_foreign_lock(project, "models/m.gguf")
    assert sync(project)[0].path.read_bytes() == CONTENT
    assert (project.folder / "real/m.gguf").read_bytes() == CONTENT


def test_a_link_that_appears_between_check_and_use_is_not_followed(tmp_path, monkeypatch):
    """The folder is a real one when it is looked at, and a link when it is opened."""
    root = tmp_path / "root"
    outside = tmp_path / "outside"
    (root / "a").mkdir(parents=True)
    outside.mkdir()

    real_mkdir = os.mkdir

    def swap(path, *args, **options):
        if path != "a":
            real_mkdir(path, *args, **options)
            return
        (root / "a").rmdir()
        (root / "a").symlink_to(outside)

    monkeypatch.setattr(os, "mkdir", swap)
    with pytest.raises(BitnetError), trust.open_folder(root, root / "a"):
        raise AssertionError("the link was followed")


def test_a_lock_file_of_a_checkout_cannot_change_the_configuration_of_git(project):
    before = b"[core]\n\tbare = false\n"
    (project.folder / ".git").mkdir()
    (project.folder / ".git/config").write_bytes(before)
    write_foreign_lock(project, ".git/config")
    with pytest.raises(InvalidFormat):
        sync(project)
    assert (project.folder / ".git/config").read_bytes() == before


# --- the reader and the writer of a lock file have the same checks -------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"size": -1},
        {"size": True},
        {"size": 10**30},
        {"repo": "\ud800"},
        {"revision": "a\0"},
        {"commit": ""},
        {"file": "."},
        {"file": "a:b"},
        {"file": "a\\b"},
        {"sha256": "0"},
        {"licence": "a\nb"},
        {"path": ".git/x"},
        {"path": 3},
        {"kind": "program"},
    ],
)
def test_a_field_that_the_reader_refuses_is_refused_by_the_writer_too(project, changes):
    write_foreign_lock(project, **changes)
    with pytest.raises(InvalidFormat):
        records.read_lock(project.lock_path)
    entry = Pin("model", "org/model", "main", "m.gguf", None, "0" * 64, 1)
    if "path" in changes:
        changes = {"place": changes["path"]}
    with pytest.raises(UsageError):
        records.write_lock(project.folder / "other.json", [replace(entry, **changes)])
    assert not (project.folder / "other.json").exists()


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 1, "files": [{"size": ' + "9" * 5000 + "}]}",
        "[" * 100_000,
        '{"version": "\\ud800", "files": []}',
    ],
    ids=["digits", "depth", "surrogate"],
)
def test_a_malformed_lock_file_is_an_error_of_ours_with_a_printable_text(project, text):
    project.lock_path.write_text(text)
    with pytest.raises(BitnetError) as caught:
        records.read_lock(project.lock_path)
    str(caught.value).encode()


@pytest.mark.parametrize("file", ["a:b.gguf", "a\\b.gguf"])
def test_a_name_that_cannot_be_pinned_is_refused_before_the_transfer(hub, project, file):
    hub.add("org/model", file, CONTENT)
    with pytest.raises(UsageError, match="cannot pin"):
        fetch_source(Source("m", "org/model", file), project)
    assert hub.requests() == []


def test_a_place_that_cannot_be_pinned_is_refused_before_the_transfer(hub, project):
    target = project.folder / "a:b" / "model.gguf"
    with pytest.raises(UsageError, match="cannot pin"):
        fetch_source(Source("m", "org/model", "model.gguf"), project, target=target)
    assert hub.requests() == []


def test_an_empty_commit_in_a_reply_is_pinned_as_none(hub, project):
    from hub_server import Rule

    hub.rules.append(Rule(where="hub", method="HEAD", headers={"X-Repo-Commit": ""}))
    fetch_source(Source("m", "org/model", "model.gguf"), project)
    assert records.read_lock(project.lock_path)[0].commit is None


def test_the_identity_and_place_of_an_order_are_those_that_are_pinned(project):
    order = order_of(Source("m", "org/model", "model.gguf"), project)
    provide([order], project)
    (pinned,) = records.read_lock(project.lock_path)
    assert pinned.identity == (order.kind, *order.source.index_name)
    assert pinned.place == "models/org-model/model.gguf"

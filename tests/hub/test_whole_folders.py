"""A folder of several files is fetched, checked, placed and pinned as a whole or not at all."""

import hashlib
import json
import os
import subprocess
import sys
import time

import pytest
from hub_server import Rule

from bitnet.base.errors import BitnetError, HashMismatch, InvalidFormat, NoSpace, UsageError
from bitnet.cache import Selection
from bitnet.cache.prune import plan, prune
from bitnet.hub.fetch_options import FetchOptions, FileSelection
from bitnet.hub.orders import order_from_lock
from bitnet.hub.project import Project
from bitnet.hub.provide import fetch_source, provide
from bitnet.hub.resolve import download, refs_of
from bitnet.sources import Source
from bitnet.store import Store, links, records
from bitnet.store.root import tag_problem
from bitnet.tokenizer.tokenizer_json import check_vocabulary

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": bytes(range(256)) * 4000,
    "tokenizer.json": b'{"model": {}}',
}


@pytest.fixture
def project(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_CONNECTIONS", "1")
    for name, content in FILES.items():
        hub.add("org/whole", name, content)
    (tmp_path / "work").mkdir()
    options = FetchOptions(base_url=hub.url, retries=1)
    return Project(tmp_path / "work", tmp_path / "cache", options, "none")


def fetch(project, **options):
    """Download the repository; *options* are those of ``download``."""
    return download(refs_of("org/whole"), project, **options)


def sync(project):
    """The pinned files of *project*, as `bitnet sync` provides them."""
    entries = records.read_lock(project.lock_path)
    orders = [order_from_lock(entry, project, check=check_vocabulary) for entry in entries]
    return provide(orders, project)


def folder(project):
    """Bytes of the files in the project's folder of the model, by name."""
    path = project.folder / "models/org-whole"
    return {item.name: item.read_bytes() for item in path.iterdir()} if path.is_dir() else {}


@pytest.mark.parametrize("name", FILES)
def test_sync_places_all_files_of_a_folder_or_none(hub, project, name):
    fetch(project)
    for path in (project.folder / "models/org-whole").iterdir():
        path.unlink()
    (project.folder / "models/org-whole").rmdir()
    store = Store(project.cache)
    for blob in store.blobs():
        store.drop(blob)
    # The file is missing under its name, at the hub, and under its digest, in the storage.
    hub.rules.append(Rule(path=f"/{name}", status=404))
    hub.rules.append(Rule(path=hashlib.sha256(FILES[name]).hexdigest(), status=404))
    with pytest.raises(BitnetError):
        sync(project)
    assert folder(project) == {}
    hub.rules.clear()
    sync(project)
    assert folder(project) == FILES


@pytest.mark.parametrize("full_at", range(1, 4))
def test_an_update_on_a_full_disk_leaves_the_old_folder(hub, project, monkeypatch, full_at):
    from dataclasses import replace

    fetch(project)
    changed = {name: content + b" " for name, content in FILES.items()}
    for name, content in changed.items():
        hub.add("org/whole", name, content)
    real = links.Prepared._make
    calls = 0

    def fail(self, source):
        nonlocal calls
        calls += 1
        if calls == full_at:
            raise OSError(28, os.strerror(28))
        return real(self, source)

    with monkeypatch.context() as patch:
        patch.setattr(links.Prepared, "_make", fail)
        with pytest.raises(NoSpace):
            sync(replace(project, update=True))
    assert folder(project) == FILES
    sync(replace(project, update=True))
    assert folder(project) == changed


# --- files that are kept in git ------------------------------------------------------------------


def test_other_bytes_of_a_file_in_git_are_refused(hub, project):
    hub.rules.append(Rule(where="hub", method="GET", path="config.json", flip_at=3))
    with pytest.raises(HashMismatch, match="git object"):
        fetch_source(Source("m", "org/whole", "config.json"), project)
    assert folder(project) == {}


def test_a_partial_file_that_begins_with_zeros_after_a_crash_is_not_used(hub, project):
    content = bytes(range(1, 200)) * 5
    hub.add("org/whole", "vocab.json", content)
    hub.rules.append(Rule(where="hub", method="GET", path="vocab.json", truncate_at=500))
    with pytest.raises(BitnetError):
        fetch_source(Source("m", "org/whole", "vocab.json"), project)
    (partial_path,) = (project.cache / "store/partial").glob("*/*.partial")
    # A file system may lose bytes that were written just before a crash.
    with partial_path.open("r+b") as file:
        file.write(bytes(100))
    hub.rules.clear()
    obtained = fetch_source(Source("m", "org/whole", "vocab.json"), project)
    assert obtained.path.read_bytes() == content


# --- one project, several processes --------------------------------------------------------------

PIN = """
import sys
from pathlib import Path
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.project import Project
from bitnet.hub.provide import fetch_source
from bitnet.sources import Source
work, cache, url, file = sys.argv[1:]
project = Project(Path(work), Path(cache), FetchOptions(base_url=url), "none")
fetch_source(Source("m", "org/many", file), project)
"""


def test_eight_processes_with_a_cache_each_pin_eight_files(hub, project, tmp_path):
    names = [f"{number}.json" for number in range(8)]
    for name in names:
        hub.add("org/many", name, name.encode())
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PIN, project.folder, tmp_path / f"cache-{name}", hub.url, name]
        )
        for name in names
    ]
    assert [process.wait() for process in running] == [0] * 8
    assert [entry.file for entry in records.read_lock(project.lock_path)] == names
    assert sorted(path.name for path in project.folder.iterdir()) == ["bitnet.lock.json", "models"]


# --- cleaning ------------------------------------------------------------------------------------


def test_cleaning_during_a_download_of_a_folder_leaves_it_its_files(hub, project):
    """The cache is cleaned as the last file arrives, with the others waiting in the store."""
    cleaned = []

    def clean():
        if not cleaned:
            cleaned.append(prune(plan(project.cache, Selection(models=True))))
        return True

    hub.rules.append(Rule(where="cdn", method="GET", when=clean))
    fetch(project)
    assert folder(project) == FILES
    assert cleaned


def test_a_users_folder_with_the_name_of_a_partial_folder_is_not_deleted(project):
    users_file = project.folder / "models/.org-whole.partial-mine/notes.txt"
    users_other_file = project.folder / "models/.org-whole.partial.4711-0123abcd/notes.txt"
    for path in (users_file, users_other_file):
        path.parent.mkdir(parents=True)
        path.write_text("mine")
        os.utime(path.parent, (time.time() - 10_000,) * 2)
    fetch(project)
    assert users_file.exists()
    assert users_other_file.exists()  # its file is not in the store, so it is not ours


def test_a_partial_folder_that_a_killed_process_left_is_removed_by_the_next_fetch(project):
    fetch(project)
    whole = project.folder / "models/org-whole"
    partial_folder = project.folder / "models/.org-whole.partial.4711-0123abcd"
    whole.rename(partial_folder)
    os.utime(partial_folder, (time.time() - 10_000,) * 2)
    fetch(project)
    assert not partial_folder.exists()
    assert folder(project) == FILES


def test_links_in_a_cache_are_not_followed_when_it_is_cleaned(project, tmp_path):
    fetch(project)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ("ab" * 32)).write_bytes(b"theirs")
    (project.cache / "store/sha256/ab").symlink_to(outside)
    (project.cache / "tokenizers").symlink_to(outside)
    removed = prune(plan(project.cache, Selection(models=True)))
    assert len([entry for entry in removed.remove if entry.is_stored]) == len(FILES)
    assert (outside / ("ab" * 32)).exists()


def test_a_download_by_a_project_in_the_cache_adds_no_lock_file_to_it(project):
    from dataclasses import replace

    fetch_source(
        Source("m", "org/whole", "config.json"),
        replace(project, folder=project.cache),
        target=project.cache / "models/config.json",
    )
    assert tag_problem(project.cache) == ""  # it holds only files of a cache


# --- names, selections and listings --------------------------------------------------------------


def test_an_empty_file_of_a_repository_is_downloaded_with_the_others(hub, project):
    hub.add("org/whole", "empty.txt", b"")
    fetch(project, select=FileSelection(include=["*"]))
    assert folder(project) == {**FILES, "empty.txt": b""}


@pytest.mark.parametrize(
    ("text", "files", "choice"),
    [
        ("org/whole:Q4_K_M", [], "names a quantization"),
        ("hf:org/whole@v1:Q4_K_M", [], "names a quantization"),
        ("org/whole", ["config.json"], "'config.json' names the file"),
        ("hf:org/whole:config.json", [], "'config.json' names the file"),
        ("microsoft/bitnet-b1.58-2B-4T-gguf", ["config.json"], "'config.json' names the file"),
        ("smollm2-135m", [], "is one file"),
    ],
)
@pytest.mark.parametrize("select", [{"include": ["*.md"]}, {"exclude": ["*"], "whole": True}])
def test_include_and_exclude_are_refused_where_the_name_already_chooses_a_file(
    hub, project, text, files, choice, select
):
    refs = refs_of(text, files, whole=select.get("whole", False))
    with pytest.raises(UsageError, match=rf"--include and --exclude .* {choice}"):
        download(refs, project, select=FileSelection(**select))
    assert hub.requests() == []


@pytest.mark.parametrize("length", [230, 240, 250, 255])
def test_a_file_name_of_up_to_255_bytes_is_downloaded(hub, project, length):
    name = "ä" + "x" * (length - 7) + ".gguf"  # 2 bytes of ä, 5 of .gguf
    assert len(name.encode()) == length
    hub.add("org/long", name, b"GGUF" * 500)
    path = fetch_source(Source("m", "org/long", name), project).path
    assert path.read_bytes() == b"GGUF" * 500
    assert fetch_source(Source("m", "org/long", name), project).cached


def test_the_licence_of_several_files_is_requested_once(hub, project):
    fetch(project)
    assert len([seen for seen in hub.requests() if "/revision/" in seen.path]) == 1


def test_a_git_lfs_pointer_in_place_of_a_model_is_refused(hub, project):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"
    hub.add("org/lfs", "model.gguf", pointer)
    with pytest.raises(InvalidFormat, match="pointer of Git LFS"):
        fetch_source(Source("m", "org/lfs", "model.gguf"), project)


def test_a_listing_whose_pages_exceed_the_limit_is_refused(hub, project, monkeypatch):
    from bitnet.hub import repository

    monkeypatch.setattr(repository, "LONGEST_DOCUMENT", 1000)
    for number in range(30):
        hub.add("org/whole", f"{number}.txt", b"x")
    hub.page_size = 2
    with pytest.raises(BitnetError, match="more than"):
        fetch(project)


def test_a_listing_with_a_lone_surrogate_in_a_name_is_refused(hub, project):
    body = json.dumps([{"type": "file", "path": "\ud800.gguf", "size": 1}]).encode()
    rule = Rule(path="/tree/", status=200, headers={"Content-Type": "application/json"}, body=body)
    hub.rules.append(rule)
    with pytest.raises(BitnetError, match="not a list of files"):
        fetch(project)

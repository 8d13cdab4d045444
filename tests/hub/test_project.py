"""The lock file of a project, drafts of it that killed writers left, and its table of mirrors."""

import os
from pathlib import Path

import pytest
from tiny_packages import TINY

from bitnet.base import locks
from bitnet.base.errors import UsageError
from bitnet.hub import wheels
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.project import MIRRORS, Project, mirrors
from bitnet.hub.provide import fetch_source
from bitnet.store import Pin
from bitnet.store.tree import claim_path

MODEL = Pin("model", "org/model", "main", "model.gguf", None, "b" * 64, 5)


def test_a_draft_of_the_lock_file_that_a_killed_process_left_is_removed(tmp_path):
    draft = tmp_path / ".bitnet.lock.json.4711-0123abcd.tmp"
    draft.write_text("half of it")
    users_file = tmp_path / "bitnet.lock.json.tmp"
    users_file.write_text("a user's")
    Project(tmp_path, tmp_path / "cache", FetchOptions()).pin(MODEL)
    # The draft is gone; a file of the user with a similar name stays.
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "bitnet.lock.json",
        "bitnet.lock.json.tmp",
    ]


def test_without_working_locks_only_an_old_draft_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_locks_work", lambda _folder: False)
    old, fresh = (tmp_path / f".bitnet.lock.json.4711-{n}.tmp" for n in ("01", "02"))
    for path in (old, fresh):
        path.write_text("half of it")
    os.utime(old, (1, 1))  # seconds since 1970
    Project(tmp_path, tmp_path / "cache", FetchOptions()).pin(MODEL)
    assert (old.exists(), fresh.exists()) == (False, True)


def test_a_project_in_a_folder_that_takes_no_files_only_warns_that_it_is_not_pinned(
    tmp_path, caplog
):
    """/proc refuses a new file with ENOENT, not for a lack of permission."""
    project = Project(Path("/proc/self"), tmp_path / "cache", FetchOptions())
    project.pin(MODEL)
    assert "is not pinned" in caplog.text


def test_the_notice_of_a_model_is_still_claimed_once_the_model_is_extracted(
    tmp_path, local_index, monkeypatch
):
    held = []  # is the claim of each notice held once the model is extracted?
    extract = wheels.extract

    def look(model, paths, store, **options):
        blob = extract(model, paths, store, **options)
        held.extend(
            locks.is_held(claim_path(store.folder, record.sha256))
            for record in store.index
            if record.file == "NOTICE.md"
        )
        return blob

    monkeypatch.setattr(wheels, "extract", look)
    fetch_source(TINY, Project(tmp_path, tmp_path / "cache", FetchOptions(), progress="none"))
    assert held == [True]


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 20_000,
        "mirrors = 1",
        "[mirrors]\na = 1",
        "a = \xff",
    ],
)
def test_a_table_of_mirrors_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / MIRRORS).write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=MIRRORS):
        mirrors(tmp_path)


def test_addresses_of_a_mirror_may_have_spaces_around_their_commas(tmp_path):
    (tmp_path / MIRRORS).write_text('[mirrors]\n"a/b" = "https://a.example , https://b.example"')
    assert mirrors(tmp_path) == {"a/b": "https://a.example,https://b.example"}


def test_the_limits_of_a_project_have_the_rate_of_its_options(tmp_path, monkeypatch):
    def rate(options):
        return Project(tmp_path, tmp_path / "cache", options).limits.rate

    assert rate(FetchOptions(limit_rate="1M")) == 1e6
    assert rate(FetchOptions()) == 0
    monkeypatch.setenv("BITNET_LIMIT_RATE", "500k")
    assert rate(FetchOptions()) == 5e5

"""Partial files: continued by one process at a time, which renames them, and swept when old."""

import json
import os
import time
from dataclasses import replace

import pytest

from bitnet.store import Partial, Version
from bitnet.store.partial import sweep

ONE = Version("https://h/a", etag="one", size=100)


def begin(folder, version=ONE, **options):
    """The partial file of ``m.gguf`` in *version*, by a process whose locks work (*alone*)."""
    return Partial.begin(folder, "m.gguf", version, **{"alone": True, **options})


def write(partial, count):
    """Write *count* bytes x behind those of *partial*."""
    start = partial.done.total
    partial.write(start, b"x" * count)
    partial.done.add(start, start + count)


def names(folder):
    """Names in *folder*."""
    return sorted(path.name for path in folder.iterdir())


def written_elsewhere(path):
    """Make the sidecar of *path* name another machine."""
    sidecar = path.with_name(f"{path.name}.json")
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | {"boot": "another"}))


def test_a_partial_file_that_was_left_is_renamed_and_continued(tmp_path):
    first = begin(tmp_path)
    write(first, 30)
    inode = first.path.stat().st_ino
    first.leave()
    assert names(tmp_path) == ["m.gguf.partial", "m.gguf.partial.json"]
    second = begin(tmp_path)
    assert (second.resumed, second.path.stat().st_ino) == (30, inode)
    assert names(tmp_path) == [second.path.name, f"{second.path.name}.json"]


@pytest.mark.parametrize(
    "other",
    [
        Version("https://h/a", etag="two", size=100),
        Version("https://h/a", etag="one", size=101),
        Version("https://h/b", etag="one", size=100),
        Version("https://h/a", etag="one", size=100, sha256="0" * 64),
    ],
)
def test_a_partial_file_of_another_version_is_not_continued_but_removed(tmp_path, other):
    first = begin(tmp_path)
    write(first, 30)
    first.leave()
    second = begin(tmp_path, other)
    assert second.resumed == 0
    assert names(tmp_path) == [second.path.name, f"{second.path.name}.json"]


def test_a_partial_file_with_a_digest_is_continued_from_any_address(tmp_path):
    first = begin(tmp_path, Version("https://a/x", etag="one", sha256="0" * 64))
    write(first, 30)
    first.leave()
    assert begin(tmp_path, Version("https://b/y", etag="two", sha256="0" * 64)).resumed == 30


def test_the_query_of_an_address_counts_only_without_an_etag_and_is_not_recorded(tmp_path):
    signed = replace(ONE, url="https://h/a?sig=1")
    assert signed.key == replace(ONE, url="https://h/a?sig=2").key
    assert replace(signed, etag=None).key != replace(ONE, url="https://h/a?sig=2", etag=None).key
    begin(tmp_path, signed)
    assert "sig=" not in "".join(path.read_text() for path in tmp_path.glob("*.json"))


@pytest.mark.parametrize("alone", [False, True])
def test_a_partial_file_whose_writer_may_live_is_left_alone_until_it_is_silent(tmp_path, alone):
    first = begin(tmp_path)
    write(first, 30)
    if alone:  # a lock of this kernel keeps out no other machine
        written_elsewhere(first.path)
    second = begin(tmp_path, alone=alone)
    assert second.resumed == 0
    assert first.path.exists()
    second.discard()
    os.utime(first.path, (time.time() - 3600,) * 2)  # 15 minutes of silence suffice
    assert begin(tmp_path, alone=alone).resumed == 30


def test_without_locks_a_partial_file_with_a_digest_is_continued_in_a_copy(tmp_path):
    version = replace(ONE, sha256="0" * 64)
    first = begin(tmp_path, version)
    write(first, 30)
    second = begin(tmp_path, version, alone=False)
    assert (second.resumed, second.path.stat().st_size) == (30, 30)
    assert first.path.exists(), "it may still be written"
    write(first, 10)
    assert second.path.stat().st_size == 30


def test_with_working_locks_the_partial_file_of_a_killed_process_is_continued(tmp_path):
    first = begin(tmp_path)
    write(first, 30)
    assert begin(tmp_path, alone=True).resumed == 30


def test_a_partial_file_that_another_process_took_first_is_not_continued(tmp_path, monkeypatch):
    first = begin(tmp_path)
    write(first, 30)
    first.leave()
    rename = type(tmp_path).replace

    def overtaken(self, target):
        if self.name == "m.gguf.partial":  # another process renames it just before
            rename(self, tmp_path / "m.gguf.partial.1-a")
        return rename(self, target)

    monkeypatch.setattr(type(tmp_path), "replace", overtaken)
    second = begin(tmp_path)
    assert second.resumed == 0
    assert (tmp_path / "m.gguf.partial.1-a").stat().st_size == 30


@pytest.mark.parametrize("refused", ["open", "rename"])
def test_a_partial_file_of_another_user_does_not_prevent_a_download(tmp_path, monkeypatch, refused):
    first = begin(tmp_path)
    write(first, 30)
    first.leave()
    real = os.open
    rename = type(tmp_path).replace

    def open_own(path, flags, *rest, **options):
        if refused == "open" and str(path).endswith(".partial") and flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *rest, **options)

    def rename_own(self, target):
        if refused == "rename" and self.name == "m.gguf.partial":  # in a folder with a sticky bit
            raise PermissionError(1, "Operation not permitted", str(self))
        return rename(self, target)

    monkeypatch.setattr(os, "open", open_own)
    monkeypatch.setattr(type(tmp_path), "replace", rename_own)
    second = begin(tmp_path)
    assert second.resumed == 0
    write(second, 100)
    second.publish(tmp_path / "done")
    assert (tmp_path / "done").read_bytes() == b"x" * 100


def test_a_sweep_removes_partial_files_untouched_for_two_weeks_and_no_locks(tmp_path):
    for name, age_days in (("old", 30), ("new", 1)):
        partial = begin(tmp_path / name)
        write(partial, 30)
        partial.leave()
        then = time.time() - age_days * 86_400
        os.utime(tmp_path / name / "m.gguf.partial", (then, then))
    (tmp_path / "x.lock").touch()
    sweep(tmp_path)
    assert names(tmp_path) == ["new", "x.lock"]


def test_a_partial_file_without_etag_and_digest_is_not_left_for_later(tmp_path):
    partial = begin(tmp_path / "k", Version("https://h/a"))
    write(partial, 30)
    partial.leave()
    assert not (tmp_path / "k").exists()


def test_a_folder_that_is_swept_before_its_file_is_opened_is_made_again(tmp_path, monkeypatch):
    real = os.open
    swept = []

    def after_a_sweep(path, *rest, **options):
        if not swept and str(path).startswith(str(tmp_path / "version")):
            swept.append(path)
            sweep(tmp_path)
        return real(path, *rest, **options)

    monkeypatch.setattr(os, "open", after_a_sweep)
    partial = begin(tmp_path / "version")
    write(partial, 100)
    partial.publish(tmp_path / "done")
    assert swept
    assert (tmp_path / "done").read_bytes() == b"x" * 100

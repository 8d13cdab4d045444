"""The store: one file per digest, shared, and never served once it has been changed."""

import hashlib
import os
import shutil
import time
from pathlib import Path

import pytest

from bitnet.base import files
from bitnet.base.errors import NotFound, PermissionDenied, UsageError
from bitnet.store import Partial, Store, Version, blobs, links
from bitnet.store.digests import VerifiedFiles

CONTENT = b"GGUF" + bytes(range(256)) * 40
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def known_digest(verified, path):
    """Digest that *verified* records for *path*; None if it has none or the file has changed."""
    record = verified.find(path)
    return record.sha256 if record is not None and record.is_unchanged else None


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


@pytest.fixture
def blob(store):
    """A file in the store."""
    folder = store.folder / "partial" / DIGEST
    partial = Partial.begin(folder, "m.gguf", Version("", sha256=DIGEST), alone=True)
    partial.write(0, CONTENT)
    partial.done.add(0, len(CONTENT))
    return store.publish(partial, DIGEST)


@pytest.fixture
def hashed(monkeypatch):
    """Paths of the files that were read for a digest, in order."""
    paths = []
    real = files.sha256_of
    for module in (blobs, files):
        monkeypatch.setattr(module, "sha256_of", lambda path: paths.append(path) or real(path))
    return paths


def test_a_published_file_is_under_its_digest_read_only_and_no_partial_file_is_left(store, blob):
    assert blob.path == store.folder / "sha256" / DIGEST[:2] / DIGEST
    assert blob.path.read_bytes() == CONTENT
    assert not blob.path.stat().st_mode & 0o222
    assert not list((store.folder / "partial").iterdir())


def test_a_file_of_the_store_is_placed_in_projects_without_being_read_again(
    store, blob, tmp_path, hashed
):
    for project in ("one", "two"):
        target = tmp_path / project / "m.gguf"
        store.place(store.find(DIGEST), target)
        assert store.is_intact(target, DIGEST)
    assert hashed == []


@pytest.mark.parametrize("way", ["hard link", "copy"])
def test_two_projects_have_the_file_as_a_hard_link_or_a_copy_and_are_its_users(
    store, blob, tmp_path, monkeypatch, way, hashed
):
    # A file system without reflinks.
    monkeypatch.setattr(links.Prepared, "_reflink", lambda self, source: False)
    if way == "copy":
        monkeypatch.setattr(os, "link", _refuse)
    targets = [tmp_path / name / "m.gguf" for name in ("one", "two")]
    for target in targets:
        store.place(blob, target)
        assert target.read_bytes() == CONTENT
        assert store.is_intact(target, DIGEST)
        assert target.samefile(blob.path) == (way == "hard link")
    assert hashed == []
    assert store.users() == {DIGEST: sorted(map(str, targets), key=store_order(store))}


def store_order(store):
    """Sort key of paths: the names of their records, the order in which *store* lists users."""
    return lambda path: store.verified.file_for(Path(path))


def _refuse(*args, **options):
    """Stand-in for ``os.link`` on a file system without hard links."""
    raise OSError(1, "no links here")


def test_a_change_through_a_hard_link_is_noticed_and_never_served(store, blob, tmp_path, caplog):
    target = tmp_path / "project" / "m.gguf"
    target.parent.mkdir()
    target.hardlink_to(blob.path)
    target.chmod(0o644)
    with target.open("r+b") as file:
        file.write(b"edit")  # just after the file was published, and without a change of its size
    assert store.find(DIGEST) is None
    assert "has been changed" in caplog.text
    assert not blob.path.exists()
    assert target.read_bytes().startswith(b"edit")


def test_the_digest_of_a_file_changed_less_than_3_seconds_ago_is_not_remembered(tmp_path):
    verified = VerifiedFiles(tmp_path / "cache/store/verified")
    path = tmp_path / "m.gguf"
    path.write_bytes(CONTENT)
    verified.remember(path, DIGEST)
    assert known_digest(verified, path) is None
    os.utime(path, (time.time() - 10,) * 2)  # longer ago than the steps of any file system's clock
    verified.remember(path, DIGEST)
    assert known_digest(verified, path) == DIGEST


@pytest.mark.parametrize("change", ["size", "time", "file"])
def test_a_file_with_another_size_time_or_inode_is_read_again(store, tmp_path, change, hashed):
    path = tmp_path / "m.gguf"
    path.write_bytes(CONTENT)
    os.utime(path, (1_000_000_000,) * 2)  # in 2001
    assert store.digest_of(path) == store.digest_of(path) == DIGEST
    assert hashed == [path]
    if change == "size":
        path.write_bytes(CONTENT + b"x")
        os.utime(path, (1_000_000_000,) * 2)
    elif change == "time":
        os.utime(path, (1_000_000_001,) * 2)
    else:
        shutil.copy2(path, tmp_path / "other")
        (tmp_path / "other").replace(path)
    store.digest_of(path)
    assert hashed == [path, path]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"path": 1}', "\0", '{"size": ' + "9" * 5000])
def test_a_file_whose_record_is_damaged_is_read_again(store, blob, text, hashed):
    store.verified.file_for(blob.path).write_text(text)
    assert store.find(DIGEST) == blob
    assert hashed == [blob.path]


def test_a_store_that_cannot_be_written_is_used_and_its_file_read_each_time(
    store, blob, monkeypatch, hashed
):
    monkeypatch.setattr("bitnet.store.root.keep", lambda *args, **options: "read-only")
    store.verified.file_for(blob.path).unlink()
    assert store.find(DIGEST) == blob
    assert store.find(DIGEST) == blob
    assert len(hashed) == 2


def test_placing_below_a_file_is_an_error_of_the_system(store, blob, tmp_path):
    (tmp_path / "file").write_text("")
    # Systems differ in the error for a file where a folder belongs, which decides the class.
    with pytest.raises((UsageError, PermissionDenied, NotFound), match=r"os error \d+"):
        store.place(blob, tmp_path / "file" / "m.gguf")


def test_a_file_in_the_cache_of_hugging_face_is_taken_if_its_bytes_are_right_and_not_changed(
    store, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    their_blob = tmp_path / "hf" / "models--org--model" / "blobs" / DIGEST
    their_blob.parent.mkdir(parents=True)
    their_blob.write_bytes(CONTENT[:-1])
    assert store.find_anywhere(DIGEST, None, None) is None  # not what its name says
    their_blob.write_bytes(CONTENT)
    mode = their_blob.stat().st_mode
    time_ns = their_blob.stat().st_mtime_ns
    blob = store.find_anywhere(DIGEST, None, None)
    assert blob.path == store.path_of(DIGEST)
    assert blob.path.read_bytes() == CONTENT
    assert (their_blob.stat().st_mode, their_blob.stat().st_mtime_ns) == (mode, time_ns)


@pytest.mark.parametrize("way", ["reflink or hard link", "hard link", "copy"])
def test_adopting_a_file_twice_leaves_its_permissions_and_times(store, tmp_path, monkeypatch, way):
    if way != "reflink or hard link":
        monkeypatch.setattr(links.Prepared, "_reflink", lambda self, source: False)
    if way == "copy":
        monkeypatch.setattr(os, "link", _refuse)
    their_file = tmp_path / "theirs.gguf"
    their_file.write_bytes(CONTENT)
    their_file.chmod(0o644)
    os.utime(their_file, (1_000_000_000,) * 2)
    for _ in range(2):
        assert store.adopt(their_file, DIGEST).path.read_bytes() == CONTENT
    state = their_file.stat()
    assert (state.st_mode & 0o777, state.st_mtime) == (0o644, 1_000_000_000)


def test_a_file_of_the_user_may_not_be_replaced_unless_the_store_has_its_bytes(
    store, blob, tmp_path
):
    users_file = tmp_path / "mine.gguf"
    users_file.write_bytes(b"mine")
    assert not store.may_replace(users_file)
    store.place(blob, users_file)
    assert store.may_replace(users_file)
    users_file.unlink()
    users_file.write_bytes(b"mine")
    assert not store.may_replace(users_file)
    users_file.write_bytes(CONTENT)
    assert store.may_replace(users_file)  # the store has it


def test_a_sweep_removes_the_records_of_files_that_are_gone(store, blob, tmp_path):
    target = tmp_path / "m.gguf"
    store.place(blob, target)
    target.unlink()
    store.verified.sweep()
    assert [record.path for record in store.verified] == [str(blob.path)]


def test_a_change_hidden_by_a_forged_time_is_found_only_with_rehash(store, blob, tmp_path):
    before = blob.path.stat()
    blob.path.chmod(0o644)
    with blob.path.open("r+b") as file:
        file.write(b"EDIT")
    os.utime(blob.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.find(DIGEST) == blob
    assert Store(store.root, rehash=True).find(DIGEST) is None


@pytest.mark.parametrize("size", [1000, links.EDITED_BYTES])
def test_a_small_writable_file_that_was_taken_in_is_not_shared_with_a_project(tmp_path, size):
    store = Store(tmp_path / "cache")
    own = tmp_path / "theirs.json"
    own.write_bytes(bytes(size))
    blob = store.adopt(own, files.sha256_of(own))
    target = tmp_path / "project/config.json"
    target.parent.mkdir()
    store.place(blob, target)
    is_small = size < links.EDITED_BYTES
    if is_small:
        with open(target, "r+b") as file:  # as an editor that writes in place
            file.write(b"changed")
        assert own.read_bytes() == bytes(size) == blob.path.read_bytes()
    assert not (is_small and target.samefile(own))


def test_a_stored_file_that_a_killed_run_left_writable_is_not_copied_into_a_project(
    store, blob, tmp_path
):
    blob.path.chmod(0o644)
    store.place(store.find(DIGEST), tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").samefile(blob.path)
    assert not blob.path.stat().st_mode & 0o222
    assert store.find(DIGEST) == blob


def test_a_long_name_is_cut_between_two_characters():
    for name in ("é" * 120, "a" + "é" * 120):
        short = links.short_name(name)
        assert name.startswith(short)
        assert len(short.encode()) <= 180

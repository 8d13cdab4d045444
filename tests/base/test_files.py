import hashlib
from pathlib import Path

import pytest

from bitnet.base.errors import NoSpace, NotFound, PermissionDenied
from bitnet.base.files import digest_of, free_space, matches, place, write_text


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "cache" / "file"
    path.parent.mkdir()
    path.write_bytes(b"content")
    return path


def test_a_file_is_linked_so_that_it_takes_no_room(source, tmp_path):
    target = tmp_path / "a" / "b" / "file"
    place(source, target)
    assert target.samefile(source)
    place(source, target)
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_it_is_copied_where_links_are_impossible_and_replaces_what_was_there(
    source, tmp_path, monkeypatch
):
    def refuse(self, target):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("pathlib.Path.hardlink_to", refuse)
    target = tmp_path / "file"
    target.write_bytes(b"old")
    place(source, target)
    assert target.read_bytes() == b"content"
    assert not target.samefile(source)


def test_a_copy_that_fails_leaves_what_was_there_and_nothing_else(source, tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.hardlink_to", refuse)
    monkeypatch.setattr("shutil.copyfile", refuse)
    target = tmp_path / "target" / "file"
    target.parent.mkdir()
    target.write_bytes(b"old")
    with pytest.raises(NoSpace) as caught:
        place(source, target)
    assert "--output" in caught.value.hint
    assert target.read_bytes() == b"old"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_a_file_matches_by_size_and_digest(source):
    digest = hashlib.sha256(b"content").hexdigest()
    assert matches(source, sha256=digest, size=7)
    assert not matches(source, sha256=digest, size=8)
    assert not matches(source, sha256="0" * 64)
    assert not matches(source.with_name("none"), sha256=digest)
    assert digest_of(source) == digest


def test_what_is_not_there_is_not_found(tmp_path):
    for call in (digest_of, free_space):
        with pytest.raises(NotFound):
            call(tmp_path / "none")


def test_a_text_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "text"
    write_text(path, "old")

    def refuse(descriptor):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(PermissionDenied):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["text"]


def test_a_text_takes_over_permissions_and_links_of_what_was_there(tmp_path):
    path, link = tmp_path / "text", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o600)
    link.symlink_to(path)
    write_text(link, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert link.is_symlink()


def test_a_device_is_written_to_and_never_replaced():
    write_text(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()

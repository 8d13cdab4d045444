"""Files: digests, free space, and writing a text without losing the one before."""

import hashlib
from pathlib import Path

import pytest

from bitnet.base.errors import BitnetError, NotFound, PermissionDenied
from bitnet.base.files import beside, device_of, digest_of, free_space, write_text
from bitnet.base.growing import GrowingFile
from bitnet.base.outputs import OutputFile


def test_a_digest_is_that_of_the_whole_content(tmp_path):
    content = b"content" * 100_000
    (tmp_path / "file").write_bytes(content)
    assert digest_of(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_the_digest_of_a_missing_file_is_an_error_not_found(tmp_path):
    with pytest.raises(NotFound):
        digest_of(tmp_path / "none")


def test_the_free_space_of_a_missing_folder_is_that_of_the_next_folder_above_it(tmp_path):
    assert free_space(tmp_path / "none" / "below") == pytest.approx(free_space(tmp_path), rel=0.01)


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
    path = tmp_path / "text"
    link = tmp_path / "link"
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


def write_rows(path):
    """Write the text to *path* as one row of a file that grows."""
    with GrowingFile(OutputFile(path), {}) as file:
        file.append(b"text", rows=1, digest="")
        file.publish()


# Three ways to write a file: a text, an output of a command, and rows.
WRITERS = pytest.mark.parametrize(
    "write",
    [
        lambda path: write_text(path, "text"),
        lambda path: OutputFile(path).write(b"text"),
        write_rows,
    ],
    ids=["file", "output", "rows"],
)


@WRITERS
@pytest.mark.parametrize("name", ["circle", "circle/file", "a\0b", "x" * 256])
def test_a_path_that_leads_nowhere_is_refused(write, name, tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(BitnetError) as refused:
        write(tmp_path / name)
    assert refused.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["circle"]


@WRITERS
@pytest.mark.parametrize("name", ["字" * 85, "a" + "é" * 127, "x" * 255])
def test_a_name_of_as_many_bytes_as_the_file_system_takes_is_written(write, name, tmp_path):
    assert len(name.encode()) == 255
    write(tmp_path / name)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "text"}


def test_files_whose_long_names_begin_alike_have_different_lock_files(tmp_path):
    names = [f"{beginning}{end}" for beginning in ("", "字" * 80) for end in "ab"]
    companions = {beside(tmp_path / name, "lock").name for name in names}
    assert len(companions) == len(names)
    # eCryptfs allows names of 143 bytes.
    assert max(len(name.encode()) for name in companions) < 143
    assert ".a.lock" in companions


def test_a_folder_on_a_drive_that_does_not_exist_is_not_found(monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "exists", lambda path: False)
    with pytest.raises(NotFound):
        free_space(tmp_path / "none")
    with pytest.raises(NotFound):
        device_of(tmp_path / "none")

"""Output files: a command replaces only files of its own kind, and leaves no drafts behind."""

import os

import pytest

from bitnet.base import locks, outputs
from bitnet.base.errors import CacheBusy, NoSpace, UsageError
from bitnet.base.files import beside
from bitnet.base.outputs import OutputFile, OutputKind, begins_with

# A kind of output that is recognised by its first bytes.
LETTER = OutputKind("a letter", lambda path: begins_with(path, b"Dear "))


@pytest.fixture
def source(tmp_path):
    """Path of a file that begins like a LETTER and is an input of the command."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"Dear model")  # could be replaced if it were not an input
    return path


def names(source):
    """Paths of the file *source*: its own, a hard link, a symbolic link, a link to that."""
    hard, soft, second = (source.with_name(name) for name in ("hard", "soft", "second"))
    os.link(source, hard)
    soft.symlink_to(source.name)
    second.symlink_to(soft)
    return [source, source.parent / "." / source.name, hard, soft, second]


def test_an_input_is_never_replaced_under_any_of_its_names(source):
    for name in names(source):
        for force in (None, False, True):
            with pytest.raises(UsageError, match="is an input of this command"):
                OutputFile(name, LETTER, inputs=(source,), force=force).write(b"Dear")
    assert source.read_bytes() == b"Dear model"


def test_a_foreign_file_in_an_input_folder_is_not_replaced_even_with_force(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "letter").write_text("Dear old")
    with pytest.raises(UsageError, match="is an input"):
        OutputFile(tmp_path / "config.json", LETTER, inputs=(tmp_path,), force=True).check()
    OutputFile(tmp_path / "letter", LETTER, inputs=(tmp_path,)).write(b"Dear new")
    assert (tmp_path / "letter").read_text() == "Dear new"


def test_a_foreign_file_is_replaced_with_force_only(tmp_path):
    target = tmp_path / "notes"
    target.write_text("mine")
    for force in (None, False):
        with pytest.raises(UsageError, match="is not a letter: it is not overwritten") as caught:
            OutputFile(target, LETTER, force=force).write(b"Dear")
        # With None, the command has no option --force to advise.
        assert ("--force" in caught.value.hint) is (force is False)
    assert target.read_text() == "mine"
    OutputFile(target, LETTER, force=True).write(b"Dear")
    assert target.read_text() == "Dear"


def test_an_output_without_a_kind_replaces_neither_a_file_nor_a_dangling_link(tmp_path):
    (tmp_path / "there").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("there", "link"):
        with pytest.raises(UsageError, match="exists and is not overwritten"):
            OutputFile(tmp_path / name).write(b"x")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("before", [None, b"Dear old"], ids=["a new file", "one that is replaced"])
def test_drafts_of_killed_writers_are_removed_by_the_next_writer_of_the_same_file(tmp_path, before):
    target = tmp_path / "letter"
    if before is not None:
        target.write_bytes(before)
        target.chmod(0o640)
    for name in ("4711", "4711-0123abcd"):  # the process, and a random number
        (tmp_path / f".letter.{name}.partial").write_bytes(b"half of it")
    foreign = tmp_path / ".letter.json.4711.partial"
    foreign.write_bytes(b"of another file")
    OutputFile(target, LETTER).write(b"Dear new")
    assert target.read_bytes() == b"Dear new"
    assert {path.name for path in tmp_path.iterdir()} == {target.name, foreign.name}
    if before is not None:
        assert target.stat().st_mode & 0o777 == 0o640


def test_a_writer_does_not_remove_the_draft_of_a_writer_that_is_at_work(tmp_path):
    target = tmp_path / "letter"
    with OutputFile(target, LETTER).draft() as draft:
        draft.write_bytes(b"Dear first")
        # Named as by another process. The lock that the first writer holds protects its draft.
        own = draft.rename(draft.with_name(".letter.4711.partial"))
        OutputFile(target, LETTER).write(b"Dear second")
        own.rename(draft)
    assert target.read_bytes() == b"Dear first"


def test_two_writers_of_one_process_have_a_draft_each(tmp_path):
    target = tmp_path / "letter"
    with OutputFile(target, LETTER).draft() as first:
        first.write_bytes(b"Dear first")
        OutputFile(target, LETTER).write(b"Dear second")
        assert target.read_bytes() == b"Dear second"
    assert target.read_bytes() == b"Dear first"
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]


def test_a_writer_that_waits_too_long_for_another_to_remove_drafts_is_an_error(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(outputs, "_REMOVAL_S", 0)
    target = tmp_path / "letter"
    with (
        locks.hold(beside(target, "lock"), timeout_s=0),
        pytest.raises(CacheBusy, match="letter is held by process"),
    ):
        OutputFile(target, LETTER).write(b"Dear")
    assert not target.exists()


def test_a_file_that_appears_while_the_draft_is_written_stays(tmp_path):
    target = tmp_path / "out"

    def write():
        with OutputFile(target).draft() as draft:
            draft.write_text("late")
            target.write_text("early")

    with pytest.raises(UsageError, match="exists"):
        write()
    assert target.read_text() == "early"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failed_write_leaves_neither_a_draft_nor_an_output(tmp_path):
    def parts():
        yield b"half"
        raise OSError(28, "No space left on device")

    with (
        pytest.raises(NoSpace, match="os error 28"),
        OutputFile(tmp_path / "out").draft() as draft,
        draft.open("wb") as out,
    ):
        out.writelines(parts())
    assert [*tmp_path.iterdir()] == []


def test_an_empty_file_and_a_device_are_written_to(tmp_path):
    (tmp_path / "made-by-mktemp").touch()
    OutputFile(tmp_path / "made-by-mktemp", LETTER).write(b"Dear")
    OutputFile(type(tmp_path)("/dev/null"), LETTER).write(b"Dear")
    assert (tmp_path / "made-by-mktemp").read_text() == "Dear"


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        OutputFile(tmp_path, LETTER, force=True).check()

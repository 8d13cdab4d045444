"""Rows of an output that grows: whatever call a process is killed at, the next run continues."""

import json
import os
import signal

import pytest

from bitnet.base import growing, locks
from bitnet.base.errors import BitnetError
from bitnet.base.growing import GrowingFile
from bitnet.base.outputs import OutputFile, OutputKind

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

# Rows of the complete file, its header, and the settings under which its rows may be continued.
BLOCKS = [b"abcd", b"efghij"]
HEADER = b"head"
KEY = {"model": "m"}
CALLS = ("open", "fsync", "replace", "rename", "unlink", "link", "chmod", "mkdir", "stat")


def write_all(path, key=KEY):
    """Write the missing BLOCKS to *path*, and return the number of those that were there before."""
    with GrowingFile(OutputFile(path), key, beginning=len(HEADER)) as file:
        rows_before = file.rows
        # The digest that came with the last row is kept; here it is the number of rows.
        assert file.digest == (str(rows_before) if rows_before else "")
        for number, block in enumerate(BLOCKS[rows_before:], rows_before + 1):
            file.append(block, rows=1, digest=str(number))
        file.publish(HEADER)
    return rows_before


def run_killed(path, number):
    """Run ``write_all`` in a process that is killed at its call *number*; True if it was."""
    child = os.fork()
    if child == 0:
        kill_at(number)
        write_all(path)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def kill_at(number):
    """Kill this process at the call *number* of those that change or examine files."""
    calls = 0

    def replaced(real):
        def call(*args, **options):
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    os.fsync = lambda _file: None  # what is written survives a kill; a disk at work is slow
    for name in CALLS:
        setattr(os, name, replaced(getattr(os, name)))
    growing.open = replaced(open)  # a global of the module, before the builtin
    GrowingFile.append = replaced(GrowingFile.append)
    GrowingFile._cut = replaced(GrowingFile._cut)


def test_a_run_that_was_killed_anywhere_is_continued(tmp_path):
    survivors = set()  # numbers of rows that a killed run had left
    for number in range(1, 1000):  # until a run makes fewer calls
        folder = tmp_path / str(number)
        path = folder / "rows.bin"
        if not run_killed(path, number):
            break
        is_whole = path.exists()
        if is_whole:
            assert path.read_bytes() == HEADER + b"".join(BLOCKS)
        else:
            survivors.add(write_all(path))
        assert path.read_bytes() == HEADER + b"".join(BLOCKS)
    assert number > 20  # the calls of a run were intercepted
    assert survivors == {0, 1, 2}


def test_bytes_behind_the_recorded_rows_are_dropped(tmp_path):
    path = tmp_path / "rows.bin"
    with GrowingFile(OutputFile(path), KEY) as file:
        file.append(b"ab", rows=1, digest="1")  # and the run ends before it is complete
    with (tmp_path / ".rows.bin.rows").open("ab") as rows_file:
        rows_file.write(b"a row that was not finished")
    with GrowingFile(OutputFile(path), KEY) as file:
        assert (file.rows, file.digest) == (1, "1")
        file.append(b"cd", rows=1, digest="2")
        file.publish()
    assert path.read_bytes() == b"abcd"


@pytest.mark.parametrize(
    "changes",
    [
        {"key": {"model": "another"}},
        {"size": 10**6},
        {"size": "2"},
        {"size": -1},
        {"rows": None},
        {"rows": -1},
        {"digest": 1},
    ],
)
def test_rows_whose_record_is_invalid_or_of_another_key_are_not_continued(changes, tmp_path):
    path = tmp_path / "rows.bin"
    with GrowingFile(OutputFile(path), KEY) as file:
        file.append(b"ab", rows=1, digest="1")  # and the run ends before it is complete
    record = tmp_path / ".rows.bin.progress"
    record.write_text(json.dumps(json.loads(record.read_text()) | changes))
    with GrowingFile(OutputFile(path), KEY) as file:
        assert (file.rows, file.digest) == (0, "")


def test_rows_of_a_killed_run_with_another_key_are_not_taken_for_the_first_ones(tmp_path):
    path = tmp_path / "rows.bin"
    with GrowingFile(OutputFile(path), KEY) as file:
        file.append(b"ab", rows=1, digest="1")
    child = os.fork()
    if child == 0:
        growing.write_text = lambda *_: os._exit(0)  # after the rows, before their record
        with GrowingFile(OutputFile(path), {"model": "another"}) as file:
            file.append(b"xy", rows=1, digest="1")
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WEXITSTATUS(status) == 0
    with GrowingFile(OutputFile(path), KEY) as file:
        assert file.rows == 0


def test_an_output_is_not_changed_by_the_run_after_one_that_was_killed_when_it_was_complete(
    tmp_path,
):
    path = tmp_path / "rows.bin"
    child = os.fork()
    if child == 0:
        GrowingFile._remove = lambda _self: os._exit(0)
        write_all(path)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WEXITSTATUS(status) == 0
    complete = path.read_bytes()
    assert complete.startswith(HEADER)
    with GrowingFile(
        OutputFile(path, OutputKind("rows", lambda _path: True)), {"model": "b"}
    ) as file:
        assert file.rows == 0  # and this run ends before it is complete
    assert path.read_bytes() == complete


def test_two_processes_do_not_write_one_output(tmp_path):
    path = tmp_path / "rows.bin"
    with GrowingFile(OutputFile(path), KEY):
        child = os.fork()
        if child == 0:
            try:
                write_all(path)
            except BitnetError:
                os._exit(3)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.WEXITSTATUS(status) == 3


def test_a_pipe_in_the_place_of_the_rows_is_refused(tmp_path):
    path = tmp_path / "rows.bin"
    os.mkfifo(GrowingFile(OutputFile(path), KEY, beginning=0).path)
    with pytest.raises(BitnetError, match="is not a regular file but a pipe"):
        write_all(path)
    assert not path.exists()


def test_where_locks_have_no_effect_each_writer_has_rows_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_locks_work", lambda _folder: False)
    path = tmp_path / "rows.bin"
    kind = OutputKind("rows", lambda _path: True)
    with GrowingFile(OutputFile(path, kind), KEY) as first:
        first.append(b"ab", rows=1, digest="1")
        with GrowingFile(OutputFile(path, kind), {"model": "another"}) as second:
            assert second.rows == 0
            second.append(b"xyz", rows=1, digest="2")
            second.publish()
        assert path.read_bytes() == b"xyz"
        first.append(b"cd", rows=1, digest="2")
        first.publish()
    assert path.read_bytes() == b"abcd"
    with GrowingFile(OutputFile(path, kind), KEY) as unfinished:
        unfinished.append(b"ab", rows=1, digest="1")
    # The rows of the unfinished writer, which no other could continue, are not left behind.
    assert {each.name for each in tmp_path.iterdir()} <= {path.name, ".rows.bin.growing"}

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

BLOCKS = [b"abcd", b"efghij"]
HEADER = b"head"
KEY = {"model": "m"}
CALLS = ("open", "fsync", "replace", "rename", "unlink", "ftruncate", "chmod", "mkdir", "stat")


def write_all(path, key=KEY):
    """Write the BLOCKS that are not there, and return the number of those that were."""
    with GrowingFile(OutputFile(path), key, beginning=len(HEADER)) as file:
        there = file.rows
        assert file.digest == (str(there) if there else "")
        for number, block in enumerate(BLOCKS[there:], there + 1):
            file.append(block, rows=1, digest=str(number))
        file.publish(HEADER)
    return there


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
    """Kill this process at its call *number* of those that change files or ask for them."""
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
    survivors = set()
    for number in range(1, 1000):
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
    assert number > 20
    assert survivors == {0, 1, 2}


def test_what_is_behind_the_rows_of_the_record_is_dropped(tmp_path):
    path = tmp_path / "rows.bin"
    with GrowingFile(OutputFile(path), KEY) as file:
        file.append(b"ab", rows=1, digest="1")  # and the run ends before it is complete
    with (tmp_path / ".rows.bin.rows").open("ab") as left:
        left.write(b"a row that was not finished")
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
def test_a_record_that_does_not_fit_counts_for_nothing(changes, tmp_path):
    path = tmp_path / "rows.bin"
    with GrowingFile(OutputFile(path), KEY) as file:
        file.append(b"ab", rows=1, digest="1")  # and the run ends before it is complete
    record = tmp_path / ".rows.bin.progress"
    record.write_text(json.dumps(json.loads(record.read_text()) | changes))
    with GrowingFile(OutputFile(path), KEY) as file:
        assert (file.rows, file.digest) == (0, "")


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


def test_a_pipe_where_the_rows_are_to_be_is_refused(tmp_path):
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
    with GrowingFile(OutputFile(path, kind), KEY) as broken_off:
        broken_off.append(b"ab", rows=1, digest="1")
    assert {each.name for each in tmp_path.iterdir()} <= {path.name, ".rows.bin.growing"}

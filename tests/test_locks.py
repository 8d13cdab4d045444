import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time

import pytest

from bitnet.errors import CacheBusy
from bitnet.locks import Owner, hold, is_held, owner_of

HOLDER = """
import sys
from pathlib import Path
from bitnet.locks import hold
with hold(Path(sys.argv[1]), timeout_s=5) as lock:
    lock.report("12 MB of 98 MB")
    print("held", flush=True)
    sys.stdin.read()
"""


class Clock:
    """Time that passes only by waiting, in steps of five seconds."""

    seconds = 0.0

    def __call__(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += 5.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokenizer.json.lock"


@pytest.fixture
def holder(path):
    """Another process that holds the lock until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.stdin.close()
    process.stdout.close()
    process.wait()


def test_waiting_names_the_owner_every_ten_seconds_and_ends(path, holder, caplog):
    clock = Clock()
    with (
        pytest.raises(CacheBusy) as caught,
        hold(path, timeout_s=32, what="llama3-128k", clock=clock, sleep=clock.sleep),
    ):
        raise AssertionError("held by two")
    owner = f"process {holder.pid} on {socket.gethostname()} since "
    assert owner in caught.value.message
    assert "12 MB of 98 MB" in caught.value.message
    assert "BITNET_LOCK_TIMEOUT" in caught.value.hint
    assert caught.value.exit_code == 21
    lines = [record.getMessage() for record in caplog.records]
    assert [line.rpartition("; ")[2] for line in lines] == [
        "10 s so far",
        "20 s so far",
        "30 s so far",
    ]
    assert all(line.startswith("waiting for llama3-128k: held by ") for line in lines)


def test_a_killed_owner_holds_nothing(path, holder):
    assert is_held(path)
    holder.kill()
    holder.wait()
    assert not is_held(path)
    assert owner_of(path).is_dead
    with hold(path, timeout_s=0):
        assert owner_of(path).is_me


def test_the_file_stays(path):
    with hold(path, timeout_s=0):
        pass
    assert path.exists()
    with hold(path, timeout_s=0) as lock:
        lock.report("half")
        assert owner_of(path).progress == "half"
        lock.report("")
        assert owner_of(path).progress == ""


@pytest.mark.parametrize("text", ["", "{}", "[]", "\0\0", '{"pid": "x"}', "9" * 400])
def test_a_damaged_record_names_nobody(path, text):
    path.write_text(text)
    assert owner_of(path) is None


def test_a_process_on_another_host_is_never_surely_dead():
    assert not Owner(1 << 22, "elsewhere", time.time()).is_dead


def test_our_number_on_a_record_of_an_earlier_process_is_a_dead_one():
    record = json.loads(Owner.me().text()) | {"process": "an earlier one"}
    assert Owner.parse(json.dumps(record)).is_dead
    assert not Owner.me().is_dead


def test_a_process_that_ended_is_dead():
    process = multiprocessing.get_context("spawn").Process(target=os.getpid)
    process.start()
    process.join()
    assert Owner(process.pid, socket.gethostname(), time.time()).is_dead

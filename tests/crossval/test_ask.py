"""A reference in its own process: its limit of time, and what it may write."""

import json
import random
import sys

import numpy as np
import pytest
import waiting
from tiny_models import tiny_gguf

from bitnet.crossval import ask, reference_process
from bitnet.crossval.crossval_options import CrossvalOptions
from bitnet.crossval.float64 import Float64
from bitnet.crossval.references import LlamaCpp
from bitnet.crossval.trace import EngineFailed, Prompt, Question
from bitnet.formats.containers import open_checkpoint

fcntl = pytest.importorskip("fcntl")  # Windows has none

LIMIT_S = 3.0

# A process with a child; both hold a lock for as long as they live, a minute at most. Arguments:
# the file to lock, and one that is made when the lock is held.
HANGS = """
import fcntl, os, pathlib, signal, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
os.fork()
signal.alarm(60)
pathlib.Path(sys.argv[2]).touch()
signal.pause()
"""


def is_free(lock):
    """True if no process holds the file *lock*."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def wait_until_killed(lock):
    """Wait until no process holds *lock*, much less than the minute that HANGS lives by itself."""
    waiting.until(lambda: is_free(lock), patience_s=20)


def test_an_engine_that_hangs_is_killed_with_its_children(tmp_path):
    lock = tmp_path / "lock"
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", HANGS, str(lock), str(ready)]
    with pytest.raises(EngineFailed, match="the engine took more than 3 s") as caught:
        ask.run(command, name="the engine", limit_s=LIMIT_S)
    assert "--reference-timeout SECONDS" in caught.value.hint
    assert ready.exists()
    wait_until_killed(lock)


# A process that ends at once, and its child, which holds a lock. Arguments: the file to lock, one
# that the child makes if it still lives after ten seconds, and the exit code.
CRASHES = """
import fcntl, os, pathlib, signal, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
if os.fork():
    os._exit(int(sys.argv[3]))
signal.signal(signal.SIGALRM, lambda *_: pathlib.Path(sys.argv[2]).touch())
signal.alarm(10)
signal.pause()
"""


@pytest.mark.parametrize("code", [0, 1])
def test_the_children_of_an_engine_that_ended_are_killed(tmp_path, code):
    lock = tmp_path / "lock"
    survived = tmp_path / "survived"
    command = [sys.executable, "-c", CRASHES, str(lock), str(survived), str(code)]
    assert ask.run(command, name="x", limit_s=60).returncode == code
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    assert not survived.exists()


# An engine that reports an error after it has written half of its intermediates.
FAILS = """
import json, pathlib, sys
target = pathlib.Path(sys.argv[1])
target.write_text(json.dumps({"error": "OSError: No space left on device"}))
target.with_name("answer.safetensors").write_bytes(bytes(12))
"""


def test_an_engine_that_fails_at_writing_intermediates_is_reported_with_its_error(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(ask, "isolate", lambda _, target: [sys.executable, "-c", FAILS, target])
    with pytest.raises(EngineFailed, match="x cannot run m: OSError: No space left on device"):
        ask.ask("x", {}, tmp_path, model="m", limit_s=60)


def test_an_interrupt_kills_the_engine(tmp_path, monkeypatch):
    lock = tmp_path / "lock"
    ready = tmp_path / "ready"
    wait = ask.subprocess.Popen.wait

    def interrupt_wait(process, timeout=None):
        """Raise KeyboardInterrupt as soon as the engine holds its lock."""
        if timeout is None:  # the wait for a process that was killed
            return wait(process)
        waiting.until(ready.exists, process)
        raise KeyboardInterrupt

    monkeypatch.setattr(ask.subprocess.Popen, "wait", interrupt_wait)
    with pytest.raises(KeyboardInterrupt):
        ask.run([sys.executable, "-c", HANGS, str(lock), str(ready)], name="x", limit_s=60)
    wait_until_killed(lock)


def test_the_limit_grows_with_the_model_unless_it_is_given(tmp_path):
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "tiny.gguf"))
    size = sum(weight.size_bytes for weight in checkpoint.weights.values())
    # Seconds to start an engine, and as many more for each gigabyte.
    assert ask.time_limit(checkpoint) == pytest.approx(300 + 300 * size / 1e9)
    assert ask.time_limit(checkpoint, 7.0) == 7.0


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e9", "soon"])
def test_a_number_that_cannot_be_a_time_limit_is_refused(bitnet, tmp_path, seconds):
    model = tiny_gguf(tmp_path / "tiny.gguf")
    done = bitnet("crossval", "--model", model, f"--reference-timeout={seconds}")
    assert done.code == 2
    assert "--reference-timeout" in done.err


def test_a_command_requests_no_limit_by_default_and_a_question_has_the_least():
    assert CrossvalOptions().reference_timeout is None
    assert Question(None).limit_s == ask.LIMIT_S


# An engine whose answer is empty; its intermediates are the bytes of the file that is its argument.
ANSWERS = """
import pathlib, sys
target = pathlib.Path(sys.argv[1])
target.write_text("{}")
target.with_name("answer.safetensors").write_bytes(pathlib.Path(sys.argv[2]).read_bytes())
"""


@pytest.fixture
def intermediates(tmp_path, monkeypatch):
    """A function that returns the intermediates of an engine that wrote the bytes it is given."""
    monkeypatch.setattr(LlamaCpp, "package", "json")  # a module that is always installed
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "tiny.gguf"))
    file = tmp_path / "written"

    def give(content):
        file.write_bytes(content)
        command = [sys.executable, "-c", ANSWERS]
        monkeypatch.setattr(ask, "isolate", lambda _, target: [*command, target, str(file)])
        question = Question(checkpoint, (Prompt("p", (1, 2)),))
        return LlamaCpp().intermediates(question, Float64().model(checkpoint))

    return give


@pytest.fixture
def written(tmp_path):
    """Bytes of a file of intermediates as :mod:`bitnet.crossval.reference_process` writes it."""
    file = tmp_path / "right.safetensors"
    ones = np.ones((2, 3), np.float32)
    arrays = {"embd": ones, "l_out-0": np.arange(4, dtype="f4").reshape(2, 2)}
    reference_process._write_tensors(file, arrays)
    return file.read_bytes()


def test_intermediates_are_read_as_they_were_written(intermediates, written):
    arrays = intermediates(written)
    # llama.cpp calls it embd; names that are the same in both stay.
    assert arrays["embed"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert arrays["l_out-0"].tolist() == [[0, 1], [2, 3]]


def header(**changes):
    """Bytes of a safetensors file of one float32, with *changes* to its entry in the header."""
    entry = {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]} | changes
    text = json.dumps({"embd": entry}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(4)


GARBAGE = {
    "nothing": b"",
    "text": b"not a number in sight",
    "an archive of zip": b"PK\x03\x04" + bytes(60),
    "a header of its own size": (1 << 60).to_bytes(8, "little") + b"{}",
    "other types": header(dtype="F16", shape=[2, 1]),
    "no matrix": header(shape=[1]),
    "no shape": header(shape=None),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_in_the_place_of_intermediates_is_a_failure_of_the_engine(intermediates, name):
    with pytest.raises(EngineFailed, match=r"^llama\.cpp: .*answer\.safetensors"):
        intermediates(GARBAGE[name])


def test_damaged_intermediates_are_read_or_refused(written, tmp_path):
    """Every way to change some bytes or to cut the file ends in arrays or in one error."""
    rng = random.Random(0)
    file = tmp_path / ask.INTERMEDIATES
    outcomes = set()
    for _ in range(2000):
        content = bytearray(written)
        for place in rng.sample(range(len(written)), rng.randint(1, 4)):
            content[place] = rng.randrange(256)
        file.write_bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])
        try:
            arrays = ask._read_intermediates(tmp_path)
            outcomes.add("read")
            assert all(values.ndim == 2 for values in arrays.values())
        except (ask.InvalidFormat, ask.Unsupported):
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}

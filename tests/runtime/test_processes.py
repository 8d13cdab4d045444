"""Forks, exits and servers that fork, with the engine in use: no hang, and the same tokens."""

import os
import signal
import subprocess
import sys
import textwrap
from http.client import HTTPConnection

import pytest
import waiting
from tiny_models import tiny_gguf

from bitnet.base import native

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
needs_native = pytest.mark.skipif(native.module() is None, reason="the module is not built")

# Loads the model on three threads; tokens() are those of a greedy answer.
MODEL = """
import logging, os, sys, threading
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.native import select
from bitnet.models.load import load_model
from bitnet.runtime.scheduler import Scheduler
from bitnet.runtime.request import Request

logging.getLogger("bitnet").setLevel(logging.ERROR)
PROMPT = [5, 9, 33, 2, 17, 40, 21] * 5
engine = Scheduler(load_model(open_checkpoint(sys.argv[1]), ops=select(threads=3)))

def tokens():
    return [piece.token for piece in engine.generate(PROMPT, Request(max_tokens=8))]

def exit_code_of(pid):
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)
"""
# A thread that runs one pass after the other, and a fork while it holds the engine's lock.
IN_PASSES = """
def passes():
    while True:
        engine.logits(PROMPT)

running = threading.Thread(target=passes, daemon=True)
running.start()

def fork_in_a_pass():
    while not engine._lock.locked():
        assert running.is_alive()
    return os.fork()
"""


@pytest.fixture
def run(tmp_path):
    """Function that runs a script of *parts* on a tiny model; returns the completed process."""
    path = tiny_gguf(tmp_path / "tiny.gguf")

    def start(*parts):
        script = "".join(textwrap.dedent(part) for part in parts)
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script, str(path)],
            capture_output=True,
            text=True,
            timeout=waiting.PATIENCE_S,
            check=False,
        )

    return start


def check_success(done):
    """Check that the process *done* has succeeded without a word on stderr; return its output."""
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@needs_fork
def test_a_child_forked_during_a_pass_generates_the_same_tokens(run):
    check = """
    expected = tokens()
    """
    children = """
    for _ in range(8):
        pid = fork_in_a_pass()
        if not pid:
            os._exit(0 if tokens() == expected and len(expected) == 8 else 3)
        assert exit_code_of(pid) == 0
    print("done")
    """
    assert check_success(run(MODEL, check, IN_PASSES, children)) == "done\n"


@needs_fork
@needs_native
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_child_forked_during_a_pass_has_all_its_compute_threads(run):
    children = """
    for _ in range(3):
        pid = fork_in_a_pass()
        if not pid:
            tokens()
            os._exit(len(os.listdir("/proc/self/task")))
        assert exit_code_of(pid) == 3
    """  # its exit status is its number of threads
    check_success(run(MODEL, IN_PASSES, children))


@needs_fork
@needs_native
def test_a_graph_that_a_thread_runs_can_be_run_by_a_child(run):
    children = """
    from bitnet.kernels.program import Segment
    model = engine.model
    def hidden():
        return model.hidden([Segment(PROMPT, engine.new_cache(), "last")])[0].tobytes()
    expected = hidden()
    for _ in range(8):
        pid = fork_in_a_pass()
        if not pid:
            # Packs a weight on the compute threads, into memory that has a lock of its own.
            model.ops.prepare(next(iter(open_checkpoint(sys.argv[1]).weights.values())))
            os._exit(0 if hidden() == expected else 3)
        assert exit_code_of(pid) == 0
    """
    check_success(run(MODEL, IN_PASSES, children))


@needs_fork
def test_an_answer_begun_before_a_fork_ends_in_the_child_with_a_reason(run):
    script = """
    from bitnet.base.errors import InferenceError
    answer = engine.generate(PROMPT, Request(max_tokens=8))
    first = next(answer)
    if not (pid := os.fork()):
        try:
            next(answer)
        except InferenceError as error:
            print(error.message, error.hint, sep="; ", flush=True)
            os._exit(0 if len(tokens()) == 8 else 4)
        os._exit(3)
    assert exit_code_of(pid) == 0
    assert [first.token, *(piece.token for piece in answer)] == tokens()
    """
    output = check_success(run(MODEL, script))
    assert output.startswith("this answer was begun before the process was forked")


@needs_fork
def test_workers_of_a_multiprocessing_pool_use_the_model_of_the_parent(run):
    script = """
    import multiprocessing
    expected = tokens()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.starmap(tokens, [()] * 4) == [expected] * 4
    assert tokens() == expected
    """
    check_success(run(MODEL, script))


@needs_fork
def test_workers_of_a_torch_loader_use_the_model_of_the_parent(run):
    pytest.importorskip("torch", reason="needs torch: pip install torch")
    script = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Answers(Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, at):
            return torch.tensor(tokens())

    expected = tokens()
    torch.ones(300, 300) @ torch.ones(300, 300)  # its threads run as well
    loader = DataLoader(Answers(), num_workers=2, multiprocessing_context="fork")
    assert [batch[0].tolist() for batch in loader] == [expected] * 4
    torch.set_flush_denormal(True)
    assert tokens() == expected
    """
    check_success(run(MODEL, script))


@needs_fork
def test_gunicorn_workers_answer_with_the_model_that_was_preloaded(tmp_path):
    tiny_gguf(tmp_path / "tiny.gguf")
    application = """
    expected = tokens()  # so threads and caches are there when workers are forked

    def app(environ, start_response):
        same = tokens() == expected
        start_response("200 OK" if same else "500 Other tokens", [("Content-Length", "0")])
        return [b""]
    """
    text = textwrap.dedent(MODEL).replace("sys.argv[1]", "'tiny.gguf'")
    (tmp_path / "application.py").write_text(text + textwrap.dedent(application))
    port = waiting.free_port()
    command = ["-m", "gunicorn", "--preload", "--workers", "2", "--bind", f"127.0.0.1:{port}"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-W", "ignore", *command, "--chdir", str(tmp_path), "application:app"],
            stdout=log,
            stderr=log,
        )
    try:
        for _ in range(6):  # so that each of the two workers most likely answers one
            assert waiting.until(lambda: _status(port), server) == 200
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(waiting.PATIENCE_S)
    assert server.returncode == 0, (tmp_path / "log").read_text()


def _status(port):
    """HTTP status of a reply, or None while the server does not listen."""
    connection = HTTPConnection("127.0.0.1", port, timeout=waiting.PATIENCE_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    except ConnectionRefusedError:
        return None
    finally:
        connection.close()


@pytest.mark.parametrize("count", [1, 3])
def test_a_daemon_thread_inside_a_pass_does_not_disturb_the_exit(run, count):
    # The script ends as soon as one of *count* threads is inside a pass.
    exit_in_a_pass = f"""
    for _ in range({count} - 1):
        threading.Thread(target=passes, daemon=True).start()
    while not engine._lock.locked():
        assert running.is_alive()
    """
    check_success(run(MODEL, IN_PASSES, exit_in_a_pass))

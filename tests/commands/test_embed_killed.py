"""embed as a process that is killed while it writes."""

import signal
import subprocess
import sys

import numpy as np
import pytest
from tiny_models import tiny_gguf

from bitnet.commands.bulk import AT_ONCE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

WAIT_S = 120  # for a busy machine


@pytest.mark.slow
def test_a_killed_run_is_continued_by_the_same_command(bitnet, tmp_path):
    model = tiny_gguf(tmp_path / "m.gguf")
    texts = [f"text {number}" for number in range(AT_ONCE + 3)]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    command = [sys.executable, "-m", "bitnet", "embed", "--model", model, "--output"]
    process = subprocess.Popen([*command, tmp_path / "v.npy"], stdin=subprocess.PIPE)
    try:
        # One block is complete, and the process waits for the rest of the next.
        process.stdin.write("".join(f"{text}\n" for text in texts[: AT_ONCE + 1]).encode())
        process.stdin.flush()
        wait_for(tmp_path / ".v.npy.progress", process)
        process.send_signal(signal.SIGKILL)
        assert process.wait(WAIT_S) == -signal.SIGKILL
    finally:
        process.kill()
        process.stdin.close()
    assert not (tmp_path / "v.npy").exists()
    words = ("embed", "--model", model, "--input", tmp_path / "texts.txt", "--output")
    continued = bitnet(*words, tmp_path / "v.npy")
    assert continued.code == 0
    assert f"{AT_ONCE:,} vectors are computed already" in continued.err
    assert bitnet(*words, tmp_path / "at-once.npy").code == 0
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "at-once.npy").read_bytes()
    assert len(np.load(tmp_path / "v.npy")) == len(texts)


def wait_for(path, process):
    """Wait until *path* exists, for as long as *process* runs."""
    for _ in range(WAIT_S * 20):  # twenty times a second
        if path.exists():
            return
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"{path.name} was not written")

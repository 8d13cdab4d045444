"""infer and chat as processes: memory that runs out, pipes that break, keys that interrupt.

Exit codes: 16 the model could not be run, 130 interrupted.
"""

import json
import os
import signal
import struct
import subprocess
import sys

import pytest
from builders import string, value_bytes, vocabulary
from tiny_keys import metadata
from tiny_models import TOKENS, tiny, tiny_gguf

from bitnet.quants import types

pty = pytest.importorskip("pty")  # Windows has none
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and signals of Linux")

LONG = 100_000  # positions: far more than any of these tests waits for
#: Options of an answer that fills the context, without the token that would end it.
ENDLESS = ("--max-tokens", LONG, "--temperature", 3, "--logit-bias", f"{TOKENS.index('</s>')}=-inf")
WAIT_S = 120
WIDE = 1 << 18  # of a feed-forward network whose matrices are 71 MB each
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def endless(tmp_path):
    """A model that writes for minutes with ENDLESS if it is not stopped."""
    keys = {"llama.context_length": LONG, "tokenizer.chat_template": TEMPLATE}
    return tiny_gguf(tmp_path / "endless.gguf", **keys)


def started(*words, **streams):
    """A process of ``bitnet`` with these words."""
    command = [sys.executable, "-m", "bitnet", *map(str, words)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **streams)


def finished(process):
    """Exit code and stderr of *process* at its end; it is killed if it does not end in time."""
    try:
        return process.wait(WAIT_S), process.stderr.read().decode()
    finally:
        process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def answer_of(model, *words):
    """Words of a command that lets *model* write an endless answer."""
    return ("infer", "--model", model, *ENDLESS, *words)


# Modules that an answer of a local model may load, which each cost about a millisecond: STANDARD
# besides those that Invoke and NumPy load; of bitnet, the packages in ROOMS without the modules in
# LATER, and the modules in PARTS.
STANDARD = {
    *(
        "concurrent",
        "encodings",
        "gc",
        "hashlib",
        "hmac",
        "mmap",
        "queue",
        "resource",
        "secrets",
        "sysconfig",
    ),
    *("tomllib", "uuid"),
}
ROOMS = {
    *("base", "commands", "families", "formats", "kernels", "models", "native", "quants"),
    *("runtime", "shipped", "sources", "tokenizer"),
}
PARTS = {
    *(
        "batch.batch_options",
        "cache.prompts",
        "convert.convert_options",
        "crossval.crossval_options",
        "hub.fetch_options",
    ),
    *("server.narration", "server.serve_options", "wire.presets"),
    *("store.blobs", "store.claims", "store.digests", "store.links", "store.partial"),
    *("store.placing", "store.records", "store.hugging_face", "store.root", "store.tree"),
}
LATER = {
    *("formats.hf_checkpoint", "models.adapted"),
    *("tokenizer.comparison", "tokenizer.export", "tokenizer.to_gguf"),
}


def modules_of(code):
    """Names of the modules that a Python process with *code* has loaded at its end."""
    code = f"import atexit, sys; atexit.register(lambda: print(*sys.modules))\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_a_local_model_loads_only_what_an_answer_needs(tmp_path):
    words = ["infer", "--model", str(tiny_gguf(tmp_path / "m.gguf")), "--prompt", "ab"]
    loaded = modules_of(
        f"from bitnet.commands.program import main\nsys.argv = ['bitnet', *{words!r}]\nmain()"
    ) - modules_of("import invoke.program, numpy")
    ours = {name.partition(".")[2] for name in loaded if name.startswith("bitnet.")}
    others = {name.partition(".")[0] for name in loaded} - {"bitnet"}
    assert {name for name in others if not name.startswith("_")} <= {*STANDARD}
    in_other_rooms = {name for name in ours if name.partition(".")[0] not in ROOMS and "." in name}
    assert in_other_rooms <= {*PARTS}
    assert not ours & {*LATER}


def test_a_reader_that_goes_away_ends_the_answer(endless):
    process = started(*answer_of(endless, "--prompt", "ab"), stdout=subprocess.PIPE)
    assert len(process.stdout.read(10)) == 10
    process.stdout.close()
    code, stderr = finished(process)
    assert code == 0
    assert stderr == ""


def test_ctrl_c_while_writing_keeps_the_text_and_says_interrupted(endless):
    process = started(*answer_of(endless, "--prompt", "ab"), stdout=subprocess.PIPE)
    first = process.stdout.read(10)
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    code, stderr = finished(process)
    assert code == 130
    assert (first + rest).endswith(b"\n")
    assert "interrupted" in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_termination_lets_everything_clean_up_as_ctrl_c_does(endless, number):
    process = started(*answer_of(endless, "--prompt", "ab"), stdout=subprocess.PIPE)
    first = process.stdout.read(10)
    process.send_signal(number)
    assert (first + process.stdout.read()).endswith(b"\n")
    code, stderr = finished(process)
    assert (code, stderr) == (130, "Error: terminated\n")


def test_ctrl_c_while_reading_the_prompt_says_interrupted(endless):
    words = answer_of(endless, "--prompt-file", "-")
    process = started(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    # More than a pipe holds: after the last byte is written, the command has read some of them,
    # so it runs. The prompt takes long to compute.
    process.stdin.write(b"ab" * (LONG // 3))
    process.stdin.close()
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == b""
    code, stderr = finished(process)
    assert code == 130
    assert "interrupted" in stderr
    assert "Traceback" not in stderr


def test_ctrl_c_on_a_terminal_stops_the_answer_and_not_the_conversation(endless, tmp_path):
    saved = tmp_path / "talk.json"
    keyboard, terminal = pty.openpty()
    words = ("chat", "--model", endless, *ENDLESS)
    process = started(*words, stdin=terminal, stdout=subprocess.PIPE)
    os.close(terminal)
    os.write(keyboard, b"ab\n")
    process.stdout.read(20)  # the prompt and the beginning of an answer
    process.send_signal(signal.SIGINT)
    os.write(keyboard, f"/save {saved}\n/exit\n".encode())
    process.stdout.read()
    code, stderr = finished(process)
    os.close(keyboard)
    assert code == 0
    assert "(stopped; /exit leaves)" in stderr
    question, answer = json.loads(saved.read_text())
    assert question["content"] == "ab"
    assert answer["content"]


def large_gguf(path):
    """A model of 430 MB of zeros, which take no room on the disk."""
    keys = metadata("llama", feed_forward_length=WIDE) | vocabulary(
        TOKENS, merges=[], token_types=[3, 3, 3, *[1] * 61], pre="gpt-2", bos_token_id=0
    )
    shapes = {name: weight.shape for name, weight in tiny("llama").weights.items()}
    for name, shape in shapes.items():
        if "ffn_gate" in name or "ffn_up" in name:
            shapes[name] = (WIDE, shape[1])
        elif "ffn_down" in name:
            shapes[name] = (shape[0], WIDE)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys))
    head += b"".join(string(key) + value_bytes(value) for key, value in keys.items())
    offset = 0
    for name, shape in shapes.items():
        quant = types.by_name("Q8_0" if len(shape) == 2 else "F32")
        head += string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}QIQ", *shape[::-1], quant.ggml_id, offset)
        offset += -(-quant.size_bytes(shape) // 32) * 32
    path.write_bytes(head + bytes(-len(head) % 32))
    os.truncate(path, path.stat().st_size + offset)
    return path


#: Runs ``bitnet`` with as many megabytes of memory as the first argument says, beyond what the
#: modules take.
LIMITED = """
import resource, sys
import numpy
from bitnet.base import native
from bitnet.commands.program import Program
from bitnet.runtime import language_model
from bitnet.commands import load

native.module()
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv[1]) * 1_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
Program(load(), "bitnet").run(["bitnet", *sys.argv[2:]])
"""


# The weights are 430 MB; what fails differs between these sizes.
@pytest.mark.parametrize("room_mb", [50, 300, 500, 700])
def test_memory_that_does_not_suffice_is_an_error_of_its_own(tmp_path, room_mb):
    model = large_gguf(tmp_path / "large.gguf")
    words = ("infer", "--model", model, "--prompt", "ab", "--max-tokens", 2, "--threads", 1)
    command = [sys.executable, "-c", LIMITED, *map(str, (room_mb, *words))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 16, done.stderr
    assert "memory" in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_memory_that_suffices_is_not_an_error(tmp_path):
    model = large_gguf(tmp_path / "large.gguf")
    words = ("infer", "--model", model, "--prompt", "ab", "--max-tokens", 2, "--threads", 1)
    command = [sys.executable, "-c", LIMITED, *map(str, (6000, *words))]
    assert subprocess.run(command, capture_output=True, timeout=WAIT_S).returncode == 0

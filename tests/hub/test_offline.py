"""Offline, and once every file is in the cache: no socket, no DNS lookup, no program started."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import tiny_gguf
from tiny_packages import TINY

MIRROR = "baseten/Meta-Llama-3-tokenizer"

# Runs commands, and records Python's audit events of sockets and programs (PEP 578).
AUDITED = """
import json, sys
EVENTS = ("socket.", "subprocess.", "os.exec", "os.posix_spawn", "os.fork", "os.system")
seen, results = [], []
sys.path.insert(0, sys.argv[1])
from bitnet import sources
from tiny_packages import TINY
sources.PACKAGED["tiny"] = TINY
from bitnet.commands.program import Program
from bitnet.commands import load
OWN = "socket.gethostname"  # what this machine is called, for the record of a lock
sys.addaudithook(
    lambda event, args: seen.append(event) if event.startswith(EVENTS) and event != OWN else None
)
for words in json.loads(sys.argv[2]):
    seen.clear()
    try:
        Program(load(), "bitnet").run(["bitnet", *words])
    except SystemExit as stopped:
        results.append([stopped.code, list(seen)])
print("\\n" + json.dumps(results))
"""
COMMANDS = [
    ["tokenizer", "--source", "mirror"],
    ["download-model", "--id", "org/model", "--file", "m.gguf"],
    ["download-model", "--id", TINY.name],
    ["sync"],
    ["run", "hf:org/tiny", "a", "--max-tokens", "1"],
    ["models"],
    ["infer", "--model", "hf:org/tiny", "--prompt", "a", "--max-tokens", "1"],
    ["bundle.export", "--output", "made.tar", "--model", "hf:org/tiny", "--force"],
    ["bundle.import", "made.tar"],
]
LOCAL = ("models", "bundle.export", "bundle.import")  # never fetch, and have no --offline


@pytest.fixture
def audited(tmp_path):
    """Function that runs commands in one process, and returns the exit code and events of each."""
    folder = tmp_path / "work"
    folder.mkdir()

    def run(*commands):
        tests = str(Path(__file__).parents[1] / "support")
        done = subprocess.run(
            [sys.executable, "-c", AUDITED, tests, json.dumps(commands)],
            capture_output=True, text=True, cwd=folder, check=True,
        )  # fmt: skip
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_commands_whose_files_are_there_open_no_socket_and_start_no_program(
    hub, audited, local_index, tmp_path, monkeypatch
):
    hub.add("org/tiny", "tiny.gguf", tiny_gguf(tmp_path / "tiny.gguf").read_bytes())
    vocab = {f"t{number}": number for number in range(128_256)}  # as many as Llama 3 has
    hub.add(MIRROR, "tokenizer.json", json.dumps({"model": {"vocab": vocab}}).encode())
    hub.add("org/model", "m.gguf", b"GGUF" * 500)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    assert [code for code, _ in audited(*COMMANDS)] == [0] * len(COMMANDS)
    hub.forget()
    offline = [[*words, "--offline"] for words in COMMANDS if words[0] not in LOCAL]
    # Pinned and there: with a connection the hub is not asked either.
    every = [*offline, *COMMANDS]
    assert audited(*every) == [[0, []]] * len(every)
    assert hub.requests() == []


def test_commands_whose_files_are_missing_offline_fail_without_a_socket(hub, audited, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("BITNET_OFFLINE", "1")
    # Exit codes: 23 offline, 19 not found.
    missing = [*COMMANDS[:3], COMMANDS[4], ["infer", "--prompt", "a"]]
    assert audited(*missing) == [[23, []]] * len(missing)
    assert audited(["bundle.export", "--output", "x.tar", "--model", "hf:org/tiny"]) == [[19, []]]

"""``launch``: start an agent with settings for a server, and remove them at its end."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from server_process import listening
from tiny_models import tiny_gguf

from bitnet.commands.agents import AGENTS, Endpoint

#: A program that asks the server for its models, writes its arguments, its environment variables
#: and the files that these name to a file, and ends with 7.
PROGRAM = """#!{python}
import json, os, sys, urllib.request
names = {names}
with urllib.request.urlopen({address} + "/v1/models") as reply:
    models = json.load(reply)["data"]
seen = {{name: os.environ.get(name) for name in names}}
words = [*sys.argv[1:], *seen.values()]
places = [word for word in words if word and os.path.isabs(word)]
files = [os.path.join(folder, name) for place in places
         for folder, _, names in os.walk(place) for name in names]
files += [place for place in places if os.path.isfile(place)]
texts = {{path: open(path).read() for path in files}}
facts = {{"arguments": sys.argv[1:], "environment": seen, "model": models[0]["id"],
         "files": texts}}
open({target!r}, "w").write(json.dumps(facts))
sys.exit(7)
"""
posix = pytest.mark.skipif(os.name == "nt", reason="the stand-in starts by its #! line")


def stand_in(folder, monkeypatch, agent, address):
    """Put PROGRAM first in PATH as *agent*: the file that it writes.

    *address* is Python code for the server's address.
    """
    target = folder / "seen.json"
    program = folder / AGENTS[agent].program
    names = list(AGENTS[agent].set_up(Endpoint("http://x", "none"), "m", folder).environment)
    program.write_text(
        PROGRAM.format(python=sys.executable, names=names, address=address, target=str(target))
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return target


@pytest.mark.parametrize("agent", AGENTS)
def test_print_shows_the_variables_and_the_command_and_starts_nothing(agent, bitnet, monkeypatch):
    monkeypatch.setenv("PATH", "")
    done = bitnet("launch", agent, "some-model", "--print", "--json", "--args", "-x 'a b'")
    assert done.code == 0
    facts = json.loads(done.out)
    assert facts["command"][0] == AGENTS[agent].program
    assert facts["command"][-2:] == ["-x", "a b"]
    assert "some-model" in json.dumps(facts)
    assert "http://127.0.0.1:" in json.dumps(facts)


@posix
@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_uses_a_running_server_and_its_exit_code_is_ours(
    agent, bitnet, tmp_path, monkeypatch
):
    with listening(tiny_gguf(tmp_path / "m.gguf"), name="served") as worker:
        target = stand_in(tmp_path, monkeypatch, agent, repr(worker.address))
        done = bitnet("launch", agent, "--server", f"{worker.address}/v1", "--args", "--extra 1")
    assert done.code == 7
    facts = json.loads(target.read_text())
    assert facts["arguments"][-2:] == ["--extra", "1"]
    assert facts["model"] == "served"
    settings = json.dumps([facts["environment"], facts["arguments"], facts["files"]])
    assert worker.address in settings
    assert "served" in settings
    assert all("bitnet-launch-" in path for path in facts["files"])
    # Folders and files that were made for the agent are removed.
    for value in [*facts["environment"].values(), *facts["files"]]:
        assert "bitnet-launch-" not in value or not os.path.exists(value)  # noqa: PTH110 - a text


@posix
def test_a_server_is_started_for_an_agent_and_stopped_after_it(bitnet, tmp_path, monkeypatch):
    address = "os.environ['ANTHROPIC_BASE_URL']"
    target = stand_in(tmp_path, monkeypatch, "claude", address)
    done = bitnet("launch", "claude", tiny_gguf(tmp_path / "m.gguf"), "--threads", 1)
    assert done.code == 7, done.err
    facts = json.loads(target.read_text())
    assert facts["model"] == facts["environment"]["ANTHROPIC_MODEL"] == "m"
    address = facts["environment"]["ANTHROPIC_BASE_URL"]
    afterwards = bitnet("launch", "claude", "--server", address)
    assert (afterwards.code, "no server with a model answers there" in afterwards.err) == (2, True)


def test_a_server_that_cannot_start_is_reported_with_its_reason(bitnet, tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, "codex", "''")
    without_tokenizer = tiny_gguf(tmp_path / "m.gguf", tokenizer=False)
    done = bitnet("launch", "codex", without_tokenizer, "--threads", 1)
    assert done.code != 0
    assert "the server ended with exit code 19" in done.err
    assert f"serve {without_tokenizer} --threads 1 --port 0" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--server", "http://example.com/v1"), "expected the address of this machine"),
        (("--server", "https://127.0.0.1:9"), "expected the address of this machine"),
        (("--server", "http://127.0.0.1:PORT"), "expected the address of this machine"),
        (("--server", "http://127.0.0.1:99999"), "expected the address of this machine"),
        (("--server", "http://[127.0.0.1"), "expected the address of this machine"),
        (("--server", "127.0.0.1:9"), "expected the address of this machine"),
        (("--server", "http://127.0.0.1:9/?a"), "expected the address of this machine"),
        (("--server", "http://a@127.0.0.1:9"), "expected the address of this machine"),
        (("--server", "http://127.0.0.1:9/a b"), "expected the address of this machine"),
        (("--server", "http://127.0.0.1:9/\u00e9"), "expected the address of this machine"),
        (("--args", "'a"), "--args"),
        (("--server", "http://127.0.0.1:9"), "no server with a model"),
    ],
)
def test_a_wrong_address_or_argument_is_refused(words, message, bitnet):
    done = bitnet("launch", "aider", *words)
    assert done.code == 2
    assert message in done.err


@posix
def test_a_server_of_another_machine_is_refused_even_if_the_model_is_named(bitnet):
    done = bitnet("launch", "codex", "some-model", "--server", "http://example.com", "--print")
    assert (done.code, done.out) == (2, "")
    assert "expected the address of this machine" in done.err


@posix
def test_an_agent_of_a_started_server_does_not_get_the_key(bitnet, tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_API_KEY", "secret")
    target = stand_in(tmp_path, monkeypatch, "claude", "os.environ['ANTHROPIC_BASE_URL']")
    done = bitnet("launch", "claude", tiny_gguf(tmp_path / "m.gguf"), "--threads", 1)
    assert done.code == 7, done.err
    assert "secret" not in target.read_text()


@posix
@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_has_the_key_of_a_running_server(agent, bitnet, tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_API_KEY", "secret")
    with listening(tiny_gguf(tmp_path / "m.gguf"), name="served") as worker:
        shown = bitnet("launch", agent, "--server", worker.address, "--print")
        setup = AGENTS[agent].set_up(Endpoint(worker.address, "secret"), "served", tmp_path)
    assert "served" in shown.out
    assert "secret" not in shown.out
    assert "$BITNET_API_KEY" in shown.out
    settings = json.dumps([setup.environment, setup.arguments, setup.files])
    assert "secret" in settings


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "the server requires a key"),
        ("other", "the key in BITNET_API_KEY is not the server's"),
        ("with\nlines", "the key in BITNET_API_KEY is not the server's"),
        ("secret", ""),
    ],
)
def test_a_server_with_another_key_is_an_error_of_its_own(
    key, message, bitnet, tmp_path, monkeypatch
):
    app_options = {"api_key": "secret"}
    with listening(tiny_gguf(tmp_path / "m.gguf"), name="served", app_options=app_options) as it:
        monkeypatch.setenv("BITNET_API_KEY", key)
        done = bitnet("launch", "aider", "--server", it.address, "--print")
    assert (done.code, message in done.err) == (2 if message else 0, True)
    assert ("export BITNET_API_KEY=KEY" in done.err) is bool(message)
    assert ("served" in done.out) is not bool(message)


def test_the_path_in_the_address_of_a_server_is_requested_too(bitnet, tmp_path):
    with listening(tiny_gguf(tmp_path / "m.gguf")) as worker:
        done = bitnet("launch", "aider", "--server", f"{worker.address}/absent/v1", "--print")
    assert (done.code, "no server with a model answers there" in done.err) == (2, True)


@posix
@pytest.mark.parametrize("agent", AGENTS)
def test_the_printed_command_starts_the_agent_with_the_key(agent, bitnet, tmp_path, monkeypatch):
    folder = Path(tempfile.gettempdir()) / "bitnet-launch-x" / agent
    with listening(tiny_gguf(tmp_path / "m.gguf"), name="served") as worker:
        monkeypatch.setenv("BITNET_API_KEY", "secret")  # the server was started without it
        target = stand_in(tmp_path, monkeypatch, agent, repr(worker.address))
        words = ("--server", worker.address, "--args", "'$BITNET_API_KEY'", "--print")
        shown = bitnet("launch", agent, *words).out
        setup = AGENTS[agent].set_up(Endpoint(worker.address, "secret"), "served", folder)
        assert subprocess.run(["sh", "-c", shown], check=False).returncode == 7
    facts = json.loads(target.read_text())
    seen = json.dumps([facts["environment"], facts["arguments"]])
    expected = json.dumps([setup.environment, [*setup.arguments, "$BITNET_API_KEY"]])
    # The name of the folder for its settings is random.
    assert re.sub(r"bitnet-launch-\w+", "bitnet-launch-x", seen) == expected


#: Ends itself by SIGTERM, or waits for SIGINT and ends with 3.
SIGNALLED = """#!{python}
import os, signal, sys, time
if sys.argv[-1] == "die":
    os.kill(os.getpid(), signal.SIGTERM)
def leave(*_):
    os.write(1, b"interrupted\\n")  # it may interrupt the other write
    sys.exit(3)
signal.signal(signal.SIGINT, leave)
os.write(1, b"ready\\n")
time.sleep(600)
"""


@posix
def test_an_interrupt_is_left_to_the_agent_and_its_signal_becomes_the_exit_code(
    bitnet, tmp_path, monkeypatch
):
    with listening(tiny_gguf(tmp_path / "m.gguf"), name="served") as worker:
        stand_in(tmp_path, monkeypatch, "aider", "''")
        program = tmp_path / AGENTS["aider"].program
        program.write_text(SIGNALLED.format(python=sys.executable))
        words = ("launch", "aider", "--server", worker.address)
        assert bitnet(*words, "--args", "die").code == 128 + signal.SIGTERM
        command = [sys.executable, "-m", "bitnet", *words]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert process.stdout.readline() == "ready\n"
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            assert process.stdout.read() == "interrupted\n"
        assert process.returncode == 3


def test_an_agent_that_is_not_installed_is_named_with_its_command(bitnet, monkeypatch, tmp_path):
    with listening(tiny_gguf(tmp_path / "m.gguf")) as worker:
        monkeypatch.setenv("PATH", "")
        done = bitnet("launch", "opencode", "--server", worker.address)
    assert done.code != 0
    assert "opencode is not installed" in done.err
    assert "npm install" in done.err

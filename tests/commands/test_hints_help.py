"""A hint is followed as printed, and then the command that failed works."""

import shlex

import pytest
from hub_server import HubServer
from tiny_models import tiny_gguf

# What fails, and the one who offers the way out: the command after ``hint:``.
FAILING = {
    "a model of the hub that is not here": ("infer", "hf:org/tiny", "--prompt", "ab", "-n", "2"),
    "a file of a repository": ("verify", "hf:org/tiny:tiny.gguf"),
    "a value with a dash": ("infer", "models/model.gguf", "--prompt", "-v", "-n", "2"),
    "a misspelt option": ("infer", "models/model.gguf", "--promt", "ab"),
    "a lock file that is not there": ("sync",),
}
COMMANDS = ("a model of the hub that is not here", "a file of a repository")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder with a model, and a hub that has another one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    path = tiny_gguf(tmp_path / "models/model.gguf")
    with HubServer() as server:
        server.add("org/tiny", "tiny.gguf", path.read_bytes())
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield tmp_path


@pytest.mark.parametrize("what", FAILING)
def test_what_fails_has_a_hint(bitnet, place, what):
    failed = bitnet(*FAILING[what])
    assert failed.code != 0
    assert "hint: " in failed.err


@pytest.mark.parametrize("what", COMMANDS)
def test_the_hint_is_followed_and_then_it_works(bitnet, place, what):
    failed = bitnet(*FAILING[what])
    hint = failed.err.partition("hint: ")[2].strip()
    command = hint[hint.index("bitnet ") :].partition(", or ")[0]
    followed = bitnet(*shlex.split(command)[1:])
    assert followed.code == 0, f"{command}\n{followed.err}"
    again = bitnet(*FAILING[what])
    assert again.code == 0, f"{hint}\n{again.err}"

"""The tab key in real shells: each is started, reads the script, and completes."""

import os
import subprocess

import pytest

pytest.importorskip("pty")
from terminals import OnTerminal

# What is typed, and what stands there after the tab key.
TYPED = {
    "a command": ("bitnet inspe", "bitnet inspect-gguf "),
    "a command of two words": ("bitnet cache ver", "bitnet cache verify "),
    "an option": ("bitnet infer --max-t", "bitnet infer --max-tokens"),
    "an option behind a value": (
        "bitnet infer --prompt a --reg",
        "bitnet infer --prompt a --regex",
    ),
    "an option that is on": ("bitnet attest --no-tr", "bitnet attest --no-trace"),
    "a model by its name": ("bitnet serve gem", "bitnet serve gemma3-270m"),
    "a model behind its option": ("bitnet infer --model smol", "bitnet infer --model smollm2-135m"),
    "a model in the cache": ("bitnet verify hf:or", "bitnet verify hf:org/cached"),
    "a file": ("bitnet run my-mod", "bitnet run my-model.gguf"),
    "a source": ("bitnet tokenizer --source off", "bitnet tokenizer --source official"),
    "an encoding": ("bitnet convert a.gguf --type TQ2", "bitnet convert a.gguf --type TQ2_0"),
    "an engine": ("bitnet crossval --against ik", "bitnet crossval --against ik_llama.cpp"),
    "an area": ("bitnet doctor net", "bitnet doctor network"),
}
STARTS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "--private"],
}
BEGINS = {
    "bash": "bind 'set bell-style none'; PS1='$ '; source {script}; echo rea''dy\n",
    "zsh": "PS1='$ '; autoload -Uz compinit; compinit -D; source {script}; echo rea''dy\n",
    "fish": "source {script}; echo rea''dy\n",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a model, a cache with another one, and a ``bitnet`` that must not run."""
    folder = tmp_path / "work"
    (folder / "sub").mkdir(parents=True)
    (folder / "my-model.gguf").touch()
    (folder / "my-models.txt").touch()
    (tmp_path / "cache/models/hf/org/cached@main").mkdir(parents=True)
    program = tmp_path / "bin/bitnet"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


def script_of(shell, bitnet, place):
    done = bitnet("completion", shell)
    assert (done.code, done.err) == (0, "")
    path = place.parent / f"script.{shell}"
    path.write_text(done.out)
    return path


@pytest.mark.parametrize("what", TYPED)
@pytest.mark.parametrize("shell", ["bash", pytest.param("zsh", marks=pytest.mark.needs("zsh"))])
def test_the_tab_key_completes(bitnet, place, shell, what):
    typed, wanted = TYPED[what]
    terminal = OnTerminal(STARTS[shell], folder=place, columns=120, TERM="dumb")
    terminal.type(BEGINS[shell].format(script=script_of(shell, bitnet, place)))
    terminal.until("ready")
    terminal.shown = ""
    # The line is shown again as an argument of `echo`, so that only what is complete counts.
    terminal.type(f"{typed}\t\x01echo '<\x05>'; exit\n")
    terminal.until("\n<")
    terminal.end()
    (shown,) = [line for line in terminal.shown.splitlines() if line.startswith("<")]
    assert shown.strip("<>").rstrip() == wanted.rstrip()
    assert not (place.parent / "started").exists()


@pytest.mark.needs("fish")
@pytest.mark.parametrize("what", TYPED)
def test_fish_completes(bitnet, place, what):
    typed, wanted = TYPED[what]
    script = script_of("fish", bitnet, place)
    asked = ["fish", "--no-config", "-c", f"source {script}; complete -C '{typed}'"]
    done = subprocess.run(asked, cwd=place, capture_output=True, text=True, check=True)
    found = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert found == [wanted.split()[-1]], done.stderr
    assert not (place.parent / "started").exists()


def test_a_name_that_looks_like_a_command_of_the_shell_is_not_run(bitnet, place):
    (place / "x$(touch ran).gguf").touch()
    script = script_of("bash", bitnet, place)
    terminal = OnTerminal(STARTS["bash"], folder=place, TERM="dumb")
    terminal.type(BEGINS["bash"].format(script=script))
    terminal.until("ready")
    terminal.type("bitnet run x\t")
    terminal.until("ran")
    terminal.type("\x15exit\n")
    terminal.end()
    assert not (place / "ran").exists()


@pytest.mark.parametrize("shell", STARTS)
def test_each_command_and_option_is_in_the_script(bitnet, shell):
    from bitnet.commands import load

    words = bitnet("completion", shell).out
    for name in load().task_names:
        assert load()[name].typed in words
        for option in load()[name].get_arguments():
            assert (
                f"--{option.names[0]}" in words
                or f"-l {option.names[0]} " in words
                or (f"-l {option.names[0]}\n" in words)
            )


def test_another_shell_is_refused_by_name(bitnet):
    done = bitnet("completion", "tcsh")
    assert (done.code, "expects one of bash, zsh, fish, got 'tcsh'" in done.err) == (2, True)

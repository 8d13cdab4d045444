"""The tab key: the words that it offers, and real shells that ask for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bitnet.commands import load
from bitnet.commands.program import candidates

pytest.importorskip("pty")
from terminals import OnTerminal

# What is typed before the tab key, and the only candidate that begins with the last word.
TYPED = {
    "a command": ("bitnet inspe", "inspect-gguf"),
    "a command of two words": ("bitnet cache ver", "verify"),
    "an option": ("bitnet infer --max-t", "--max-tokens"),
    "an option behind a value": ("bitnet infer --prompt a --reg", "--regex"),
    "an option that is on": ("bitnet attest --no-tr", "--no-trace"),
    "a model by its name": ("bitnet serve gem", "gemma3-270m"),
    "a model behind its option": ("bitnet infer --model smol", "smollm2-135m"),
    "a model in the cache": ("bitnet verify hf:or", "hf:org/cached"),
    "a source": ("bitnet tokenizer --source off", "official"),
    "an engine": ("bitnet crossval --against ik", "ik_llama.cpp"),
    "an area": ("bitnet doctor net", "network"),
}
#: Command lines of shells without files of the user.
STARTS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
#: First lines typed; the quotes keep the echo of the line from looking like its output, "ready".
BEGINS = {
    "bash": "bind 'set bell-style none'; PS1='$ '; source {script}; echo rea''dy\n",
    "zsh": "PS1='$ '; autoload -Uz compinit; compinit -D; source {script}; echo rea''dy\n",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a model, a cache with another one, and ``bitnet`` on the path."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work/my-model.gguf").touch()
    (tmp_path / "cache/models/hf/org/cached@main").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "work"


def script_of(shell, bitnet, place):
    """Path of a file with the completion script for *shell*."""
    done = bitnet("completion", shell)
    assert (done.code, done.err) == (0, "")
    path = place.parent / f"script.{shell}"
    path.write_text(done.out)
    return path


@pytest.mark.parametrize("what", TYPED)
def test_the_expected_word_is_the_only_one_offered_with_that_beginning(place, what):
    typed, word = TYPED[what]
    offered = candidates(typed.split()[1:], load())
    assert [each for each in offered if each.startswith(typed.split()[-1])] == [word]


@pytest.mark.parametrize("name", load().task_names)
def test_every_option_of_a_command_is_offered(name):
    command = load()[name]
    offered = candidates([*command.command_words.split(), "--"], load())
    assert {f"--{option.names[0]}" for option in command.options} <= {*offered}


@pytest.mark.parametrize("shell", ["bash", pytest.param("zsh", marks=pytest.mark.needs("zsh"))])
@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("bitnet inspe", "bitnet inspect-gguf"),
        ("bitnet serve gem", "bitnet serve gemma3-270m"),
        ("bitnet run my-mod", "bitnet run my-model.gguf"),
    ],
)
def test_the_tab_key_completes(bitnet, place, shell, typed, line):
    terminal = OnTerminal(STARTS[shell], folder=place, columns=120, TERM="dumb")
    terminal.type(BEGINS[shell].format(script=script_of(shell, bitnet, place)))
    terminal.until("ready")
    terminal.shown = ""
    # Tab, Ctrl-A, echo and a quote in front, Ctrl-E and a quote behind: the shell then prints the
    # completed line, so that no candidate that is only displayed counts.
    terminal.type(f"{typed}\t\x01echo '<\x05>'; exit\n")
    terminal.until("\n<")
    terminal.end()
    (completed,) = [line for line in terminal.shown.splitlines() if line.startswith("<")]
    assert completed.strip("<>").rstrip() == line


@pytest.mark.needs("fish")
def test_fish_completes_the_names_of_models(bitnet, place):
    script = script_of("fish", bitnet, place)
    command = ["fish", "--no-config", "-c", f"source {script}; complete -C 'bitnet serve gem'"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
    assert "gemma3-270m" in done.stdout.split(), done.stderr


def test_inv_gets_a_script_of_its_own(place):
    command = [Path(sys.executable).parent / "inv", "completion", "bash"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert "complete -F _complete_inv" in done.stdout


def test_a_name_that_looks_like_a_command_of_the_shell_is_not_offered(place):
    (place.parent / "cache/models/hf/org/x$(touch ran)@main").mkdir()
    assert "ran" not in " ".join(candidates(["serve", "hf:"], load()))


def test_another_shell_is_refused_by_name(bitnet):
    done = bitnet("completion", "tcsh")
    assert (done.code, "expects one of bash, zsh, fish, got 'tcsh'" in done.err) == (2, True)

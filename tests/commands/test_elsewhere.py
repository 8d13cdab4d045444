"""Words of other programs are answered with the command line for this one."""

import shlex

import pytest

from bitnet.commands import load
from bitnet.commands.elsewhere import COMMANDS, OPTIONS_OF_OTHERS


def hint(done):
    """Hint of a command line that was refused as wrong usage."""
    assert done.code == 2, done
    return done.err.partition("hint: ")[2].strip()


@pytest.mark.parametrize(
    ("typed", "meant"),  # words of another program, and the command line for this one
    [
        ("generate smollm2-135m", "infer smollm2-135m"),
        ("generate -m a.gguf -p 'a b' -n 5", "infer --model a.gguf --prompt 'a b' --max-tokens 5"),
        ("-m a.gguf -p 'a b'", "infer --model a.gguf --prompt 'a b'"),
        ("ps", "models"),
        ("ls", "models"),
        ("ls --format json", "models --json"),
        ("ls --format=json", "models --json"),
        ("ls --format --verbose", "models --json --verbose"),
        ("ls --format text", "models"),
        ("ls --format=text", "models"),
        ("ls --output-format text a", "models a"),
        ("--ctx-size=4096 -m=a.gguf", "infer --context 4096 --model=a.gguf"),
        ("quantize a.gguf", "convert a.gguf"),
        ("server a.gguf", "serve a.gguf"),
        ("smollm2-135m", "run smollm2-135m"),
        ("hf:org/repo 'a b'", "run hf:org/repo 'a b'"),
        ("a.gguf", "run a.gguf"),
    ],
)
def test_the_hint_is_the_command_line_that_is_meant(typed, meant, bitnet):
    assert hint(bitnet(*shlex.split(typed))) == f"bitnet {meant}"


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("modles", "models"),
        ("veryfy", "verify"),
        ("inspect_guf", "inspect-gguf"),
        ("cache lst", "list"),
        ("bundle exprot", "export"),
    ],
)
def test_a_near_name_of_a_command_is_suggested(typed, near, bitnet):
    assert hint(bitnet(*typed.split())).startswith("did you mean ")
    assert near in hint(bitnet(*typed.split()))


@pytest.mark.parametrize(
    ("command", "option", "ours"),
    [
        ("models", "--format=json", "--json"),
        ("infer", "-m", "--model"),
        ("infer", "-p", "--prompt"),
        ("serve", "-hf", "--model"),
        ("infer", "-c", "--context"),
    ],
)
def test_an_option_of_another_program_is_named_as_it_is_called_here(command, option, ours, bitnet):
    assert hint(bitnet(command, option, "x")) == f"did you mean {ours}?"


@pytest.mark.parametrize(
    ("word", "ours"), [*COMMANDS.items(), ("pull", "download-model"), ("list", "models")]
)
def test_help_for_a_command_of_another_program_is_that_of_ours(word, ours, bitnet):
    expected = bitnet(ours, "--help").out
    assert expected.startswith(f"Usage: bitnet {ours} ")
    for words in ((word, "--help"), ("help", word)):
        done = bitnet(*words)
        assert (done.code, done.out) == (0, expected), done.err


def test_every_command_of_another_program_leads_to_one_of_ours_and_is_not_one_itself():
    by_name = load().task_names
    names = {*by_name, *(alias for aliases in by_name.values() for alias in aliases)}
    assert set(COMMANDS.values()) <= {*by_name}
    assert not set(COMMANDS) & names


def test_every_option_of_another_program_leads_to_one_of_ours():
    commands = load()
    flags = {
        flag for name in commands.task_names for o in commands[name].options for flag in o.flags
    }
    assert set(OPTIONS_OF_OTHERS.values()) <= flags

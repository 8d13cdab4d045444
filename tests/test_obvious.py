"""Commands typed without reading the help are done, or answered with the right command."""

import pytest

from bitnet.base import settings
from bitnet.commands import load


def error(done):
    """The error that the command printed, without what it printed before."""
    return done.err[done.err.index("Error: ") :]


def test_help_list_and_version_are_what_they_say(bitnet):
    assert bitnet("help").out == bitnet("--help").out
    assert bitnet("help", "infer").out == bitnet("infer", "--help").out
    assert bitnet("list").out == bitnet("models").out
    assert bitnet("version").out == bitnet("--version").out
    assert bitnet("cache", "list").code == 0
    unknown = bitnet("help", "nothing")
    assert (unknown.code, "no command 'nothing'" in unknown.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("infer", "hello world"), "bitnet infer --prompt 'hello world'"),
        (("infer", "-m", "a.gguf"), "did you mean --model?"),
        (("infer", "a.gguf", "hello"), "bitnet infer a.gguf --prompt hello"),
        (("infer", "-p", "a"), "did you mean --prompt?"),
        (("infer", "a.gguf", "--model", "b.gguf"), "leave one of them out"),
        (("batch", "rows.jsonl"), "bitnet batch --input rows.jsonl"),
        (("batch", "a.gguf", "rows.jsonl"), "bitnet batch a.gguf --input rows.jsonl"),
        (("health", "my-models"), "bitnet health --model-dir my-models"),
        (("convert", "--force"), "bitnet convert --help"),
    ],
)
def test_a_guess_is_answered_with_what_to_type(bitnet, words, hint):
    done = bitnet(*words)
    assert (done.code, error(done).partition("hint: ")[2].strip()) == (2, hint)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--max-tokens", "1", "--max-new-tokens", "3"),
            "--max-new-tokens and --max-tokens are one option, given twice",
        ),
        (("--n-predict=1", "--max-tokens=1"), "--max-tokens and --n-predict are one option, given"),
        (("--model", "a", "--model=a"), "--model is given twice"),
    ],
)
def test_an_option_given_twice_also_by_two_names_is_refused(bitnet, words, said):
    done = bitnet("infer", "--prompt", "a", *words)
    assert done.code == 2
    assert said in error(done)


# Values that every variable refuses, but for those for which any text is a value.
NONSENSE = ("nonsense!", "-1")
ANY_TEXT = {
    "a path": {"BITNET_CACHE_DIR", "BITNET_GGUF", "GITHUB_STEP_SUMMARY", "HF_HOME"},
    "a path, too": {"BITNET_CPP_DIR", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"},
    "a file": {"BITNET_HISTORY", "BITNET_PRESETS"},
    "a secret": {"BITNET_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"},
    "names of hosts": {"BITNET_HUB_HOSTS"},
    "any value means the same": {"NO_COLOR"},
    "a command": {"EDITOR", "VISUAL"},
    "other programs' words": {
        "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    },
    "other programs understand more": {"RAYON_NUM_THREADS", "RUST_LOG"},
}  # fmt: skip
REFUSES = sorted(
    {name for setting in settings.ALL for name in setting.names}.difference(*ANY_TEXT.values())
)


def minimal(name):
    """Words of the command *name* with its required options and arguments alone."""
    needed = [option for option in load()[name].options if getattr(option, "required", False)]
    values = [(option, option.choices[0] if option.choices else "x") for option in needed]
    return (
        name,
        *(
            value if option.positional else f"--{option.names[0]}={value}"
            for option, value in values
        ),
    )


@pytest.mark.parametrize("value", NONSENSE)
@pytest.mark.parametrize("name", REFUSES)
def test_a_variable_with_nonsense_is_refused_where_it_is_not_read(bitnet, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    done = bitnet("exit-codes")
    assert done.code == 2
    assert f"'{value}'" in done.err


@pytest.mark.parametrize("name", sorted(load().task_names))
def test_every_command_refuses_a_variable_with_nonsense(bitnet, monkeypatch, name):
    monkeypatch.setenv("BITNET_OFFLINE", "maybe")
    done = bitnet(*minimal(name))
    assert done.code == 2
    assert "environment variable BITNET_OFFLINE is 'maybe'" in done.out + done.err

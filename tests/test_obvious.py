"""What somebody types who has not read the help is done, or answered with what to type."""

import pytest


def error(done):
    return done.err[done.err.index("Error: ") :]


def test_help_and_list_are_what_they_say(bitnet):
    assert bitnet("help").out == bitnet("--help").out
    assert bitnet("help", "infer").out == bitnet("infer", "--help").out
    assert bitnet("list").out == bitnet("--list").out
    assert bitnet("cache", "list").code == 0
    assert bitnet("help", "nothing").code == 2


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("infer", "hello"), "bitnet infer --prompt hello"),
        (("infer", "hello world"), "bitnet infer --prompt 'hello world'"),
        (("infer", "-m", "a.gguf"), "did you mean --model?"),
        (("infer", "-p", "a"), "bitnet infer --prompt a"),
        (("verify", "a.gguf"), "bitnet verify --model a.gguf"),
        (("verify", "my models/a.gguf"), "bitnet verify --model 'my models/a.gguf'"),
        (("plan", "a.gguf"), "bitnet plan --model a.gguf"),
        (("convert", "--force"), "bitnet convert --help"),
    ],
)
def test_a_guess_is_answered_with_what_to_type(bitnet, words, hint):
    done = bitnet(*words)
    assert (done.code, error(done).partition("hint: ")[2].strip()) == (2, hint)


@pytest.mark.parametrize(
    "words", [("--max-tokens", "1", "--max-new-tokens", "3"), ("--model", "a", "--model=a")]
)
def test_an_option_given_twice_by_two_names_is_refused(bitnet, words):
    done = bitnet("infer", "--prompt", "a", *words)
    assert done.code == 2
    assert "is given twice" in error(done)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BITNET_OFFLINE", "maybe"),
        ("BITNET_BACKEND", "gpu"),
        ("BITNET_THREADS", "many"),
        ("BITNET_SIMULATE_NETWORK_ERROR", "sometimes"),
        ("BITNET_LOG", "loud"),
        ("BITNET_DOWNLOAD_TIMEOUT", "-1"),
    ],
)
@pytest.mark.parametrize(
    "words",
    [("exit-codes",), ("inspect-gguf", "no.gguf"), ("cache.list",), ("doctor",), ("tokenizer",)],
    ids=lambda words: words[0],
)
def test_a_variable_with_nonsense_is_refused_by_every_command(
    bitnet, monkeypatch, words, name, value
):
    monkeypatch.setenv(name, value)
    done = bitnet(*words)
    assert done.code == 2
    assert value in done.out + done.err

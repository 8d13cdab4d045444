"""Words without a name: a model is one for every command that takes a model.

Exit codes: 19 not found.
"""

import json

import pytest
from tiny_models import tiny_gguf

from bitnet.commands import load
from bitnet.commands.command_line import Words
from bitnet.commands.declare import Option

COMMANDS = load()
OPTIONS = {
    name: {entry.names[0]: entry for entry in COMMANDS[name].options}
    for name in COMMANDS.task_names
}
WITH_MODEL = sorted(name for name, options in OPTIONS.items() if "model" in options)
# Earlier name of an option, by command and option. Each was in a release, or in the guides that
# this program replaces.
FORMERLY = {
    ("bench", "against"): "compare",
    ("bundle.import", "project"): "into",
    ("ci-init", "project"): "into",
    ("crossval", "against"): "reference",
    ("download-model", "model"): "id",
    ("download-model", "output"): "out",
    ("export-tokenizer", "model"): "tokenizer",
    ("export-tokenizer", "output"): "into",
    ("fix-gguf", "model"): "path",
    ("inspect-gguf", "model"): "path",
    ("plan", "model"): "id",
    ("tokenize", "model"): "tokenizer",
    ("tokenizer", "against"): "with",
    ("tokenizer", "output"): "into",
    ("verify-tokenizer", "model"): "tokenizer",
}


@pytest.mark.parametrize("name", WITH_MODEL)
def test_the_model_is_the_first_positional_option_of_every_command_that_takes_one(name):
    model = OPTIONS[name]["model"]
    assert isinstance(model, Option)
    assert model.positional
    first = next(each for each in OPTIONS[name].values() if each.positional and not each.choices)
    assert first is model


def test_the_collection_of_commands_with_a_model_is_not_empty():
    assert len(WITH_MODEL) > 18


@pytest.mark.parametrize(("command", "option"), FORMERLY, ids=str)
def test_an_earlier_name_works_and_is_not_shown(bitnet, command, option):
    entry = OPTIONS[command][option]
    name = FORMERLY[command, option]
    assert name in entry.names
    assert f"--{name}=" not in bitnet(command, "--help").out


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Name of a model in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BITNET_GGUF", raising=False)
    return tiny_gguf(tmp_path / "a.gguf").name


def ids(done):
    """Ids that ``tokenize`` printed."""
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)["ids"]


def test_a_model_may_stand_at_any_place_of_the_command_line(bitnet, model):
    expected = ids(bitnet("tokenize", model, "ab", "--json"))
    for words in (
        ("--model", model, "ab"),
        (f"--model={model}", "ab"),
        ("--tokenizer", model, "--text", "ab"),
        ("--no-warnings", model, "--no-add-special", "ab", "--add-special"),
        ("--text=ab", model),
    ):
        assert ids(bitnet("tokenize", *words, "--json")) == expected


def test_a_model_given_twice_is_refused(bitnet, model):
    done = bitnet("verify", model, "--model", "b.gguf")
    assert (done.code, done.err.splitlines()[0]) == (
        2,
        f"Error: verify got '{model}' and --model b.gguf",
    )


def test_a_word_with_blanks_is_a_model_only_if_such_a_file_exists(bitnet, model, tmp_path):
    (tmp_path / model).rename(tmp_path / "my model")
    done = bitnet("infer", "my model", "--prompt", "a", "--max-tokens", "1")
    assert done.code == 0
    assert "unexpected argument" in bitnet("infer", "your model").err


def test_the_name_of_a_command_is_a_value_like_any_other(bitnet, model, tmp_path):
    assert "unexpected argument 'exit-codes'" in bitnet("verify", model, "exit-codes").err
    assert ids(bitnet("tokenize", model, "run", "--json"))
    (tmp_path / "exit-codes").mkdir()
    assert bitnet("verify", "exit-codes").code == 19


def test_a_word_after_doctor_is_an_area_or_a_model(bitnet, model):
    shown = bitnet("doctor", model)
    assert (shown.code, model in shown.out) == (0, True), shown.err
    refused = bitnet("doctor", "netwrok")
    assert (refused.code, "no model of that name: netwrok" in refused.err) == (19, True)


def test_several_words_are_values_of_an_option_that_is_a_list():
    words = Words(COMMANDS["bundle.export"], ["a", "--output", "x.tar", "b"])
    assert words.values == {"model": ["a", "b"], "output": "x.tar"}


@pytest.mark.parametrize("words", [("cache", "clean"), ("cache.clean",), ("clean-cache",)])
def test_cache_clean_is_one_command_under_three_names(bitnet, words):
    done = bitnet(*words, "--dry-run", "--json")
    assert json.loads(done.out)["removed"] is False
    assert bitnet(*words, "--help").out == bitnet("help", *words).out


def test_the_first_word_of_a_command_alone_is_answered_with_the_second_words(bitnet):
    done = bitnet("cache")
    assert (done.code, "cache needs one of clean, list, verify" in done.err) == (2, True)


def test_options_of_invoke_are_not_options_of_a_command(bitnet):
    for name in ("--echo", "-p", "--version", "--list"):
        assert f"infer has no option {name}" in bitnet("infer", name).err

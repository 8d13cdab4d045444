"""Refusals of a folder's configuration: in the folder's own words, by a key that it has."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from config_mutants import MODELS, VALUES, changed, mutants_of, open_model, paths_of

from bitnet import families as package
from bitnet.base.errors import BitnetError, InvalidFormat, Unsupported
from bitnet.families.config_json import describe
from bitnet.families.config_values import KINDS, ROPE_KINDS, list_sizes
from bitnet.families.keys import BECOMES, COMMON, Keys

SLICE = 400  # mutations that a fast test draws from all
# Names that a message on a folder must not have: GGUF keys with a point or that no ``config.json``
# has, and tensors of GGUF.
_OF_GGUF = {
    name
    for name in (*BECOMES.values(), *COMMON)
    if name not in BECOMES and ("." in name or name in ("block_count", "context_length"))
}
_TENSORS = re.compile(r"\bblk\.\d|\btoken_embd|\boutput_norm\.|\battn_(q|k|v)\b|\bffn_(up|gate)\b")
# Hints on damaged files, which do not help with a wrong value.
_DAMAGE = ("damaged", "fetch it again", "fetch the whole model again", "converted")


def with_former_table(config):
    """*config* with the table of its position embedding under the name that transformers 4 had."""
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        return config
    theta = {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
    rest = {key: value for key, value in config.items() if key != "rope_parameters"}
    return {**rest, **theta, "rope_scaling": rope}


def keys_in(config):
    """Names of all keys in *config*, at every depth."""
    return {part for path in paths_of(config) for part in path if not str(part).isdigit()}


def check_message(error, config, path, *, removed=""):
    """Assert that the message of *error*, on *config* changed at *path*, has the folder's words.

    The message names a key of *config*, a known key that *config* lacks ("has no KEY"), or the key
    *removed* from it, and none of GGUF.
    """
    message = error.message
    for name in _OF_GGUF:
        assert not re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", message), (path, message)
    assert not _TENSORS.search(message), (path, message)
    hint = error.hint or ""
    assert not any(word in hint for word in _DAMAGE), (path, message, hint)
    words = set(re.findall(r"\w+", message))
    missing = re.search(r"has no (\w+)", message)
    is_named = missing is not None and missing[1] in {*KINDS, *ROPE_KINDS}
    assert is_named or words & (keys_in(config) | {removed}), (path, message)
    ignorable = re.search(r"--ignore-key (\S+)", hint)
    if ignorable and not removed:
        assert set(ignorable[1].split(".")) <= keys_in(config), (path, message, hint)


def refuse(name, config, folder, monkeypatch):
    """The error with which the model *name* with *config* is refused, or None if it opens."""
    try:
        open_model(name, config, folder, monkeypatch)
    except BitnetError as error:
        return error
    return None


@pytest.mark.parametrize("former", [False, True], ids=["rope_parameters", "rope_scaling"])
def test_a_refusal_has_the_folders_own_words_and_a_key_it_has(former, tmp_path, monkeypatch):
    mutants = [(name, *mutant) for name in MODELS for mutant in mutants_of(name)]
    refused = 0
    for name, path, value in random.Random(46 + former).sample(mutants, SLICE):
        config = changed(name, path, value)
        config = with_former_table(config) if former else config
        error = refuse(name, config, tmp_path, monkeypatch)
        if error is not None:
            check_message(error, config, path)
            refused += 1
    # Enough mutations are refused for the messages to be checked.
    assert refused > SLICE // 3


def smaller_and_larger(name):
    """Yield the path of each size with twice, one more than and half of its value.

    These are numbers of the right kind that contradict the other sizes or the tensors.
    """
    for path in paths_of(MODELS[name]["config"]):
        size = MODELS[name]["config"]
        for key in path:
            size = size[key]
        if type(size) is int and size > 0:
            yield from ((path, size * 2), (path, size + 1), (path, max(size // 2, 1)))


@pytest.mark.parametrize("name", ["llama", "gemma4-e2b", "deepseek3", "falcon-h1", "qwen3.5"])
def test_a_size_that_fits_nothing_is_refused_by_its_key(name, tmp_path, monkeypatch):
    refused = 0
    for path, value in smaller_and_larger(name):
        config = changed(name, path, value)
        error = refuse(name, config, tmp_path, monkeypatch)
        if error is not None:
            check_message(error, config, path)
            if "tensors do not" in error.message:
                assert str(path[-1]) in error.message, error.message
            refused += 1
    # Some of them are refused, so that messages were checked.
    assert refused > 4


def test_a_refusal_of_a_folder_without_a_key_names_the_key(tmp_path, monkeypatch):
    refused = 0
    for name in ("llama", "phi3-longrope", "gemma3", "granitehybrid", "lfm2", "qwen3.5"):
        for path in paths_of(MODELS[name]["config"]):
            if len(path) > 1:
                continue
            config = json.loads(json.dumps(MODELS[name]["config"]))
            del config[path[0]]
            error = refuse(name, config, tmp_path, monkeypatch)
            if error is not None:
                check_message(error, config, path, removed=path[0])
                refused += 1
    # Some are refused, so that messages were checked.
    assert refused > 10


@pytest.mark.parametrize("name", ["gemma4-e2b", "granitehybrid-experts", "lfm2", "falcon-h1"])
def test_a_value_that_a_family_cannot_compute_with_is_named(name, tmp_path, monkeypatch):
    refused = 0
    for path in paths_of(MODELS[name]["config"]):
        for value in (None, 1e308):
            config = changed(name, path, value)
            error = refuse(name, config, tmp_path, monkeypatch)
            if error is not None:
                check_message(error, config, path)
                # Words of Python's own TypeError.
                assert "operand" not in error.message
                assert "NoneType" not in error.message
                refused += 1
    # Some are refused, so that messages were checked.
    assert refused > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_refusal_of_a_family_has_the_folders_own_words(name, tmp_path, monkeypatch):
    refused = 0
    for path, value in (*mutants_of(name), *smaller_and_larger(name)):
        for config in (changed(name, path, value), with_former_table(changed(name, path, value))):
            error = refuse(name, config, tmp_path, monkeypatch)
            if error is not None:
                check_message(error, config, path)
                refused += 1
    assert refused > len(VALUES)  # more than one key is checked


def config_of(name, **changes):
    """The configuration of the tiny model *name* with *changes*; a key of None is left out."""
    config = MODELS[name]["config"] | changes
    return {key: value for key, value in config.items() if value is not None}


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        (
            "smollm3",
            {"no_rope_layers": None, "no_rope_layer_interval": 3},
            "no_rope_layer_interval = 3: in GGUF",
        ),
        (
            "nemotron-h",
            {"layers_block_type": None, "hybrid_override_pattern": "M*Z-"},
            'hybrid_override_pattern = "M*Z-": known are M',
        ),
        (
            "qwen3",
            {
                "architectures": ["Qwen3ForSequenceClassification"],
                "auto_map": {"AutoModelForSequenceClassification": "modeling_x.MyOwnHead"},
            },
            "the model brings custom code",
        ),
    ],
)
def test_a_refusal_names_the_key_that_the_file_has(name, changes, expected):
    with pytest.raises(BitnetError) as raised:
        describe(config_of(name, **changes), model="m")
    assert expected in raised.value.message


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {
                "model_type": "kimi_linear",
                "num_hidden_layers": 4,
                "q_lora_rank": None,
                "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2]},
            },
            "linear_attn_config: full_attn_layers and kda_layers do not list each layer once",
        ),
        (
            {"model_type": "qwen2_moe", "num_experts": 3, "num_local_experts": 5},
            "several numbers of experts: num_experts 3, num_local_experts 5",
        ),
        (
            {"model_type": "mamba2", "hidden_size": 64, "head_dim": 7, "num_heads": 8},
            "num_heads 8 of head_dim 7 do not have the width expand times hidden_size, 128",
        ),
        (
            {
                "model_type": "granite_swa",
                "num_hidden_layers": 4,
                "rope_theta": 10000.0,
                "layer_rope_theta": [0, 10000.0],
            },
            "layer_rope_theta has 2 entries, expected one for each of 4 layers",
        ),
    ],
)
def test_the_message_of_a_familys_own_check_is_kept(config, expected):
    with pytest.raises(InvalidFormat) as raised:
        describe(config, model="m")
    assert raised.value.message.startswith(f"m: config.json: {expected}")


@pytest.mark.parametrize("key", ["expert_swiglu_limit_list", "share_expert_swiglu_limit_list"])
def test_a_limit_of_an_expert_is_refused_and_none_is_not(key):
    ling3 = {"model_type": "bailing_hybrid", "num_hidden_layers": 4}  # others have defaults
    plain = describe(ling3, model="m").metadata
    for limits in (None, [], [0, None, 0.0, None]):
        assert describe({**ling3, key: limits}, model="m").metadata == plain
    with pytest.raises(Unsupported, match=f"{key} = .*without limits only"):
        describe({**ling3, key: [0, 7.0, 0, 0]}, model="m")
    with pytest.raises(InvalidFormat, match=f"{key} is true, expected a list"):
        describe({**ling3, key: True}, model="m")


def test_only_two_files_of_the_families_raise_value_error():
    # A ValueError gets a prefix such as "config.json is wrong", so checks raise InvalidFormat. But
    # ``rope.py`` checks one table, whose name is added to its message, ``family.py`` one tensor.
    texts = {
        path.name: path.read_text("utf-8") for path in Path(package.__file__).parent.glob("*.py")
    }
    assert {name for name in texts if "raise ValueError" in texts[name]} == {"rope.py", "family.py"}


def test_a_classifier_of_the_familys_own_class_is_read():
    head = "Qwen3ForSequenceClassification"
    own = {"AutoModelForSequenceClassification": f"modeling_qwen3.{head}"}
    config = config_of("qwen3", architectures=[head], auto_map=own)
    assert describe(config, model="m").classifies


def test_a_message_lists_the_sizes_of_the_file_and_no_other_numbers():
    text = list_sizes({"hidden_size": 64, "rope_theta": 1000000, "rms_norm_eps": 0})
    assert text == "config.json says hidden_size = 64"


# By 26 or 27 layers llama.cpp recognises files of DeepSeek 2 Lite, which has no latent of queries.
@pytest.mark.parametrize("layers", [26, 27, 28])
def test_a_folder_of_26_or_27_layers_keeps_its_latent_of_queries(layers, tmp_path, monkeypatch):
    changes = {"num_hidden_layers": layers, "num_nextn_predict_layers": 0}
    described = describe(config_of("deepseek3", **changes), model="m")
    keys = Keys(
        path=tmp_path,
        architecture="deepseek2",
        metadata=described.metadata,
        weights={"token_embd.weight": np.zeros((96, 64))},
        rope_style="interleaved",
        config=config_of("deepseek3", **changes),
    )
    monkeypatch.setattr(Keys, "numbers", lambda *_: None)  # there are no tensors to read
    model = described.family.decoder(keys)
    # The tiny model's ``q_lora_rank``.
    assert {mixer.query_rank for mixer in model.mixers() if hasattr(mixer, "query_rank")} == {40}

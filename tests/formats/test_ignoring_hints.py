"""``--ignore-key`` in a hint about a folder: opened with it, the folder is not refused for it."""

import json
import random
import re
import shlex

import pytest
from config_mutants import MODELS, changed, mutants_of, open_model
from hf_folders import tiny_folder

from bitnet.base.errors import BitnetError, NotFound, Unsupported
from bitnet.formats.bitsandbytes_folders import _BITSANDBYTES_RULES
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gptq_folders import _AWQ_RULES, _GPTQ_RULES
from bitnet.formats.quantized_folders import (
    _COMPRESSED_RULES,
    _FP8_RULES,
    _SCHEME_RULES,
)
from bitnet.formats.stored_numbers import BELOW, KEY

SCHEME = {"num_bits": 8, "type": "int", "strategy": "channel"}
GROUPS = {name: {"weights": SCHEME, "targets": ["Linear"]} for name in ("group_0", "group_1")}
# By method, a quantization_config that is read, and the rules of its keys.
METHODS = {
    "fp8": ({"quant_method": "fp8"}, _FP8_RULES),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, _BITSANDBYTES_RULES),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, _GPTQ_RULES),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32}, _AWQ_RULES),
    "compressed-tensors": (
        {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": GROUPS,
        },
        _COMPRESSED_RULES,
    ),
}
WRONG = "a value that nothing knows"
# A quantization_config with one wrong value, and the key that it is refused for: every key whose
# rule lists values, and an unknown one.
REFUSED = [
    *(
        (quantization | {key: WRONG}, f"{BELOW}{key}")
        for quantization, rules in METHODS.values()
        for key in ("unknown", *rules)
        if key != "quant_method" and (key not in rules or rules[key].values is not None)
    ),
    *(
        (
            METHODS["compressed-tensors"][0]
            | {
                "config_groups": {
                    name: {"weights": SCHEME | {key: WRONG}} for name in ("group_0", "group_1")
                }
            },
            f"{BELOW}config_groups.weights.{key}",
        )
        for key in ("unknown", *_SCHEME_RULES)
        if key not in _SCHEME_RULES or _SCHEME_RULES[key].values is not None
    ),
]
MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
# Files of sentence-transformers that are read.
SETTINGS = {
    "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
    "2_Dense/config.json": {
        "in_features": 256,
        "out_features": 8,
        "activation_function": "torch.nn.modules.linear.Identity",
    },
    "sentence_bert_config.json": {},
}
# A file, a key of it, and a value for which the folder is refused.
REFUSED_SETTINGS = [
    ("1_Pooling/config.json", "include_prompt", False),
    ("1_Pooling/config.json", "pooling_mode_max_tokens", True),
    ("1_Pooling/config.json", "unknown", 1),
    ("2_Dense/config.json", "use_residual", True),
    ("2_Dense/config.json", "activation_function", "torch.nn.modules.activation.Mish"),
    ("sentence_bert_config.json", "do_lower_case", True),
]


def keys_of(error):
    """Values of ``--ignore-key`` in the hint of *error*, as a shell passes them."""
    words = re.search(r"--ignore-key .*", error.hint or "")
    return shlex.split(words[0])[1:] if words else []


def refuse(folder, ignore_keys=()):
    """The error with which *folder* is refused, or None."""
    try:
        open_checkpoint(folder, ignore_keys=ignore_keys)
    except BitnetError as error:
        return error
    return None


def check_hint(error, again, key):
    """Check that the hint of *error* names *key*, and that following it removes the refusal.

    *again* is the error with the key ignored: None, or another error that does not name the key.
    """
    assert isinstance(error, Unsupported)
    assert keys_of(error) == [key]
    assert again is None or again.message != error.message
    assert again is None or key not in keys_of(again)


@pytest.mark.parametrize(("quantization", "key"), REFUSED)
def test_a_key_of_a_quantized_folder_is_ignored_as_its_hint_says(tmp_path, quantization, key):
    folder = tiny_folder(tmp_path / "m", "llama", **{KEY: quantization})
    error = refuse(folder)
    check_hint(error, refuse(folder, keys_of(error)), key)


def test_ignored_keys_of_a_quantized_folder_are_listed_with_their_values(tmp_path):
    """The checkpoint's ``ignored`` has the key and the value that the folder has."""
    quantization = {"quant_method": "fp8", "fmt": "e5m2", "unknown": 1}
    folder = tiny_folder(tmp_path / "m", "llama", dtype="float32", **{KEY: quantization})
    opened = open_checkpoint(folder, ignore_keys=["fmt", f"{BELOW}unknown"])
    assert opened.ignored == {f"{BELOW}fmt": "e5m2", f"{BELOW}unknown": 1}


def test_a_command_with_the_option_of_its_hint_reads_the_quantized_folder(tmp_path, bitnet):
    quantization = {"quant_method": "fp8", "fmt": "e5m2"}
    folder = tiny_folder(tmp_path / "m", "llama", dtype="float32", **{KEY: quantization})
    words = (
        "convert",
        "--model",
        folder,
        "--output",
        tmp_path / "m.gguf",
        "--type",
        "F32",
        "--no-tokenizer",
    )
    refused = bitnet(*words)
    option = re.search(r"--ignore-key \S+", refused.err)
    assert refused.code == Unsupported.exit_code
    assert option, refused.err
    done = bitnet(*words, *shlex.split(option[0]))
    assert done.code == 0, done.err


@pytest.mark.parametrize(("name", "key", "value"), REFUSED_SETTINGS)
def test_a_setting_of_a_module_is_ignored_as_its_hint_says(tmp_path, name, key, value):
    folder = tiny_folder(tmp_path / "m", "llama")
    modules = [
        {"idx": index, "path": f"{index}_{kind}" if index else "", "type": f"st.models.{kind}"}
        for index, kind in enumerate(MODULES)
        # The folder has no weights of a Dense: it is a module only where its settings are tested.
        if kind != "Dense" or name.startswith("2_Dense")
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for file, settings in SETTINGS.items():
        (folder / file).parent.mkdir(exist_ok=True)
        changes = {key: value} if file == name else {}
        (folder / file).write_text(json.dumps(settings | changes))
    error = refuse(folder)
    (stated,) = keys_of(error)
    assert stated.endswith(key)
    again = refuse(folder, [stated])
    check_hint(error, again, stated)
    if name.startswith("2_Dense"):
        assert isinstance(again, NotFound)  # the weights, which are read last
    else:
        opened = open_checkpoint(folder, ignore_keys=[stated])
        assert opened.ignored == {stated: value}


def test_verify_lists_an_ignored_setting_of_a_module(tmp_path, bitnet):
    folder = tiny_folder(tmp_path / "m", "llama")
    (folder / "modules.json").write_text('[{"type": "st.models.Pooling", "path": "1_Pooling"}]')
    (folder / "1_Pooling").mkdir()
    settings = {"pooling_mode_mean_tokens": True, "unknown": 1}
    (folder / "1_Pooling/config.json").write_text(json.dumps(settings))
    key = "1_Pooling: unknown"
    words = ("verify", "--model", folder, "--ignore-key", key, "--json", "--allow-mock")
    report = json.loads(bitnet(*words).out)
    assert report["ignored_keys"] == [key]
    (metadata,) = (each for each in report["findings"] if each["subject"] == "metadata")
    assert f"ignored: {key} = 1" in metadata["text"]


def check_sample(seed, size, tmp_path, monkeypatch):
    """Follow the hint about each of *size* random changes of configurations, if it names a key.

    Returns the number of hints that were followed.
    """
    mutants = [(name, *mutant) for name in MODELS for mutant in mutants_of(name)]

    def refuse_model(name, config, keys=()):
        try:
            open_model(name, config, tmp_path, monkeypatch, ignore_keys=keys)
        except BitnetError as error:
            return error
        return None

    n_followed = 0
    for name, path, value in random.Random(seed).sample(mutants, size):
        config = changed(name, path, value)
        error = refuse_model(name, config)
        keys = keys_of(error) if error else []
        if not keys:
            continue
        n_followed += 1
        again = refuse_model(name, config, keys)
        assert again is None or again.message != error.message, (name, path, value)
        assert again is None or keys != keys_of(again), (name, path, value, again.message)
    return n_followed


def test_a_key_of_a_configuration_is_ignored_as_its_hint_says(tmp_path, monkeypatch):
    # Most changes are refused without such a hint, or are not refused.
    assert check_sample(11, 300, tmp_path, monkeypatch) > 5


@pytest.mark.slow
def test_every_hint_to_ignore_a_key_of_a_configuration_works(tmp_path, monkeypatch):
    assert check_sample(46, 2500, tmp_path, monkeypatch) > 60

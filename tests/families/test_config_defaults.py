"""Keys that a ``config.json`` leaves out: transformers' defaults, where its versions agree."""

import json
import os
import subprocess
import sys
from pathlib import Path

import config_defaults
import pytest

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.families.config_defaults import SCALED_BY_DEFAULT, read_table, with_defaults
from bitnet.families.config_json import describe
from bitnet.families.family import families, of_model_type

TINY = json.loads((Path(__file__).parents[1] / "data" / "tiny_configs.json").read_text())
# Llama 1 as it was converted before transformers wrote `max_position_embeddings`.
LLAMA_1 = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rms_norm_eps": 1e-06,
    "vocab_size": 32000,
}
# As llava-hf/llava-1.5-7b-hf publishes it.
LLAVA_15 = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "text_config": {
        "_name_or_path": "lmsys/vicuna-7b-v1.5",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "rms_norm_eps": 1e-05,
        "vocab_size": 32064,
    },
    "vision_config": {"model_type": "clip_vision_model"},
}


def interpreters():
    """Pythons with transformers: this one, and BITNET_TEST_TRANSFORMERS or an empty text."""
    return [sys.executable, os.environ.get("BITNET_TEST_TRANSFORMERS", "")]


@pytest.mark.parametrize("python", interpreters(), ids=["installed", "other"])
def test_the_table_has_what_a_version_of_transformers_assumes(python):
    if not python:
        pytest.skip("BITNET_TEST_TRANSFORMERS names no Python with another transformers")
    keys = config_defaults.keys_to_read()
    command = [python, config_defaults.__file__]
    process = subprocess.run(
        command, input=json.dumps(keys), capture_output=True, text=True, check=False
    )
    if "No module named 'transformers'" in process.stderr and python == sys.executable:
        pytest.skip("pip install 'bitnet-xtask[parity]'")
    assert process.returncode == 0, process.stderr[-2000:]
    reply = json.loads(process.stdout.splitlines()[-1])
    table = read_table()
    if reply["version"] not in table["versions"]:
        pytest.skip(f"the table has no column of transformers {reply['version']}")
    assert reply["defaults"]
    for model_type, row in reply["defaults"].items():
        for key, value in row["defaults"].items():
            expected = table["agreed"].get(model_type, {}).get(key)
            if key not in table["agreed"].get(model_type, {}):
                expected = table["differing"][model_type][key][reply["version"]]
            assert value == expected, (model_type, key)
        # Pairs of names of one key, as ``n_embd`` and ``hidden_size``.
        pairs = {tuple(pair) for pair in table["names"].get(model_type, ())}
        assert {tuple(pair) for pair in row["names"]} <= pairs


def test_a_family_requires_no_key_whose_default_the_table_has():
    agreed = read_table()["agreed"]
    for family in families():
        # Keys without which a folder is refused, as no default of transformers is known.
        for key in family.stated.split():
            assert not all(agreed.get(name, {}).get(key) is not None for name in family.model_types)


def test_the_defaults_of_a_family_are_those_of_the_table():
    agreed = read_table()["agreed"]
    compared = 0
    for family in families():
        for model_type in family.model_types:
            row = agreed.get(model_type, {})
            same = {key: row[key] for key in family.defaults if row.get(key) is not None}
            assert same == {key: family.defaults[key] for key in same}
            compared += len(same)
    assert compared >= 50


@pytest.mark.parametrize("name", TINY)
def test_a_folder_without_a_key_that_has_its_default_is_described_alike(name):
    config = TINY[name]["config"]
    row = read_table()["agreed"].get(config["model_type"], {})
    whole = describe(config, model="m")
    left_out = [key for key in config if key in row and config[key] == row[key]]
    assert left_out or name == "minicpm"  # transformers has no class of that type
    for key in left_out:
        without = {other: value for other, value in config.items() if other != key}
        assert describe(without, model="m").metadata == whole.metadata, key


def test_llama_1_without_a_length_has_transformers_default():
    description = describe(LLAMA_1, model="m")
    assert description.value("context_length") == 2048
    assert not description.tied  # the default of ``tie_word_embeddings`` in LlamaConfig


def test_the_text_model_of_llava_has_the_sizes_of_its_class():
    description = describe(LLAVA_15, model="m")
    sizes = {"embedding_length": 4096, "block_count": 32, "feed_forward_length": 11008}
    assert {name: description.value(name) for name in sizes} == sizes
    assert description.value("attention.head_count_kv") in (None, 32)  # None: one for each head


def test_a_key_for_which_versions_differ_is_refused_with_their_values():
    config = {
        name: value
        for name, value in TINY["falcon-h1"]["config"].items()
        if name != "attention_in_multiplier"
    }
    with pytest.raises(Unsupported, match=r"attention_in_multiplier.*null in 4.*1\.0 in 5"):
        describe(config, model="m")


def test_defaults_that_differ_are_different_values():
    for row in read_table()["differing"].values():
        for values in row.values():
            assert any(value != next(iter(values.values())) for value in values.values())


def test_gpt_neox_without_a_base_has_transformers_default():
    config = {"model_type": "gpt_neox", "hidden_size": 64, "num_attention_heads": 4}
    assert describe(config, model="m").value("rope.freq_base") == 10000.0


def test_a_key_without_any_default_is_refused_by_its_name():
    config = {"model_type": "minicpm", "hidden_size": 64, "num_attention_heads": 4}
    with pytest.raises(InvalidFormat, match="has no max_position_embeddings"):
        describe(config, model="m")


def test_nemotron_h_may_name_the_head_dim_attention_head_dim():
    config = dict(TINY["nemotron-h"]["config"])
    config["attention_head_dim"] = config.pop("head_dim")
    whole = describe(TINY["nemotron-h"]["config"], model="m")
    assert describe(config, model="m").metadata == whole.metadata


@pytest.mark.parametrize("model_type", sorted(SCALED_BY_DEFAULT))
def test_a_type_whose_class_scales_positions_needs_a_rope_table(model_type):
    config = {"model_type": model_type, "rope_theta": 1e6, "rope_scaling": None}
    with pytest.raises(Unsupported, match=f"no rope_parameters.*its {model_type} class"):
        with_defaults(config, model_type)
    table = {"rope_type": "default", "rope_theta": 1e6}
    assert with_defaults({"rope_parameters": table}, model_type)["rope_parameters"] == table


def test_the_types_whose_class_scales_positions_are_those_of_transformers():
    auto = pytest.importorskip(
        "transformers.models.auto.configuration_auto", reason="pip install 'bitnet-xtask[parity]'"
    )
    if not hasattr(auto.CONFIG_MAPPING["llama"](), "rope_parameters"):
        pytest.skip("this version of transformers has no rope_parameters")
    scaled = set()
    for model_type in auto.CONFIG_MAPPING_NAMES:
        if of_model_type(model_type) is None:
            continue
        table = getattr(auto.CONFIG_MAPPING[model_type](), "rope_parameters", None) or {}
        if table.get("rope_type", "default") != "default":
            scaled.add(model_type)
    assert scaled == SCALED_BY_DEFAULT


BLOOM = {"model_type": "bloom", "hidden_size": 64, "n_head": 4, "n_layer": 2, "vocab_size": 96}
FALCON = {"model_type": "falcon", "hidden_size": 64, "alibi": True, "vocab_size": 96}
MPT = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "attn_config": {}}


@pytest.mark.parametrize("config", [BLOOM, FALCON, MPT], ids=lambda config: config["model_type"])
def test_bidirectional_attention_with_alibi_is_refused(config):
    described = describe(config | {"is_causal": True}, model="m")  # is not refused
    assert described.metadata[f"{config['model_type']}.block_count"]
    with pytest.raises(Unsupported, match="is_causal = false: ALiBi"):
        describe(config | {"is_causal": False}, model="m")

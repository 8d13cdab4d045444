"""Keys of GGUF files: what llama.cpp makes of them, or refused by name."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tiny_keys import metadata
from tiny_models import tiny, tiny_gguf

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.formats.containers import open_checkpoint
from bitnet.models.load import config_from, load_model

DEEPSEEK = tiny("deepseek2")


def rope(**keys):
    """The position embedding of a tiny Llama with these *keys*."""
    (found,) = config_from(tiny("llama", **keys)).ropes
    return found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.value_length", 32),
        ("attention.scale", 0.5),
        ("attention.max_alibi_bias", 8.0),
        ("attention.clamp_kqv", 4.0),
        ("expert_shared_count", 1),
        ("logit_scale", 0.25),
        ("residual_scale", 0.5),
        ("embedding_scale", 12.0),
        ("pooling_type", 5),
        ("final_logit_softcapping", 30.0),
        ("rope.scaling.yarn_log_multiplier", 0.1),
        ("rope.scaling.yarn_beta_fast", 4.0),
        ("rope.unheard_of", 1),
        ("whatever", "x"),
    ],
)
def test_a_key_that_is_not_computed_is_refused_by_name(key, value):
    # A length of values is refused where the attention is made, by its number.
    name = "values of 32" if key == "attention.value_length" else f"llama.{key}"
    with pytest.raises(Unsupported, match=name):
        config_from(tiny("llama", **{key: value}))


@pytest.mark.parametrize(
    "key", ["attention.head_count", "attention.head_count_kv", "feed_forward_length"]
)
def test_equal_numbers_for_each_layer_count_as_one_number(key):
    plain = tiny("llama")
    value = plain.value(key)
    of_layers = config_from(tiny("llama", **{key: [value, value]}))
    assert repr(of_layers) == repr(config_from(plain))


def test_numbers_that_differ_between_layers_are_not_called_damage():
    with pytest.raises(Unsupported, match=r"llama\.feed_forward_length differs between") as raised:
        config_from(tiny("llama", feed_forward_length=[128, 64]))
    assert "damaged" not in raised.value.hint


def test_numbers_for_another_number_of_layers_are_a_contradiction():
    with pytest.raises(InvalidFormat, match="has 3 entries, expected one for each of 2 layers"):
        config_from(tiny("llama", feed_forward_length=[128, 128, 128]))


def test_a_list_where_llama_cpp_reads_one_number_is_damage():
    with pytest.raises(InvalidFormat, match=r"llama\.context_length is \[64, 64\]"):
        config_from(tiny("llama", context_length=[64, 64]))


def test_a_refusal_says_which_value_is_computed_and_how_to_ignore_the_key():
    with pytest.raises(Unsupported) as raised:
        config_from(tiny("qwen2", use_parallel_residual=True))
    assert "only false is computed" in str(raised.value)
    assert "--ignore-key qwen2.use_parallel_residual" in raised.value.hint


def test_keys_with_values_that_change_nothing_are_accepted():
    neutral = {"attention.causal": True, "expert_count": 0, "logit_scale": 1.0, "pooling_type": 0}
    assert config_from(tiny("llama", **neutral)).n_layers == 2
    scale = {"attention.scale": 64**-0.5, "attention.value_length": 64}  # a head has 64
    attentions = config_from(tiny("llama", **scale)).attentions
    assert {attention.scale for attention in attentions} == {64**-0.5}


def test_the_name_linear_scaling_had_in_2023_is_read():
    old = rope(**{"rope.scale_linear": 4.0})
    current = rope(**{"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})
    np.testing.assert_array_equal(old.frequencies(64)[0], current.frequencies(64)[0])
    assert (old.frequencies(64)[0] == rope().frequencies(64)[0] / 4).all()


def test_a_factor_without_a_type_is_linear_and_the_type_none_is_not():
    assert rope(**{"rope.scaling.factor": 2.0}).scaling == "linear"
    plain = rope(**{"rope.scaling.type": "none", "rope.scaling.factor": 2.0})
    np.testing.assert_array_equal(plain.frequencies(64)[0], rope().frequencies(64)[0])


def test_the_attention_factor_of_yarn_multiplies_what_yarn_implies():
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    implied = 0.1 * math.log(4) + 1
    assert rope(**keys).frequencies(64)[1] == pytest.approx(implied)
    keys["rope.scaling.attn_factor"] = 0.5
    assert rope(**keys).frequencies(64)[1] == pytest.approx(0.5 * implied)
    assert rope(**{"rope.scaling.attn_factor": 0.5}).frequencies(64)[1] == 0.5


def test_long_factors_without_short_ones_are_a_damaged_file():
    checkpoint = tiny("phi3")
    checkpoint.weights["rope_factors_long.weight"] = checkpoint.weights["blk.0.attn_norm.weight"]
    with pytest.raises(InvalidFormat, match="rope_factors"):
        config_from(checkpoint)


@pytest.mark.parametrize("name", ["llama.whatever", "whatever"])
def test_an_ignored_key_is_named_and_left_out(tmp_path, name, caplog):
    path = tiny_gguf(tmp_path / "tiny.gguf", **{"llama.whatever": 7})
    with pytest.raises(Unsupported, match="whatever = 7"):
        load_model(open_checkpoint(path))
    checkpoint = open_checkpoint(path, ignore_keys=[name])
    assert checkpoint.ignored == {"llama.whatever": 7}
    assert load_model(checkpoint).config.n_layers == 2
    assert "llama.whatever = 7 is ignored" in caplog.text


def test_infer_says_which_keys_it_ignored(tmp_path, bitnet):
    path = tiny_gguf(tmp_path / "tiny.gguf", **{"llama.whatever": 7})
    words = ("infer", "--model", path, "--prompt", "ab", "--max-tokens", 1)
    refused = bitnet(*words)
    assert refused.code == Unsupported.exit_code
    assert "--ignore-key llama.whatever" in refused.err
    answer = bitnet(*words, "--ignore-key", "llama.whatever", "--json")
    assert '"ignored_keys": ["llama.whatever"]' in answer.out


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"attention.key_length_mla": None}, "a file of before May 2025"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "mscale_all_dim"),
        ({"attention.scale": 0.1}, "deepseek2.attention.scale"),
        (
            {"attention.temperature_scale": 0.1, "attention.temperature_length": 0},
            "attention.temperature_length = 0",
        ),
    ],
)
def test_keys_of_latent_attention_that_are_not_computed_are_refused_by_name(keys, why):
    with pytest.raises(Unsupported, match=why):
        config_from(replace(DEEPSEEK, metadata=metadata("deepseek2", **keys)))


def test_a_temperature_scale_needs_the_key_of_its_length():
    keys = metadata("deepseek2", **{"attention.temperature_scale": 0.1})
    with pytest.raises(InvalidFormat, match=r"deepseek2\.attention\.temperature_length is missing"):
        config_from(replace(DEEPSEEK, metadata=keys))

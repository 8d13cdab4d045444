"""Gemma 3n: streams, sparse networks, and warnings where llama.cpp has other constants."""

import math

import numpy as np
import pytest
from tiny_models import tiny

from bitnet.base.errors import InvalidFormat
from bitnet.convert.engines import differences
from bitnet.families.blocks import FeedForward
from bitnet.families.config_json import describe
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import config_from, load_model

IDS = [5, 9, 3, 44, 12]
# Keys of a ``config.json`` without those that have the default of their class.
FOLDER = {
    "model_type": "gemma3n_text",
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 0,
    "activation_sparsity_pattern": [0.95, 0.5, 0.3, 0.0],
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}


def logits(**keys):
    """Logits of a tiny model with these *keys*, on the reference backend."""
    model = load_model(tiny("gemma3n", **keys), ops=ReferenceOps())
    return model.forward(IDS, KVCache(model.config, 64), all_positions=True)


def warnings(**keys):
    """Texts of the warnings that a conversion of a tiny model with these *keys* gives."""
    checkpoint = tiny("gemma3n", **keys)
    return [finding.text for finding in differences(checkpoint, config_from(checkpoint), [])]


@pytest.mark.parametrize(
    "keys",
    [
        {"altup.active_idx": 2},
        {"altup.num_inputs": 3},
        {"activation_sparsity_scale": [-math.inf] * 5},
        {"activation_sparsity_scale": [0.0] * 5},
        {
            "attention.shared_kv_layers": 1,
            "attention.sliding_window_pattern": [False, True] * 2 + [True],
        },
    ],
)
def test_each_key_changes_the_logits(keys):
    # By more than a hundredth of their range: far more than rounding does.
    assert np.abs(logits() - logits(**keys)).max() > 0.01 * np.ptp(logits())


def test_tokens_beyond_the_per_layer_embeddings_take_their_first_row():
    checkpoint = tiny("gemma3n")
    table = checkpoint.weights["per_layer_token_embd.weight"]
    # Of the prompt's ids, 44 is beyond 40 rows of float32.
    first_40_rows = table.like(
        shape=(40, table.shape[1]), data=table.data[: 40 * table.shape[1] * 4]
    )
    short_weights = dict(checkpoint.weights) | {table.name: first_40_rows}
    values = table.data.view("<f4").reshape(table.shape).copy()
    values[40:] = values[0]
    filled_up = table.like(data=values.reshape(-1).view(np.uint8))
    results = []
    for weights in (short_weights, dict(checkpoint.weights) | {table.name: filled_up}):
        changed = tiny("gemma3n")
        changed.weights.clear()
        changed.weights.update(weights)
        model = load_model(changed, ops=ReferenceOps())
        results.append(model.forward(IDS, KVCache(model.config, 64), all_positions=True))
    np.testing.assert_array_equal(*results)


def test_shares_of_a_folder_become_standard_deviations():
    scales = describe(FOLDER, model="m").value("activation_sparsity_scale")
    assert scales[0] == pytest.approx(1.6448533535, rel=1e-6)  # 0.95 by torch's icdf in float32
    # The quantiles of 0.5, 0.3 and 0 of the normal distribution.
    assert scales[1:] == pytest.approx([0.0, -0.5244005, -math.inf], rel=1e-6)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("activation_sparsity_pattern", [0.9], "for each of 4 layers"),
        ("activation_sparsity_pattern", [1.5, 0.0, 0.0, 0.0], "outside of 0 to 1"),
        ("altup_active_idx", 4, "not one of the altup_num_inputs"),
    ],
)
def test_a_folder_with_streams_or_shares_that_make_no_sense_is_refused(key, value, problem):
    with pytest.raises(InvalidFormat, match=problem):
        describe(FOLDER | {key: value}, model="m")


@pytest.mark.parametrize(
    "keys",
    [
        {"activation_sparsity_scale": [1.0] * 4},
        {"activation_sparsity_scale": [math.nan] * 5},
        {"altup.active_idx": 4},
        {"altup.num_inputs": 1},
    ],
)
def test_a_file_with_streams_or_deviations_that_make_no_sense_is_refused(keys):
    with pytest.raises(InvalidFormat):
        config_from(tiny("gemma3n", **keys))


def test_networks_have_the_cutoffs_of_the_key_and_none_for_minus_infinity():
    config = config_from(tiny("gemma3n", activation_sparsity_scale=[-math.inf, 0.5, 1.0, 2.0, 0.0]))
    networks = [mixer for mixer in config.mixers() if isinstance(mixer, FeedForward)]
    assert [network.cutoff for network in networks] == [None, 0.5, 1.0, 2.0, 0.0]


def test_a_model_with_llama_cpps_constants_converts_without_a_warning():
    assert not warnings()


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"altup.num_inputs": 3}, "of 4 streams"),
        ({"embedding_length_per_layer_input": 128}, "256 numbers for each layer"),
        ({"activation_sparsity_scale": [1.0] * 5}, "lowers gates in the first 10 layers"),
        ({"attention.shared_kv_layers": 1, "attention.sliding_window_pattern": [True] * 5}, "keys"),
    ],
)
def test_a_model_with_other_values_than_llama_cpps_constants_converts_with_a_warning(keys, text):
    assert any(text in warning for warning in warnings(**keys))

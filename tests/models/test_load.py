"""Architecture and encoding are independent; what does not fit is listed."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from tiny_keys import ENCODERS, FAMILIES, HYBRIDS, LAYERED, LAYERS, MIXTURES, VOCAB
from tiny_models import in_encoding, tiny

from bitnet.base.errors import InferenceError, InvalidFormat, Unsupported, UsageError
from bitnet.formats.checkpoint import Checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.program import Segment
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import ARCHITECTURES, config_from, load_model
from bitnet.quants import types
from bitnet.quants.registry import dequantize, rounds_activations
from bitnet.quants.weight import Weight

TOKENS = [5, 9, 33, 2, 61, 17, 8, 40]
F32 = types.by_name("F32")


def logits(checkpoint, chunk=8, dtype=np.float32):
    """Logits of *checkpoint* for all of TOKENS, run in parts of *chunk* ids."""
    model = load_model(checkpoint, ops=ReferenceOps(dtype=dtype))
    cache = KVCache(model.config, 32, dtype=dtype)
    parts = [TOKENS[start : start + chunk] for start in range(0, len(TOKENS), chunk)]
    return np.concatenate([model.forward(part, cache, all_positions=True) for part in parts])


def with_weights(checkpoint, changed):
    """*checkpoint* with the *changed* weights by name; None removes one."""
    weights = {name: weight for name, weight in (checkpoint.weights | changed).items() if weight}
    return replace(checkpoint, weights=weights)


def dequantized(checkpoint):
    """*checkpoint* with the same numbers in float32."""
    plain = {
        name: Weight(name, weight.shape, F32, dequantize(weight).reshape(-1).view(np.uint8))
        for name, weight in checkpoint.weights.items()
    }
    return with_weights(checkpoint, plain)


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16", "Q8_0", "Q4_K", "TQ2_0", "I2_S"])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_family_runs_in_every_encoding(architecture, encoding):
    encoded = in_encoding(tiny(architecture), encoding)
    actual = logits(encoded)
    exact = logits(dequantized(encoded))
    assert actual.shape == (len(TOKENS), VOCAB)
    assert np.ptp(exact) > 0.1  # not all alike
    # The same numbers in another container give the same logits; int8 activations cost accuracy.
    tolerance = 0.15 if any(map(rounds_activations, encoded.weights.values())) else 1e-4
    assert np.abs(actual - exact).max() < tolerance * np.ptp(exact)


def test_every_architecture_is_in_a_list_of_tiny_models():
    decoders = {
        *FAMILIES,
        *HYBRIDS,
        *LAYERED,
        *MIXTURES,
        "bitnet-25",  # once the name of bitnet-b1.58
    }
    # These are tested in tests/families/test_encoders.py and test_embedding_gemma.py.
    encoders = {*ENCODERS, "gemma-embedding", "llama-embed"}
    assert decoders | encoders == set(ARCHITECTURES)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(architecture):
    checkpoint = tiny(architecture)
    np.testing.assert_allclose(
        logits(checkpoint, chunk=3, dtype=np.float64), logits(checkpoint, dtype=np.float64), 1e-9
    )


@pytest.mark.parametrize("architecture", sorted({*FAMILIES, *HYBRIDS, *LAYERED, *MIXTURES}))
def test_a_part_of_a_prompt_that_returns_no_states_leaves_the_same_cache(architecture):
    model = load_model(tiny(architecture), ops=ReferenceOps())
    first, last = TOKENS[:5], TOKENS[5:]
    results = []
    for outputs in ("none", "all"):
        cache = KVCache(model.config, 32)
        states = model.hidden([Segment(first, cache, outputs)])[0]
        assert len(states) == (0 if outputs == "none" else len(first))
        results.append(model.forward(last, cache))
    np.testing.assert_array_equal(*results)


def test_interleaved_rope_is_half_rope_with_permuted_rows():
    half = tiny("llama")
    half = Checkpoint(half.path, "llama", half.metadata, half.weights, "half")
    changed = {}
    for name, weight in half.weights.items():
        if "attn_q" in name or "attn_k" in name:
            heads = dequantize(weight).reshape(-1, 2, 32, 256)  # heads, halves, pairs, inputs
            rows = np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(-1)
            changed[name] = Weight(name, weight.shape, F32, rows.view(np.uint8))
    permuted = with_weights(half, changed)
    interleaved = Checkpoint(half.path, "llama", half.metadata, permuted.weights, "interleaved")
    np.testing.assert_allclose(
        logits(interleaved, dtype=np.float64), logits(half, dtype=np.float64), rtol=1e-9
    )
    assert np.abs(logits(permuted) - logits(half)).max() > 0.01


def test_a_scale_tensor_multiplies_the_products_of_its_matrix():
    checkpoint = tiny("bitnet")
    name = "blk.0.attn_q.weight"
    values = dequantize(checkpoint.weights[name])
    halved = Weight(name, values.shape, F32, (values / 2).reshape(-1).view(np.uint8))
    two = np.array([2], dtype="<f4").view(np.uint8)
    scaled = with_weights(
        checkpoint, {name: halved, "blk.0.attn_q.scale": Weight("s", (1,), F32, two)}
    )
    np.testing.assert_array_equal(logits(scaled), logits(checkpoint))


def test_an_untied_head_is_used():
    checkpoint = tiny("llama")
    head = np.zeros((VOCAB, 256), dtype="<f4")  # all logits are 0, unlike those of the embedding
    weight = Weight("output.weight", head.shape, F32, head.reshape(-1).view(np.uint8))
    assert not logits(with_weights(checkpoint, {"output.weight": weight})).any()


def test_missing_surplus_and_misshapen_tensors_are_listed_together():
    checkpoint = tiny("qwen2")
    norm = checkpoint.weights["blk.0.attn_norm.weight"]
    broken = {
        "blk.1.ffn_down.weight": None,
        "blk.0.attn_k.bias": None,
        "blk.7.attn_q.weight": norm,
        "output_norm.weight": Weight("output_norm.weight", (3,), F32, norm.data[:12]),
    }
    with pytest.raises(InvalidFormat) as raised:
        load_model(with_weights(checkpoint, broken))
    message = str(raised.value)
    assert "4 tensors do not fit" in message
    assert "blk.1.ffn_down.weight (256, 512) is missing" in message
    assert "blk.0.attn_k.bias (128,) is missing" in message
    assert "blk.7.attn_q.weight (256,) is unexpected" in message
    assert "output_norm.weight has shape (3,), expected (256,)" in message


def test_an_unknown_architecture_names_the_supported_ones():
    llama = tiny("llama")
    other = Checkpoint(llama.path, "other", {}, llama.weights, "half")
    with pytest.raises(Unsupported) as raised:
        config_from(other)
    assert "Unsupported quantized architecture: other. Supported: " in str(raised.value)
    assert all(name in str(raised.value) for name in ARCHITECTURES)


def test_keys_of_bitnet_b1_58_may_begin_with_bitnet():
    llama = tiny("llama")
    keys = {name.replace("llama.", "bitnet."): value for name, value in llama.metadata.items()}
    other = Checkpoint(llama.path, "bitnet-b1.58", keys, llama.weights, "half")
    assert config_from(other).n_layers == LAYERS


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("attention.head_count_kv", 3, "do not divide the heads"),
        ("attention.head_count_kv", 0, "no heads"),
        ("attention.head_count", 0, "no heads"),
        ("feed_forward_length", 0, "a size below 1"),
        ("context_length", 0, "no context"),
        ("rope.freq_base", 0.0, "expected a number above 0"),
        ("rope.freq_base", float("nan"), "expected a finite number"),
        ("rope.scaling.original_context_length", 0, "an original context below 2"),
        ("attention.sliding_window_pattern", [True], "another number of layers"),
        ("block_count", 2**31, "expected at most 4,096"),
        ("attention.layer_norm_rms_epsilon", "small", "expected a finite number"),
        ("block_count", None, "block_count is missing"),
        ("block_count", True, "expected an integer"),
        ("rope.dimension_count", 66, "rotary dimensions outside"),
        ("rope.dimension_count", 5, "an odd number"),
    ],
)
def test_senseless_keys_are_refused(key, value, said):
    llama = tiny("llama")
    keys = dict(llama.metadata) | {f"llama.{key}": value}
    with pytest.raises(InvalidFormat, match=said):
        config_from(Checkpoint(llama.path, "llama", keys, llama.weights, "interleaved"))


@pytest.mark.parametrize("key", ["attn_logit_softcapping", "final_logit_softcapping"])
@pytest.mark.parametrize("cap", [-1.0, 1e-46, 1e-4, 1001.0, 1e30, 1e39])
def test_a_soft_cap_that_is_not_computed_exactly_is_refused(key, cap):
    for taken in (0.0, 1e-3, 1000.0):
        config_from(tiny("gemma2", **{key: taken}))
    # tiny() itself reads the configuration, for the shapes of the tensors.
    with pytest.raises(InvalidFormat, match=r"a soft cap outside of 0\.001 to 1,000"):
        tiny("gemma2", **{key: cap})


@pytest.mark.parametrize("scale", [-201.0, 201.0, 1e39])
def test_a_scale_with_which_scores_leave_float32_is_refused(scale):
    config_from(tiny("granite", **{"attention.scale": -200.0}))
    with pytest.raises(InvalidFormat, match="scores times more than 200"):
        tiny("granite", **{"attention.scale": scale})


def test_an_unknown_rope_scaling_is_named():
    with pytest.raises(Unsupported, match='"spiral"'):
        tiny("llama", **{"rope.scaling.type": "spiral"})


def test_a_token_outside_the_vocabulary_is_refused():
    model = load_model(tiny("llama"))
    with pytest.raises(UsageError, match="token id 64 is outside"):
        model.forward([1, 64], KVCache(model.config, 8))


def test_no_tokens_are_refused():
    model = load_model(tiny("llama"))
    with pytest.raises(UsageError, match="no tokens"):
        model.forward([], KVCache(model.config, 8))


def test_a_full_context_is_refused_before_anything_is_computed():
    model = load_model(tiny("llama"))
    cache = KVCache(model.config, 4)
    with pytest.raises(InferenceError, match="5 positions, the context holds 4"):
        model.forward([1, 2, 3, 4, 5], cache)
    assert cache.length == 0


def test_gemma_alternates_windows():
    assert [attention.window for attention in config_from(tiny("gemma2")).attentions] == [4, 0]
    gemma3 = config_from(tiny("gemma3", block_count=6, **{"rope.freq_base": 1e6}))
    assert [attention.window for attention in gemma3.attentions] == [4, 4, 4, 4, 4, 0]
    assert [attention.rope.theta for attention in gemma3.attentions] == [1e4] * 5 + [1e6]
    assert len(gemma3.ropes) == 2


@pytest.mark.parametrize("value", [2**64 - 1, 2**63, 2**32, -1, 1.5, True, "8", [8]])
@pytest.mark.parametrize(
    "key",
    [
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.scaling.original_context_length",
    ],
)
def test_a_value_that_is_not_a_possible_integer_is_a_damaged_file(key, value):
    checkpoint = tiny("gemma3")
    checkpoint.metadata[f"gemma3.{key}"] = value
    with pytest.raises(InvalidFormat):
        config_from(checkpoint)


@pytest.mark.parametrize("value", [0, 2**31, 2**32, 2**64 - 1, -1, 1.5, True, "8", [8]])
@pytest.mark.parametrize(
    "key",
    [
        "full_attention_interval",
        "ssm.conv_kernel",
        "ssm.group_count",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.time_step_rank",
    ],
)
def test_senseless_sizes_of_a_delta_net_are_refused(key, value):
    checkpoint = tiny("qwen35")
    checkpoint.metadata[f"qwen35.{key}"] = value
    if key == "full_attention_interval" and value == 2**31:
        # An interval beyond the layers is valid: no layer has full attention.
        assert len(config_from(checkpoint).attentions) == 0
    else:
        with pytest.raises(InvalidFormat):
            config_from(checkpoint)


@pytest.mark.parametrize("value", [[3, 3, 2, 1], [11, 11, 10, 0], [8, 0, 0, 0], [], "3320", 3])
def test_sections_other_than_equal_shares_of_all_pairs_are_refused(value):
    checkpoint = tiny("qwen35")
    checkpoint.metadata["qwen35.rope.dimension_sections"] = value
    with pytest.raises(Unsupported, match=r"rope\.dimension_sections"):
        config_from(checkpoint)
    # Three coordinates of a position share all eight pairs. In a text the three are equal.
    checkpoint.metadata["qwen35.rope.dimension_sections"] = [3, 3, 2, 0]
    config_from(checkpoint)


@pytest.mark.parametrize("value", [[True], [True] * 5, 3, "11"])
def test_kinds_of_layers_for_another_number_of_layers_are_refused(value):
    checkpoint = tiny("qwen35")
    checkpoint.metadata["qwen35.attention.recurrent_layers"] = value
    with pytest.raises(InvalidFormat):
        config_from(checkpoint)


@pytest.mark.parametrize(
    "architecture",
    ["qwen35", "nemotron_h", "cohere2", "gemma4", "hunyuan-dense", "minicpm"],
)
def test_every_tensor_that_is_missing_or_of_another_shape_is_refused_by_name(architecture):
    whole = tiny(architecture)
    for name, weight in whole.weights.items():
        if name == "token_embd.weight":
            continue  # its rows are the size of the vocabulary
        other_shape = (max(weight.shape[0] // 2, 1) + 1, *weight.shape[1:])
        misshapen = replace(weight, shape=(3, 5) if other_shape == weight.shape else other_shape)
        rest = {key: value for key, value in whole.weights.items() if key != name}
        for weights in (rest, rest | {name: misshapen}):
            with pytest.raises(InvalidFormat, match=re.escape(name)):
                load_model(replace(whole, weights=weights), ops=ReferenceOps())


@pytest.mark.parametrize("value", [None, 0, -1.0, math.nan, math.inf, "x", True, [1.0]])
@pytest.mark.parametrize(
    "key",
    [
        "cohere2.attention.layer_norm_epsilon",
        "cohere2.logit_scale",
        "minicpm.embedding_scale",
        "minicpm.residual_scale",
        "minicpm.logit_scale",
    ],
)
def test_senseless_scales_of_a_family_are_refused(key, value):
    checkpoint = tiny(key.partition(".")[0])
    checkpoint.metadata[key] = value
    if (key.startswith("cohere2") and value == 0) or (
        key == "cohere2.logit_scale" and value == -1.0
    ):
        # An epsilon of 0, and a scale of 0 or below, are computed like other numbers.
        assert config_from(checkpoint).architecture == "cohere2"
        return
    with pytest.raises((InvalidFormat, Unsupported)):
        config_from(checkpoint)


@pytest.mark.parametrize("value", [0, 3, 100, 2**31])
@pytest.mark.parametrize(
    "key",
    [
        "ssm.conv_kernel",
        "ssm.group_count",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.time_step_rank",
    ],
)
def test_senseless_sizes_of_a_state_space_model_are_refused(key, value):
    checkpoint = tiny("nemotron_h")
    checkpoint.metadata[f"nemotron_h.{key}"] = value
    with pytest.raises(InvalidFormat):
        load_model(checkpoint, ops=ReferenceOps())


@pytest.mark.parametrize("value", [[2], [0, -1], [0, True], "two"])
def test_numbers_of_heads_are_one_count_for_each_layer(value):
    checkpoint = tiny("lfm2")
    checkpoint.metadata["lfm2.attention.head_count_kv"] = value
    with pytest.raises(InvalidFormat, match="head_count_kv"):
        config_from(checkpoint)


def test_a_convolution_that_looks_ahead_is_refused():
    checkpoint = tiny("lfm2")
    checkpoint.metadata["lfm2.attention.causal"] = False
    with pytest.raises(Unsupported, match=r"lfm2\.attention\.causal = false"):
        config_from(checkpoint)

"""Models whose weights are in a rotated basis (Bonsai 2), against the same models without it."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from builders import Tensor, write_gguf
from conversions import convert
from rotations import F32, rotated
from tiny_models import tiny

import bitnet
from bitnet.base import native
from bitnet.base.errors import BitnetError, InvalidFormat, Unsupported
from bitnet.convert.convert_options import ConvertOptions
from bitnet.families.blocks import State
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf_header import Array
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.quants import registry
from bitnet.quants.weight import Weight
from bitnet.runtime.scheduler import PREFILL_CHUNK
from bitnet.sheet.inspection import inspect_gguf
from bitnet.sheet.plan import Resources, plan_path

TINY = Path(bitnet.__file__).with_name("shipped") / "bitnet-tiny.gguf"
PROMPT = "It is a truth universally acknowledged, that"
IDS = [5, 9, 33, 2, 61, 17, 8, 40]
# Keys of models whose widths are multiples of a block, by the columns of the block.
SHAPES = {
    256: {"embedding_length": 256, "feed_forward_length": 512},
    1024: {"embedding_length": 1024, "feed_forward_length": 2048},
}


def logits(checkpoint, ops):
    """Logits of *checkpoint* for all of IDS on the backend *ops*."""
    model = load_model(checkpoint, ops=ops)
    dtype = getattr(ops, "dtype", np.float32)
    return model.forward(IDS, KVCache(model.config, 16, dtype=dtype), all_positions=True)


def save(path, checkpoint):
    """Write *checkpoint* as the GGUF file *path*."""
    tensors = [
        Tensor(name, weight.shape, weight.quant.ggml_id, weight.data.tobytes())
        for name, weight in checkpoint.weights.items()
    ]
    keys = {
        key: list(value) if isinstance(value, Array) else value
        for key, value in checkpoint.metadata.items()
    }
    return write_gguf(path, keys, tensors)


# *explicit*: the metadata list random signs, else all are 1. *embedding*: it is rotated as well.
@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("embedding", [True, False])
@pytest.mark.parametrize("block", SHAPES)
def test_a_rotated_model_computes_what_the_model_does(block, explicit, embedding):
    plain = tiny("qwen3", **SHAPES[block])
    in_basis = rotated(plain, block, explicit=explicit, embedding=embedding)
    ops = ReferenceOps(dtype=np.float64)
    expected = logits(plain, ops)
    actual = logits(in_basis, ops)
    assert np.abs(actual - expected).max() < 1e-5 * np.ptp(expected)  # stored as float32
    # The rotated weights alone, without the keys of their basis, compute something else.
    without_basis = {k: v for k, v in in_basis.metadata.items() if not k.startswith("prism.")}
    garbage = logits(replace(in_basis, metadata=without_basis), ops)
    assert np.abs(garbage - expected).max() > 0.1 * np.ptp(expected)


@pytest.mark.skipif(native.module() is None, reason="the compiled module is not built")
@pytest.mark.parametrize("block", SHAPES)
def test_the_compiled_transform_has_the_bits_of_its_operations_one_by_one(block):
    in_basis = rotated(tiny("qwen3", **SHAPES[block]), block)
    model = load_model(in_basis, ops=NativeOps(threads=2))
    steps = dict(model.trace(IDS, KVCache(model.config, 16)))  # one operation after another
    cache = KVCache(model.config, 16)
    actual = model.forward(IDS, cache, all_positions=True)
    np.testing.assert_array_equal(actual, steps["result_output"])


def test_a_rotated_ternary_file_is_converted_exactly_and_listed_as_rotated(tmp_path):
    """Ternary encodings compute what the same numbers in float32 do, all in the rotated basis."""
    plain = tiny("qwen3", **SHAPES[256])
    in_basis = rotated(plain, 256)
    weights = dict(in_basis.weights)
    for name, weight in weights.items():
        if name.startswith("blk.") and len(weight.shape) == 2:
            values = registry.dequantize(weight)
            # Ternary weights with one scale, an exact float16.
            codes = np.sign(values) * (np.abs(values) > 0.05)
            ternary = (codes * np.float32(0.0625)).astype("<f4")
            weights[name] = Weight(name, weight.shape, F32, ternary.reshape(-1).view(np.uint8))
    source = save(tmp_path / "f32.gguf", replace(in_basis, weights=weights))
    expected = logits(open_checkpoint(source), ReferenceOps(dtype=np.float64))
    for encoding in ("PTQ1_0", "PQ2_0", "Q2_0"):
        path = tmp_path / f"{encoding}.gguf"
        assert convert(source, path, ConvertOptions(encoding)).exact
        actual = logits(open_checkpoint(path), ReferenceOps(dtype=np.float64))
        np.testing.assert_array_equal(actual, expected)
        text = "\n".join(inspect_gguf(path).lines())
        assert "rotated: prism.hadamard version 1, blocks of 256, signs explicit" in text
    assert "not rotated" in "\n".join(inspect_gguf(save(tmp_path / "p.gguf", plain)).lines())


def text_of(path):
    """The text that the model at *path* generates greedily."""
    with bitnet.load(path) as model:
        return model.generate(PROMPT, max_tokens=24, temperature=0)


@pytest.mark.parametrize("encoding", ["Q2_0", "PTQ1_0"])
def test_bitnet_tiny_and_its_repacked_twins_write_the_same_text(tmp_path, encoding):
    """Twins are repacked: of the shipped model, and of one whose embedding is rotated."""
    basis = save(tmp_path / "basis.gguf", rotated(open_checkpoint(TINY), 256, only="token_embd"))
    texts = {text_of(TINY)}
    for source, embedding in ((TINY, "F16"), (basis, "F32")):
        twin = tmp_path / f"{source.stem}-{encoding}.gguf"
        assert convert(source, twin, ConvertOptions(encoding)).exact
        matrices = [w for w in open_checkpoint(twin).weights.values() if len(w.shape) == 2]
        assert {weight.quant.name for weight in matrices} == {encoding, embedding}
        is_rotated = "rotated: prism.hadamard" in "\n".join(inspect_gguf(twin).lines())
        assert is_rotated == (source == basis)
        texts.add(text_of(twin))
    assert len(texts) == 1


# Keys of a basis, each with a value that is not supported.
WRONG = {
    "version": 2,
    "transform": "randomized",
    "axis": "output",
    "sign_mode": "random",
    "block_size": 96,
    "weight_names": ["blk.7.attn_q.weight"],
    "inverse_weight_names": ["output.weight"],
    "sign_widths": [768],
    "sign_values": [0] * 768,
    "gdn_v_grouped": True,
    "another_key": 1,
}


@pytest.mark.parametrize("key", WRONG)
def test_an_unsupported_value_of_a_basis_is_refused_by_its_key(key):
    in_basis = rotated(tiny("qwen3", **SHAPES[256]), 256)
    metadata = dict(in_basis.metadata) | {f"prism.hadamard.{key}": WRONG[key]}
    with pytest.raises((Unsupported, InvalidFormat), match=f"prism.hadamard.{key}"):
        load_model(replace(in_basis, metadata=metadata), ops=ReferenceOps())


# Values of other types and sizes.
HOSTILE = (None, 0, -1, 2**63, 1.5, "x", [[]], [None], ["a"], [2**63], [-256, 512, 512])


@pytest.mark.parametrize("key", WRONG)
def test_hostile_values_of_a_basis_are_refused(key):
    in_basis = hybrid(grouped=True)[1]
    for value in HOSTILE:
        metadata = dict(in_basis.metadata) | {f"prism.hadamard.{key}": value}
        with pytest.raises((Unsupported, InvalidFormat), match=r"prism\.hadamard"):
            load_model(replace(in_basis, metadata=metadata), ops=ReferenceOps())


@pytest.mark.parametrize("key", ["version", "transform", "axis", "block_size", "weight_names"])
def test_a_basis_without_one_of_its_keys_is_refused(key):
    in_basis = rotated(tiny("qwen3", **SHAPES[256]), 256)
    metadata = {k: v for k, v in in_basis.metadata.items() if k != f"prism.hadamard.{key}"}
    with pytest.raises(BitnetError, match=f"prism.hadamard.{key}"):
        load_model(replace(in_basis, metadata=metadata), ops=ReferenceOps())


HYBRID = {
    "block_count": 3,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 6,
    "ssm.inner_size": 6 * 128,
    "embedding_length": 256,
    "feed_forward_length": 512,
}
# Order of the value heads when they are grouped: those of one key head are neighbours.
HEADS = np.arange(6).reshape(3, 2).T.reshape(-1)


@lru_cache
def hybrid(grouped):
    """A model with delta nets, and the same model with all matrices in a rotated basis.

    With *grouped* the columns of ``ssm_out`` are in the order of HEADS, and a key says so.
    """
    plain = tiny("qwen35", **HYBRID)
    weights = dict(plain.weights)
    for name, weight in plain.weights.items():
        if grouped and name.endswith("ssm_out.weight"):
            columns = (HEADS[:, None] * 128 + np.arange(128)).reshape(-1)
            values = np.ascontiguousarray(registry.dequantize(weight)[:, columns])
            weights[name] = Weight(name, weight.shape, F32, values.reshape(-1).view(np.uint8))
    in_basis = rotated(replace(plain, weights=weights), 256)
    metadata = dict(in_basis.metadata) | {"prism.hadamard.gdn_v_grouped": grouped}
    return plain, replace(in_basis, metadata=metadata)


@pytest.mark.parametrize("grouped", [True, False])
def test_a_rotated_delta_net_computes_what_the_model_does(grouped):
    plain, in_basis = hybrid(grouped)
    ops = ReferenceOps(dtype=np.float64)
    expected = logits(plain, ops)
    actual = logits(in_basis, ops)
    assert np.abs(actual - expected).max() < 1e-5 * np.ptp(expected)  # stored as float32
    # With the other order of heads the model computes something else.
    key = "prism.hadamard.gdn_v_grouped"
    garbage = logits(replace(in_basis, metadata=dict(in_basis.metadata) | {key: not grouped}), ops)
    assert np.abs(garbage - expected).max() > 0.01 * np.ptp(expected)


@pytest.mark.skipif(native.module() is None, reason="the compiled module is not built")
def test_the_compiled_order_of_heads_has_the_bits_of_its_operations_one_by_one():
    model = load_model(hybrid(grouped=True)[1], ops=NativeOps(threads=2))
    steps = dict(model.trace(IDS, KVCache(model.config, 16)))
    actual = model.forward(IDS, KVCache(model.config, 16), all_positions=True)
    np.testing.assert_array_equal(actual, steps["result_output"])


def test_inspect_counts_states_and_plan_says_that_weights_are_rotated(tmp_path):
    path = save(tmp_path / "hybrid.gguf", hybrid(grouped=True)[1])
    config = load_model(open_checkpoint(path), ops=ReferenceOps()).config
    memory = inspect_gguf(path).memory
    state_bytes = 4 * sum(cache.size for cache in config.caches if isinstance(cache, State))
    # The states are kept in whole copies, at least two.
    assert memory.states >= 2 * state_bytes > 0
    assert memory.states % state_bytes == 0
    assert memory.kv_at_context == KVCache(config, 64).cost(64, PREFILL_CHUNK)
    # A key and a value for each of 2 heads: 64 codes of 16 bits and a float32 step.
    assert memory.kv_per_token == len(config.attentions) * 2 * 2 * (64 * 2 + 4)
    plan = plan_path(path, Resources(None, None))
    assert "rotated: prism.hadamard version 1, blocks of 256, signs explicit" in "".join(
        plan.lines()
    )
    assert "states of layers without keys and values" in "\n".join(inspect_gguf(path).lines())


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_a_rotated_delta_net_without_the_order_of_its_heads_is_refused(value):
    in_basis = hybrid(grouped=True)[1]
    metadata = dict(in_basis.metadata) | {"prism.hadamard.gdn_v_grouped": value}
    if value is None:
        del metadata["prism.hadamard.gdn_v_grouped"]
    with pytest.raises(InvalidFormat, match=r"prism\.hadamard\.gdn_v_grouped"):
        load_model(replace(in_basis, metadata=metadata), ops=ReferenceOps())

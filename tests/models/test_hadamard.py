"""Models whose weights are in a rotated basis (Bonsai 2), against the same models without it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import Tensor, write_gguf
from tiny_models import tiny

import bitnet
from bitnet import native
from bitnet.convert import ConversionRequest, convert
from bitnet.errors import BitnetError, InvalidFormat, Unsupported
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf_values import Array
from bitnet.inspect_gguf import inspect_gguf
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.quants import registry, types
from bitnet.quants.weight import Weight
from bitnet.runtime.kv_cache import KVCache

TINY = Path(bitnet.__file__).with_name("shipped") / "bitnet-tiny.gguf"
PROMPT = "It is a truth universally acknowledged, that"
IDS = [5, 9, 33, 2, 61, 17, 8, 40]
F32 = types.by_name("F32")
SHAPES = {
    256: {"embedding_length": 256, "feed_forward_length": 512},
    1024: {"embedding_length": 1024, "feed_forward_length": 2048},
}


def sylvester(size):
    """Walsh and Hadamard's matrix in natural order, orthonormal."""
    h = np.ones((1, 1))
    while len(h) < size:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(size)


def rotated(checkpoint, block, *, explicit=True, embedding=True, only=""):
    """*checkpoint* in the basis of ``H(signs * x)``: its rows are ``H(signs * row)``."""
    rng, h = np.random.default_rng(4), sylvester(block)
    matrices = {
        name: weight
        for name, weight in checkpoint.weights.items()
        if len(weight.shape) == 2 and name.startswith(only)
    }
    widths = sorted({weight.shape[1] for weight in matrices.values()})
    signs = {width: rng.choice([-1, 1], width) if explicit else np.ones(width) for width in widths}
    weights = dict(checkpoint.weights)
    for name, weight in matrices.items():
        if name == "token_embd.weight" and not embedding:
            continue
        rows = registry.dequantize(weight).astype(np.float64) * signs[weight.shape[1]]
        stored = (rows.reshape(-1, block) @ h).reshape(weight.shape).astype("<f4")
        weights[name] = Weight(name, weight.shape, F32, stored.reshape(-1).view(np.uint8))
    keys = {
        "version": 1,
        "block_size": block,
        "transform": "normalized-sylvester-walsh-hadamard",
        "axis": "input-last-dimension",
        "sign_mode": "explicit" if explicit else "identity",
        "weight_names": [n for n in matrices if n != "token_embd.weight" or embedding],
        "inverse_weight_names": ["token_embd.weight"] if embedding else [],
    }
    if explicit:
        keys["sign_widths"] = [int(width) for width in widths]
        keys["sign_values"] = [int(sign) for width in widths for sign in signs[width]]
    named = {f"prism.hadamard.{key}": value for key, value in keys.items()}
    return replace(checkpoint, weights=weights, metadata=dict(checkpoint.metadata) | named)


def logits(checkpoint, ops):
    model = load_model(checkpoint, ops=ops)
    dtype = getattr(ops, "dtype", np.float32)
    return model.forward(IDS, KVCache(model.config, 16, dtype=dtype), all_positions=True)


def save(path, checkpoint):
    tensors = [
        Tensor(name, weight.shape, weight.quant.ggml_id, weight.data.tobytes())
        for name, weight in checkpoint.weights.items()
    ]
    keys = {
        key: list(value) if isinstance(value, Array) else value
        for key, value in checkpoint.metadata.items()
    }
    return write_gguf(path, keys, tensors)


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("embedding", [True, False])
@pytest.mark.parametrize("block", SHAPES)
def test_a_rotated_model_computes_what_the_model_does(block, explicit, embedding):
    plain = tiny("qwen3", **SHAPES[block])
    turned = rotated(plain, block, explicit=explicit, embedding=embedding)
    ops = ReferenceOps(dtype=np.float64)
    expected, found = logits(plain, ops), logits(turned, ops)
    assert np.abs(found - expected).max() < 1e-5 * np.ptp(expected)  # stored as float32
    ignored = {k: v for k, v in turned.metadata.items() if not k.startswith("prism.")}
    garbage = logits(replace(turned, metadata=ignored), ops)
    assert np.abs(garbage - expected).max() > 0.1 * np.ptp(expected)


@pytest.mark.skipif(native.module() is None, reason="the compiled module is not built")
@pytest.mark.parametrize("block", SHAPES)
def test_the_compiled_transform_has_the_bits_of_the_reference(block):
    turned = rotated(tiny("qwen3", **SHAPES[block]), block)
    model = load_model(turned, ops=NativeOps(threads=2))
    steps = dict(model.traced(IDS, KVCache(model.config, 16)))  # one operation after another
    cache = KVCache(model.config, 16)
    found = model.forward(IDS, cache, all_positions=True)
    np.testing.assert_array_equal(found, steps["result_output"])


def test_a_rotated_ternary_file_is_converted_and_says_what_it_is(tmp_path):
    """PTQ1_0 in the basis, and the same numbers as float32 in it, compute the same."""
    plain = tiny("qwen3", **SHAPES[256])
    turned = rotated(plain, 256)
    weights = dict(turned.weights)
    for name, weight in weights.items():
        if name.startswith("blk.") and len(weight.shape) == 2:
            values = registry.dequantize(weight)
            codes = np.sign(values) * (np.abs(values) > 0.05)
            ternary = (codes * np.float32(0.0625)).astype("<f4")
            weights[name] = Weight(name, weight.shape, F32, ternary.reshape(-1).view(np.uint8))
    source = save(tmp_path / "f32.gguf", replace(turned, weights=weights))
    expected = logits(open_checkpoint(source), ReferenceOps(dtype=np.float64))
    for encoding in ("PTQ1_0", "PQ2_0", "Q2_0"):
        path = tmp_path / f"{encoding}.gguf"
        assert convert(source, path, ConversionRequest(encoding)).exact
        found = logits(open_checkpoint(path), ReferenceOps(dtype=np.float64))
        np.testing.assert_array_equal(found, expected)
        text = "\n".join(inspect_gguf(path).lines())
        assert "rotated: prism.hadamard version 1, blocks of 256, signs explicit" in text
    assert "not rotated" in "\n".join(inspect_gguf(save(tmp_path / "p.gguf", plain)).lines())


def text_of(path):
    with bitnet.load(path) as model:
        return model.generate(PROMPT, max_tokens=24, temperature=0)


@pytest.mark.parametrize("encoding", ["Q2_0", "PTQ1_0"])
def test_bitnet_tiny_and_its_twins_write_the_same_text(tmp_path, encoding):
    """Its matrices repacked; and then its embedding, which is its head as well, rotated."""
    twin = tmp_path / "twin.gguf"
    assert convert(TINY, twin, ConversionRequest(encoding)).exact
    in_blocks = {w.quant.name for w in open_checkpoint(twin).weights.values() if len(w.shape) == 2}
    assert in_blocks == {encoding, "F16"}
    turned = rotated(open_checkpoint(twin), 256, only="token_embd")
    basis = save(tmp_path / "rotated.gguf", turned)
    assert "rotated: " in "\n".join(inspect_gguf(basis).lines())
    assert text_of(TINY) == text_of(twin) == text_of(basis)


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
    "another_key": 1,
}


@pytest.mark.parametrize("key", WRONG)
def test_what_is_not_known_of_a_basis_is_refused(key):
    turned = rotated(tiny("qwen3", **SHAPES[256]), 256)
    metadata = dict(turned.metadata) | {f"prism.hadamard.{key}": WRONG[key]}
    with pytest.raises((Unsupported, InvalidFormat), match=f"prism.hadamard.{key}"):
        load_model(replace(turned, metadata=metadata), ops=ReferenceOps())


@pytest.mark.parametrize("key", ["version", "transform", "axis", "block_size", "weight_names"])
def test_a_basis_without_one_of_its_keys_is_refused(key):
    turned = rotated(tiny("qwen3", **SHAPES[256]), 256)
    metadata = {k: v for k, v in turned.metadata.items() if k != f"prism.hadamard.{key}"}
    with pytest.raises(BitnetError, match=f"prism.hadamard.{key}"):
        load_model(replace(turned, metadata=metadata), ops=ReferenceOps())


def test_rotated_linear_attention_is_refused():
    turned = rotated(tiny("qwen3", **SHAPES[256]), 256)
    name = "blk.0.ssm_out.weight"
    weights = dict(turned.weights) | {name: turned.weights["blk.0.attn_q.weight"]}
    names = [*turned.metadata["prism.hadamard.weight_names"], name]
    metadata = dict(turned.metadata) | {"prism.hadamard.weight_names": names}
    checkpoint = replace(turned, weights=weights, metadata=metadata)
    with pytest.raises(Unsupported, match="ssm_out"):
        load_model(checkpoint, ops=ReferenceOps())

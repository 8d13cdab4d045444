"""The native backend as models see it, against the reference backend."""

import logging

import gguf
import numpy as np
import pytest
from tiny_keys import FAMILIES
from tiny_models import in_encoding, tiny

from bitnet.base import native
from bitnet.base.errors import InvalidFormat, Unsupported, UsageError
from bitnet.base.machine import thread_count
from bitnet.kernels import native as native_ops
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps, select
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.quants import types
from bitnet.quants.registry import PACKED_U8, dequantize, quantize
from bitnet.quants.ternary import Ternary, pack_i2_s
from bitnet.quants.weight import Weight

needs_native = pytest.mark.skipif(
    native.module() is None, reason="the compiled module is not installed"
)
TOKENS = [5, 9, 33, 2, 61, 17, 8, 40]
# Largest difference of a logit relative to the range of the logits, both with a cache of codes.
# Float weights: float32 sums have another order, and their results are rounded to codes, as are
# queries and the weights of attention.
FLOAT_TOLERANCE = 2e-3
# Block weights: activations in 8 bits, the reference keeps them whole.
ROUNDED_TOLERANCE = 0.1
# Ternary: both round; now and then the last bit of a norm moves an activation to the next integer.
TERNARY_TOLERANCE = 0.03
TOLERANCES = {
    "F32": FLOAT_TOLERANCE,
    "F16": FLOAT_TOLERANCE,
    "BF16": FLOAT_TOLERANCE,
    "Q8_0": ROUNDED_TOLERANCE,
    "Q4_K": ROUNDED_TOLERANCE,
    "TQ2_0": TERNARY_TOLERANCE,
    "I2_S": TERNARY_TOLERANCE,
}


def logits(checkpoint, ops, *, chunk=8):
    """Logits after each of TOKENS, run in parts of *chunk* tokens."""
    model = load_model(checkpoint, ops=ops)
    cache = KVCache(model.config, 32)
    parts = [TOKENS[start : start + chunk] for start in range(0, len(TOKENS), chunk)]
    return np.concatenate([model.forward(part, cache, all_positions=True) for part in parts])


def ternary(rows, columns, *, scales=None):
    """A random ternary matrix; its scale is 0.5 unless *scales* are given."""
    codes = np.random.default_rng(3).integers(-1, 2, (rows, columns)).astype(np.int8)
    return Ternary(codes, np.full((1, 1), 0.5, dtype=np.float32) if scales is None else scales)


@needs_native
@pytest.mark.parametrize("encoding", TOLERANCES)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_family_gives_the_reference_logits_in_every_encoding(architecture, encoding):
    checkpoint = in_encoding(tiny(architecture), encoding)
    expected = logits(checkpoint, ReferenceOps())
    found = logits(checkpoint, NativeOps())
    assert np.abs(found - expected).max() < TOLERANCES[encoding] * np.ptp(expected)


@needs_native
@pytest.mark.parametrize("architecture", FAMILIES)
def test_token_by_token_gives_the_bits_of_the_whole_prompt(architecture):
    checkpoint = in_encoding(tiny(architecture), "Q8_0")
    ops = NativeOps()
    whole = logits(checkpoint, ops)
    np.testing.assert_array_equal(logits(checkpoint, ops, chunk=1), whole)
    np.testing.assert_array_equal(logits(checkpoint, ops, chunk=3), whole)


@needs_native
@pytest.mark.parametrize("columns", [128, 96, 36])
def test_packed_u8_of_any_width_has_the_bits_of_the_reference(columns):
    rows = 16
    codes = ternary(rows, columns).codes
    # Four rows, a quarter of the matrix apart, share a byte.
    row_codes = (codes.reshape(4, rows // 4, columns) + 1).astype(np.uint8)
    packed = row_codes[0] | row_codes[1] << 2 | row_codes[2] << 4 | row_codes[3] << 6
    weight = Weight("w", (rows, columns), PACKED_U8, packed.reshape(-1), scale=0.3)
    x = np.random.default_rng(4).standard_normal((3, columns)).astype(np.float32)
    reference = ReferenceOps()
    ours = NativeOps()
    expected = reference.linear(x, reference.prepare(weight))
    np.testing.assert_array_equal(ours.linear(x, ours.prepare(weight)), expected)
    np.testing.assert_array_equal(
        ours.embed(ours.prepare(weight), [3, 0]),
        reference.embed(reference.prepare(weight), [3, 0]),
    )


@needs_native
def test_i2_s_is_bit_for_bit_the_reference_with_a_bias():
    matrix = ternary(33, 256)
    weight = Weight("w", (33, 256), types.by_name("I2_S"), pack_i2_s(matrix))
    x = np.random.default_rng(4).standard_normal((20, 256)).astype(np.float32)
    bias = np.arange(33, dtype=np.float32)
    reference = ReferenceOps()
    ours = NativeOps()
    expected = reference.linear(x, reference.prepare(weight), bias)
    np.testing.assert_array_equal(ours.linear(x, ours.prepare(weight), bias), expected)


@needs_native
def test_an_encoding_without_a_kernel_is_computed_in_float32():
    kind = types.by_name("Q2_K")
    rng = np.random.default_rng(5)
    packed = rng.integers(0, 256, (4, 2, 84), dtype=np.uint8)
    # The two float16 scales at the end of a block of Q2_K.
    packed[..., 80:] = np.frombuffer(np.full(2, 0.001, np.float16).tobytes(), np.uint8)
    weight = Weight("w", (4, 512), kind, packed.reshape(-1))
    x = rng.standard_normal((2, 512)).astype(np.float32)
    ours = NativeOps()
    np.testing.assert_allclose(
        ours.linear(x, ours.prepare(weight)), x @ dequantize(weight).T, rtol=1e-5, atol=1e-5
    )


@needs_native
def test_a_factor_beside_the_matrix_multiplies_the_product():
    plain = quantize("w", np.eye(32, dtype=np.float32), types.by_name("Q8_0"))
    scaled = Weight("w", plain.shape, plain.quant, plain.data, scale=4.0)
    x = np.random.default_rng(6).standard_normal((2, 32)).astype(np.float32)
    ours = NativeOps()
    once = ours.linear(x, ours.prepare(plain))
    np.testing.assert_array_equal(ours.linear(x, ours.prepare(scaled)), once * np.float32(4))


@needs_native
@pytest.mark.parametrize("name", ["Q8_0", "I2_S", "Q4_K"])
def test_a_weight_with_too_few_bytes_is_refused(name):
    weight = Weight("blk.0.x", (8, 256), types.by_name(name), np.zeros(99, np.uint8))
    with pytest.raises(InvalidFormat, match=r"blk\.0\.x.*99 bytes, expected"):
        NativeOps().prepare(weight)


@needs_native
@pytest.mark.parametrize("name", ["I2_S", "TQ2_0"])
def test_a_code_that_is_not_a_ternary_weight_is_refused(name):
    if name == "I2_S":
        packed = pack_i2_s(ternary(40, 256))
        kind = types.by_name(name)
    else:
        values = ternary(40, 256).codes.astype(np.float32)
        packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.TQ2_0).reshape(-1)
        kind = types.by_name(name)
    NativeOps().prepare(Weight("w", (40, 256), kind, packed))
    packed[39 * len(packed) // 40 - 7] |= 0x0C  # both bits of a code near the end
    with pytest.raises(InvalidFormat, match="code 3"):
        NativeOps().prepare(Weight("w", (40, 256), kind, packed))


@needs_native
def test_i2_s_without_a_finite_scale_is_refused():
    packed = pack_i2_s(ternary(2, 128))
    # The scale follows the codes: 2 * 128 weights of two bits.
    packed[64:68] = np.frombuffer(np.float32(np.nan).tobytes(), np.uint8)
    weight = Weight("w", (2, 128), types.by_name("I2_S"), packed)
    with pytest.raises(InvalidFormat, match="scale is nan"):
        NativeOps().prepare(weight)


@needs_native
def test_the_backend_follows_the_environment(monkeypatch):
    assert isinstance(select(), NativeOps)
    monkeypatch.setenv("BITNET_BACKEND", "reference")
    assert isinstance(select(), ReferenceOps)
    with pytest.raises(Unsupported, match="switched off"):
        NativeOps()
    monkeypatch.setenv("BITNET_BACKEND", "fpga")
    with pytest.raises(UsageError, match="BITNET_BACKEND"):
        select()


@needs_native
def test_kernels_that_fail_the_self_test_are_reported_in_a_warning(caplog, monkeypatch):
    """``check_wrong_kernels`` of kernels_driver.cpp tests that the self-test finds each of them."""
    module = native.module()
    monkeypatch.setattr(module, "kernel_self_test", lambda: ["linear Q8_0_R16", "gather"])
    native_ops._self_test.cache_clear()
    try:
        with caplog.at_level("WARNING"):
            NativeOps()
    finally:
        native_ops._self_test.cache_clear()
    assert f"for {module.kernel_level()} give wrong results" in caplog.text
    assert "linear Q8_0_R16, gather" in caplog.text


def test_threads_come_from_the_environment_or_the_cores_of_this_process(monkeypatch):
    assert thread_count() >= 1
    monkeypatch.setenv("BITNET_THREADS", "3")
    assert thread_count() == 3


@needs_native
def test_more_threads_than_cores_are_reported_in_a_warning(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("bitnet"), "propagate", True)
    monkeypatch.setattr(native_ops, "usable_cores", lambda: 2)
    before = native.module().threads()
    try:
        NativeOps(threads=2)
        assert not caplog.records
        NativeOps(threads=3)
    finally:
        native.module().set_threads(before)
    assert "3 compute threads share 2 cores" in caplog.text

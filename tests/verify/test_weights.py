"""Every kind of damage to a tensor's numbers is named, and sound tensors pass."""

import math

import numpy as np
import pytest

from bitnet.formats.gguf_audit import TernaryCounts
from bitnet.quants import types
from bitnet.quants.registry import PACKED_U8, quantize
from bitnet.quants.ternary import Ternary, pack_i2_s
from bitnet.quants.weight import Weight
from bitnet.verify.weights import code_anomalies, weight_anomalies

SOUND = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
ENCODINGS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
TERNARY = ("I2_S", "TQ1_0", "TQ2_0")


def weight_in(name, values=SOUND, tensor="blk.0.attn_q.weight"):
    """The weight *tensor* with *values* in the encoding *name*; its bytes may be changed.

    For ternary encodings the values are rounded to -0.25, 0 and 0.25.
    """
    if name in TERNARY:
        values = np.sign(values) * (np.abs(values) > 0.5) * 0.25
    weight = quantize(tensor, values.astype(np.float32), types.by_name(name))
    return Weight(tensor, weight.shape, weight.quant, weight.data.copy())


def with_bytes(weight, at, raw):
    """*weight* with its bytes from *at* on replaced by *raw*."""
    weight.data[at : at + len(raw)] = np.frombuffer(raw, dtype=np.uint8)
    return weight


@pytest.mark.parametrize("name", [*ENCODINGS, *TERNARY])
def test_a_sound_tensor_has_nothing_odd(name):
    assert weight_anomalies(weight_in(name)) == []


@pytest.mark.parametrize("name", [*ENCODINGS, *TERNARY])
def test_a_row_of_zeros_is_counted(name):
    values = SOUND.copy()
    values[2] = 0
    (found,) = weight_anomalies(weight_in(name, values))
    assert "1 of 4 rows are zero" in found.text
    assert not found.failed


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_tensor_of_zeros_cannot_be_right(name):
    (found,) = weight_anomalies(weight_in(name, SOUND * 0))
    assert (found.failed, found.text) == (True, "blk.0.attn_q.weight: all values are zero")


def test_unused_tokens_and_biases_may_be_zero():
    values = SOUND.copy()
    values[2] = 0
    assert weight_anomalies(weight_in("Q8_0", values, "token_embd.weight")) == []
    assert weight_anomalies(weight_in("F32", SOUND[0] * 0, "blk.0.attn_q.bias")) == []


def test_a_norm_of_zeros_cannot_be_right():
    (found,) = weight_anomalies(weight_in("F32", SOUND[0] * 0, "blk.0.attn_norm.weight"))
    assert found.failed


# An encoding, the offset of a number in its bytes, and the number. Blocks begin with their scale in
# Q8_0 (34 bytes) and Q4_1 (20 bytes, then the minimum), and end with it in TQ2_0 and TQ1_0.
@pytest.mark.parametrize(
    ("name", "at", "raw", "what"),
    [
        ("F32", 8, np.float32("nan").tobytes(), "values"),
        ("F16", 8, np.float16("-inf").tobytes(), "values"),
        ("BF16", 8, b"\x80\x7f", "values"),
        ("Q8_0", 34, np.float16("nan").tobytes(), "scales"),
        ("Q4_1", 22, np.float16("inf").tobytes(), "scales"),
        ("TQ2_0", 64, np.float16("nan").tobytes(), "scales"),
        ("TQ1_0", 52, np.float16("nan").tobytes(), "scales"),
    ],
)
def test_numbers_that_are_not_finite_are_counted(name, at, raw, what):
    found = weight_anomalies(with_bytes(weight_in(name), at, raw))
    assert [entry.text for entry in found] == [f"blk.0.attn_q.weight: 1 {what} are NaN or infinite"]
    assert found[0].failed


@pytest.mark.parametrize(("name", "at"), [("Q8_0", 0), ("Q4_1", 20), ("TQ2_0", 64)])
def test_a_flipped_sign_of_a_scale_is_named(name, at):
    weight = weight_in(name)
    weight.data[at + 1] ^= 0x80  # the high byte of a float16
    (found,) = weight_anomalies(weight)
    assert f"1 negative scales, which no quantizer of {name} writes" in found.text


def test_a_scale_with_a_flipped_exponent_is_named():
    weight = weight_in("Q8_0")
    weight.data[1] ^= 0x40  # the highest bit of the exponent of a float16
    (found,) = weight_anomalies(weight)
    assert "times the median one" in found.text


@pytest.mark.parametrize("scale", [-1.0, 0.0, float("nan"), float("inf")])
def test_the_scale_of_i2_s_is_finite_and_above_zero(scale):
    weight = weight_in("I2_S")
    found = weight_anomalies(with_bytes(weight, 256, np.float32(scale).tobytes()))  # behind codes
    assert found[0].failed
    assert "expected a finite number above 0" in found[0].text


@pytest.mark.parametrize("shape", [(128, 2), (2, 64), (4, 192), (128,)])
def test_rows_of_i2_s_that_are_not_whole_blocks_are_judged(shape):
    """No model has such a shape, and a damaged file may."""
    codes = np.ones(math.prod(shape), dtype=np.int8)
    codes[: shape[-1]] = 0  # the first row
    ternary = Ternary(codes.reshape(1, -1), np.full((1, 1), 0.5, dtype=np.float32))
    weight = Weight("blk.0.ffn_up.weight", shape, types.by_name("I2_S"), pack_i2_s(ternary))
    (found,) = weight_anomalies(weight)
    text = "no decoder" if len(shape) == 1 else f"1 of {shape[0]} rows are zero"
    assert text in found.text


def test_packed_safetensors_weights_are_decoded():
    packed = np.full((1, 256), 0b01010101, dtype=np.uint8)  # every code is 1, the weight 0
    weight = Weight("blk.0.ffn_up.weight", (4, 256), PACKED_U8, packed.reshape(-1))
    (found,) = weight_anomalies(weight)
    assert "all values are zero" in found.text


def counts(minus, zero, plus, invalid=0):
    """Counts of the codes of all weights of a tensor, which has no scale of its own."""
    return TernaryCounts("t", minus, zero, plus, invalid, None, True)


@pytest.mark.parametrize(
    ("found", "fatal", "said"),
    [
        (counts(30, 40, 30, 1), True, "1 of 101 codes mean nothing"),
        (counts(0, 100, 0), True, "all 100 weights are zero"),
        (counts(0, 0, 100), True, "all weights have one value"),
        (counts(1, 50, 49), False, "degenerate distribution"),
        (counts(1, 998, 1), False, "degenerate distribution"),
    ],
)
def test_codes_that_no_trained_model_has_are_named(found, fatal, said):
    (anomaly,) = code_anomalies(found)
    assert anomaly.failed == fatal
    assert said in anomaly.text


def test_codes_of_a_trained_model_pass():
    assert code_anomalies(counts(29, 42, 29)) == []

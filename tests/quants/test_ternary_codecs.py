"""I2_S, TQ1_0, TQ2_0, IQ1_BN, IQ2_BN and packed U8 against hand-made blocks and other programs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.quants import types
from bitnet.quants.registry import dequantize
from bitnet.quants.scaled_blocks import SCALED_BLOCKS
from bitnet.quants.ternary import (
    Ternary,
    pack_i2_s,
    pack_iq2_bn,
    pack_u8,
    ternarize,
    unpack_i2_s,
    unpack_iq1_bn,
    unpack_iq2_bn,
    unpack_iq2_bn_r4,
    unpack_u8,
)
from bitnet.quants.weight import Weight


def random_codes(rows, columns, seed=0):
    return np.random.default_rng(seed).integers(-1, 2, (rows, columns)).astype(np.int8)


def one_scale(codes, scale):
    """*codes* with one *scale* for the whole matrix."""
    return Ternary(codes, np.array([[scale]], dtype=np.float32))


def test_i2_s_first_byte_holds_weights_0_32_64_96_from_the_top():
    packed = np.full(64, 0b01010101, dtype=np.uint8)  # all zero weights
    packed[0] = 0b00_10_01_10
    packed[32:36] = np.array([0.5], dtype="<f4").view(np.uint8)
    row = unpack_i2_s(packed, (1, 128)).dequantize()[0]
    assert {i: row[i] for i in np.flatnonzero(row)} == {0: -0.5, 32: 0.5, 96: 0.5}


def test_i2_s_of_arm_packs_blocks_of_64():
    packed = np.full(48, 0b01010101, dtype=np.uint8)
    packed[1] = 0b10_01_01_00
    packed[16:20] = np.array([2.0], dtype="<f4").view(np.uint8)
    row = unpack_i2_s(packed, (1, 64), arm=True).dequantize()[0]
    # Byte 1 holds weights 1, 17, 33 and 49, from the top.
    assert {i: row[i] for i in np.flatnonzero(row)} == {1: 2.0, 49: -2.0}


@pytest.mark.parametrize("arm", [False, True])
def test_i2_s_survives_the_round_trip(arm):
    codes = random_codes(6, 256)
    packed = pack_i2_s(one_scale(codes, 0.125), arm=arm)
    assert packed.size == types.by_name("I2_S").size_bytes((6, 256))
    back = unpack_i2_s(packed, (6, 256), arm=arm)
    np.testing.assert_array_equal(back.codes, codes)
    assert back.scales.tolist() == [[0.125]]


@pytest.mark.parametrize("name", ["I2_S", "TL1", "TL2"])
def test_several_matrices_with_one_scale_are_unsupported_and_not_called_damaged(name):
    data = pack_i2_s(one_scale(random_codes(8, 128), 0.5))
    weight = Weight("blk.0.ffn_up_exps.weight", (2, 4, 128), types.by_name(name), data)
    with pytest.raises(Unsupported, match=f"ffn_up_exps.weight: 2 matrices in one .* in {name}"):
        weight.matrices()
    # Matrices that have bytes of their own have scales of their own.
    pieces = tuple(pack_i2_s(one_scale(random_codes(4, 128, seed), seed + 1)) for seed in range(2))
    first, second = weight.like(data=np.empty(0, np.uint8), pieces=pieces).matrices()
    assert (first.data is pieces[0], second.data is pieces[1]) == (True, True)


def test_i2_s_code_three_is_refused():
    packed = pack_i2_s(one_scale(random_codes(1, 128), 1.0))
    packed[5] |= 0b11
    with pytest.raises(InvalidFormat, match="code 3"):
        unpack_i2_s(packed, (1, 128))


@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_i2_s_scale_must_be_finite(scale):
    packed = pack_i2_s(one_scale(random_codes(1, 128), scale))
    with pytest.raises(InvalidFormat, match="scale"):
        unpack_i2_s(packed, (1, 128))


def test_i2_s_with_too_few_bytes_names_what_it_needs():
    with pytest.raises(InvalidFormat, match="expected blocks of 128 weights in 64 bytes"):
        unpack_i2_s(np.zeros(33, dtype=np.uint8), (1, 128))


@pytest.mark.parametrize("name", ["TQ1_0", "TQ2_0"])
def test_tq_agrees_with_gguf_py_in_both_directions(name):
    from gguf import GGMLQuantizationType, quants

    codes = random_codes(3, 768)
    codes[:, ::256] = 1  # every block has its scale as largest magnitude
    scales = np.array([[0.5, 0.25, 2.0]] * 3, dtype=np.float32)
    ternary = Ternary(codes, scales)
    expected = quants.quantize(ternary.dequantize(), GGMLQuantizationType[name])
    layout = SCALED_BLOCKS[name]
    np.testing.assert_array_equal(layout.pack(ternary), expected.reshape(-1))
    back = layout.unpack(expected.reshape(-1), (3, 768))
    np.testing.assert_array_equal(back.codes, codes)
    np.testing.assert_array_equal(
        back.dequantize(), quants.dequantize(expected, GGMLQuantizationType[name])
    )


# Bytes from ggml_quantize_chunk of ik_llama.cpp (ik-llama-cpp-python 0.1.5): four rows of 64
# weights, weight c of row r is ((7 c + 3 r + c * c // 5 + c * r) % 3 - 1) * (r + 1) / 2.
IK_BYTES = {
    "IQ1_BN": (
        "0038889cd783344881bc6d8094cf33003cd7889c4883346d81bccf80942d003e1d5b0cb5c9049243"
        "02316c001d0040889cd783344881bc6d8094cf33"
    ),
    "IQ2_BN": (
        "0000003f645956555595651986615896254992640000803f58962549926459565555956519866158"
        "0000c03f401084611806419024491204010000400000004064595655559565198661589625499264"
    ),
    "IQ2_BN_R4": (
        "0000003f0000803f0000c03f00000040645586255892551940182401645586255586255992551996"
        "18240110558625598625599555199664240110068625599525599561199664550110064925599561"
    ),
}


@pytest.mark.parametrize(
    ("name", "unpack"),
    [
        ("IQ1_BN", unpack_iq1_bn),
        ("IQ2_BN", unpack_iq2_bn),
        ("IQ2_BN_R4", unpack_iq2_bn_r4),
    ],
)
def test_ik_encodings_decode_what_ik_llama_cpp_wrote(name, unpack):
    packed = np.frombuffer(bytes.fromhex(IK_BYTES[name]), dtype=np.uint8)
    assert packed.size == types.by_name(name).size_bytes((4, 64))
    rows, columns = np.indices((4, 64))
    codes = (7 * columns + 3 * rows + columns * columns // 5 + columns * rows) % 3 - 1
    ternary = unpack(packed, (4, 64))
    np.testing.assert_array_equal(ternary.codes, codes)
    np.testing.assert_array_equal(ternary.scales, [[0.5], [1.0], [1.5], [2.0]])


@pytest.mark.parametrize("name", ["IQ1_BN", "IQ2_BN"])
def test_single_rows_can_be_taken_of_an_encoding_that_stores_rows_in_turn(name):
    packed = np.frombuffer(bytes.fromhex(IK_BYTES[name]), dtype=np.uint8)
    weight = Weight("w", (4, 64), types.by_name(name), packed)
    assert weight.stores_rows
    np.testing.assert_array_equal(dequantize(weight.take_rows([1, 3])), dequantize(weight)[[1, 3]])


def test_an_encoding_that_interleaves_four_rows_does_not_store_rows():
    packed = np.frombuffer(bytes.fromhex(IK_BYTES["IQ2_BN_R4"]), dtype=np.uint8)
    assert not Weight("w", (4, 64), types.by_name("IQ2_BN_R4"), packed).stores_rows


def test_iq2_bn_is_written_as_ik_llama_cpp_writes_it():
    packed = np.frombuffer(bytes.fromhex(IK_BYTES["IQ2_BN"]), dtype=np.uint8)
    np.testing.assert_array_equal(pack_iq2_bn(unpack_iq2_bn(packed, (4, 64))), packed)


@pytest.mark.parametrize(("columns", "groups"), [(96, 1), (128, 2)])
def test_iq2_bn_holds_whole_blocks_and_one_scale_a_row(columns, groups):
    ternary = Ternary(np.zeros((2, columns), np.int8), np.ones((2, groups), np.float32))
    with pytest.raises(InvalidFormat, match="IQ2_BN has rows"):
        pack_iq2_bn(ternary)


def test_packed_u8_puts_row_r_plus_a_quarter_in_the_next_bits():
    packed = np.array([[0b10100001, 0b00011000]], dtype=np.uint8)
    expected = [[0, -1], [-1, 1], [1, 0], [1, -1]]
    assert unpack_u8(packed, (4, 2)).codes.tolist() == expected
    np.testing.assert_array_equal(pack_u8(np.array(expected, dtype=np.int8)), packed)


@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 99))
def test_packed_u8_survives_the_round_trip(quads, columns, seed):
    codes = random_codes(4 * quads, columns, seed)
    shape = codes.shape
    np.testing.assert_array_equal(unpack_u8(pack_u8(codes).reshape(-1), shape).codes, codes)


def test_ternarize_rounds_by_the_mean_magnitude():
    weights = np.array([[0.1, -0.3, 0.2, 1.0]], dtype=np.float32)  # mean magnitude 0.4
    ternary = ternarize(weights)
    assert ternary.codes.tolist() == [[0, -1, 0, 1]]
    np.testing.assert_allclose(ternary.scales, [[0.4]], rtol=1e-6)


def test_ternarize_of_zeros_stays_finite():
    ternary = ternarize(np.zeros((2, 4), dtype=np.float32))
    assert not ternary.codes.any()
    assert np.isfinite(ternary.scales).all()

"""Q1_0, Q2_0, PQ2_0 and PTQ1_0, bit by bit, and the two layouts of files with the id of Q2_0."""

import numpy as np
import pytest
from builders import Tensor, write_gguf
from hypothesis import given
from hypothesis import strategies as st

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.formats.gguf import GGUF
from bitnet.quants import registry, types
from bitnet.quants.scaled_blocks import SCALED_BLOCKS
from bitnet.quants.ternary import Ternary
from bitnet.quants.weight import Weight

FOUR = ("Q1_0", "Q2_0", "PQ2_0", "PTQ1_0")


def half(value):
    """*value* as the bytes of a float16."""
    return np.array([value], dtype="<f2").tobytes()


def by_definition(name, block):
    """Weights of one block, digit by digit as the formats are defined; scales are floats."""
    codes = []
    if name == "Q1_0":
        scale = block[:2]
        packed = block[2:]
        codes = [2 * (packed[j // 8] >> j % 8 & 1) for j in range(128)]
    elif name == "PTQ1_0":
        scale = block[26:]

        def digit(byte, n):
            return ((byte * 3**n) % 256 * 3) >> 8

        codes += [digit(block[m], n) for n in range(5) for m in range(16)]
        codes += [digit(block[16 + m], n) for n in range(5) for m in range(8)]
        codes += [digit(block[24 + h], n) for n in range(4) for h in range(2)]
    else:
        scale = block[:2]
        packed = block[2:]
        codes = [packed[j // 4] >> 2 * (j % 4) & 3 for j in range(4 * len(packed))]
    d = np.frombuffer(scale, "<f2").astype(np.float32)
    return (np.array(codes, dtype=np.float32) - 1) * d


@pytest.mark.parametrize("name", [*FOUR, "Q2_0_G128"])
@given(seed=st.integers(0, 2**32 - 1))
def test_any_bytes_decode_as_the_format_says(name, seed):
    layout = SCALED_BLOCKS[name]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (6, layout.size)).astype(np.uint8)
    scales = rng.choice([0.0, 6e-8, -1.5, 0.0173, 65504.0], 6).astype("<f2")
    blocks[:, layout.scale_at : layout.scale_at + 2] = scales.reshape(-1, 1).view(np.uint8)
    weight = Weight("w", (3, 2 * layout.weights), types.by_name(name), blocks.reshape(-1))
    expected = np.concatenate([by_definition(name, block.tobytes()) for block in blocks])
    np.testing.assert_array_equal(registry.dequantize(weight).reshape(-1), expected)


def test_weights_of_blocks_made_by_hand_are_decoded_in_their_places():
    """Blocks of scale 2, each with one byte of different weights, which are written out here."""
    ones = bytes([0b01010101])
    q2_0 = half(2) + bytes([0b11_10_01_00]) + ones * 15
    assert by_definition("Q2_0", q2_0)[:5].tolist() == [-2, 0, 2, 4, 0]
    q1_0 = half(2) + bytes([0b00000101]) + bytes(15)
    assert by_definition("Q1_0", q1_0)[:4].tolist() == [2, -2, 2, -2]
    # 2 1 0 1 2 in base 3 is 194; ceil(194 * 256 / 243) = 205
    ptq = bytes([205]) + bytes(25) + half(2)
    assert by_definition("PTQ1_0", ptq)[[0, 16, 32, 48, 64]].tolist() == [2, 0, -2, 0, 2]
    for name, block in (("Q2_0", q2_0), ("Q1_0", q1_0), ("PTQ1_0", ptq)):
        layout = SCALED_BLOCKS[name]
        row = layout.unpack(np.frombuffer(block, np.uint8), (1, layout.weights)).dequantize()
        np.testing.assert_array_equal(row[0], by_definition(name, block))


@pytest.mark.parametrize("name", [*FOUR, "Q2_0_G128", "TQ1_0", "TQ2_0"])
@given(seed=st.integers(0, 2**32 - 1))
def test_packed_weights_are_unpacked_again(name, seed):
    layout = SCALED_BLOCKS[name]
    rng = np.random.default_rng(seed)
    values = [-1, 1]
    if name != "Q1_0":
        values.append(0)
    if layout.double:
        values.append(2)
    codes = rng.choice(values, (3, 2 * layout.weights)).astype(np.int8)
    scales = rng.uniform(0, 9, (3, 2)).astype(np.float16).astype(np.float32)
    packed = layout.pack(Ternary(codes, scales))
    assert packed.size == types.by_name(name).size_bytes(codes.shape)
    again = layout.unpack(packed, codes.shape)
    np.testing.assert_array_equal(again.codes, codes)
    np.testing.assert_array_equal(again.scales, scales)


@pytest.mark.parametrize(("name", "code"), [("Q1_0", 0), ("PTQ1_0", 2), ("TQ1_0", 2), ("TQ2_0", 2)])
def test_a_weight_without_a_code_is_refused(name, code):
    layout = SCALED_BLOCKS[name]
    codes = np.ones((2, layout.weights), dtype=np.int8)
    codes[1, 7] = code
    with pytest.raises(InvalidFormat, match=f"{name} has no code for"):
        layout.pack(Ternary(codes, np.ones((2, 1), dtype=np.float32)))


def test_a_block_of_zeros_survives_in_an_encoding_of_one_bit():
    ternary = Ternary(np.zeros((1, 128), np.int8), np.zeros((1, 1), np.float32))
    packed = SCALED_BLOCKS["Q1_0"].pack(ternary)
    assert not SCALED_BLOCKS["Q1_0"].unpack(packed, (1, 128)).dequantize().any()


# --- which layout a file has -------------------------------------------------------------------


def q2_0_file(tmp_path, kind, shapes):
    """A GGUF file of tensors with id 42 whose sizes are those of the encoding *kind*."""
    tensors = [
        Tensor(f"w{i}", shape, 42, bytes(types.by_name(kind).size_bytes(shape)))
        for i, shape in enumerate(shapes)
    ]
    return write_gguf(tmp_path / "m.gguf", {}, tensors)


@pytest.mark.parametrize("kind", ["Q2_0", "Q2_0_G128"])
def test_sizes_tell_the_two_layouts_of_id_42_apart(tmp_path, kind):
    path = q2_0_file(tmp_path, kind, [(4, 128), (64, 256), (8, 1024)])
    with GGUF.open(path) as file:
        assert {info.type.name for info in file.tensors.values()} == {kind}


def test_tensors_too_small_to_tell_the_layout_are_refused(tmp_path):
    path = q2_0_file(tmp_path, "Q2_0", [(4, 128), (2, 256)])
    with pytest.raises(Unsupported, match="do not tell whether blocks have 64 weights"):
        GGUF.open(path)


def test_rows_not_divisible_by_128_have_blocks_of_64(tmp_path):
    with GGUF.open(q2_0_file(tmp_path, "Q2_0", [(3, 64)])) as file:
        assert file.tensors["w0"].type.name == "Q2_0"


def test_one_layout_must_fit_every_tensor_of_the_file(tmp_path):
    shapes = [(64, 256), (64, 256)]
    first, second = (types.by_name(kind) for kind in ("Q2_0", "Q2_0_G128"))
    # The first tensor has the size of one layout, the second that of the other.
    data = [bytes(kind.size_bytes(shapes[0])) for kind in (first, second)]
    tensors = [Tensor(f"w{i}", shapes[i], 42, data[i]) for i in range(2)]
    with pytest.raises(InvalidFormat, match="w1"):
        GGUF.open(write_gguf(tmp_path / "m.gguf", {}, tensors))


def test_id_40_is_nvfp4_and_the_one_bit_type_of_early_builds_is_refused(tmp_path):
    tensors = [Tensor("w", (64, 256), 40, bytes(64 * 256 // 32 * 6))]
    with pytest.raises(Unsupported, match="early builds of PrismML"):
        GGUF.open(write_gguf(tmp_path / "m.gguf", {}, tensors))
    real = [Tensor("w", (64, 256), 40, bytes(64 * 256 // 64 * 36))]
    with GGUF.open(write_gguf(tmp_path / "n.gguf", {}, real)) as file:
        assert file.tensors["w"].type.name == "NVFP4"

"""Ternary matrices of the compiled module: packing from every encoding, and exact products."""

from dataclasses import replace

import gguf
import numpy as np
import pytest
from kernel_levels import each_level

from bitnet.base import native
from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.quants import types
from bitnet.quants.registry import I2_S_ARM, PACKED_U8, dequantize, quantize
from bitnet.quants.scaled_blocks import SCALED_BLOCKS
from bitnet.quants.ternary import Ternary
from bitnet.quants.weight import Weight

NATIVE = native.module()
pytestmark = pytest.mark.skipif(NATIVE is None, reason="the compiled module is not installed")

SCALE = np.float32(0.37)
# Batches that leave each kind of rest in tiles of tokens.
TOKENS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 40)
# Rows and columns in BitNet 2B-4T: attention output, keys, feed-forward up and down.
FULL_SHAPES = ((2560, 2560), (640, 2560), (6912, 2560), (2560, 6912))


@pytest.fixture(params=["2bit", "dense"])
def ops(request, monkeypatch):
    monkeypatch.setenv("BITNET_TERNARY_LAYOUT", request.param)
    before = NATIVE.threads()
    yield NativeOps()
    NATIVE.set_threads(before)


def random_codes(rows, columns, seed=0):
    """Random ternary codes, -1 to 1."""
    return np.random.default_rng([seed, rows, columns]).integers(-1, 2, (rows, columns))


def rounded(x):
    """Activations in eight bits and their factor, as W1.58A8 defines them."""
    s = np.float32(127) / np.maximum(np.abs(x).max(axis=1, keepdims=True), np.float32(1e-5))
    return np.clip(np.rint(x * s), -128, 127).astype(np.int64), s


def expected(x, codes, scale):
    """The product of W1.58A8: an exact sum of integers, divided by one factor, times another."""
    q, s = rounded(x)
    return (q @ codes.T).astype(np.float32) / s * np.float32(scale)


def fields(codes, order):
    """*codes*, ``(..., 4, n)``, as two-bit fields of n bytes; *order*: the place of each field."""
    unsigned = (codes + 1).astype(np.uint8)
    return np.bitwise_or.reduce([unsigned[..., i, :] << 2 * order[i] for i in range(4)])


def i2_s(codes):
    """A matrix in I2_S for x86: four codes a byte, 32 columns apart, then the scale."""
    body = fields(codes.reshape(-1, 4, 32), (3, 2, 1, 0)).reshape(-1)
    tail = np.zeros(32, dtype=np.uint8)
    tail[:4] = np.array([SCALE]).view(np.uint8)
    return Weight("w", codes.shape, types.by_name("I2_S"), np.concatenate([body, tail]))


def i2_s_arm(codes):
    """A matrix in I2_S for Arm: four codes a byte, 16 columns apart, then the scale."""
    body = fields(codes.reshape(-1, 4, 16), (3, 2, 1, 0)).reshape(-1)
    tail = np.array([SCALE]).view(np.uint8)
    return Weight("w", codes.shape, I2_S_ARM, np.concatenate([body, tail]))


def packed_u8(codes):
    """A matrix in packed U8 of Hugging Face: four rows a byte, a quarter of the matrix apart."""
    rows, columns = codes.shape
    body = fields(codes.reshape(4, rows // 4, columns).transpose(1, 0, 2), (0, 1, 2, 3))
    return Weight("w", codes.shape, PACKED_U8, body.reshape(-1), float(SCALE))


def iq2_bn(codes):
    """A matrix in IQ2_BN: the scale of a row, then four codes a byte, 16 columns apart."""
    body = fields(codes.reshape(len(codes), -1, 4, 16), (0, 1, 2, 3)).reshape(len(codes), -1)
    scales = np.full((len(codes), 1), SCALE).view(np.uint8)
    data = np.concatenate([scales, body], axis=1).reshape(-1)
    return Weight("w", codes.shape, types.by_name("IQ2_BN"), data)


def tq(name, codes, *, scales=0.25):
    """A matrix in TQ1_0 or TQ2_0 by gguf-py; the first of each block's *codes* is set to +1.

    A block's scale is its largest magnitude, so that must not be zero. The array *codes* itself is
    changed, so that callers compute with the codes of the matrix.
    """
    codes[:, ::256] = 1
    wide = (codes * scales).astype(np.float32)
    data = gguf.quants.quantize(wide, gguf.GGMLQuantizationType[name])
    return Weight("w", codes.shape, types.by_name(name), data.view(np.uint8).reshape(-1))


# Encoder, scale of all weights, and widths of rows: whole blocks, and rests where they are allowed.
ENCODINGS = {
    "I2_S": (i2_s, SCALE, (128, 384, 1152)),
    "I2_S_ARM": (i2_s_arm, SCALE, (64, 320)),
    "PACKED_U8": (packed_u8, SCALE, (16, 20, 36, 200)),
    "IQ2_BN": (iq2_bn, SCALE, (64, 320)),
    "TQ2_0": (lambda codes: tq("TQ2_0", codes), 0.25, (256, 1280)),
    "TQ1_0": (lambda codes: tq("TQ1_0", codes), 0.25, (256, 1280)),
}


@pytest.mark.parametrize("rows", [4, 12, 16, 36, 64])
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_product_is_exact_in_every_encoding(name, rows, level, ops):
    encode, scale, widths = ENCODINGS[name]
    for columns in widths:
        codes = random_codes(rows, columns)
        matrix = ops.prepare(encode(codes))
        for tokens in TOKENS:
            x = np.random.default_rng(tokens).standard_normal((tokens, columns))
            x = x.astype(np.float32)
            np.testing.assert_array_equal(ops.linear(x, matrix), expected(x, codes, scale))


@pytest.mark.parametrize("rows", [1, 3, 7, 17, 33, 65])
def test_rows_need_not_fill_a_tile(rows, level, ops):
    codes = random_codes(rows, 384)
    matrix = ops.prepare(i2_s(codes))
    for tokens in TOKENS:
        x = np.random.default_rng(tokens).standard_normal((tokens, 384)).astype(np.float32)
        np.testing.assert_array_equal(ops.linear(x, matrix), expected(x, codes, SCALE))


@pytest.mark.parametrize("shape", FULL_SHAPES)
def test_products_of_full_shapes_have_the_bits_of_the_reference(shape, level, ops):
    if level == "scalar":
        pytest.skip("the scalar kernels take seconds for this")
    weight = i2_s(random_codes(*shape))
    x = np.random.default_rng(1).standard_normal((19, shape[1])).astype(np.float32)
    reference = ReferenceOps()
    product = reference.linear(x, reference.prepare(weight))
    matrix = ops.prepare(weight)
    for tokens in (1, 2, 6, 19):
        np.testing.assert_array_equal(ops.linear(x[:tokens], matrix), product[:tokens])


@pytest.mark.parametrize("name", ["TQ1_0", "TQ2_0"])
def test_blocks_may_have_scales_of_their_own(name, level, ops):
    rows = 19
    columns = 1280
    rng = np.random.default_rng(5)
    scales = rng.uniform(0.01, 3, (rows, columns // 256)).astype(np.float16).astype(np.float32)
    codes = random_codes(rows, columns)
    weight = tq(name, codes, scales=np.repeat(scales, 256, axis=1))
    reference = ReferenceOps()
    prepared = reference.prepare(weight)
    matrix = ops.prepare(weight)
    for tokens in TOKENS:
        x = rng.standard_normal((tokens, columns)).astype(np.float32)
        q, s = rounded(x)
        total = np.zeros((tokens, rows))
        for g in range(columns // 256):
            part = slice(256 * g, 256 * g + 256)
            total += (q[:, part] @ codes[:, part].T) * scales[:, g].astype(np.float64)
        product = total.astype(np.float32) / s
        np.testing.assert_array_equal(ops.linear(x, matrix), product)
        np.testing.assert_array_equal(reference.linear(x, prepared), product)


@pytest.mark.parametrize("blocks", [3, 8])
@pytest.mark.parametrize("name", SCALED_BLOCKS)
def test_blocks_of_other_sizes_than_256_are_refused_if_inputs_are_rounded(name, blocks, ops):
    layout = SCALED_BLOCKS[name]
    columns = blocks * layout.weights
    rng = np.random.default_rng(3)
    scales = rng.uniform(0.5, 2, (32, columns // layout.weights)).astype(np.float16)
    codes = rng.choice([-1, 1], (32, columns)).astype(np.int8)
    data = layout.pack(Ternary(codes, scales.astype(np.float32))).reshape(-1)
    weight = Weight("w", (32, columns), types.by_name(name), data)
    if layout.weights == 256:
        x = rng.standard_normal((3, columns)).astype(np.float32)
        reference = ReferenceOps()
        product = reference.linear(x, reference.prepare(weight))
        np.testing.assert_array_equal(ops.linear(x, ops.prepare(weight)), product)
        return
    with pytest.raises(Unsupported, match=f"a scale for each {layout.weights} columns"):
        ops.prepare(weight)


@pytest.mark.parametrize("name", [name for name in SCALED_BLOCKS if SCALED_BLOCKS[name].double])
def test_weights_of_twice_their_scale_are_unsupported_and_not_called_damaged(name, ops):
    codes = np.random.default_rng(3).integers(-1, 3, (32, 512)).astype(np.int8)
    layout = SCALED_BLOCKS[name]
    scales = np.ones((32, 512 // layout.weights), np.float32)
    weight = Weight("w", (32, 512), types.by_name(name), layout.pack(Ternary(codes, scales)))
    weight = replace(weight, data=weight.data.reshape(-1))
    with pytest.raises(Unsupported, match="weights of twice their scale"):
        ops.prepare(weight)


def test_rows_may_have_scales_of_their_own(level, ops):
    codes = random_codes(36, 512)
    scales = np.linspace(0.5, 2, 36, dtype=np.float16).astype(np.float32)[:, None]
    matrix = ops.prepare(tq("TQ2_0", codes, scales=scales))
    x = np.random.default_rng(6).standard_normal((5, 512)).astype(np.float32)
    np.testing.assert_array_equal(ops.linear(x, matrix), expected(x, codes, 1) * scales[:, 0])


@pytest.mark.parametrize("name", ["I2_S", "PACKED_U8", "IQ2_BN", "TQ1_0", "TQ2_0"])
def test_the_same_weights_give_nearly_the_same_product_in_every_encoding(name, ops):
    codes = random_codes(32, 256)
    codes[:, 0] = 1
    values = codes * np.float32(0.25)
    weight = quantize("w", values, types.by_name("I2_S"))
    kind = PACKED_U8 if name == "PACKED_U8" else types.by_name(name)
    scale = dequantize(weight).max()
    encode = ENCODINGS[name][0]
    x = np.random.default_rng(7).standard_normal((3, 256)).astype(np.float32)
    encoded = encode(codes)
    assert encoded.quant.name == kind.name
    product = ops.linear(x, ops.prepare(encoded)) / np.float32(dequantize(encoded).max())
    i2_s_product = ops.linear(x, ops.prepare(weight)) / np.float32(scale)
    np.testing.assert_allclose(product, i2_s_product, rtol=3e-7)  # only the two factors round


def test_neither_threads_nor_instruction_sets_nor_batches_change_a_bit(ops):
    codes = random_codes(257, 1280)
    for weight in (
        i2_s(codes),
        tq("TQ2_0", codes, scales=np.repeat(np.linspace(0.5, 2, 5), 256)),
    ):
        matrix = ops.prepare(weight)
        x = np.random.default_rng(8).standard_normal((40, 1280)).astype(np.float32)
        results = set()
        for _level in each_level():
            for threads in (1, 2, 3):
                NATIVE.set_threads(threads)
                results.add(ops.linear(x, matrix).tobytes())
                alone = [ops.linear(x[t : t + 1], matrix) for t in range(40)]
                results.add(np.concatenate(alone).tobytes())
        assert len(results) == 1


def test_extreme_activations_do_not_overflow(level, ops):
    for code in (1, -1):
        codes = np.full((16, 16384), code)
        matrix = ops.prepare(i2_s(codes))
        for tokens in (1, 3, 20):
            x = np.full((tokens, 16384), -3.0, dtype=np.float32)
            np.testing.assert_array_equal(ops.linear(x, matrix), expected(x, codes, SCALE))


def test_an_input_of_nan_gives_nan_to_its_token_alone(level, ops):
    matrix = ops.prepare(i2_s(random_codes(5, 256)))
    for tokens in (2, 20):
        x = np.random.default_rng(10).standard_normal((tokens, 256)).astype(np.float32)
        x[1, 40] = np.nan
        got = ops.linear(x, matrix)
        assert np.isnan(got[1]).all()
        assert np.isfinite(np.delete(got, 1, axis=0)).all()


def test_inputs_of_zeros_give_zeros(level, ops):
    matrix = ops.prepare(i2_s(random_codes(5, 256)))
    assert not ops.linear(np.zeros((3, 256), dtype=np.float32), matrix).any()


@pytest.mark.parametrize("name", ENCODINGS)
def test_embedding_rows_are_the_decoded_rows(name, ops):
    encode, scale, widths = ENCODINGS[name]
    codes = random_codes(36, widths[-1])
    table = ops.prepare(encode(codes))
    ids = [35, 0, 17, 17]
    np.testing.assert_array_equal(ops.embed(table, ids), codes[ids] * np.float32(scale))


@pytest.mark.parametrize("rows", [3, 16, 33])
@pytest.mark.parametrize("name", ["I2_S", "TQ2_0"])
def test_the_unused_code_3_is_refused_wherever_it_is(name, rows, level, ops):
    weight = ENCODINGS[name][0](random_codes(rows, 512))
    size = rows * 512 // 4 if name == "I2_S" else len(weight.data) - 2
    for at in (0, size // 2 - 2, size - 1):  # no byte of a scale
        data = weight.data.copy()
        data[at] = 0x0C | (data[at] & 0xF3)
        with pytest.raises(InvalidFormat, match="code 3"):
            ops.prepare(Weight("w", weight.shape, weight.quant, data))


@pytest.mark.parametrize("name", ["I2_S", "TQ2_0", "TQ1_0", "IQ2_BN", "PACKED_U8"])
def test_too_few_bytes_are_refused(name, ops):
    weight = ENCODINGS[name][0](random_codes(16, 512))
    short = Weight("w", weight.shape, weight.quant, weight.data[: len(weight.data) // 2])
    with pytest.raises(InvalidFormat):
        ops.prepare(short)


def test_packing_of_unknown_types_or_wrong_sizes_is_refused():
    codes = np.zeros(512, dtype=np.uint8)
    out = np.zeros(512, dtype=np.uint8)
    two_bit, dense = (NATIVE.kernel_types().index(name) for name in ("TERNARY", "TERNARY_DENSE"))
    with pytest.raises(ValueError, match="unknown ternary source"):
        NATIVE.pack_ternary("Q8_0", codes, 2, 256, two_bit, 256, out)
    with pytest.raises(ValueError, match="unknown ternary type"):
        NATIVE.pack_ternary("CODES", codes, 2, 256, 0, 256, out)
    with pytest.raises(ValueError, match="too few bytes"):
        NATIVE.pack_ternary("CODES", codes, 3, 256, two_bit, 256, out)
    roomy = np.zeros(4096, dtype=np.uint8)
    for kind, columns, room in (
        (two_bit, 256, out),
        (two_bit, 250, roomy),
        (dense, 240, roomy),
        (dense, 256, roomy),
    ):
        with pytest.raises(ValueError, match="whole tiles"):
            NATIVE.pack_ternary("CODES", codes, 2, 250, kind, columns, room)
    for kind, columns in ((dense, 140_000), (two_bit, 2**19 + 16)):
        wide = np.zeros(columns, dtype=np.uint8)
        tile = np.zeros(4 * columns, dtype=np.uint8)
        with pytest.raises(ValueError, match="too many columns"):
            NATIVE.pack_ternary("CODES", wide, 1, columns, kind, columns, tile)
    x = np.zeros(2**19 + 16, dtype=np.float32)
    with pytest.raises(ValueError, match="too many columns"):
        NATIVE.linear(two_bit, tile, 1, 2**19 + 16, 1.0, x, np.zeros(1, dtype=np.float32))


def test_the_widest_rows_have_the_same_sums_on_every_level(level):
    """All weights +1 and all inputs the largest code: the largest sums that 32 bits must hold."""
    columns = 2**19
    codes = np.ones(columns, dtype=np.uint8)
    kind = NATIVE.kernel_types().index("TERNARY")
    tile = np.zeros(4 * columns, dtype=np.uint8)
    assert NATIVE.pack_ternary("CODES", codes, 1, columns, kind, columns, tile)
    for rows_of_inputs in (1, 2, 5):
        x = np.ones((rows_of_inputs, columns), dtype=np.float32)
        out = np.empty((rows_of_inputs, 1), dtype=np.float32)
        NATIVE.linear(kind, tile, 1, columns, 1.0, x, out)
        assert (out == columns).all()


def test_rows_too_wide_for_sums_in_32_bits_are_refused(ops):
    with pytest.raises(Unsupported, match="rows of 524,416 weights"):
        ops.prepare(i2_s(np.ones((1, 2**19 + 128), dtype=np.int8)))


@pytest.mark.parametrize(
    ("encoding", "expected"), [("2bit", ("TERNARY", 64)), ("dense", ("TERNARY_DENSE", 52))]
)
def test_the_layout_is_the_one_that_the_environment_requests(encoding, expected, monkeypatch):
    monkeypatch.setenv("BITNET_TERNARY_LAYOUT", encoding)
    matrix = NativeOps().prepare(i2_s(random_codes(16, 256)))
    assert (NATIVE.kernel_types()[matrix.kind], len(matrix.data) // 16) == expected


@pytest.mark.parametrize(
    ("columns", "expected"), [(131_060, "TERNARY_DENSE"), (131_061, "TERNARY")]
)
def test_dense_lines_are_used_up_to_the_most_columns_whose_sums_fit(columns, expected, monkeypatch):
    monkeypatch.setenv("BITNET_TERNARY_LAYOUT", "dense")
    matrix = NativeOps().prepare(packed_u8(np.ones((4, columns), dtype=np.int64)))
    assert NATIVE.kernel_types()[matrix.kind] == expected


def test_rows_too_wide_for_dense_lines_keep_two_bits_and_have_exact_products(monkeypatch):
    monkeypatch.setenv("BITNET_TERNARY_LAYOUT", "dense")
    ops = NativeOps()
    codes = np.ones((1, 1 << 18), dtype=np.int64)
    matrix = ops.prepare(i2_s(codes))
    assert NATIVE.kernel_types()[matrix.kind] == "TERNARY"
    x = np.full((1, 1 << 18), -3.0, dtype=np.float32)
    np.testing.assert_array_equal(ops.linear(x, matrix), expected(x, codes, SCALE))


def test_every_combination_of_five_weights_in_a_byte_is_multiplied_rightly(level, monkeypatch):
    monkeypatch.setenv("BITNET_TERNARY_LAYOUT", "dense")
    ops = NativeOps()
    combinations = np.stack(np.meshgrid(*[[-1, 0, 1]] * 5, indexing="ij"), axis=-1).reshape(243, 5)
    # Byte k of a line holds columns k, 4 + k, ... of 20; a row of 61 lines has all combinations.
    codes = np.resize(combinations, (16, 61, 4, 5)).transpose(0, 1, 3, 2).reshape(16, 61 * 20)
    matrix = ops.prepare(packed_u8(codes))
    assert len(set(matrix.data.tolist())) == 243
    x = np.random.default_rng(3).standard_normal((20, 61 * 20)).astype(np.float32)
    for tokens in (1, 2, 4, 20):
        product = expected(x[:tokens], codes, SCALE)
        np.testing.assert_array_equal(ops.linear(x[:tokens], matrix), product)

"""Matrix products of the compiled module: every encoding, instruction set and odd shape."""

import itertools
from functools import cache

import gguf
import numpy as np
import pytest
from kernel_levels import each_level

from bitnet.base import native
from bitnet.quants.scaled_blocks import SCALED_BLOCKS

NATIVE = native.module()
pytestmark = pytest.mark.skipif(NATIVE is None, reason="the compiled module is not installed")

# Against float64 with the same rounded activations: only float32 sums differ.
SUM_NMSE = 1e-12
# Against float64 with exact activations: a step of 1 / 127 of the largest of 16 numbers costs 2e-5
# on average, and a short row with few large scales may see several times that.
ROUNDING_NMSE = 3e-4

TYPES = NATIVE.kernel_types() if NATIVE else []
# Encodings of files, without those of test_native_groups.py.
FILE_TYPES = [
    name
    for name in TYPES
    if not name.endswith("_R16") and "TERNARY" not in name and name not in SCALED_BLOCKS
]
FLOATS = ["F32", "F16", "BF16"]
LEGACY = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
SUPER = ["Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]
TABLES = ["MXFP4", "IQ4_NL"]
BLOCKS = LEGACY + SUPER + TABLES
# Rows of a matrix and tokens of a batch that leave each kind of rest in tiles.
ROWS = (1, 3, 7, 64, 65)
TOKENS = (1, 2, 5, 17, 130)
# Offsets of the float16 scales in blocks whose other bytes may have any value.
SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,), "IQ4_NL": (0,)}


def columns(name):
    """Widths of rows with different rests; for blocks of 32, the second is eight of them."""
    if name in FLOATS:
        return (1, 37, 256)
    if name in LEGACY + TABLES:
        return (32, 256, 352)
    return (256, 768, 1280)


@cache
def random_weight(name, rows, cols):
    """Bytes of a random matrix, and its numbers as gguf-py decodes them, in float64."""
    rng = np.random.default_rng(rows * 10007 + cols)
    values = rng.standard_normal((rows, cols)).astype(np.float32)
    kind = gguf.GGMLQuantizationType[name]
    if name in SCALES:
        weights, block = gguf.GGML_QUANT_SIZES[kind]
        packed = rng.integers(0, 256, (rows, cols // weights, block), dtype=np.uint8)
        for at in SCALES[name]:
            scale = rng.uniform(0.001, 0.01, packed.shape[:2]).astype(np.float16)
            packed[..., at : at + 2] = scale.view(np.uint8).reshape(*packed.shape[:2], 2)
        packed = packed.reshape(rows, -1)
    else:
        packed = gguf.quants.quantize(values, kind)
    return packed.view(np.uint8).ravel(), gguf.quants.dequantize(packed, kind).astype(np.float64)


def interleaved(name, packed, rows, cols):
    """Number of the type with 16 interleaved rows, and the bytes of the matrix in it."""
    kind = TYPES.index(f"{name}_R16")
    out = NATIVE.allocate_weights(-(-rows // 16) * 16 * NATIVE.row_bytes(kind, cols))
    NATIVE.pack_rows(TYPES.index(name), packed, rows, cols, out)
    return kind, out


def product(name, packed, x, rows, *, scale=1.0, in_rows=False):
    """*x* times the matrix, whose rows are interleaved first unless it stays *in_rows*."""
    kind = TYPES.index(name)
    if not in_rows:
        kind, packed = interleaved(name, packed, rows, x.shape[1])
    out = np.full((len(x), rows), np.nan, dtype=np.float32)
    NATIVE.linear(kind, packed, rows, x.shape[1], scale, x, out)
    return out


def rounded_blocks(x):
    """*x* as block encodings read it: rounded to int8 codes with a step for each 16 numbers."""
    groups = x.reshape(len(x), -1, 16)
    top = np.abs(groups).max(axis=2, keepdims=True)
    q = np.rint(groups * (np.float32(127) / top))
    return (q.astype(np.float64) * (top / np.float32(127))).reshape(x.shape)


def nmse(got, x, weight):
    """Squared error relative to the sum of squared terms, which cancellation does not reduce."""
    return np.sum((got - x @ weight.T) ** 2) / np.sum(x**2 @ (weight**2).T)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", FLOATS + BLOCKS)
def test_a_product_is_near_the_float64_product(name, rows, tokens, level):
    rng = np.random.default_rng(rows * 1000 + tokens)
    for cols in columns(name):
        packed, weight = random_weight(name, rows, cols)
        x = rng.standard_normal((tokens, cols)).astype(np.float32)
        got = product(name, packed, x, rows)
        exact = x.astype(np.float64)
        assert nmse(got, exact if name in FLOATS else rounded_blocks(x), weight) < SUM_NMSE
        assert nmse(got, exact, weight) < ROUNDING_NMSE


@pytest.mark.parametrize("name", FILE_TYPES)
def test_the_number_of_threads_does_not_change_a_bit(name, level, threads):
    rng = np.random.default_rng(7)
    rows = 257
    cols = columns(name)[-1]
    packed, _ = random_weight(name, rows, cols)
    for tokens in (1, 3, 40):
        x = rng.standard_normal((tokens, cols)).astype(np.float32)
        results = []
        for count in (1, 2, 3):
            threads(count)
            results.append(product(name, packed, x, rows).tobytes())
        assert len(set(results)) == 1


@pytest.mark.parametrize("name", FILE_TYPES)
def test_the_size_of_a_batch_does_not_change_a_bit(name, level):
    rng = np.random.default_rng(8)
    rows = 100
    cols = columns(name)[-1]
    packed, _ = random_weight(name, rows, cols)
    x = rng.standard_normal((40, cols)).astype(np.float32)
    alone = np.concatenate([product(name, packed, x[t : t + 1], rows) for t in range(40)])
    for tokens in range(2, 41):
        assert product(name, packed, x[:tokens], rows).tobytes() == alone[:tokens].tobytes()


@pytest.mark.parametrize("name", BLOCKS)
def test_a_batch_larger_than_the_cache_does_not_change_a_bit(name, level):
    rng = np.random.default_rng(11)
    rows = 17
    cols = 4096
    tokens = 100
    packed, _ = random_weight(name, rows, cols)
    x = rng.standard_normal((tokens, cols)).astype(np.float32)
    many = product(name, packed, x, rows)
    for t in (0, 7, 47, 48, 99):  # tokens of different passes over the batch
        assert many[t].tobytes() == product(name, packed, x[t : t + 1], rows).tobytes()


@pytest.mark.parametrize("name", BLOCKS)
def test_block_products_are_the_same_bits_for_every_instruction_set_and_layout(name):
    rng = np.random.default_rng(12)
    rows = 35
    cols = columns(name)[-1]
    packed, _ = random_weight(name, rows, cols)
    for tokens in (11, 39):
        x = rng.standard_normal((tokens, cols)).astype(np.float32)
        results = {product(name, packed, x, rows, in_rows=True).tobytes()}
        results |= {product(name, packed, x, rows).tobytes() for _level in each_level()}
        assert len(results) == 1


@pytest.mark.parametrize("name", ["Q8_0", "Q6_K"])
def test_extreme_codes_and_activations_do_not_overflow(name, level):
    cols = 14336
    size = {"Q8_0": cols // 32 * 34, "Q6_K": cols // 256 * 210}[name]
    packed = np.full((2, size), {"Q8_0": 0x80, "Q6_K": 0xFF}[name], dtype=np.uint8)
    for row in packed[:, None]:
        block = {"Q8_0": 34, "Q6_K": 210}[name]
        at = 0 if name == "Q8_0" else 208
        row.reshape(-1, block)[:, at : at + 2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    weight = {"Q8_0": -128.0, "Q6_K": -31.0}[name]  # Q6_K: code 31, scale -1
    for tokens in (1, 20):
        x = np.full((tokens, cols), -3.0, dtype=np.float32)
        got = product(name, packed.ravel(), x, 2)
        np.testing.assert_allclose(got, np.full((tokens, 2), -3.0 * weight * cols), rtol=1e-6)


@pytest.mark.parametrize("fill", [0x00, 0x80, 0xFF])
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_one_extreme_code_have_the_same_bits_interleaved_and_in_rows(name, fill, level):
    rows = 16
    cols = columns(name)[-1]
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    packed = np.full((rows * cols // weights, size), fill, dtype=np.uint8)
    for at in SCALES.get(name, (0, 2) if name.endswith("_1") else (0,)):
        packed[:, at : at + 2] = np.array([0.5], np.float16).view(np.uint8)
    if name == "MXFP4":
        packed[:, :2] = 127, fill
    for tokens in (1, 20):
        for value in (-3.0, 3.0):  # as codes: -127 and 127
            x = np.full((tokens, cols), value, dtype=np.float32)
            expected = product(name, packed.ravel(), x, rows, in_rows=True)
            assert product(name, packed.ravel(), x, rows).tobytes() == expected.tobytes()


def test_every_scale_of_mxfp4_is_read(level):
    rows = 256
    cols = 32
    blocks = np.full((rows, 17), 0x77, dtype=np.uint8)  # code 7 in each half of a byte: 6 as FP4
    blocks[:, 0] = np.arange(rows)
    x = np.full((1, cols), 2.0**-12, dtype=np.float32)
    expected = cols * 2.0**-12 * 6.0 * 2.0 ** (np.arange(rows) - 127.0)
    for in_rows in (False, True):
        got = product("MXFP4", blocks.ravel(), x, rows, in_rows=in_rows)[0]
        np.testing.assert_allclose(
            got[:-1], expected[:-1].astype(np.float32), rtol=1e-6, atol=2.0**-145
        )
        # The largest scale, 2^128, is compared exactly.
        assert got[-1] == np.float32(expected[-1])


@pytest.mark.parametrize("name", ["F16", "Q4_1"])
def test_an_input_of_nan_gives_nan_to_its_token_alone(name, level):
    rng = np.random.default_rng(10)
    packed, _ = random_weight(name, 5, 256)
    for tokens in (2, 20):
        x = rng.standard_normal((tokens, 256)).astype(np.float32)
        x[1, 40] = np.nan
        got = product(name, packed, x, 5)
        assert np.isnan(got[1]).all()
        assert np.isfinite(np.delete(got, 1, axis=0)).all()


@pytest.mark.parametrize("name", ["Q4_1"])
def test_inputs_of_zeros_give_zeros(name, level):
    packed, _ = random_weight(name, 5, 256)
    assert not product(name, packed, np.zeros((3, 256), dtype=np.float32), 5).any()


@pytest.mark.parametrize("in_rows", [True, False])
@pytest.mark.parametrize("name", FILE_TYPES)
def test_embedding_rows_are_the_decoded_rows(name, in_rows, level):
    cols = columns(name)[-1]
    kind = TYPES.index(name)
    packed, weight = random_weight(name, 19, cols)
    if not in_rows:
        kind, packed = interleaved(name, packed, 19, cols)
    ids = np.array([18, 0, 3, 3], dtype=np.int64)
    out = np.empty((4, cols), dtype=np.float32)
    NATIVE.embed(kind, packed, 19, cols, 1.0, ids, out)
    np.testing.assert_allclose(out, weight[ids], rtol=1e-5, atol=1e-6)


def test_a_matrix_without_interleaved_form_or_room_is_refused():
    kind = TYPES.index("Q8_0")
    with pytest.raises(ValueError, match="no form with interleaved rows"):
        NATIVE.pack_rows(
            TYPES.index("TERNARY"), np.zeros(512, np.uint8), 1, 128, np.zeros(512, np.uint8)
        )
    with pytest.raises(ValueError, match="wrong size"):
        NATIVE.pack_rows(kind, np.zeros(34, np.uint8), 1, 32, np.zeros(34, np.uint8))
    tiled = TYPES.index("Q8_0_R16")
    out = np.empty((1, 3), dtype=np.float32)
    with pytest.raises(ValueError, match="too few bytes"):
        NATIVE.linear(
            tiled, np.zeros(3 * 34, np.uint8), 3, 32, 1.0, np.zeros((1, 32), np.float32), out
        )


def test_arguments_of_wrong_shapes_or_types_are_refused():
    out = np.empty((1, 2), dtype=np.float32)
    x = np.zeros((1, 32), dtype=np.float32)
    kind = TYPES.index("Q8_0")
    with pytest.raises(ValueError, match="too few bytes"):
        NATIVE.linear(kind, np.zeros(34, dtype=np.uint8), 2, 32, 1.0, x, out)
    with pytest.raises(ValueError, match="whole number of blocks"):
        NATIVE.linear(kind, np.zeros(34, dtype=np.uint8), 2, 33, 1.0, x, out)
    with pytest.raises(ValueError, match="out"):
        NATIVE.linear(kind, np.zeros(34, dtype=np.uint8), 1, 32, 1.0, x, out)
    with pytest.raises(ValueError, match="out of range"):
        NATIVE.embed(
            kind, np.zeros(34, dtype=np.uint8), 1, 32, 1.0, np.array([1]), np.empty((1, 32), "f4")
        )
    with pytest.raises(TypeError):
        NATIVE.linear(kind, np.zeros(68, dtype=np.uint8), 2, 32, 1.0, x, out.astype(np.float64))


@pytest.mark.parametrize("name", TYPES)
def test_a_matrix_of_impossible_sizes_is_refused(name):
    kind = TYPES.index(name)
    data = np.zeros(16, np.uint8)
    x = np.zeros((1, 32), np.float32)
    shapes = itertools.product(
        [0, -1, 1, 1 << 61, (1 << 63) - 1], [0, -32, 32, 1 << 61, (1 << 63) - 32]
    )
    for rows, columns in shapes:
        with pytest.raises(ValueError, match=r"matrix|block|bytes"):
            NATIVE.linear(kind, data, rows, columns, 1.0, x, np.zeros((1, 1), np.float32))
        for source in ("CODES", "I2_S", "TQ1_0"):
            with pytest.raises(ValueError, match=r"matrix|bytes|type|columns"):
                NATIVE.pack_ternary(source, data, rows, columns, kind, columns, data)


def test_every_kernel_passes_its_self_test(level):
    assert NATIVE.kernel_self_test() == []

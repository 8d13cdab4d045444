"""Weights with a scale per group of columns: the kernels of every level and the definition."""

import numpy as np
import pytest
from kernel_levels import at_level, kernel_levels

from bitnet.base import native
from bitnet.base.errors import InvalidFormat
from bitnet.kernels.native import NativeOps
from bitnet.quants import registry, types
from bitnet.quants.scaled_blocks import SCALED_BLOCKS
from bitnet.quants.weight import Weight

NAMES = ("Q1_0", "Q2_0", "Q2_0_G128", "PQ2_0", "PTQ1_0")
RUN = 32  # activations that are rounded with one step
NATIVE = native.module()

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the compiled module is not built")


def random_weight(name, rows, columns, seed=0):
    """A random matrix in the encoding *name*, also with code 3 if the encoding has it."""
    layout = SCALED_BLOCKS[name]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * columns // layout.weights, layout.size)).astype(np.uint8)
    scales = rng.uniform(0.01, 2, len(blocks)).astype("<f2")
    blocks[:, layout.scale_at : layout.scale_at + 2] = scales.reshape(-1, 1).view(np.uint8)
    quant = types.by_name(name)
    return Weight("w", (rows, columns), quant, blocks.reshape(-1), rounds_input=False)


def by_definition(x, weight):
    """The float64 product with rounded activations, and a bound on the error of their rounding."""
    w = registry.dequantize(weight).astype(np.float64)
    runs = x.reshape(len(x), -1, RUN).astype(np.float32)
    top = np.abs(runs).max(axis=2, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(top < 1e-30, 0, np.rint(runs * (np.float32(127) / top)))
    step = np.where(top < 1e-30, 0, top / np.float32(127)).astype(np.float64)
    rounded = (q * step).reshape(x.shape)
    error = np.repeat(step[..., 0], RUN, axis=1) * 0.501
    return rounded @ w.T, error @ np.abs(w).T


@pytest.mark.parametrize("level", kernel_levels())
@pytest.mark.parametrize("name", NAMES)
def test_products_are_those_of_the_definition_at_every_level(name, level):
    columns_of_block = SCALED_BLOCKS[name].weights
    rng = np.random.default_rng(1)
    for rows, columns in (
        (1, columns_of_block),
        (35, 3 * columns_of_block),
        (16, 10 * columns_of_block),
    ):
        weight = random_weight(name, rows, columns)
        x = rng.standard_normal((21, columns)).astype(np.float32)
        x[:, ::7] *= 40  # outliers, as activations have them
        x[3] = 0
        with at_level(level):
            ops = NativeOps(threads=1)
            matrix = ops.prepare(weight)
            assert ops.module.kernel_types()[matrix.kind].endswith("_R16")  # not a fallback
            found = ops.linear(x, matrix)
            small_batches = [ops.linear(x[:n], matrix) for n in (1, 2, 3, 4, 5, 16, 17)]
        for small_batch in small_batches:  # the same bits in every batch
            np.testing.assert_array_equal(small_batch, found[: len(small_batch)])
        with at_level("scalar"):
            np.testing.assert_array_equal(found, NativeOps(threads=1).linear(x, matrix))
        exact, rounding_error = by_definition(x, weight)
        magnitudes = np.abs(registry.dequantize(weight).astype(np.float64))
        assert (np.abs(found - exact) <= 1e-6 * (np.abs(x) @ magnitudes.T) + 1e-12).all()
        unrounded = x.astype(np.float64) @ registry.dequantize(weight).astype(np.float64).T
        assert (
            np.abs(found - unrounded) <= rounding_error + 1e-6 * (np.abs(x) @ magnitudes.T)
        ).all()


@pytest.mark.parametrize("looked_up", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_table_are_decoded_exactly_from_tiles_and_from_the_file(name, looked_up):
    weight = random_weight(name, 37, 3 * SCALED_BLOCKS[name].weights)
    ops = NativeOps(threads=1)
    matrix = ops.prepare(weight, looked_up=looked_up)
    expected = registry.dequantize(weight)
    np.testing.assert_array_equal(ops.embed(matrix, range(37)), expected)


def test_a_scale_beside_the_weights_multiplies_the_product():
    weight = random_weight("PQ2_0", 20, 256)
    ops = NativeOps(threads=1)
    x = np.random.default_rng(2).standard_normal((3, 256)).astype(np.float32)
    plain = ops.linear(x, ops.prepare(weight))
    doubled = Weight("w", weight.shape, weight.quant, weight.data, scale=2.0, rounds_input=False)
    np.testing.assert_array_equal(ops.linear(x, ops.prepare(doubled)), 2 * plain)


def test_an_input_that_is_not_finite_gives_nan_to_its_row_alone():
    ops = NativeOps(threads=1)
    matrix = ops.prepare(random_weight("Q2_0", 16, 128))
    for bad in (np.nan, np.inf):
        x = np.ones((2, 128), dtype=np.float32)
        x[1, 70] = bad
        found = ops.linear(x, matrix)
        assert np.isfinite(found[0]).all()
        assert np.isnan(found[1]).all()


def test_too_few_bytes_are_refused():
    weight = random_weight("PTQ1_0", 4, 256)
    cut = Weight("w", weight.shape, weight.quant, weight.data[:-1], rounds_input=False)
    with pytest.raises(InvalidFormat, match="w: "):
        NativeOps(threads=1).prepare(cut)

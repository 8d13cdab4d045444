"""Keys and values as integer codes with a step: rounding errors, bounds and special values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bitnet.kernels import kv_codes

LENGTHS = st.integers(1, 300)  # elements of a vector
VECTORS = arrays(np.float32, LENGTHS, elements=st.floats(-(2.0**50), 2.0**50, width=32))
# Sums of a rotation are larger than its elements.
SMALLER = arrays(np.float32, LENGTHS, elements=st.floats(-(2.0**38), 2.0**38, width=32))
ENCODERS = [kv_codes.encode_keys, kv_codes.encode_values]
ATTENTION_WEIGHTS = 131_000  # the most that their codes add up to in a page, but for rounding


@given(VECTORS)
def test_numbers_come_back_within_half_a_step(x):
    wide = x.astype(np.float64)
    # The largest step: of keys by their length, of values by their largest element.
    sizes = np.linalg.norm(wide) / 32_767, abs(wide).max() / 16_383
    for encode, size in zip(ENCODERS, sizes, strict=True):
        codes, step = encode(x)
        error = abs(codes * np.float64(step) - wide)
        # Half a step, and three roundings to float32: of 1 / step, of the product, of the step.
        assert (error <= 0.5 * step + 3.01 * 2.0**-24 * abs(wide) + 1.001e-18).all()
        assert step <= 1.0001 * size


def test_sums_of_products_of_codes_fit_into_int32():
    """Of any part of a query and a key, and of the weights of a page and the values it holds."""
    rng = np.random.default_rng(1)
    for dim in (1, 64, 4096):
        for x in (np.ones(dim), np.eye(dim)[0], rng.standard_normal(dim)):
            key, value = (encode(x).codes.astype(np.int64) for encode in ENCODERS)
            assert (key**2).sum() < 2**31
            assert abs(value).max() * (ATTENTION_WEIGHTS + kv_codes.PAGE) < 2**31


@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_a_vector_that_is_too_large_or_not_finite_has_a_step_of_nan(bad, encode):
    x = np.ones((2, 5), dtype=np.float32)
    x[1, 3] = bad
    codes, steps = encode(x)
    assert np.isfinite(steps[0])
    assert np.isnan(steps[1])
    assert not codes[1].any()


@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize("tiny", [0.0, 1e-20, 1e-38])
def test_a_vector_of_very_small_numbers_has_a_step_of_zero(tiny, encode):
    codes, step = encode(np.full(64, tiny, dtype=np.float32))
    assert step == 0
    assert not codes.any()


@pytest.mark.parametrize("head_dim", [1, 2, 21, 64])
def test_a_page_holds_the_vectors_that_were_stored_last_at_each_position(head_dim):
    rng = np.random.default_rng(2)
    page = np.full((2, 3, kv_codes.page_words(head_dim)), -1, dtype=np.int16)
    expected = np.zeros((2, 3, kv_codes.PAGE, head_dim))
    # The last range overwrites a part of the first one.
    for start, stop in ((10, 64), (0, 7), (7, 10), (30, 33)):
        keys, values = rng.standard_normal((2, stop - start, 3, head_dim)).astype(np.float32)
        kv_codes.store(page, slice(start, stop), keys, values)
        for to, x, encode in zip(expected, (keys, values), ENCODERS, strict=True):
            codes, steps = encode(x)
            to[:, start:stop] = (codes * steps[..., None]).transpose(1, 0, 2)
    keys, values = kv_codes.load(page[None], head_dim)
    np.testing.assert_array_equal(keys, expected[0].astype(np.float32))
    np.testing.assert_array_equal(values, expected[1].astype(np.float32))


@given(SMALLER)
def test_bytes_come_back_within_half_a_step(x):
    """Of the rotated vector, whose length is that of *x* times the root of a block's size."""
    codes, step = kv_codes.encode_bytes(x)
    assert abs(codes).max() <= 127
    assert not step.view(np.uint32) & 0xFFFF  # a bfloat16: the upper half of a float32
    wide = kv_codes.rotate(x.astype(np.float64))
    largest = abs(wide).max()
    error = abs(codes * np.float64(step) - wide)
    assert (error <= 0.5 * step + 1e-5 * largest + 1.001e-18).all()
    assert step <= 1.008 * largest / 127 + 1e-25


@pytest.mark.parametrize(("dim", "block"), [(1, 1), (80, 16), (96, 32), (64, 64), (576, 64)])
def test_a_rotation_multiplies_blocks_by_the_walsh_hadamard_matrix(dim, block):
    matrix = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = np.random.default_rng(5).standard_normal((3, dim))
    expected = np.einsum("ij,rbj->rbi", matrix, x.reshape(3, -1, block)).reshape(3, dim)
    np.testing.assert_allclose(kv_codes.rotate(x), expected, rtol=1e-12, atol=1e-12)
    assert kv_codes.rotation_block(dim) == block
    # Its square is the identity times the size of a block.
    np.testing.assert_allclose(kv_codes.rotate(kv_codes.rotate(x)), block * x)


def test_a_rotation_spreads_a_large_element_over_its_block():
    """Beside a large element small ones are kept; with a step by its size they would vanish."""
    x = np.random.default_rng(5).uniform(-0.1, 0.1, 64).astype(np.float32)
    x[9] = 30.0
    codes, step = kv_codes.encode_bytes(x)
    error = kv_codes.rotate(codes * np.float64(step)) / 64 - x
    # Without the rotation the step would be 30 / 127, more than twice any small element.
    assert 10 * np.sqrt(np.mean(error**2)) < 30 / 127


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.1e14])
def test_bytes_of_a_vector_that_is_too_large_or_not_finite_have_a_step_of_nan(bad):
    x = np.ones((2, 40), dtype=np.float32)
    x[1, 33] = bad
    codes, steps = kv_codes.encode_bytes(x)
    np.testing.assert_array_equal(np.isnan(steps), [False, True])
    assert not codes[1].any()


@pytest.mark.parametrize("head_dim", [1, 21, 64])
def test_a_page_of_bytes_holds_the_vectors_that_were_stored_last_at_each_position(head_dim):
    rng = np.random.default_rng(2)
    page = np.full((2, 3, kv_codes.page_words(head_dim, "q8")), -1, dtype=np.int16)
    expected = np.zeros((2, 3, kv_codes.PAGE, head_dim), dtype=np.float32)
    for start, stop in ((10, 64), (0, 7), (7, 10), (30, 33)):
        rows = rng.standard_normal((2, stop - start, 3, head_dim)).astype(np.float32)
        kv_codes.store(page, slice(start, stop), *rows, "q8")
        for to, x in zip(expected, rows, strict=True):
            codes, steps = kv_codes.encode_bytes(x)
            turned = kv_codes.rotate(codes.astype(np.float32) * steps[..., None])
            numbers = turned / np.float32(kv_codes.rotation_block(head_dim))
            to[:, start:stop] = numbers.transpose(1, 0, 2)
    np.testing.assert_array_equal(kv_codes.load(page[None], head_dim, "q8"), expected)

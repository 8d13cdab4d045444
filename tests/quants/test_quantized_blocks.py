"""Quantization to blocks gives the bytes of llama.cpp's quantizers, whatever the numbers are."""

import numpy as np
import pytest
from llama_quantize import INSTALLED, REASON, quantize_rows

from bitnet.base import native
from bitnet.base.errors import Unsupported
from bitnet.quants import types
from bitnet.quants.registry import dequantize, quantize

# Encodings that also have an encoder without the compiled module, and those that do not.
LEGACY = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
NEW = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4")
ROWS = 8
COLUMNS = 512
random = np.random.default_rng(20)


def normal():
    """Normally distributed numbers."""
    return random.standard_normal((ROWS, COLUMNS))


def outliers(around):
    """Normal numbers times *around*; a single number of each row is 1,000 instead."""
    values = around * normal()
    values[np.arange(ROWS), random.integers(0, COLUMNS, ROWS)] = 1e3
    return values


# Matrices to quantize, by their properties.
NUMBERS = {
    "normal": normal(),
    "bfloat16": (normal().astype("f4").view("u4") & 0xFFFF0000).view("f4"),
    "heavy tails": random.standard_cauchy((ROWS, COLUMNS)),
    "zeros": np.zeros((1, COLUMNS)),
    "negative zeros": -np.zeros((1, COLUMNS)),
    "one positive number": np.repeat(np.abs(normal()[:, :1]), COLUMNS, axis=1),
    "one negative number": -np.repeat(np.abs(normal()[:, :1]), COLUMNS, axis=1),
    "one outlier among small numbers": outliers(1e-3),
    "one number among zeros": outliers(0),
    "no positive number": -np.abs(normal()),
    "near one": 1 + 1e-4 * normal(),
    "ternary": np.sign(np.rint(normal())) / 2,
    "mostly zeros": normal() * (random.random((ROWS, COLUMNS)) < 0.1),
    "subnormal": 1e-40 * normal(),
    "at the limit of what becomes zero": 1e-15 * normal(),
    "large": 1e20 * normal(),
    "near the largest": 1e37 * normal(),
    "every size": normal() * 10.0 ** random.uniform(-30, 30, (ROWS, COLUMNS)),
    "groups of different sizes": normal()
    * np.repeat(10.0 ** random.uniform(-6, 2, (ROWS, COLUMNS // 16)), 16, axis=1),
    "just below powers of two": 2.0 ** random.integers(-10, 10, (ROWS, COLUMNS)) * (1 - 2.0**-24),
}
# Weights of the columns in the error that quantizers minimize.
IMPORTANCE = {
    "none": None,
    "even": random.random(COLUMNS, dtype="f4"),
    "uneven": np.exp(4 * random.standard_normal(COLUMNS)).astype("f4"),
    "half of it zero": (random.random(COLUMNS) < 0.5).astype("f4"),
    "zero": np.zeros(COLUMNS, "f4"),
}


def encode(name, values, importance=None):
    """Bytes of *values* in the encoding *name*."""
    return quantize("w", values, types.by_name(name), importance).data


@pytest.mark.skipif(not INSTALLED, reason=REASON)
@pytest.mark.skipif(native.module() is None, reason="the native module is not installed")
@pytest.mark.parametrize("importance", IMPORTANCE)
@pytest.mark.parametrize("name", [*LEGACY, *NEW])
def test_bytes_are_those_of_llama_cpp(name, importance):
    weights = IMPORTANCE[importance]
    for kind, numbers in NUMBERS.items():
        values = np.ascontiguousarray(numbers, "f4")
        expected = quantize_rows(name, values, weights)
        np.testing.assert_array_equal(encode(name, values, weights), expected, err_msg=kind)


@pytest.mark.skipif(native.module() is None, reason="the native module is not installed")
@pytest.mark.parametrize("name", [*LEGACY, *NEW])
def test_rows_have_the_same_bytes_with_any_number_of_threads(name):
    module = native.module()
    values = random.standard_normal((200, 256)).astype("f4")
    before = module.threads()
    try:
        module.set_threads(1)
        alone = encode(name, values)
        module.set_threads(3)
        np.testing.assert_array_equal(encode(name, values), alone)
    finally:
        module.set_threads(before)


@pytest.mark.skipif(native.module() is None, reason="the native module is not installed")
@pytest.mark.parametrize(
    # The encoding, and a bound on the root mean square error of numbers with deviation 1.
    ("name", "most"),
    [
        ("Q2_K", 0.4),
        ("Q3_K", 0.2),
        ("Q4_K", 0.09),
        ("Q5_K", 0.05),
        ("Q6_K", 0.025),
        ("IQ4_NL", 0.1),
        ("IQ4_XS", 0.1),
        ("MXFP4", 0.15),
    ],
)
def test_quantized_numbers_are_near_the_original_ones(name, most):
    values = NUMBERS["normal"].astype("f4")
    again = dequantize(quantize("w", values, types.by_name(name)))
    assert np.sqrt(np.square(again - values).mean()) < most


@pytest.mark.skipif(native.module() is None, reason="the native module is not installed")
def test_importance_makes_the_error_of_its_columns_smaller():
    values = NUMBERS["normal"].astype("f4")
    weights = np.where(np.arange(COLUMNS) % 2, 1, 1e-3).astype("f4")
    quant = types.by_name("Q4_K")

    def error(importance):
        rounded = dequantize(quantize("w", values, quant, importance))
        return np.square(rounded - values)[:, 1::2].mean()

    assert error(weights) < error(None)


@pytest.mark.parametrize("name", NEW)
def test_without_the_compiled_module_a_type_is_refused_by_name(name, monkeypatch):
    monkeypatch.setenv("BITNET_BACKEND", "reference")
    with pytest.raises(Unsupported, match=f"w: rounding to {name} needs the compiled module"):
        encode(name, np.ones((1, 256), "f4"))


@pytest.mark.skipif(native.module() is None, reason="the native module is not installed")
@pytest.mark.parametrize("name", LEGACY)
def test_older_types_have_the_same_bytes_without_the_compiled_module(name, monkeypatch):
    values = NUMBERS["normal"].astype("f4")
    compiled = encode(name, values)
    monkeypatch.setenv("BITNET_BACKEND", "reference")
    np.testing.assert_array_equal(encode(name, values), compiled)


@pytest.mark.parametrize("name", ["Q4_K", "IQ4_NL"])
def test_rows_that_are_not_whole_blocks_are_refused(name):
    with pytest.raises(Unsupported, match="cannot encode"):
        encode(name, np.ones((2, 40), "f4"))

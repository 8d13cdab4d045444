"""Frequencies of each way to stretch a context."""

import math

import numpy as np
import pytest

from bitnet.families.rope import Rope

BASE = {"dims": 8, "theta": 10000.0, "style": "half"}
PLAIN = np.array([1.0, 0.1, 0.01, 0.001])


def test_plain_frequencies_fall_by_powers_of_the_base():
    frequencies, factor = Rope(**BASE).frequencies(100)
    np.testing.assert_allclose(frequencies, PLAIN)
    assert factor == 1.0


def test_linear_scaling_divides():
    rope = Rope(**BASE, scaling="linear", factor=4.0, original_context=10)
    np.testing.assert_allclose(rope.frequencies(100)[0], PLAIN / 4)


def test_divisors_apply_to_each_pair():
    rope = Rope(**BASE, freq_factors=np.array([1, 2, 4, 8], dtype=np.float32))
    np.testing.assert_allclose(rope.frequencies(100)[0], PLAIN / [1, 2, 4, 8])


@pytest.mark.parametrize(("context", "divisor"), [(16, 2.0), (17, 4.0)])
def test_long_divisors_hold_beyond_the_original_context(context, divisor):
    rope = Rope(
        **BASE,
        scaling="longrope",
        factor=4.0,
        original_context=16,
        freq_factors=np.full(4, 2, dtype=np.float32),
        long_freq_factors=np.full(4, 4, dtype=np.float32),
    )
    frequencies, factor = rope.frequencies(context)
    np.testing.assert_allclose(frequencies, PLAIN / divisor)
    assert factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(16)))


def test_dynamic_scaling_raises_the_base_with_the_context():
    rope = Rope(**BASE, scaling="dynamic", factor=2.0, original_context=16)
    np.testing.assert_allclose(rope.frequencies(16)[0], PLAIN)
    base = 10000 * (2 * 64 / 16 - 1) ** (8 / 6)
    np.testing.assert_allclose(rope.frequencies(64)[0], base ** -(np.arange(4) / 4))


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones():
    rope = Rope(**BASE, scaling="yarn", factor=4.0, original_context=1000)
    frequencies, factor = rope.frequencies(4000)
    assert frequencies[0] == PLAIN[0]
    assert frequencies[3] == pytest.approx(PLAIN[3] / 4)
    assert factor == pytest.approx(0.1 * math.log(4) + 1)


def test_a_given_attention_factor_wins():
    rope = Rope(**BASE, scaling="yarn", factor=4.0, original_context=1000, attention_factor=1.5)
    assert rope.frequencies(4000)[1] == 1.5

"""Frequencies of each way to stretch a context."""

import numpy as np
import pytest

from bitnet.families.rope import SCALINGS, Rope, without_scaling

BASE = {"dims": 8, "theta": 10000.0, "style": "half"}
# ``theta ** (-2 * i / dims)``, a frequency for each of the four pairs.
PLAIN = np.array([1.0, 0.1, 0.01, 0.001])


def test_plain_frequencies_fall_by_powers_of_the_base():
    frequencies, attention_factor = Rope(**BASE).frequencies(100)
    np.testing.assert_allclose(frequencies, PLAIN)
    assert attention_factor == 1.0


def test_linear_scaling_divides_the_frequencies_by_its_factor():
    rope = Rope(**BASE, scaling="linear", factor=4.0, original_context=10)
    np.testing.assert_allclose(rope.frequencies(100)[0], PLAIN / 4)


def test_each_pair_is_divided_by_its_frequency_factor():
    rope = Rope(**BASE, freq_factors=np.array([1, 2, 4, 8], dtype=np.float32))
    np.testing.assert_allclose(rope.frequencies(100)[0], PLAIN / [1, 2, 4, 8])


@pytest.mark.parametrize(("context", "divisor"), [(16, 2.0), (17, 4.0)])
def test_longrope_takes_the_long_factors_beyond_the_original_context(context, divisor):
    rope = Rope(
        **BASE,
        scaling="longrope",
        factor=4.0,
        original_context=16,
        freq_factors=np.full(4, 2, dtype=np.float32),
        long_freq_factors=np.full(4, 4, dtype=np.float32),
    )
    np.testing.assert_allclose(rope.frequencies(context)[0], PLAIN / divisor)


def test_layers_without_scaling_have_plain_frequencies_in_every_context():
    factors = {
        "freq_factors": np.full(4, 2, dtype=np.float32),
        "long_freq_factors": np.full(4, 4, dtype=np.float32),
    }
    for scaling in SCALINGS:
        of_kind = factors if scaling == "longrope" else {}
        rope = Rope(**BASE, scaling=scaling, factor=4.0, original_context=16, **of_kind)
        for context in (16, 17):
            frequencies, attention_factor = without_scaling(rope).frequencies(context)
            np.testing.assert_allclose(frequencies, PLAIN)
            assert attention_factor == 1.0


def test_dynamic_scaling_raises_the_base_with_the_context():
    rope = Rope(**BASE, scaling="dynamic", factor=2.0, original_context=16)
    np.testing.assert_allclose(rope.frequencies(16)[0], PLAIN)
    # The base is multiplied by this power of factor * context / original - (factor - 1), where
    # the exponent is dims / (dims - 2).
    base = 10000 * (2 * 64 / 16 - 1) ** (8 / 6)
    np.testing.assert_allclose(rope.frequencies(64)[0], base ** -(np.arange(4) / 4))


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones():
    rope = Rope(**BASE, scaling="yarn", factor=4.0, original_context=1000)
    frequencies, _attention_factor = rope.frequencies(4000)
    assert frequencies[0] == PLAIN[0]
    assert frequencies[3] == pytest.approx(PLAIN[3] / 4)

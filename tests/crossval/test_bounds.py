"""Bounds of agreement."""

import pytest

from bitnet.crossval.bounds import ALLOWANCE, LEAST, NOISE, bounds_for


def test_bounds_follow_from_the_noisier_side():
    noisy, exact, mixed = (
        bounds_for(*pair) for pair in (("int8", "int8"), ("float", "float"), ("float", "int8"))
    )
    assert exact.kl <= noisy.kl / 100
    assert mixed.kl == noisy.kl
    assert (mixed.ours_kl, mixed.theirs_kl) == (exact.ours_kl, noisy.theirs_kl)
    assert exact.near_tie < mixed.near_tie < noisy.near_tie
    # Two C++ engines that are right pass each other's bounds.
    assert noisy.kl >= 2 * 5e-3


def test_both_sides_are_held_to_the_same():
    bounds = bounds_for("int8", "int8")
    assert (bounds.ours_kl, bounds.ours_scale) == (bounds.theirs_kl, bounds.theirs_scale)


# Mean KL from the float64 pass to ours and to the reference, and from the reference to ours, as
# benchmarks/results/crossval has them, and with weights of SmolLM2 and Gemma 3 as F32.
MEASURED = {
    "smollm2": ("int8", 1.51e-3, 3.06e-3, 3.75e-3),
    "gemma3": ("int8", 9.1e-4, 3.9e-3, 4.6e-3),
    "bitnet-tiny": ("int8", 1.39e-4, 3.2e-4, 2.9e-4),
    "smollm2 in F32": ("float", 3.5e-8, 8.4e-7, 8.7e-7),
    "gemma3 in F32": ("float", 3.3e-7, 6.1e-7, 9.0e-7),
}


@pytest.mark.parametrize("name", MEASURED)
def test_what_was_measured_passes_and_several_times_as_much_does_not(name):
    arithmetic, ours, theirs, between = MEASURED[name]
    bounds = bounds_for(arithmetic, arithmetic, ours_kl=ours, theirs_kl=theirs)
    assert ours <= bounds.ours_kl <= max(ALLOWANCE * theirs, ALLOWANCE * NOISE[arithmetic] / LEAST)
    assert theirs <= bounds.theirs_kl
    assert between <= bounds.kl <= 5 * between


def test_a_reference_further_away_than_its_arithmetic_allows_widens_no_bound():
    usual = bounds_for("int8", "int8")
    for theirs in (1.0, 1e9):
        assert bounds_for("int8", "int8", ours_kl=1e-3, theirs_kl=theirs) == usual


def test_engines_with_another_arithmetic_do_not_narrow_ours():
    assert bounds_for("int8", "float", ours_kl=1e-3, theirs_kl=1e-6).ours_kl == pytest.approx(
        ALLOWANCE * NOISE["int8"]
    )

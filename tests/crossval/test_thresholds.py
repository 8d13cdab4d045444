"""Bounds of agreement."""

import pytest

from bitnet.crossval.judge import (
    ALLOWANCE,
    FLIPPED,
    LEAST,
    NOISE,
    kl_between,
    kl_of_ours,
    kl_of_reference,
)


def test_bounds_follow_from_the_noisier_side():
    noisy, exact, mixed = (
        kl_between(*pair, None, None)
        for pair in (("int8", "int8"), ("float", "float"), ("float", "int8"))
    )
    assert exact <= noisy / 100
    assert mixed == noisy
    assert kl_of_ours("float", "int8", None) == kl_of_ours("float", "float", None) == exact
    assert kl_of_reference("int8") == kl_of_ours("int8", "int8", None) == noisy
    assert FLIPPED["float32"] < FLIPPED["float"] < FLIPPED["int8"]
    # Two C++ engines that are right pass each other's bounds.
    assert noisy >= 2 * 5e-3


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
    most = kl_of_ours(arithmetic, arithmetic, theirs)
    assert ours <= most <= max(ALLOWANCE * theirs, ALLOWANCE * NOISE[arithmetic] / LEAST)
    assert theirs <= kl_of_reference(arithmetic)
    assert between <= kl_between(arithmetic, arithmetic, ours, theirs) <= 5 * between


@pytest.mark.parametrize("theirs", [1.0, 1e9])
def test_a_reference_further_away_than_its_arithmetic_allows_widens_no_bound(theirs):
    assert kl_of_ours("int8", "int8", theirs) == kl_of_ours("int8", "int8", None)
    usual = kl_between("int8", "int8", None, None)
    assert kl_between("int8", "int8", 1e-3, theirs) == usual


def test_engines_with_another_arithmetic_do_not_narrow_ours():
    assert kl_of_ours("int8", "float", 1e-6) == pytest.approx(ALLOWANCE * NOISE["int8"])

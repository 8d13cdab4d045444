"""Bounds of agreement."""

from bitnet.crossval.bounds import bounds_for


def test_bounds_follow_from_the_noisier_side():
    noisy, exact, mixed = (
        bounds_for(*pair) for pair in (("int8", "int8"), ("float", "float"), ("float", "int8"))
    )
    assert exact.mean_kl <= noisy.mean_kl / 100
    assert mixed.mean_kl == noisy.mean_kl
    assert (mixed.ours, mixed.reference) == (exact.ours, noisy.reference)
    assert exact.near_tie < mixed.near_tie < noisy.near_tie
    # Two C++ engines that are right pass each other's bounds.
    assert noisy.mean_kl >= 2 * 5e-3


def test_both_sides_are_held_to_the_same():
    assert bounds_for("int8", "int8").ours == bounds_for("int8", "int8").reference

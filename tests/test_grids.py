"""The part of a grid that the fast tests run."""

from itertools import combinations, product

from grids import beyond_pairs


def pairs_of(cases):
    """Every pair of values, with their places, that some of *cases* has."""
    return {pair for case in cases for pair in combinations(enumerate(case), 2)}


def test_every_pair_of_values_is_run():
    grid = list(product("abc", range(5), [True, False], ["x", "y", "z"]))
    slow = set(beyond_pairs(grid))
    fast = [case for case in grid if case not in slow]
    assert pairs_of(fast) == pairs_of(grid)
    assert 15 <= len(fast) < len(grid) / 2  # 15: the pairs of the two longest parameters


def test_cases_without_a_common_pair_of_values_all_run():
    assert not list(beyond_pairs([(at, at + 1, at + 2) for at in range(50)]))

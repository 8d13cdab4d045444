"""Grids of parameters: which of their cases show every pair of values."""

import random
from itertools import combinations


def beyond_pairs(cases):
    """The *cases*, each a sequence of values, whose pairs of values the others have already."""
    seen = set()
    for case in random.Random(0).sample(cases, len(cases)):
        pairs = set(combinations(enumerate(case), 2))
        if pairs <= seen:
            yield case
        seen |= pairs

"""Find cases of a grid of parameters that are not needed to cover every pair of values."""

import random
from itertools import combinations


def beyond_pairs(cases):
    """Those of *cases*, sequences of values, whose every pair of values is in one of the others.

    The others are the cases that are not yielded: they alone cover every pair.
    """
    seen = set()
    for case in random.Random(0).sample(cases, len(cases)):
        pairs = set(combinations(enumerate(case), 2))
        if pairs <= seen:
            yield case
        seen |= pairs

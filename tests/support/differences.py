"""Differences between logits and those of another engine."""

import numpy as np


def relative_difference(actual, expected):
    """Largest difference as a share of the range of *expected*."""
    return np.abs(actual - expected).max() / np.ptp(expected)

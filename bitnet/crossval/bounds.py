"""Thresholds of agreement, and the measurements behind them.

All numbers are mean KL divergences in nats, measured on SmolLM2-135M (Q4_1) and Gemma-3-270M
(Q4_K_M), six prompts with 272 positions (benchmarks/results/crossval.md has the tables):

    from the float64 pass to     SmolLM2   Gemma 3   largest position / mean
    llama.cpp                    3.5e-3    4.3e-3    10
    ik_llama.cpp                 3.0e-3    1.9e-3    7
    our native backend           1.7e-3    9.4e-4    7
    our reference (float32)      3.1e-8    2.5e-7    22

    llama.cpp to ik_llama.cpp    3.3e-3    5.1e-3    17

Engines that round activations to 8 bit (``int8``) differ by that much, so no bound can be lower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitnet.crossval.trace import Arithmetic

__all__ = [
    "CLEARLY_BETTER",
    "LEAST_NOISE",
    "SAME_FLOAT64",
    "WORST",
    "Bounds",
    "bounds_for",
    "near_tie_for",
]

# Largest accepted mean KL from the float64 pass: the largest measured value, rounded up (llama.cpp
# 4.3e-3); for floats, those of transformers with ternary weights (2.5e-6) and of llama.cpp's cache
# in float16 (8.4e-7); for float32 throughout, 500 times what NumPy measures. Two right C++ engines
# are 5.1e-3 apart.
NOISE: dict[Arithmetic, float] = {"int8": 5e-3, "float": 4e-6, "float32": 1e-9}

# Bounds are three times the measured value: other prompts, other processors.
ALLOWANCE = 3.0

# What is measured on a model lowers a bound at most this many times: no two engines round the same.
LEAST = 30.0

# Largest accepted KL divergence between two engines, as a share of what their distances from the
# float64 pass allow; measured are 0.3 to 0.7.
APART = 1.5

# A single position was up to 25 times worse than the mean, in an earlier run 28 times.
WORST = 30.0

# Largest gap, in logits, between two best tokens that such an engine reversed relative to exact
# arithmetic: 0.317 for llama.cpp. Two engines can deviate in opposite directions.
FLIPPED: dict[Arithmetic, float] = {"int8": 0.32, "float": 0.01, "float32": 1e-3}

# Largest accepted deviation from 1 of the mean slope of log-probabilities over those of the float64
# pass: rounding scatters them but does not scale them.
SCALE: dict[Arithmetic, float] = {"int8": 0.03, "float": 3e-3, "float32": 1e-4}

# Largest accepted divergence, at any position, from a recorded float64 pass to today's.
SAME_FLOAT64 = 1e-8

# A reference that predicts the next token of real text better than the float64 pass by so many
# nats understands the model better than this package does.
CLEARLY_BETTER = 0.5

# Least noise that rounding activations to 8 bit leaves relative to the float64 pass, as a share of
# the spread of log-probabilities. With less noise, floats were used, whatever the counters say.
LEAST_NOISE = 2e-4


@dataclass(frozen=True)
class Bounds:
    """Thresholds of agreement; KL divergences are means, :data:`WORST` times as much at a position.

    Attributes:
        near_tie: gap in logits below which the order of two tokens is not significant.
        kl: from the reference to ours.
        ours_kl: from the float64 pass to ours.
        theirs_kl: from the float64 pass to the reference, for it to be accepted as a judge.
        ours_scale: distance of the mean slope of our log-probabilities from 1.
        theirs_scale: the same of the reference's.
    """

    near_tie: float
    kl: float
    ours_kl: float
    theirs_kl: float
    ours_scale: float
    theirs_scale: float


def near_tie_for(ours: Arithmetic, theirs: Arithmetic) -> float:
    """Gap in logits below which two such engines may order two tokens either way."""
    return FLIPPED[ours] + FLIPPED[theirs]


def bounds_for(
    ours: Arithmetic,
    theirs: Arithmetic,
    *,
    ours_kl: float | None = None,
    theirs_kl: float | None = None,
) -> Bounds:
    """Bounds for two engines with such arithmetic, by what both measure on this model.

    The reference is held to what its arithmetic measured elsewhere. What the model makes of that
    arithmetic is then the reference's own distance from the float64 pass, to which we are held.

    Args:
        ours: our arithmetic.
        theirs: the reference's.
        ours_kl: mean KL from the float64 pass to ours, None if it was not measured.
        theirs_kl: the same to the reference.
    """
    mean, mean_theirs = ALLOWANCE * NOISE[ours], ALLOWANCE * NOISE[theirs]
    between = max(mean, mean_theirs)
    if ours == theirs and theirs_kl is not None:
        mean = max(min(mean, ALLOWANCE * theirs_kl), mean / LEAST)
    if ours_kl is not None and theirs_kl is not None:
        # The root of a small KL divergence is a distance.
        largest = APART * (math.sqrt(ours_kl) + math.sqrt(theirs_kl)) ** 2
        between = max(min(between, largest), between / LEAST)
    return Bounds(
        near_tie_for(ours, theirs), between, mean, mean_theirs, SCALE[ours], SCALE[theirs]
    )

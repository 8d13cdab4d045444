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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitnet.crossval.trace import Arithmetic

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


def near_tie(ours: Arithmetic, theirs: Arithmetic) -> float:
    """Gap in logits below which two such engines may order two tokens either way."""
    return FLIPPED[ours] + FLIPPED[theirs]


def kl_of_reference(theirs: Arithmetic) -> float:
    """Largest accepted mean KL from the float64 pass to a reference with such arithmetic.

    It is held to what its arithmetic measured elsewhere; :data:`WORST` times as much at a position.
    """
    return ALLOWANCE * NOISE[theirs]


def kl_of_ours(ours: Arithmetic, theirs: Arithmetic, theirs_kl: float | None) -> float:
    """Largest accepted mean KL from the float64 pass to ours.

    What the model makes of an arithmetic is the distance of a reference with the same one from the
    float64 pass, to which we are held.

    Args:
        ours: our arithmetic.
        theirs: the reference's.
        theirs_kl: mean KL from the float64 pass to the reference, None if it was not measured.
    """
    most = ALLOWANCE * NOISE[ours]
    if ours != theirs or theirs_kl is None:
        return most
    return max(min(most, ALLOWANCE * theirs_kl), most / LEAST)


def kl_between(
    ours: Arithmetic, theirs: Arithmetic, ours_kl: float | None, theirs_kl: float | None
) -> float:
    """Largest accepted mean KL from the reference to ours.

    Args:
        ours: our arithmetic.
        theirs: the reference's.
        ours_kl: mean KL from the float64 pass to ours, None if it was not measured.
        theirs_kl: the same to the reference.
    """
    most = ALLOWANCE * max(NOISE[ours], NOISE[theirs])
    if ours_kl is None or theirs_kl is None:
        return most
    # The root of a small KL divergence is a distance.
    largest = APART * (math.sqrt(ours_kl) + math.sqrt(theirs_kl)) ** 2
    return max(min(most, largest), most / LEAST)

"""Bounds on the difference of one operation of an engine from float64, and its measures.

Three measures of the residual, ``theirs - float64``, each with a bound for every kind of
operation. *error* is its size in the worst row: a mistake in the window of one row, or in one head,
shows there. *gain* is the slope of theirs over float64's values, less 1: a wrong epsilon or norm
scales all rows alike, while rounding scatters them. *mean* is the size of the mean residual of all
rows: a missing bias is in each of them, while rounding averages out.

``benchmarks/results/sensitivity.json`` holds the measures of correct models of every family, in
every encoding and engine, and those of models with one mistake. A test checks these bounds with it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Positions whose operations are computed again; also the batch size of ik_llama.cpp.
ROWS = 16

# Kinds of operations by what they round, from the smallest error to the largest. An operation with
# several roundings has the last of their kinds.
Kind = Literal[
    "sum",
    "state",
    "product",
    "rotation",
    "gate",
    "attention",
    "half product",
    "q8 attention",
    "int8 product",
]


# Error of an operation that an engine did not give; JSON has no infinity.
NOT_GIVEN = 1e300

# Error of an operation with NaN or infinities on either side; JSON has neither.
NOT_FINITE = 1e299


class Residual(NamedTuple):
    """Difference of an operation from float64, or the largest accepted one."""

    error: float  # ``|theirs - float64| / |float64|`` of the worst row
    gain: float  # slope of theirs over float64's values, less 1
    mean: float  # length of the mean residual of ROWS rows, relative to that of a row


BOUNDS: dict[Kind, Residual] = {
    "sum": Residual(1e-6, 2e-7, 2.5e-7),  # norms and sums in float32
    "state": Residual(1e-6, 5e-7, 5e-7),  # recurrent states, which add up all positions
    "product": Residual(1e-4, 1e-6, 5e-6),  # float32 throughout
    "rotation": Residual(3e-4, 1e-6, 1e-4),  # angles of late positions in float32
    "gate": Residual(2e-3, 2e-4, 4e-4),  # softmax of a router; GELU from a table in float16
    "attention": Residual(8e-3, 1e-3, 2e-3),  # keys and values in 16 bits
    "half product": Residual(2e-2, 1e-3, 3e-3),  # weights and activations in 16 bits
    "q8 attention": Residual(0.15, 1e-2, 5e-2),  # keys and values in 8 bits
    "int8 product": Residual(0.16, 1e-2, 2e-2),  # activations in 8 bits
}


def measure(actual: NDArray[np.float64], exact: NDArray[Any]) -> Residual:
    """The residual of *actual* beside *exact*, both ``(rows, width)``, the latter in float64.

    Its error is :data:`NOT_FINITE` where either has NaN or infinities.
    """
    if not (np.isfinite(actual).all() and np.isfinite(exact).all()):
        return Residual(NOT_FINITE, 0.0, 0.0)
    residual = actual - exact
    errors = np.linalg.norm(residual, axis=1)
    sizes = np.linalg.norm(exact, axis=1)
    relative = np.where(errors == 0, 0.0, errors / np.maximum(sizes, np.finfo(np.float64).tiny))
    squares = float((exact * exact).sum())
    gain = float((residual * exact).sum()) / squares if squares else 0.0

    # The mean of fewer rows scatters more: scale it to that of ROWS rows.
    size = math.sqrt(squares / len(exact)) if squares else 0.0
    mean = float(np.linalg.norm(residual.mean(axis=0))) * math.sqrt(len(exact) / ROWS)
    measured = Residual(float(relative.max()), gain, mean / size if size else mean)
    if not all(map(math.isfinite, measured)):
        return Residual(NOT_FINITE, 0.0, 0.0)
    return measured

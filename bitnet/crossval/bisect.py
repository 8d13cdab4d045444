"""Find the first layer and operation where two engines differ, from intermediates of one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from bitnet.crossval.trace import Arithmetic

__all__ = ["BOUNDS", "Bisection", "Intermediate", "bisect"]

# Largest accepted relative error, |a - b| / |b| over all positions: about twice the largest
# measured on SmolLM2 and Gemma 3, which was 0.077 (Vcur, native against llama.cpp) and, with float
# weights, 9.0e-4 (kqv_out of Gemma 3, native against NumPy). Keys and values as int16 codes alone
# are up to 1.7e-3 from float64 ones (kqv_out of Gemma 3, NumPy), as float16 9.4e-4.
BOUNDS: dict[Arithmetic, float] = {"int8": 0.16, "float": 2e-3}


@dataclass(frozen=True)
class Intermediate:
    """One intermediate, compared between both engines.

    Attributes:
        name: ``Qcur-3``: the operation and the layer.
        error: ``|ours - theirs| / |theirs|`` over all positions.
    """

    name: str
    error: float

    @property
    def operation(self) -> str:
        """Name without the layer."""
        return self.name.rpartition("-")[0] or self.name

    @property
    def layer(self) -> int | None:
        """Number of the layer; ``None`` before the first layer and after the last."""
        number = self.name.rpartition("-")[2]
        return int(number) if number.isdigit() else None


@dataclass(frozen=True)
class Bisection:
    """Comparison of the intermediates of two engines.

    Attributes:
        ours: name of the engine under test.
        theirs: name of the other engine.
        bound: largest relative error that counts as agreement.
        least: number of intermediates that both must have.
        steps: intermediates of both, in order of computation.
    """

    ours: str
    theirs: str
    bound: float
    least: int
    steps: tuple[Intermediate, ...]

    @property
    def agrees(self) -> bool:
        """True if enough was compared, and nothing exceeds the bound."""
        return len(self.steps) >= max(self.least, 1) and self.first is None

    @property
    def first(self) -> Intermediate | None:
        """The first step that exceeds the bound."""
        return next((step for step in self.steps if not step.error <= self.bound), None)

    def __str__(self) -> str:
        if len(self.steps) < max(self.least, 1):
            return (
                f"{self.ours} and {self.theirs} have {len(self.steps)} intermediates in common, "
                f"expected at least {max(self.least, 1)}"
            )
        worst = max(self.steps, key=lambda step: step.error)
        if self.first is None:
            return (
                f"{self.ours} and {self.theirs} agree in all {len(self.steps)} intermediates "
                f"(largest relative error {worst.error:.1e} at {worst.name}, "
                f"bound {self.bound:g})"
            )
        layer = "" if self.first.layer is None else f"layer {self.first.layer}, "
        return (
            f"{self.ours} and {self.theirs} part at {layer}{self.first.operation}: relative error "
            f"{self.first.error:.1e}, bound {self.bound:g}"
        )


def bisect(
    ours: Iterable[tuple[str, NDArray[np.floating[Any]]]],
    theirs: Mapping[str, NDArray[np.floating[Any]]],
    *,
    names: tuple[str, str],
    bound: float,
    least: int = 1,
) -> Bisection:
    """Compare *ours*, in order, with the intermediates of *theirs* of the same name and size.

    Args:
        ours: names and values, one row per position.
        theirs: by name.
        names: of the two engines.
        bound: largest relative error that counts as agreement.
        least: number of intermediates that both must have; fewer are a failure, not agreement.
    """
    steps = []
    for name, values in ours:
        other = theirs.get(name)
        if other is not None and other.size == values.size:
            steps.append(Intermediate(name, _relative(values, other)))
    return Bisection(*names, bound, least, tuple(steps))


def _relative(ours: NDArray[np.floating[Any]], theirs: NDArray[np.floating[Any]]) -> float:
    expected = np.asarray(theirs, dtype=np.float64).reshape(-1)
    off = np.asarray(ours, dtype=np.float64).reshape(-1) - expected
    size = float(np.linalg.norm(expected))
    error = float(np.linalg.norm(off))
    return error / size if size else float("inf") if error else 0.0

"""Rotary position embedding (RoPE): frequencies, and scaling to longer contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.families.keys import Keys, RopeStyle, contradiction

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCALINGS = ("none", "linear", "dynamic", "yarn", "longrope")

# YaRN (arXiv:2309.00071): pairs with more rotations than this over the original context are kept,
# pairs with less than one rotation are interpolated.
_YARN_FAST, _YARN_SLOW = 32, 1


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotary position embedding."""

    dims: int  # rotary dimensions of a head, twice the number of pairs
    theta: float  # base of the frequencies, ``rope_theta``
    style: RopeStyle  # which elements form a pair
    scaling: str = "none"  # method of context extension, one of ``SCALINGS``
    factor: float = 1.0  # factor of the extension
    original_context: int = 2  # positions the model was first trained for
    attention_factor: float = 0.0  # factor on rotated queries and keys; 0: as *scaling* implies
    # divisors of the frequencies, ``(dims / 2,)`` (``rope_freqs.weight``)
    freq_factors: NDArray[np.float32] | None = None
    # *freq_factors* for contexts beyond the original one (Phi-3)
    long_freq_factors: NDArray[np.float32] | None = None

    def regime(self, context: int) -> int:
        """Key of the frequencies: contexts with equal keys have the same ones."""
        if self.scaling == "dynamic":
            return max(context, self.original_context)
        return int(self.long_freq_factors is not None and context > self.original_context)

    def frequencies(self, context: int) -> tuple[NDArray[np.float64], float]:
        """Frequencies in radians per position, ``(dims / 2,)``, and the attention factor.

        They are those of a sequence that may reach *context* positions.
        """
        beyond = context > self.original_context
        theta = self.theta
        if self.scaling == "dynamic" and beyond:
            stretch = self.factor * context / self.original_context - (self.factor - 1)
            theta *= stretch ** (self.dims / (self.dims - 2))
        frequencies = theta ** (-np.arange(0, self.dims, 2, dtype=np.float64) / self.dims)
        long = beyond and self.long_freq_factors is not None
        freq_factors = self.long_freq_factors if long else self.freq_factors
        if freq_factors is not None:
            frequencies = frequencies / freq_factors
        if self.scaling == "linear":
            frequencies = frequencies / self.factor
        elif self.scaling == "yarn":
            frequencies = self._yarn(frequencies)
        return frequencies, self.attention_factor or self._attention_factor_of_scaling()

    def _yarn(self, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        def pair_turning(times: int) -> float:
            wavelength = self.original_context / (times * 2 * math.pi)
            return self.dims * math.log(wavelength) / (2 * math.log(self.theta))

        low = max(math.floor(pair_turning(_YARN_FAST)), 0)
        high = min(math.ceil(pair_turning(_YARN_SLOW)), self.dims - 1)
        ramp = (np.arange(self.dims // 2) - low) / max(high - low, 0.001)
        interpolated = np.clip(ramp, 0, 1)
        return frequencies * (1 - interpolated) + frequencies / self.factor * interpolated

    def _attention_factor_of_scaling(self) -> float:
        if self.scaling == "yarn":
            return magnitude(self.factor)
        if self.scaling == "longrope" and self.factor > 1:
            return math.sqrt(1 + math.log(self.factor) / math.log(self.original_context))
        return 1.0


def magnitude(factor: float, scale: float = 1.0) -> float:
    """YaRN's factor on rotated queries and keys for an extension by *factor*."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def without_scaling(rope: Rope, **changes: Any) -> Rope:
    """*rope* without scaling and frequency factors, with other *changes*."""
    return replace(rope, scaling="none", attention_factor=1.0, freq_factors=None, **changes)


def rope_from(checkpoint: Keys, head_dim: int) -> Rope:
    """Position embedding from the keys and tensors of *checkpoint*, read as by llama.cpp."""
    dims = checkpoint.integer("rope.dimension_count", head_dim)
    pairs = (dims // 2,)
    context = checkpoint.integer("context_length")
    old = checkpoint.number("rope.scale_linear", 0.0)
    factor = checkpoint.number("rope.scaling.factor", old) or 1.0
    scaling = checkpoint.value("rope.scaling.type", "linear" if factor != 1 else "none")
    short = checkpoint.numbers("rope_factors_short.weight", pairs)
    long = checkpoint.numbers("rope_factors_long.weight", pairs)
    if (short is None) != (long is None):
        raise InvalidFormat(
            f"{checkpoint.path.name}: one of rope_factors_short and rope_factors_long is missing",
            hint="the file was converted incompletely; choose another conversion",
        )
    if long is not None and (factor != 1 or scaling not in ("none", "longrope")):
        raise Unsupported(
            f"{checkpoint.path.name}: rope scaling {scaling!r} by {factor:g} beside rope factors",
            hint="choose another conversion",
        )
    if scaling not in SCALINGS or (scaling == "longrope" and long is None):
        raise Unsupported(
            f"{checkpoint.path.name}: rope scaling {scaling!r}; known: {', '.join(SCALINGS)}"
        )
    original = checkpoint.integer("rope.scaling.original_context_length", context)
    rope = Rope(
        dims=dims,
        theta=checkpoint.number("rope.freq_base", 10000.0),
        style=checkpoint.rope_style,
        scaling="longrope" if long is not None else scaling,
        factor=factor if scaling != "none" else 1.0,
        original_context=original,
        freq_factors=checkpoint.numbers("rope_freqs.weight", pairs) if short is None else short,
        long_freq_factors=long,
    )
    attention_factor = checkpoint.number("rope.scaling.attn_factor", 1.0)
    for key, number in (
        ("rope.freq_base", rope.theta),
        ("rope.scaling.attn_factor", attention_factor),
    ):
        if number <= 0:
            raise contradiction(checkpoint, f"{key} is {number:g}, expected a number above 0")
    implied = 1.0
    if scaling == "yarn":
        divided_by = checkpoint.number("rope.scaling.yarn_log_multiplier", 0.0)
        implied = rope.frequencies(1)[1] / magnitude(factor, divided_by)
    return replace(rope, attention_factor=attention_factor * implied)

"""Rotary position embedding: each pair's angle per position, and how contexts are stretched."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bitnet.errors import InvalidFormat, Unsupported
from bitnet.families.rope_keys import magnitude

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import Checkpoint, RopeStyle

__all__ = ["SCALINGS", "Rope", "rope_from"]

SCALINGS = ("none", "linear", "dynamic", "yarn", "longrope")

# YaRN (arXiv:2309.00071): pairs that turn more often than this over the original context are kept,
# pairs that turn less than once are interpolated.
_YARN_FAST, _YARN_SLOW = 32, 1


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotary position embedding.

    Attributes:
        dims: rotated elements of a head, twice the number of pairs.
        base: wavelength base, ``theta``.
        style: which elements form a pair.
        scaling: how longer contexts than the original one are reached, one of :data:`SCALINGS`.
        factor: by how much longer.
        original_context: positions the model was first trained for.
        attention_factor: factor on rotated queries and keys; 0: what *scaling* implies.
        divisors: one per pair, of its frequency (Llama 3's ``rope_freqs.weight``).
        long_divisors: as *divisors*, for contexts beyond the original one (Phi-3).
    """

    dims: int
    base: float
    style: RopeStyle
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 2
    attention_factor: float = 0.0
    divisors: NDArray[np.float32] | None = None
    long_divisors: NDArray[np.float32] | None = None

    def regime(self, context: int) -> int:
        """Contexts with the same regime have the same frequencies."""
        if self.scaling == "dynamic":
            return max(context, self.original_context)
        return int(self.long_divisors is not None and context > self.original_context)

    def frequencies(self, context: int) -> tuple[NDArray[np.float64], float]:
        """Angle per position of each pair, shape ``(dims / 2,)``, and the attention factor.

        Args:
            context: positions the sequence may reach.
        """
        beyond = context > self.original_context
        base = self.base
        if self.scaling == "dynamic" and beyond:
            stretch = self.factor * context / self.original_context - (self.factor - 1)
            base *= stretch ** (self.dims / (self.dims - 2))
        frequencies = base ** (-np.arange(0, self.dims, 2, dtype=np.float64) / self.dims)
        long = beyond and self.long_divisors is not None
        divisors = self.long_divisors if long else self.divisors
        if divisors is not None:
            frequencies = frequencies / divisors
        if self.scaling == "linear":
            frequencies = frequencies / self.factor
        elif self.scaling == "yarn":
            frequencies = self._yarn(frequencies)
        return frequencies, self.attention_factor or self._implied_attention_factor()

    def _yarn(self, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        def pair_turning(times: int) -> float:
            wavelength = self.original_context / (times * 2 * math.pi)
            return self.dims * math.log(wavelength) / (2 * math.log(self.base))

        low = max(math.floor(pair_turning(_YARN_FAST)), 0)
        high = min(math.ceil(pair_turning(_YARN_SLOW)), self.dims - 1)
        ramp = (np.arange(self.dims // 2) - low) / max(high - low, 0.001)
        interpolated = np.clip(ramp, 0, 1)
        return frequencies * (1 - interpolated) + frequencies / self.factor * interpolated

    def _implied_attention_factor(self) -> float:
        if self.scaling == "yarn":
            return magnitude(self.factor)
        if self.scaling == "longrope" and self.factor > 1:
            return math.sqrt(1 + math.log(self.factor) / math.log(self.original_context))
        return 1.0


def rope_from(checkpoint: Checkpoint, head_dim: int) -> Rope:
    """The position embedding of *checkpoint*'s keys and tensors, as llama.cpp reads them.

    Raises:
        Unsupported: a kind of scaling we do not know, or two at once.
        InvalidFormat: a key of the wrong kind, or divisors of the wrong size.
    """
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
        base=checkpoint.number("rope.freq_base", 10000.0),
        style=checkpoint.rope_style,
        scaling="longrope" if long is not None else scaling,
        factor=factor if scaling != "none" else 1.0,
        original_context=original,
        divisors=checkpoint.numbers("rope_freqs.weight", pairs) if short is None else short,
        long_divisors=long,
    )
    given = checkpoint.number("rope.scaling.attn_factor", 1.0)
    implied = 1.0
    if scaling == "yarn":
        divided_by = checkpoint.number("rope.scaling.yarn_log_multiplier", 0.0)
        implied = rope.frequencies(1)[1] / magnitude(factor, divided_by)
    return replace(rope, attention_factor=given * implied)

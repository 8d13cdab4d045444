"""The float64 pass: our graph in NumPy and double precision, the yardstick for both sides.

It rounds only where the model's format itself does (ternary weights with int8 activations).
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.crossval.trace import PromptTrace, Trace, prompt_trace
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.quants import registry
from bitnet.quants.weight import Weight
from bitnet.runtime.kv_cache import KVCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.ops import Array
    from bitnet.models.transformer import Model

__all__ = ["Float64Pass"]

logger = logging.getLogger(__name__)

# More tokens than other traces, so that it contains theirs.
KEPT = 256
_MOST_BYTES = 4 << 30  # weights in float64 at a time
_ROWS = 1 << 14  # rows of a matrix converted to float64 at a time


class Float64Pass:
    """The float64 pass of a checkpoint; its weights are unpacked when it is first asked."""

    def __init__(
        self, checkpoint: Checkpoint, *, notify: Callable[[str], None] = logger.debug
    ) -> None:
        """The pass over *checkpoint*; *notify* is called with the progress."""
        self._checkpoint = checkpoint
        self._notify = notify
        self._answers: dict[tuple[tuple[int, ...], int, int], PromptTrace] = {}

    @cached_property
    def model(self) -> Model:
        """The model in float64: all at once if it fits, else one matrix at a time."""
        weights = self._checkpoint.weights.values()
        fits = sum(8 * math.prod(weight.shape) for weight in weights) <= _MOST_BYTES
        ops = ReferenceOps(dtype=np.float64) if fits else _Unpacking()
        return load_model(self._checkpoint, ops=ops)

    def trace(
        self,
        prompts: Sequence[tuple[str, Sequence[int]]],
        firsts: Sequence[int] = (),
        steps: Sequence[int] = (),
    ) -> Trace:
        """The float64 pass over *prompts*.

        Args:
            prompts: texts with their ids.
            firsts: first position of each that is returned; 0 if not given.
            steps: of the greedy continuation of each; 0 if not given.
        """
        none = (0,) * len(prompts)
        answers = []
        asked = zip(prompts, firsts or none, steps or none, strict=True)
        for number, ((text, ids), first, count) in enumerate(asked, 1):
            self._notify(f"float64 pass: prompt {number} of {len(prompts)}")
            answers.append(replace(self._answer(tuple(ids), first, count), prompt=text))
        return Trace("float64", f"NumPy {np.__version__}", "float", tuple(answers))

    def _answer(self, ids: tuple[int, ...], first: int, steps: int) -> PromptTrace:
        if not ids:
            return PromptTrace("", ())
        if (ids, first, steps) not in self._answers:
            cache = KVCache(self.model.config, len(ids) + steps + 1, dtype=np.float64)
            cache.reach = len(ids)
            forward = partial(self.model.forward, cache=cache)
            answer = prompt_trace(forward, ids, steps, first=first, kept=KEPT)
            self._answers[ids, first, steps] = answer
        return self._answers[ids, first, steps]


class _Unpacking(ReferenceOps):
    """Float64 with matrices unpacked on every use: slow, for models that do not fit."""

    def __init__(self) -> None:
        super().__init__(dtype=np.float64)

    def prepare(self, weight: Weight, *, looked_up: bool = False) -> Any:
        ternary = registry.rounds_activations(weight)
        if ternary or len(weight.shape) != 2:
            return super().prepare(weight, looked_up=looked_up)
        return weight

    def embed(self, table: Any, tokens: Sequence[int]) -> Array:
        if not isinstance(table, Weight):
            return super().embed(table, tokens)
        rows: Array = registry.dequantize(table)[np.asarray(tokens)].astype(self.dtype)
        return rows

    def linear(self, x: Array, weight: Any, bias: Any | None = None) -> Array:
        if not isinstance(weight, Weight):
            return super().linear(x, weight, bias)
        rows = registry.dequantize(weight)
        parts = [
            x @ rows[at : at + _ROWS].T.astype(self.dtype) for at in range(0, len(rows), _ROWS)
        ]
        y: Array = np.concatenate(parts, axis=1)
        return y if bias is None else y + bias

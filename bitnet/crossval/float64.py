"""Our own graph in double precision: the yardstick for both sides."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.crossval.trace import EngineFacts, Reference, Trace, prompt_trace
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.quants import registry
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.crossval.trace import Question
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.kv_codes import Array
    from bitnet.models.transformer import Model

# Best tokens stored per position: more than ``trace.KEPT``, so that those of the other traces are
# among them.
STORED_TOKENS = 256
_MOST_BYTES = 4 << 30  # of all weights in float64; those of a larger model are unpacked on use
_ROWS = 1 << 14  # rows of a matrix converted to float64 at a time


class Float64(Reference):
    """Our graph in NumPy and double precision: reveals rounding, but not mistakes of the graph.

    It rounds only where the model's format itself does (ternary weights with int8 activations). One
    instance keeps its model loaded: all of its questions are about the same checkpoint.
    """

    name = "float64"
    independent = False
    _model: Model | None = None

    def reads(self, _checkpoint: Checkpoint) -> bool:
        """True: it computes everything that this runtime reads."""
        return True

    def model(self, checkpoint: Checkpoint) -> Model:
        """*checkpoint* in float64, loaded once.

        If all weights take at most 4 GiB as float64, they are unpacked here, else each matrix on
        use.
        """
        if self._model is None:
            weights = checkpoint.weights.values()
            fits = sum(8 * math.prod(weight.shape) for weight in weights) <= _MOST_BYTES
            ops = ReferenceOps(dtype=np.float64) if fits else _Unpacking()
            self._model = load_model(checkpoint, ops=ops)
        return self._model

    def trace(self, question: Question) -> Trace:
        """The pass over the prompts of *question*; it has no tokenizer of its own."""
        answers = []
        for number, prompt in enumerate(question.prompts, 1):
            question.notify(f"float64 pass: prompt {number} of {len(question.prompts)}")
            model = self.model(question.checkpoint)
            cache = KVCache(model.config, len(prompt.ids) + prompt.steps + 1, dtype=np.float64)
            cache.reach = len(prompt.ids)  # selects the RoPE scaling, which the steps then keep
            forward = partial(model.forward, cache=cache)
            answer = prompt_trace(
                forward,
                prompt,
                generation=question.generation,
                count=STORED_TOKENS,
                causal=model.config.looks_back,
            )
            answers.append(answer)
        # ``Arithmetic`` has no value for float64. Of the two that could stand for it, "float" has
        # the wider bounds, which leave room for the engine that is compared.
        return Trace(EngineFacts("float64", f"NumPy {np.__version__}", "float"), tuple(answers))


class _Unpacking(ReferenceOps):
    """Float64 with matrices unpacked on every use: slow, for models that do not fit."""

    def __init__(self) -> None:
        super().__init__(dtype=np.float64)

    def prepare(self, weight: Weight, *, looked_up: bool = False, expert: bool = False) -> Any:
        # Ternary layers stay int8 codes; vectors and stacks of expert matrices are unpacked here.
        if registry.rounds_activations(weight) or len(weight.shape) != 2:
            return super().prepare(weight, looked_up=looked_up, expert=expert)
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

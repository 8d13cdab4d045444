"""From logits to the next token.

Order, as in llama.cpp: penalties, logit bias, top-k, top-p, min-p, temperature, one random draw.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.errors import InferenceError, UsageError
from bitnet.runtime.options import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Sampled", "Sampler", "SamplingParams"]


@dataclass(frozen=True)
class Sampled:
    """A chosen token.

    Attributes:
        token: its id.
        logprob: natural logarithm of its probability under the model, before any adjustment.
        top: the likeliest tokens with their logarithms, likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Chooses the tokens of one sequence; the same seed and logits give the same tokens."""

    def __init__(self, params: SamplingParams, prompt: Sequence[int] = ()) -> None:
        """A sampler for the continuation of *prompt*, which the repetition penalty counts in."""
        self.params = params
        self._seen = set(prompt)
        self._counts: Counter[int] = Counter()
        self._random = np.random.Generator(np.random.PCG64(params.actual_seed()))

    def sample(self, logits: NDArray[np.floating[Any]], *, top: int = 0) -> Sampled:
        """The next token, which is counted as generated from now on.

        Args:
            logits: ``(vocab_size,)``.
            top: how many of the likeliest tokens to report.

        Raises:
            InferenceError: the logits are not numbers.
            UsageError: a biased token id is outside the vocabulary.
        """
        wide = logits.astype(np.float64)
        if not np.isfinite(wide).all():
            raise InferenceError(
                "the model's logits are not finite numbers",
                hint="the weights are damaged: fetch the model again",
            )
        token = self._choose(self._adjusted(wide))
        self._seen.add(token)
        self._counts[token] += 1
        logprobs = wide - wide.max()
        logprobs -= math.log(np.exp(logprobs).sum())
        best = _likeliest(logprobs, min(top, len(logprobs))) if top else ()
        pairs = tuple((int(at), float(logprobs[at])) for at in best)
        return Sampled(token, float(logprobs[token]), pairs)

    def _adjusted(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Penalties and bias; a copy."""
        params, out = self.params, logits.copy()
        if params.repetition_penalty != 1 and self._seen:
            at = np.fromiter(self._seen, dtype=np.intp)
            factor = np.where(out[at] > 0, 1 / params.repetition_penalty, params.repetition_penalty)
            out[at] *= factor
        for token, count in self._counts.items():
            out[token] -= params.frequency_penalty * count + params.presence_penalty
        for token, bias in params.logit_bias.items():
            if not 0 <= token < len(out):
                raise UsageError(
                    f"logit bias for token id {token}, the vocabulary has {len(out):,}",
                    hint="use the model's own tokenizer",
                )
            out[token] += bias
        return out

    def _choose(self, logits: NDArray[np.float64]) -> int:
        params = self.params
        if params.temperature == 0:
            return int(logits.argmax())
        order = _likeliest(logits, params.top_k or len(logits))
        kept = logits[order]  # falling
        probabilities = _softmax(kept)
        if params.top_p < 1:
            # The token that reaches the sum still belongs to it, so one always stays.
            count = int(np.searchsorted(np.cumsum(probabilities), params.top_p)) + 1
            kept, probabilities = kept[:count], probabilities[:count]
        if params.min_p > 0:
            kept = kept[probabilities >= params.min_p * probabilities[0]]
        cumulative = np.cumsum(_softmax(kept / params.temperature))
        drawn = self._random.random() * cumulative[-1]
        return int(order[min(np.searchsorted(cumulative, drawn, side="right"), len(kept) - 1)])


def _likeliest(logits: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Ids of the *count* highest logits, highest first; equal ones by id."""
    if count >= len(logits):
        return np.argsort(-logits, kind="stable")
    threshold = np.partition(logits, -count)[-count]
    candidates = np.flatnonzero(logits >= threshold)
    return candidates[np.argsort(-logits[candidates], kind="stable")][:count]


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()

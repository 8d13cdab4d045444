"""From logits to the next token.

Order, as in llama.cpp: penalties, logit bias, top-k, top-p, min-p, temperature, one random draw.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet import settings
from bitnet.errors import InferenceError, UsageError
from bitnet.options import option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["Sampled", "Sampler", "SamplingParams"]

DEFAULT_SEED = 42


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen. A value out of its range is a :class:`UsageError`.

    ``logit_bias`` maps token ids to what is added to their logits.
    """

    temperature: float = option(0.0, "randomness; 0: always the most likely token")
    top_k: int = option(0, "choose among this many most likely tokens; 0: all")
    top_p: float = option(1.0, "choose among the likeliest tokens that make up this probability")
    min_p: float = option(0.0, "leave out tokens less likely than this share of the likeliest")
    repetition_penalty: float = option(1.0, "make tokens seen before less likely; 1: off")
    frequency_penalty: float = option(0.0, "subtract this per time a token was generated")
    presence_penalty: float = option(0.0, "subtract this once a token was generated")
    seed: int | None = option(None, "seed of the random draws; else BITNET_SEED, else 42")
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ranges = (
            ("temperature", 0.0, 100.0),
            ("top_k", 0, 2**31),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 1e-3, 100.0),
            ("frequency_penalty", -100.0, 100.0),
            ("presence_penalty", -100.0, 100.0),
            ("seed", 0, 2**64),
        )
        for name, low, high in ranges:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise UsageError(
                    f"--{name.replace('_', '-')} is {value}, expected {low:g} to {high:g}"
                )

    def actual_seed(self) -> int:
        """The seed that holds: given, from the environment, 42, or random if so configured."""
        given = self.seed if self.seed is not None else settings.seed()
        if given is not None:
            return given
        return DEFAULT_SEED if settings.deterministic() else secrets.randbits(63)


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

"""The chain of samplers: each takes the tokens that may be chosen, and leaves some of them out.

Formulas are those of llama.cpp (``src/llama-sampler.cpp`` of b11434), computed in float64. As
there, a filter computes probabilities among the tokens that the samplers before it have left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from bitnet.runtime.chain_options import ChainOptions, Sampling

    #: A sampler: from candidates to those that it keeps, perhaps with other logits.
    Step = Callable[["Candidates"], "Candidates"]

GROUP = 64  # values per group; the groups' maxima bound the k-th highest value from below
LIKELIEST_OF_MIROSTAT = 100  # tokens from which version 1 estimates the exponent


@dataclass(frozen=True)
class Candidates:
    """Tokens that may be chosen."""

    ids: NDArray[np.intp]  # (count,)
    logits: NDArray[np.float64]  # (count,), -inf for tokens that may not be chosen any more

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, at: NDArray[np.intp] | slice) -> Candidates:
        """The candidates at indices *at*, in that order."""
        return Candidates(self.ids[at], self.logits[at])

    def with_logits(self, logits: NDArray[np.float64]) -> Candidates:
        """The same tokens with other *logits*."""
        return Candidates(self.ids, logits)

    def descending(self) -> Candidates:
        """The candidates by descending logit; equal ones keep their order."""
        return self.select(np.argsort(-self.logits, kind="stable"))

    def probabilities(self) -> NDArray[np.float64]:
        """Their probabilities, ``(count,)``."""
        weights = np.exp(self.logits - self.logits.max())
        return weights / weights.sum()


def keep_top_n_sigma(tokens: Candidates, n: float) -> Candidates:
    """*tokens*, with -inf as the logit of those more than *n* standard deviations below the best.

    Such tokens still count where a later sampler counts tokens, as in llama.cpp.
    """
    finite = tokens.logits[np.isfinite(tokens.logits)]
    if n <= 0 or len(tokens) < 2 or not len(finite):
        return tokens
    lowest = finite.max() - n * finite.std()
    return tokens.with_logits(np.where(tokens.logits < lowest, -np.inf, tokens.logits))


def keep_top_k(tokens: Candidates, k: int) -> Candidates:
    """The *k* likeliest of *tokens*, descending; all of them, as they are, if *k* is 0."""
    return tokens.select(likeliest(tokens.logits, k)) if k > 0 else tokens


def keep_top_p(tokens: Candidates, p: float, min_keep: int) -> Candidates:
    """The likeliest of *tokens* that together reach the probability *p*, descending."""
    if p >= 1:
        return tokens
    ordered = tokens.descending()
    reached = np.cumsum(ordered.probabilities()) >= p
    count = int(reached.argmax()) + 1 if reached.any() else len(tokens)
    return ordered.select(slice(max(count, min_keep)))


def keep_min_p(tokens: Candidates, p: float, min_keep: int) -> Candidates:
    """Those of *tokens* that are at least *p* times as likely as the likeliest, descending."""
    if p <= 0:
        return tokens
    ordered = tokens.descending()
    count = int((ordered.logits >= ordered.logits[0] + math.log(p)).sum())
    return ordered.select(slice(max(count, min_keep, 1)))


def keep_typical(tokens: Candidates, p: float, min_keep: int) -> Candidates:
    """The most typical of *tokens* that together exceed the probability *p*.

    A token is typical if its surprise is near the mean surprise, the entropy.
    """
    if p >= 1:
        return tokens
    ordered = tokens.descending()
    probabilities = ordered.probabilities()
    surprises = _surprises(probabilities)
    order = np.argsort(np.abs(surprises - _entropy(probabilities)), kind="stable")
    exceeds = np.cumsum(probabilities[order]) > p
    count = int(exceeds.argmax()) + 1 if exceeds.any() else len(tokens)
    return ordered.select(order[: max(count, min_keep)])


def drop_likely(tokens: Candidates, threshold: float, min_keep: int) -> Candidates:
    """*tokens*, descending; of those that reach *threshold*, only the least likely stays (XTC)."""
    ordered = tokens.descending()
    likely = int((ordered.probabilities() >= threshold).sum())
    dropped = max(likely - 1, 0)
    if not dropped or len(ordered) - dropped < min_keep:
        return ordered
    return ordered.select(slice(dropped, None))


def apply_temperature(
    tokens: Candidates, temperature: float, spread: float = 0.0, exponent: float = 1.0
) -> Candidates:
    """*tokens* with logits divided by a temperature; 0 leaves only the first of the likeliest.

    With a *spread*, the temperature is between ``temperature - spread`` and
    ``temperature + spread``: the entropy, as a share of the largest possible one and raised to
    *exponent*, says where.
    """
    if spread > 0 and len(tokens) > 1:
        lowest = max(0.0, temperature - spread)
        entropy = _entropy(tokens.probabilities())
        share = max(0.0, entropy) / math.log(len(tokens))
        temperature = lowest + (temperature + spread - lowest) * share**exponent
    if temperature <= 0:
        at = int(tokens.logits.argmax())
        return tokens.select(slice(at, at + 1))
    best = tokens.logits.max()
    # A temperature below the smallest float selects the likeliest token, without overflow.
    return tokens.with_logits((tokens.logits - best) * min(1 / temperature, 1e25))


class Mirostat:
    """Keeps the surprise of the answer near ``mirostat_tau`` (arXiv:2007.14966), version 1 or 2.

    Tokens above a bound on the surprise are dropped; each chosen token moves the bound.
    """

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        self._sampling = sampling
        self._vocab_size = vocab_size
        self._bound = 2 * sampling.mirostat_tau  # highest surprise that is kept, in bits

    def keep(self, tokens: Candidates) -> Candidates:
        """Those of *tokens* that may be chosen, descending; at least one."""
        ordered = tokens.descending()
        if self._sampling.mirostat == 1:
            return ordered.select(slice(max(1, self._count(ordered))))
        surprises = _surprises(ordered.probabilities()) / math.log(2)
        above = surprises > self._bound
        count = int(above.argmax()) if above.any() else len(ordered)
        return ordered.select(slice(max(1, count)))

    def report(self, probability: float) -> None:
        """Record that a token was chosen that had this *probability* among the candidates kept."""
        error = -math.log2(probability) - self._sampling.mirostat_tau
        self._bound -= self._sampling.mirostat_eta * error

    def _count(self, ordered: Candidates) -> int:
        """Number of tokens that version 1 keeps, by Zipf's law with an estimated exponent."""
        logits = ordered.logits[np.isfinite(ordered.logits)][:LIKELIEST_OF_MIROSTAT]
        if len(logits) < 2:
            return 1
        ranks = np.arange(1, len(logits))
        steps = np.log((ranks + 1) / ranks)
        exponent = float(steps @ -np.diff(logits) / (steps @ steps))
        if exponent <= 0:
            return len(ordered)  # all are equally likely
        epsilon = exponent - 1
        share = 1 / math.log(self._vocab_size)  # limit of the formula below at epsilon 0
        if abs(epsilon) > 1e-6:
            share = epsilon / -math.expm1(-epsilon * math.log(self._vocab_size))
        log_count = (math.log(share) + self._bound * math.log(2)) / exponent
        if log_count >= math.log(len(ordered)):
            return len(ordered)
        return int(math.exp(log_count))


class SamplerChain:
    """Chooses tokens by the samplers of one request, one after the other."""

    def __init__(
        self,
        options: ChainOptions,
        sampling: Sampling,
        *,
        penalize: Step,
        penalize_repetitions: Step,
        draw: Callable[[], float],
    ) -> None:
        """A chain of the samplers that *options* and *sampling* set.

        Args:
            options: parameters that the files of a model do not recommend.
            sampling: parameters that they may recommend, and the order of the samplers.
            penalize: applies the penalties.
            penalize_repetitions: applies DRY.
            draw: gives the next random number, at least 0 and less than 1.
        """
        self._options = options
        self._draw = draw
        self._mirostat: Mirostat | None = None
        self._sampling = sampling
        min_keep = options.min_keep
        steps: dict[str, Step] = {
            "penalties": penalize,
            "dry": penalize_repetitions,
            "top_n_sigma": lambda tokens: keep_top_n_sigma(tokens, options.top_n_sigma),
            "top_k": lambda tokens: keep_top_k(tokens, sampling.top_k),
            "typ_p": lambda tokens: keep_typical(tokens, options.typical_p, min_keep),
            "top_p": lambda tokens: keep_top_p(tokens, sampling.top_p, min_keep),
            "min_p": lambda tokens: keep_min_p(tokens, sampling.min_p, min_keep),
            "xtc": self._drop_likely,
            "temperature": lambda tokens: apply_temperature(
                tokens, sampling.temperature, options.dynatemp_range, options.dynatemp_exponent
            ),
        }
        self._steps = [steps[name] for name in sampling.order]

    def choose(self, tokens: Candidates, vocab_size: int) -> int:
        """Id of the token that is chosen from *tokens*; the vocabulary has *vocab_size* tokens."""
        remaining = self.filter(tokens, vocab_size)
        probabilities = remaining.probabilities()
        cumulative = np.cumsum(probabilities)
        drawn = self._draw() * cumulative[-1]
        # Sums round; a token without weight is never chosen.
        last = int(np.flatnonzero(probabilities)[-1])
        at = min(int(np.searchsorted(cumulative, drawn, side="right")), last)
        if self._mirostat is not None:
            self._mirostat.report(float(probabilities[at]))
        return int(remaining.ids[at])

    def filter(self, tokens: Candidates, vocab_size: int) -> Candidates:
        """Those of *tokens* that may be chosen, with logits by which they are drawn."""
        if self._sampling.mirostat:
            if self._mirostat is None:
                self._mirostat = Mirostat(self._sampling, vocab_size)
            return self._mirostat.keep(apply_temperature(tokens, self._sampling.temperature))
        for step in self._steps:
            tokens = step(tokens)
        return tokens

    def _drop_likely(self, tokens: Candidates) -> Candidates:
        sampling = self._sampling
        if not sampling.uses_xtc or len(tokens) < 2 or self._draw() > sampling.xtc_probability:
            return tokens
        return drop_likely(tokens, sampling.xtc_threshold, self._options.min_keep)


def likeliest(values: NDArray[np.floating[Any]], count: int) -> NDArray[np.intp]:
    """Indices of the *count* highest *values*, descending; equal ones by index."""
    if count >= len(values):
        return np.argsort(-values, kind="stable")
    groups = len(values) // GROUP
    maxima = values
    if count * 4 <= groups:
        # At least *count* groups have a maximum that reaches the threshold.
        maxima = values[: groups * GROUP].reshape(GROUP, groups).max(axis=0)
    threshold = np.partition(maxima, -count)[-count]
    candidates = np.flatnonzero(values >= threshold)
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]


def _surprises(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Negative natural logarithms of *probabilities*; infinite for 0."""
    with np.errstate(divide="ignore"):
        return -np.log(probabilities)


def _entropy(probabilities: NDArray[np.float64]) -> float:
    """Mean surprise of *probabilities*, in natural units."""
    positive = probabilities[probabilities > 0]
    return float(positive @ -np.log(positive))

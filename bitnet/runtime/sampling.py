"""From logits to the next token, and from a text to the tokens that probably follow it.

Order, as in llama.cpp: logit bias, penalties, top-k, top-p, min-p, temperature, one random draw.
Requests with other samplers, or with another order, run the :mod:`chain
<bitnet.runtime.sampler_chain>` instead.

A text that repeats itself (code, summaries, tables) often continues as it did where its last tokens
occurred before. That is a draft, which the model checks in one pass.

Every filter keeps a prefix of the tokens in descending order, so only as many are sorted as can be
kept, and the vocabulary is scanned in whole float32 passes. Tokens are chosen among *values*, the
adjusted logits of the whole vocabulary or of a part of it; the result is an index into them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InferenceError
from bitnet.models.exact_head import Found, Logits, Needed
from bitnet.runtime.chain_options import WHOLE_TEXT, needs_chain, uses_dry
from bitnet.runtime.drafts import MOST_LOST
from bitnet.runtime.piece import Piece
from bitnet.runtime.repetitions import Repetitions
from bitnet.runtime.sampler_chain import Candidates, SamplerChain, likeliest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from bitnet.runtime.chain_options import Sampling
    from bitnet.runtime.request import Request

BLOCK = 512  # weights per block: a draw chooses a block by its sum, then a token inside it
MOST_NEEDED = 1024  # larger top-k values scan the whole vocabulary
TAIL = 8.0  # nats below the estimated cut-off of top-p or min-p at which tokens are ignored
FIRST_SORTED = 256  # tokens sorted first when a filter may need any number of them

SHORTEST_MATCH = 2  # last tokens that must have occurred before, for a draft
LONGEST_MATCH = 32  # tokens compared to find the best match
MOST_MATCHES = 32  # matches compared, the most recent ones
FIRST_DRAFT = 4  # tokens of the first draft
LONGEST_PAUSE = 64  # tokens without a draft after many rejected ones
FIRST_CREDIT = 2.0  # passes that drafts may lose before they have saved any
MOST_CREDIT = 16.0  # passes that drafts may lose, however many they have saved


class Sampler:
    """Samples the tokens of one sequence, and drafts some; same seed and logits, same tokens."""

    def __init__(self, request: Request, prompt: Sequence[int] = ()) -> None:
        """A sampler for *request*; the repetition penalty includes the ids *prompt*."""
        self.request = request
        self.sampling: Sampling = request.sampling
        self._window: deque[int] | None = None  # the last tokens, if penalties look at those
        self._counts = self._count_prompt(prompt)
        self._seed = request.actual_seed()
        self._penalizes = bool(
            self.sampling.repetition_penalty != 1
            or request.frequency_penalty
            or request.presence_penalty
        )
        self._repetitions: Repetitions | None = None
        if uses_dry(request, self.sampling):
            self._repetitions = Repetitions(request, request.breakers, prompt)
        self._chain: SamplerChain | None = None
        if needs_chain(request, self.sampling):
            self._chain = self._make_chain()
        self._adjusts = bool(
            request.logit_bias
            or self._penalizes
            or self._repetitions
            or request.suppressed
            or request.suppressed_first
        )
        self._is_first = True  # nothing was generated yet
        # Positions after each occurrence of SHORTEST_MATCH tokens in the text, ascending.
        self._ends: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        self._indexed = SHORTEST_MATCH  # positions before this one are in _ends
        self._draft_length = min(request.lookup, FIRST_DRAFT)
        self._failures = 0  # drafts since the last one of which a token was accepted
        self._resume = SHORTEST_MATCH  # length of the text from which to draft again
        self._owed = -FIRST_CREDIT  # passes that drafts lost, less those that they saved

    @cached_property
    def _random(self) -> np.random.Generator:
        """The random generator, created when needed: it takes 3 MB and 20 ms."""
        return np.random.Generator(np.random.PCG64(self._seed))

    def sample(
        self,
        logits: Logits | NDArray[np.floating[Any]],
        *,
        top: int | None = None,
        allowed: NDArray[np.intp] | None = None,
    ) -> Piece:
        """The next token, which then counts as generated.

        Args:
            logits: those that :meth:`needs` asks for, or all, ``(vocab_size,)``.
            top: number of likeliest tokens to report; None: no log-probabilities at all.
            allowed: ids that may be chosen, ascending; None: all.
        """
        if isinstance(logits, Logits):
            if logits.found and top is None and allowed is None:
                sampled = self._sample_among(logits.found)
                if sampled is not None:
                    return sampled
            logits = logits.all()
        # NaN propagates to both the minimum and the maximum.
        if not (math.isfinite(logits.min()) and math.isfinite(logits.max())):
            raise InferenceError(
                "the model's logits are not finite numbers",
                hint="the weights are damaged: fetch the model again",
            )
        values = logits
        if self._chain is not None:
            values = self._add_biases(logits)  # penalties are samplers of the chain
        elif self._adjusts:
            values = self._adjust(logits)
        if allowed is not None:
            values = values[allowed]
        if not len(values) or values.max() == -math.inf:
            raise InferenceError(
                "no token may be chosen",
                hint="leave a token with --logit-bias, or choose another --json-schema or --regex",
            )
        if self._chain is not None:
            ids = np.arange(len(values)) if allowed is None else allowed
            tokens = Candidates(ids, values.astype(np.float64))
            token = self._chain.choose(tokens, len(logits))
        else:
            at = self._choose(values)
            token = at if allowed is None else int(allowed[at])
        self._record(token)
        return Piece(token) if top is None else _with_logprobs(token, logits, top)

    def needs(self, foreseen: Iterable[int] = ()) -> Needed | None:
        """Logits that :meth:`sample` needs, or None for all of them.

        *foreseen* are the ids of a draft, which penalties count as soon as they are accepted.
        """
        request = self.request
        sampling = self.sampling
        if self._chain is not None or self._repetitions is not None:
            return None
        count = 1
        margin = None
        if sampling.temperature != 0 and sampling.top_k != 1:
            if sampling.top_k:
                count = sampling.top_k + 1  # _choose_among wants more tokens than top-k keeps
            elif sampling.top_p < 1 or sampling.min_p > 0:
                # An estimate of what the filter keeps: if too low, _choose_among decides nothing.
                share = 1 - sampling.top_p if sampling.top_p < 1 else sampling.min_p
                margin = TAIL - math.log(max(share, 1e-30))
            else:
                return None
        if count > MOST_NEEDED:
            return None
        touched = np.empty(0, dtype=np.int64)
        if self._adjusts:
            # Other tokens keep their logits; only these are needed whatever their values are.
            ids = {*self._counts, *request.logit_bias, *foreseen, *self._find_suppressed()}
            touched = np.sort(np.fromiter(ids, dtype=np.int64))
        return Needed(count, margin, touched)

    def draft(self, ids: list[int], room: int) -> list[int]:
        """Likely continuation of *ids*, the whole text so far: up to *room* tokens, often none."""
        count = min(self._draft_length, room)
        if count < 1 or len(ids) < self._resume:
            return []
        for end in range(self._indexed, len(ids)):  # the last tokens have no continuation
            self._ends[tuple(ids[end - SHORTEST_MATCH : end])].append(end)
        self._indexed = len(ids)
        ends = self._ends.get(tuple(ids[-SHORTEST_MATCH:]), [])[-MOST_MATCHES:]
        if not ends:
            return []
        # Draft what follows the longest earlier match of the end; the latest of equal ones.
        best_end = max(reversed(ends), key=lambda end: _agreement(ids, end))
        drafted = ids[best_end:]
        for at in range(count - len(drafted)):
            drafted.append(drafted[at])  # a text that repeats itself continues into its own draft
        return drafted[:count]

    def report(self, length: int, *, drafted: int, accepted: int, price: float = 0.0) -> None:
        """Record that *accepted* of *drafted* tokens were accepted in a text of *length* tokens.

        *price* is the time that each drafted token added to a pass, in tokens decoded without
        drafts, so that accepted tokens pay for it; :meth:`PassTimes.observe` returns it.
        """
        next_length = 2 * self._draft_length if accepted == drafted else accepted + 1
        self._draft_length = min(self.request.lookup, next_length)
        self._failures = 0 if accepted else self._failures + 1
        pause = min(LONGEST_PAUSE, 2**self._failures) if self._failures > 1 else 0
        self._owed = max(-MOST_CREDIT, self._owed + price * drafted - accepted)
        if self._owed > 0:
            # Pause until the lost passes are only the share MOST_LOST of all.
            pause = max(pause, math.ceil(self._owed / MOST_LOST))
            self._owed = 0.0
        self._resume = length + pause

    def _sample_among(self, candidates: Found) -> Piece | None:
        """Sample from *candidates* alone: the token is the one that all logits would give.

        ``None`` if they do not decide it; then nothing was drawn or counted.
        """
        values = candidates.logits
        if self._adjusts:
            values = self._adjust(values, candidates)
        if not len(values) or not math.isfinite(values.max()):
            return None
        at = self._choose_among(values, candidates)
        if at is None:
            return None
        token = int(candidates.ids[at])
        self._record(token)
        return Piece(token)

    def _choose_among(self, values: NDArray[np.floating[Any]], candidates: Found) -> int | None:
        """Index of the chosen token in *values*; ``None`` if another one might be chosen."""
        sampling = self.sampling
        bound = candidates.bound
        if sampling.temperature == 0 or sampling.top_k == 1:
            at = int(values.argmax())
            return at if values[at] >= bound else None
        if sampling.top_k:
            if sampling.top_k >= min(len(values), candidates.vocab_size):
                return None
            order = likeliest(values, sampling.top_k)
            if values[order[-1]] < bound:
                return None
            return self._draw_filtered(values, [order], values[order])
        best = values.max()
        order = likeliest(values, len(values))
        weights = np.exp(values[order].astype(np.float64) - best)
        # The sum of all weights is known within two bounds: both must keep as many tokens.
        lowest_total, highest_total = _totals(_weights(values, best), best, candidates)
        count = self._count_kept(weights, lowest_total)
        if count != self._count_kept(weights, highest_total):
            return None
        if count > len(order) or values[order[count - 1]] < bound:
            return None
        # If min-p made the cut, no token outside of the candidates, up to the bound, may reach it.
        following = float(weights[count]) if count < len(order) else 0.0
        if following < sampling.min_p <= math.exp(bound - float(best)) * (1 + 1e-9):
            return None
        return self._draw(values, order[:count], best)

    def _count_kept(self, weights: NDArray[np.float64], total: float) -> int:
        """Number of *weights* that top-p and min-p keep.

        They are descending, and the first is 1; *total* is the sum to which top-p relates.
        """
        sampling = self.sampling
        # The token that reaches the sum is kept, so at least one remains.
        limit = sampling.top_p * total if sampling.top_p < 1 else math.inf
        count = int(np.searchsorted(np.cumsum(weights), limit)) + 1
        if sampling.min_p > 0:
            reaching_min_p = int(np.searchsorted(-weights, -sampling.min_p, side="right"))
            count = max(1, min(count, reaching_min_p))
        return count

    def _make_chain(self) -> SamplerChain:
        """The chain of samplers of the request."""
        return SamplerChain(
            self.request,
            self.sampling,
            penalize=self._penalize_candidates,
            penalize_repetitions=self._penalize_repetitions,
            draw=lambda: float(self._random.random()),
        )

    def _count_prompt(self, prompt: Sequence[int]) -> Counter[int]:
        """Number of times that penalties count each token before the answer.

        Without a window the prompt's tokens count zero times: the repetition penalty applies to
        them, the frequency and presence penalties do not.
        """
        counts: Counter[int] = Counter()
        last = self.sampling.repeat_last_n
        if last is None:
            if self.sampling.repetition_penalty != 1:
                counts.update(dict.fromkeys(prompt, 0))
            return counts
        self._window = deque(prompt, maxlen=None if last == WHOLE_TEXT else last)
        counts.update(self._window)
        return counts

    def _record(self, token: int) -> None:
        """Count *token* as generated."""
        self._is_first = False
        if self._repetitions is not None:
            self._repetitions.add(token)
        window = self._window
        if window is None:
            self._counts[token] += 1
            return
        if window.maxlen == 0:
            return
        if len(window) == window.maxlen:
            oldest = window[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        window.append(token)
        self._counts[token] += 1

    def _adjust(
        self, logits: NDArray[np.floating[Any]], candidates: Found | None = None
    ) -> NDArray[np.floating[Any]]:
        """Copy of *logits* with bias and penalties; of all tokens, or of *candidates*."""
        out = self._add_biases(logits, candidates)
        if self._penalizes and self._counts:
            ids = np.fromiter(self._counts, dtype=np.intp)
            at = ids if candidates is None else np.searchsorted(candidates.ids, ids)
            counts = np.fromiter(self._counts.values(), dtype=np.float64)
            out[at] = self._penalize(out[at], counts)
        if self._repetitions is not None:  # then needs() asks for all logits
            for token, penalty in self._repetitions.penalties().items():
                out[token] -= penalty
        return out

    def _add_biases(
        self, logits: NDArray[np.floating[Any]], candidates: Found | None = None
    ) -> NDArray[np.floating[Any]]:
        """Copy of *logits* with the biases, and without suppressed tokens."""
        out = logits.copy()

        def indices_of(ids: Any) -> Any:
            return ids if candidates is None else np.searchsorted(candidates.ids, ids)

        for token, bias in self.request.logit_bias.items():  # ids of the vocabulary, as was checked
            out[indices_of(token)] += bias
        suppressed = self._find_suppressed()
        if suppressed:
            out[indices_of(np.fromiter(suppressed, dtype=np.intp))] = -math.inf
        return out

    def _penalize(
        self, values: NDArray[np.floating[Any]], counts: NDArray[np.float64]
    ) -> NDArray[np.floating[Any]]:
        """*values* with penalties: logits of tokens that are *counts* times in the text."""
        request = self.request
        penalty = self.sampling.repetition_penalty
        out = values.copy()
        if penalty != 1:
            out *= np.where(out > 0, 1 / penalty, penalty)
        if request.frequency_penalty or request.presence_penalty:
            out -= request.frequency_penalty * counts + request.presence_penalty * (counts > 0)
        return out

    def _penalize_candidates(self, tokens: Candidates) -> Candidates:
        """*tokens* with the penalties."""
        if not (self._penalizes and self._counts):
            return tokens
        at = np.flatnonzero(np.isin(tokens.ids, np.fromiter(self._counts, dtype=np.intp)))
        counts = np.array([self._counts[int(token)] for token in tokens.ids[at]], dtype=np.float64)
        logits = tokens.logits.copy()
        logits[at] = self._penalize(logits[at], counts)
        return tokens.with_logits(logits)

    def _penalize_repetitions(self, tokens: Candidates) -> Candidates:
        """*tokens* with DRY's penalties."""
        penalties = {} if self._repetitions is None else self._repetitions.penalties()
        if not penalties:
            return tokens
        at = np.flatnonzero(np.isin(tokens.ids, np.fromiter(penalties, dtype=np.intp)))
        logits = tokens.logits.copy()
        logits[at] -= [penalties[int(token)] for token in tokens.ids[at]]
        return tokens.with_logits(logits)

    def _find_suppressed(self) -> frozenset[int]:
        """Ids that the next token may not have."""
        request = self.request
        if self._is_first:
            return request.suppressed | request.suppressed_first
        return request.suppressed

    def _choose(self, values: NDArray[np.floating[Any]]) -> int:
        """Index of the chosen token in *values*."""
        sampling = self.sampling
        if sampling.temperature == 0 or sampling.top_k == 1:
            return int(values.argmax())
        if 0 < sampling.top_k < len(values):
            order = likeliest(values, sampling.top_k)
            # top-p applies to what top-k has kept.
            return self._draw_filtered(values, [order], values[order])
        if sampling.top_p < 1 or sampling.min_p > 0:
            return self._draw_filtered(values, _descending_prefixes(values), values)
        return self._draw_any(values)

    def _draw_filtered(
        self,
        values: NDArray[np.floating[Any]],
        orders: Iterable[NDArray[np.intp]],
        whole: NDArray[np.floating[Any]],
    ) -> int:
        """Draw from the tokens that top-p and min-p keep; top-p relates to the sum over *whole*.

        *orders* are indices of the highest *values*, descending, each longer than the one before:
        if the filters keep all tokens of one, the next is used.
        """
        best = values.max()
        total = _weights(whole, best).sum(dtype=np.float64)
        for order in orders:
            descending = values[order].astype(np.float64)
            count = self._count_kept(np.exp(descending - best), total)
            if count < len(order):
                break
        return self._draw(values, order[:count], best)

    def _draw(
        self, values: NDArray[np.floating[Any]], order: NDArray[np.intp], best: np.floating[Any]
    ) -> int:
        """Draw from *order*, the remaining tokens by descending value."""
        descending = values[order].astype(np.float64)
        cumulative = np.cumsum(_weights(descending, best, self.sampling.temperature))
        drawn = self._random.random() * cumulative[-1]
        # random() is below 1 by 2^-53 at least, so that *drawn* is below the whole sum.
        return int(order[np.searchsorted(cumulative, drawn, side="right")])

    def _draw_any(self, values: NDArray[np.floating[Any]]) -> int:
        """Draw from all *values*, which are not sorted."""
        weights = _weights(values, values.max(), self.sampling.temperature)
        starts = np.arange(0, len(weights), BLOCK)
        blocks = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
        drawn = self._random.random() * blocks[-1]
        block = int(np.searchsorted(blocks, drawn, side="right"))
        start = int(starts[block])
        inside = np.cumsum(weights[start : start + BLOCK], dtype=np.float64)
        # The two sums over a block may differ in the last bit. Below the second one, the chosen
        # token is inside the block, and its weight is not zero.
        within = min(drawn - (blocks[block - 1] if block else 0.0), np.nextafter(inside[-1], 0))
        return start + int(np.searchsorted(inside, within, side="right"))


def _with_logprobs(token: int, logits: NDArray[np.floating[Any]], top: int) -> Piece:
    """The piece of *token* with its log-probability and those of the *top* likeliest tokens."""
    best = logits.max()
    norm = float(best) + math.log(_weights(logits, best).sum(dtype=np.float64))
    ids = likeliest(logits, top) if top else ()
    pairs = tuple((int(at), float(logits[at]) - norm) for at in ids)
    return Piece(token, float(logits[token]) - norm, pairs)


def _totals(
    weights: NDArray[np.floating[Any]], best: np.floating[Any], candidates: Found
) -> tuple[float, float]:
    """Bounds of the sum of the weights of all tokens, given the *weights* of the *candidates*.

    The slack covers rounding of exponentials and of differences in float32.
    """
    computed = float(weights.sum(dtype=np.float64))
    bound_weight = math.exp(min(candidates.bound - float(best), 600.0))  # above 709 it overflows
    tail = candidates.tail * bound_weight * (1 + 1e-4) + candidates.vocab_size * 1e-37
    return computed * (1 - 1e-9), (computed + tail) * (1 + 1e-9)


def _weights(
    values: NDArray[np.floating[Any]], best: np.floating[Any], temperature: float = 1.0
) -> NDArray[np.floating[Any]]:
    """Probabilities of *values* at a temperature, up to a factor: *best* has weight 1."""
    # At temperatures below 1e-25 only the best has a weight; 1e25 times a difference of logits
    # does not overflow.
    return np.exp((values - best) * min(1 / temperature, 1e25))


def _descending_prefixes(values: NDArray[np.floating[Any]]) -> Iterator[NDArray[np.intp]]:
    """Indices of the highest *values*, descending: some, then more, then all."""
    count = FIRST_SORTED
    while count < len(values):
        yield likeliest(values, count)
        count *= 16
    yield likeliest(values, len(values))


def _agreement(ids: list[int], end: int) -> int:
    """Number of tokens before *end* that equal those at the end of *ids*."""
    count = SHORTEST_MATCH
    while count < min(LONGEST_MATCH, end) and ids[end - count - 1] == ids[-count - 1]:
        count += 1
    return count

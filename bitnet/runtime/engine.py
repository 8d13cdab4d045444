"""Token ids in, token ids out: prefill in chunks, then one token at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bitnet.errors import InferenceError, UsageError
from bitnet.runtime.kv_cache import KVCache
from bitnet.runtime.sampling import Sampler, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import DTypeLike, NDArray

    from bitnet.models.transformer import Model

__all__ = ["Engine", "FinishReason", "GenerationParams", "Piece"]

FinishReason = Literal["stop", "length", "context", "cancelled"]

PREFILL_CHUNK = 256  # tokens per pass: bounds the scores' memory without wasting the matmul


@dataclass(frozen=True)
class GenerationParams:
    """What to generate.

    Attributes:
        max_tokens: tokens at most, at least one.
        stop_ids: token ids that end the answer.
        sampling: how tokens are chosen.
        logprobs: how many alternatives to report with each token.
    """

    max_tokens: int = 128
    stop_ids: frozenset[int] = frozenset()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    logprobs: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UsageError(f"--max-tokens is {self.max_tokens}, expected at least 1")


@dataclass(frozen=True)
class Piece:
    """One generated token.

    Attributes:
        token: its id; ``None`` in the piece that only says it was cancelled.
        logprob: natural logarithm of its probability under the model.
        top_logprobs: the likeliest tokens at its place, as ``(id, logprob)``.
        finish_reason: ``None`` but in the last piece. ``stop``: *token* is a stop id and no part of
            the answer. ``length``: as many tokens as asked for. ``context``: the context is full.
    """

    token: int | None
    logprob: float = 0.0
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None


class Engine:
    """Runs one sequence at a time; what the next prompt shares with the last one is kept.

    Attributes:
        model: what it runs.
        context: positions a sequence may reach.
    """

    def __init__(
        self, model: Model, *, context: int | None = None, cache_dtype: DTypeLike = np.float16
    ) -> None:
        """An engine for *model*.

        Args:
            model: what it runs.
            context: positions a sequence may reach; the model's own length by default.
            cache_dtype: of keys and values.

        Raises:
            UsageError: *context* is below one, or beyond what the model was made for.
        """
        limit = model.config.context_length
        if context is not None and context > limit:
            raise UsageError(
                f"a context of {context:,} positions, the model was made for {limit:,}",
                hint=f"--context {limit}",
            )
        self.model = model
        self.context = limit if context is None else context
        self._cache_dtype = np.dtype(cache_dtype)
        self._cache = self._new_cache()
        self._cached: list[int] = []  # the ids behind the cached positions

    def generate(
        self,
        ids: Sequence[int],
        params: GenerationParams | None = None,
        *,
        cancel: Callable[[], bool] = lambda: False,
    ) -> Iterator[Piece]:
        """The continuation of *ids*, piece by piece.

        Args:
            ids: the prompt.
            params: what to generate.
            cancel: asked before every pass of the model; true ends the generation.

        Raises:
            UsageError: *ids* is empty, or holds an id outside the vocabulary.
            InferenceError: *ids* is longer than the context, or the weights give no numbers.
        """
        params = params or GenerationParams()
        self._check(ids)
        return self._pieces(list(ids), params, cancel)

    def logits(self, ids: Sequence[int]) -> NDArray[np.floating[Any]]:
        """Logits after every position of *ids*, ``(T, vocab_size)``; the cache stays untouched.

        Raises:
            UsageError: *ids* is empty, or holds an id outside the vocabulary.
            InferenceError: *ids* is longer than the context.
        """
        self._check(ids)
        cache = self._new_cache()
        parts = [
            self.model.forward(chunk, cache, all_positions=True) for chunk in _chunks(ids, start=0)
        ]
        return np.concatenate(parts)

    def reusable(self, ids: Sequence[int]) -> int:
        """How many ids at the start of *ids* need not be run again."""
        # The last id is run again even if it is cached: its logits are not.
        return max(0, min(_common_prefix(self._cached, ids), len(ids) - 1))

    def reset(self) -> None:
        """Forget the last sequence and free its cache."""
        self._cache = self._new_cache()
        self._cached = []

    def _pieces(
        self, prompt: list[int], params: GenerationParams, cancel: Callable[[], bool]
    ) -> Iterator[Piece]:
        sampler = Sampler(params.sampling, prompt)
        waiting = prompt  # ids that belong to the sequence and are not all in the cache
        for count in range(1, params.max_tokens + 1):
            logits = self._advance(waiting, cancel)
            if logits is None:
                yield Piece(None, finish_reason="cancelled")
                return
            sampled = sampler.sample(logits, top=params.logprobs)
            reason: FinishReason | None = None
            if sampled.token in params.stop_ids:
                reason = "stop"
            elif count == params.max_tokens:
                reason = "length"
            elif len(waiting) == self.context:
                reason = "context"
            yield Piece(sampled.token, sampled.logprob or 0.0, sampled.top, reason)
            if reason is not None:
                return
            waiting = [*waiting, sampled.token]

    def _advance(
        self, ids: list[int], cancel: Callable[[], bool]
    ) -> NDArray[np.floating[Any]] | None:
        """Logits after *ids*, of which the cache may hold a beginning; ``None`` if cancelled."""
        shared = self.reusable(ids)
        self._cache.truncate(shared)
        del self._cached[shared:]
        logits = None
        for chunk in _chunks(ids, start=shared):
            if cancel():
                return None
            logits = self.model.forward(chunk, self._cache)[-1]
            self._cached.extend(chunk)
        return logits

    def _new_cache(self) -> KVCache:
        return KVCache(self.model.config, self.context, dtype=self._cache_dtype)

    def _check(self, ids: Sequence[int]) -> None:
        size = self.model.config.vocab_size
        if not len(ids):
            raise UsageError("the prompt has no tokens", hint="pass some text")
        if len(ids) > self.context:
            raise InferenceError(
                f"the prompt has {len(ids):,} tokens, the context holds {self.context:,}",
                hint="shorten the prompt or raise the context size",
            )
        if min(ids) < 0 or max(ids) >= size:
            raise UsageError(
                f"the prompt has token ids outside the model's vocabulary of {size:,}",
                hint="use the model's own tokenizer",
            )


def _chunks(ids: Sequence[int], *, start: int) -> Iterator[Sequence[int]]:
    for at in range(start, len(ids), PREFILL_CHUNK):
        yield ids[at : at + PREFILL_CHUNK]


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    differs = (at for at, (one, other) in enumerate(pairs) if one != other)
    return next(differs, min(len(first), len(second)))

"""One prompt and its answer while they are with the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.errors import BitnetError
from bitnet.runtime.generation import FinishReason, GenerationParams, Piece
from bitnet.runtime.lookup import Lookup
from bitnet.runtime.sampling import Sampled, Sampler
from bitnet.runtime.screening import Logits, ScreenedLogits

if TYPE_CHECKING:
    from collections import abc

    from bitnet.kernels.screened_head import Wanted
    from bitnet.runtime.prefix_cache import Lease

__all__ = ["Sequence"]


class Sequence:
    """A handle on an answer; :meth:`bitnet.runtime.scheduler.Scheduler.submit` makes it.

    Attributes:
        ids: prompt and answer so far; the cache holds a beginning of them.
        prompt_tokens: how many of them are the prompt.
        params: what to generate.
        reused: ids of the prompt that a cache had already.
        passes: passes of the model it took part in.
        drafted: tokens drafted by lookup.
        accepted: how many of them the model would have written as well.
        screened: tokens chosen without the whole output head.
        rescored: shares of its rows that were computed for them, added up.
        finish_reason: ``None`` until it has ended.
        error: what went wrong if the reason is ``error``.
    """

    def __init__(self, prompt: abc.Iterable[int], params: GenerationParams) -> None:
        self.ids = list(prompt)
        self.prompt_tokens = len(self.ids)
        self.params = params
        self.reused = 0
        self.passes = 0
        self.drafted = 0
        self.accepted = 0
        self.screened = 0
        self.rescored = 0.0
        self.finish_reason: FinishReason | None = None
        self.error: BitnetError | None = None
        self.lease: Lease | None = None
        self._sampler = Sampler(params.sampling, self.ids)
        self._matcher = params.grammar.start() if params.grammar else None
        self._lookup = Lookup(params.lookup) if params.lookup else None

    @property
    def positions(self) -> int:
        """Positions of a cache that it may come to need, were the context without end."""
        return self.prompt_tokens + self.params.max_tokens - 1

    @property
    def tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.ids) - self.prompt_tokens

    @property
    def waiting(self) -> int:
        """Ids that the cache does not hold; one while decoding."""
        return len(self.ids) - (self.lease.cache.length if self.lease else 0)

    def draft(self, room: int) -> list[int]:
        """Tokens that may follow, at most *room*."""
        if self._lookup is None:
            return []
        draft = self._lookup.draft(self.ids, min(room, self.params.max_tokens - self.tokens - 1))
        if draft and self._matcher:
            draft = draft[: self._matcher.valid(draft)]
        return draft

    def wanted(self, draft: list[int]) -> Wanted | None:
        """Which logits choosing what follows needs; ``None``: all of them."""
        if self.params.logprobs is not None or self._matcher:
            return None
        return self._sampler.wanted(draft)

    def advance(
        self, logits: abc.Iterable[Logits], draft: list[int], *, context: int
    ) -> list[Piece]:
        """Choose what follows.

        Args:
            logits: after the last id and each token of *draft*.
            draft: tokens that were run on trial.
            context: ids after which there is no room.

        Returns:
            The token after the last id; further ones as far as *draft* foresaw them.
        """
        pieces: list[Piece] = []
        accepted = 0
        try:
            for row, foreseen in zip(logits, [*draft, None], strict=True):
                pieces += self._next(row, context)
                if self.finish_reason or pieces[-1].token != foreseen:
                    break
                accepted += 1
        except BitnetError as error:
            pieces.append(self.fail(error))
        self.drafted += len(draft)
        self.accepted += accepted
        if self._lookup and draft:
            self._lookup.report(len(self.ids), drafted=len(draft), accepted=accepted)
        return pieces

    def fail(self, error: BitnetError) -> Piece:
        """End with *error*."""
        self.error, self.finish_reason = error, "error"
        return Piece(None, finish_reason="error")

    def _sample(self, logits: Logits) -> Sampled:
        if isinstance(logits, ScreenedLogits):
            sampled = self._sampler.sample_among(logits.candidates)
            if sampled is not None:
                self.screened += 1
                self.rescored += len(logits.candidates.ids) / logits.candidates.vocab_size
                return sampled
            logits = logits.full()
        allowed = self._matcher.allowed() if self._matcher else None
        return self._sampler.sample(logits, top=self.params.logprobs, allowed=allowed)

    def _next(self, logits: Logits, context: int) -> list[Piece]:
        params, matcher = self.params, self._matcher
        sampled = self._sample(logits)
        full = len(self.ids) >= context
        self.ids.append(sampled.token)
        if sampled.token in params.stop_ids:
            self.finish_reason = "stop"
        else:
            if matcher:
                matcher.accept(sampled.token)
            if self.tokens >= params.max_tokens:
                self.finish_reason = "length"
            elif full:
                self.finish_reason = "context"
        complete = matcher is not None and matcher.finished and self.finish_reason != "stop"
        if complete:
            self.finish_reason = None
        pieces = [Piece(sampled.token, sampled.logprob, sampled.top, self.finish_reason)]
        if complete:
            self.finish_reason = "stop"
            pieces.append(Piece(None, finish_reason="stop"))
        return pieces

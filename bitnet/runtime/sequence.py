"""One prompt and its answer as the scheduler runs them, and its part of a forward pass."""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bitnet.base.errors import InferenceError, is_panic
from bitnet.kernels.program import Segment
from bitnet.runtime.drafts import MOST_LOST
from bitnet.runtime.piece import FinishReason, Piece
from bitnet.runtime.prefix_cache import common_prefix
from bitnet.runtime.sampling import Sampler
from bitnet.runtime.vectors import finish_vector

if TYPE_CHECKING:
    from collections import abc

    from numpy.typing import NDArray

    from bitnet.families.blocks import ModelConfig
    from bitnet.kernels.kv_cache import KVCache
    from bitnet.kernels.kv_codes import Array
    from bitnet.models.exact_head.logits import Logits, Needed
    from bitnet.models.transformer import Model
    from bitnet.runtime.drafts import Drafter, Foresight
    from bitnet.runtime.request import Request

logger = logging.getLogger(__name__)

DECODE_ROWS = 16  # rows of the decode kernels; drafts beyond them are not worth it
SHORTEST = 2  # matching tokens before a draft is made
LONGEST = 32  # tokens compared to find the best match
PLACES = 32  # most recent matches compared
FIRST = 4  # tokens of the first draft
LONGEST_PAUSE = 64  # tokens without a draft after many rejected ones
FIRST_CREDIT, MOST_CREDIT = 2.0, 16.0  # passes that drafts may lose, at first and after gains
WORTH_WAITING = 32  # prompt tokens worth copying after a pass instead of computing them in it


class Sequence:
    """An answer in progress; :meth:`bitnet.runtime.scheduler.Scheduler.submit` creates it.

    Attributes:
        ids: prompt and answer so far; the cache holds a prefix of them.
        prompt_tokens: number of them that belong to the prompt.
        request: the request it answers.
        reused_tokens: ids of the prompt found in the KV cache.
        passes: forward passes that it was part of.
        drafted: tokens drafted, by lookup or by a drafter.
        accepted: drafted tokens that the model accepted.
        draft_gain: speed with a drafter over that without, of recent passes; ``None``: unknown.
        exact_head_tokens: tokens chosen without computing the whole output head.
        exact_head_rows: share of the head's rows computed for them, on average, 0 to 1.
        exact_head_stopped: the exact head did not save time with this model and was stopped.
        admitted_at: ``time.perf_counter`` when the scheduler admitted it; ``None`` while it waits.
        finish_reason: ``None`` until it has ended.
        cancelled: nothing needs it any more; set from any thread, it ends before the next pass.
        deadline: ``time.monotonic`` after which it ends.
        error: what went wrong if the reason is ``error``.
        pieces: written and not read yet, for :meth:`bitnet.runtime.scheduler.Scheduler.run`.
        foresight: the drafter's view of it; ``None``: it has no drafts.
        hidden: end of its part of a pass, and the hidden states before it,
            ``(T, dim)``, which *foresight* will read.
        embedding: for an embedding, its value after the hidden states so far, ``(dim,)``.
        cache: its keys and values; ``None`` while it does not run.
        segment: its tokens in the next pass, and the positions whose results are needed.
        proposed: the last of these tokens, which are speculative.
        start: positions in the cache before the pass.
    """

    def __init__(self, prompt: abc.Iterable[int], request: Request, config: ModelConfig) -> None:
        self.ids: list[int] = list(prompt)
        self.prompt_tokens: int = len(self.ids)
        self.request = request
        self.reused_tokens = self.passes = self.drafted = self.accepted = 0
        self.draft_gain: float | None = None
        self.exact_head_tokens = 0
        self.exact_head_rows = 0.0
        self.exact_head_stopped = False
        self.admitted_at: float | None = None
        self.finish_reason: FinishReason | None = None
        self.cancelled = False
        self.deadline = float("inf")
        self.error: Exception | None = None
        self.foresight: Foresight | None = None
        self.hidden: tuple[int, Array] | None = None
        self.embedding: NDArray[np.float64] | None = None
        self._config = config
        self.cache: KVCache | None = None
        self.segment: Segment | None = None
        self.proposed: list[int] = []
        self.start = 0
        self.pieces: deque[Piece] = deque()
        self._sampler = Sampler(request, self.ids)
        self._matcher = request.grammar.start() if request.grammar else None
        self._lookup = Lookup(request.lookup) if request.lookup else None

    @property
    def positions(self) -> int:
        """Cache positions it may need, regardless of the context length."""
        return self.prompt_tokens + (0 if self.request.embed else self.request.max_tokens - 1)

    @property
    def pools_last(self) -> bool:
        """True if its vector is the last hidden state alone."""
        return self._config.pooling == "last"

    @property
    def decodes(self) -> bool:
        """True if its next pass runs its last id only; else it is still in prefill."""
        return self.remaining == 1 and not self.request.embed

    @property
    def tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.ids) - self.prompt_tokens

    @property
    def remaining(self) -> int:
        """Number of ids not run yet; 1 while decoding."""
        return len(self.ids) - (self.cache.length if self.cache else 0)

    @property
    def draft_room(self) -> int:
        """Tokens that a draft may have, behind which one more is still wanted."""
        return max(0, self.request.max_tokens - self.tokens - 1)

    def plan(self, tokens: list[int], proposed: list[int] | None = None) -> None:
        """Contribute *tokens*, which end with those *proposed*, to the next pass."""
        cache, view = cache_of(self), self.foresight
        self.proposed, self.start = proposed or [], cache.length
        complete = cache.length + len(tokens) - len(self.proposed) == len(self.ids)
        outputs: Literal["none", "last", "all"] = "last" if complete else "none"
        every_vector = self.request.embed and not self.pools_last
        if self.proposed or every_vector or (complete and view and view.reads_hidden):
            outputs = "all"
        self.segment = Segment(tokens, cache, outputs)

    def look_up(self, room: int) -> list[int]:
        """At most *room* tokens that are likely to follow, from its own text."""
        return self._lookup.draft(self.ids, min(room, self.draft_room)) if self._lookup else []

    def plan_with_draft(self, draft: list[int]) -> None:
        """Contribute the last id and of *draft* what its grammar allows, with the same bits."""
        if draft and self._matcher:
            del draft[self._matcher.valid(draft) :]
        cache, length = cache_of(self), len(self.ids)
        regime = self._config.regime(max(cache.reach, length))
        while draft and self._config.regime(max(cache.reach, length + len(draft))) != regime:
            draft.pop()  # its RoPE frequencies would differ from those of the token before
        if draft:
            cache.mark()  # a state returns here if drafts are rejected
        self.plan([self.ids[-1], *draft], draft)

    def undo(self) -> None:
        """Undo a pass that failed; what cannot be undone exactly is planned again."""
        cache, planned = cache_of(self), self.segment
        cache.truncate(self.start)
        if cache.length == self.start or planned is None:
            return
        if self.request.embed:
            cache.truncate(0)  # hidden states were added up
            self.embedding = None
        end = self.start + len(planned.tokens) - len(self.proposed)
        self.plan(self.ids[cache.length : end])

    def start_over_beyond_border(self) -> None:
        """Rerun an answer that crosses the original context length, as a prompt of that length.

        Long and short frequency factors do not mix (transformers does the same: Phi-3's
        ``prepare_inputs_for_generation``).
        """
        cache, config, length = cache_of(self), self._config, len(self.ids)
        borders = any(rope.long_freq_factors is not None for rope in config.ropes)
        if borders and length > cache.reach and config.regime(length) != config.regime(cache.reach):
            logger.info("beyond the original context: %d positions are run again", cache.length)
            cache.truncate(0)
            cache.reach = length

    def should_wait(self, ahead: list[Sequence]) -> bool:
        """True if a sequence *ahead* computes a prefix that this one can copy after the pass."""
        lora = self.request.lora
        alike = [its for its in ahead if its.request.lora == lora]
        shared = [(common_prefix(its.ids, self.ids), cache_of(its).length) for its in alike]
        # What it has computed already was copied, or cannot be.
        to_come = max((count for count, computed in shared if computed < count), default=0)
        return to_come - cache_of(self).length >= WORTH_WAITING

    def needs(self) -> Needed | None:
        """Logits needed to choose the next tokens; ``None``: all of them."""
        if self.request.logprobs is not None or self._matcher or self._is_too_short:
            return None
        if self.request.reasoning and self.request.reasoning.budget is not None:
            return None  # its end may be forced
        return self._sampler.needs(self.proposed)

    def advance(
        self, logits: abc.Iterable[Logits], *, context: int, price: float = 0.0
    ) -> list[Piece]:
        """The token after the last id, and further ones as far as the draft was accepted.

        *logits* are those after the last id and after each proposed token; *context* bounds the
        number of ids, *price* is that of a drafted token (:meth:`Lookup.report`).
        """
        draft = self.proposed
        pieces: list[Piece] = []
        accepted = 0
        try:
            for row, foreseen in zip(logits, [*draft, None], strict=True):
                pieces += self._next(row, context)
                if self.finish_reason or pieces[-1].token != foreseen:
                    break
                accepted += 1
        except Exception as error:  # noqa: BLE001 - it is this sequence's alone
            pieces.append(self.fail(error))
        except BaseException as error:
            if not is_panic(error):
                raise
            pieces.append(self.fail(InferenceError(f"internal error: {type(error).__name__}")))
        self.drafted += len(draft)
        self.accepted += accepted
        if self._lookup and draft:
            self._lookup.report(len(self.ids), drafted=len(draft), accepted=accepted, price=price)
        if self.foresight and draft:
            self.foresight.report(drafted=len(draft), accepted=accepted)
        if self.foresight and self.hidden:
            self.foresight.add(*self.hidden)
            self.hidden = None
        return pieces

    def add_hidden(self, states: NDArray[np.floating[Any]]) -> list[Piece]:
        """Add *states*, ``(T, dim)``, of prompt ids; a final piece after the last of them."""
        rows = states.astype(np.float64)
        if self.pools_last:
            self.embedding = rows[-1]
        elif self._config.pooling != "cls":
            share: NDArray[np.float64] = rows.sum(axis=0) / self.prompt_tokens
            self.embedding = share if self.embedding is None else self.embedding + share
        elif self.embedding is None:
            self.embedding = rows[0]
        if self.remaining:
            return []
        if not np.isfinite(self.embedding).all():
            error = InferenceError(
                "the model's hidden states are not finite numbers",
                hint="the weights are damaged: fetch the model again",
            )
            return [self.fail(error)]
        self.finish_reason = "stop"
        return [Piece(None, finish_reason="stop")]

    def vector(self, *, normalize: bool, dimensions: int | None) -> NDArray[np.float32]:
        """Its finished vector, ``(dimensions,)``; see :meth:`LanguageModel.embed`."""
        assert self.embedding is not None, "a vector that is complete"
        return finish_vector(self.embedding, normalize=normalize, dimensions=dimensions)

    def fail(self, error: Exception) -> Piece:
        """End with *error*."""
        self.error, self.finish_reason = error, "error"
        return Piece(None, finish_reason="error")

    @property
    def _is_too_short(self) -> bool:
        return self.tokens < self.request.min_tokens and bool(self.request.stop_ids)

    def _sample(self, logits: Logits) -> Piece:
        allowed = self._matcher.next_ids() if self._matcher else None
        if self.request.reasoning is not None:
            forced = self.request.reasoning.next_token(self.ids[self.prompt_tokens :])
            allowed = allowed if forced is None else np.array([forced])
        if self._is_too_short:
            allowed = np.arange(len(logits.all())) if allowed is None else allowed
            going_on = np.setdiff1d(allowed, list(self.request.stop_ids))
            allowed = going_on if len(going_on) else allowed  # the grammar may be complete
        sampled = self._sampler.sample(logits, top=self.request.logprobs, allowed=allowed)
        if logits.found:  # which decided it
            share = len(logits.found.ids) / logits.found.vocab_size
            self.exact_head_tokens += 1
            self.exact_head_rows += (share - self.exact_head_rows) / self.exact_head_tokens
        return sampled

    def _next(self, logits: Logits, context: int) -> list[Piece]:
        request, matcher = self.request, self._matcher
        sampled = self._sample(logits)
        token = sampled.token
        assert token is not None, "a sampler chooses one"
        full = len(self.ids) >= context
        self.ids.append(token)
        if token in request.stop_ids:
            self.finish_reason = "stop"
        else:
            if matcher:
                matcher.accept(token)
            if self.tokens >= request.max_tokens:
                self.finish_reason = "length"
            elif full:
                self.finish_reason = "context"
        complete = matcher is not None and matcher.finished and self.finish_reason != "stop"
        if complete:
            self.finish_reason = None
        pieces = [replace(sampled, finish_reason=self.finish_reason)]
        if complete:
            self.finish_reason = "stop"
            pieces.append(Piece(None, finish_reason="stop"))
        return pieces


def plan_decoding(
    decoding: list[Sequence], drafter: Drafter | None, context: int, *, looking_up: bool
) -> None:
    """Have *decoding* sequences run their last ids and drafts, of their own texts or *drafter*."""
    room = max(0, DECODE_ROWS - len(decoding)) if looking_up or drafter else 0
    drafts = {}
    for sequence in decoding:
        most = min(room, context - len(sequence.ids)) if looking_up else 0
        drafts[sequence] = sequence.look_up(most)
        room -= len(drafts[sequence])
    if drafter:
        others = [sequence for sequence in decoding if not drafts[sequence]]
        drafts |= _foresee(drafter, others, room, context)
    for sequence, draft in drafts.items():
        sequence.plan_with_draft(draft)


def _foresee(
    drafter: Drafter, sequences: list[Sequence], room: int, context: int
) -> dict[Sequence, list[int]]:
    """Drafts of *drafter* for *sequences*; *room* tokens in all."""
    wanted: dict[Foresight, int] = {}
    owners: dict[Foresight, Sequence] = {}
    for sequence in sequences:
        most = min(room, sequence.draft_room, context - len(sequence.ids))
        if (its := sequence.foresight) and most > 0 and its.is_ready:
            owners[its], wanted[its] = sequence, min(most, its.length)
            room -= wanted[its]
    try:
        drafts = drafter.draft(wanted) if wanted else {}
    except MemoryError:
        for sequence in sequences:
            sequence.foresight = None  # the answer itself may have room
        return {}
    return {owners[its]: draft for its, draft in drafts.items()}


def run_together(model: Model, batch: list[Sequence]) -> list[Any]:
    """Run a pass of *batch*: the requested logits of each; hidden states for embeddings."""
    segments = [sequence.segment for sequence in batch if sequence.segment is not None]
    results: list[Any] = model.hidden(segments, [sequence.request.lora for sequence in batch])
    places = [at for at, sequence in enumerate(batch) if not sequence.request.embed]
    for at in places:
        sequence = batch[at]
        if (view := sequence.foresight) and view.reads_hidden and len(results[at]):
            sequence.hidden = sequence.start + len(segments[at].tokens), results[at]
            results[at] = results[at][-len(sequence.proposed) - 1 :]
    if places:
        hidden = np.concatenate([results[at] for at in places])
        needed = [batch[at].needs() for at in places]
        each = [need for at, need in zip(places, needed, strict=True) for _ in results[at]]
        logits = iter(model.head.logits(hidden, each))
        for at in places:
            results[at] = list(islice(logits, len(results[at])))
    return results


def cache_of(sequence: Sequence) -> KVCache:
    """The cache of *sequence*, which runs."""
    assert sequence.cache is not None, "a sequence that runs has a cache"
    return sequence.cache


def no_memory(sequence: Sequence, error: MemoryError) -> InferenceError:
    """The error of a sequence whose caches find no memory."""
    return InferenceError(
        f"not enough memory for {len(sequence.ids):,} positions: {error}",
        hint="shorten the prompt or lower --max-tokens",
    )


class Lookup:
    """Drafts for one sequence from its own text, as long as enough of them are accepted.

    A text that repeats itself (code, summaries, tables) often continues as it did where its last
    tokens occurred before.

    Attributes:
        limit: most tokens in a draft.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._ends: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        self._indexed = SHORTEST - 1  # positions before this one are in _ends
        self._length = min(limit, FIRST)
        self._failures = 0
        self._resume = 0  # length of the text from which to draft again
        self._owed = -FIRST_CREDIT  # passes that drafts lost, less those that they saved

    def draft(self, ids: list[int], room: int) -> list[int]:
        """Likely continuation of *ids*, the whole text so far: up to *room* tokens, often none."""
        self._index(ids)
        count = min(self._length, room)
        if len(ids) < max(self._resume, SHORTEST) or count < 1:
            return []
        at = self._best(ids)
        if at is None:
            return []
        # A text that repeats itself continues into its own draft.
        text = ids[at:]
        for place in range(count - len(text)):
            text.append(text[place])
        return text[:count]

    def report(self, length: int, *, drafted: int, accepted: int, price: float = 0.0) -> None:
        """Record that *accepted* of *drafted* tokens were accepted in a text of *length* tokens.

        *price* is the time of each drafted token, in passes without drafts.
        """
        if accepted == drafted:
            self._length = min(self.limit, 2 * self._length)
        else:
            self._length = min(self.limit, accepted + 1)
        self._failures = 0 if accepted else self._failures + 1
        pause = min(LONGEST_PAUSE, 2**self._failures) if self._failures > 1 else 0
        self._owed = max(-MOST_CREDIT, self._owed + price * drafted - accepted)
        if self._owed > 0:
            pause = max(pause, math.ceil(self._owed / MOST_LOST))
            self._owed = 0.0
        self._resume = length + pause

    def _index(self, ids: list[int]) -> None:
        # The last tokens themselves cannot be continued from.
        for end in range(self._indexed, len(ids)):
            if end >= SHORTEST:
                self._ends[tuple(ids[end - SHORTEST : end])].append(end)
        self._indexed = max(self._indexed, len(ids))

    def _best(self, ids: list[int]) -> int | None:
        """End of the longest earlier match of the end of *ids*; the latest of equal ones."""
        best, longest = None, 0
        for end in reversed(self._ends.get(tuple(ids[-SHORTEST:]), [])[-PLACES:]):
            agree = _agreement(ids, end)
            if agree > longest:
                best, longest = end, agree
        return best


def _agreement(ids: list[int], end: int) -> int:
    """Number of tokens before *end* that equal those at the end of *ids*."""
    count = SHORTEST
    while count < min(LONGEST, end) and ids[end - count - 1] == ids[-count - 1]:
        count += 1
    return count

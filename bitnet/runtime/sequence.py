"""One prompt and its answer as the scheduler runs them, and its part of a forward pass."""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import islice
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bitnet.base.errors import InferenceError, UsageError, is_panic
from bitnet.base.options import check_type
from bitnet.kernels.program import Segment
from bitnet.runtime.model_options import PRECISIONS, Precision
from bitnet.runtime.piece import FinishReason, Piece
from bitnet.runtime.prefix_cache import common_prefix
from bitnet.runtime.reasoning_budget import ReasoningBudget
from bitnet.runtime.sampling import Sampler

if TYPE_CHECKING:
    from collections import abc

    from numpy.typing import NDArray

    from bitnet.families.blocks import ModelConfig
    from bitnet.kernels.kv_cache import KVCache
    from bitnet.kernels.kv_codes import Array
    from bitnet.models.exact_head import Logits, Needed
    from bitnet.models.transformer import Model
    from bitnet.runtime.drafts import Drafter, Foresight
    from bitnet.runtime.request import Request
    from bitnet.runtime.text_ids import TokenIds

logger = logging.getLogger(__name__)

DECODE_ROWS = 16  # rows of the decode kernels; drafts beyond them are not worth it
WORTH_WAITING = 32  # prompt tokens worth copying after a pass instead of computing them in it


@dataclass(eq=False, repr=False)
class Sequence:
    """An answer in progress; :meth:`bitnet.runtime.scheduler.Scheduler.prepare` creates it."""

    ids: list[int]  # prompt and answer so far; the cache holds a prefix of them
    request: Request
    config: ModelConfig
    reused_tokens: int = 0  # ids of the prompt found in the KV cache
    passes: int = 0  # forward passes that it was part of
    drafted: int = 0  # tokens drafted, by lookup or by a drafter
    accepted: int = 0  # drafted tokens that the model accepted
    draft_gain: float | None = None  # speed of recent passes with a drafter over that without
    exact_head_tokens: int = 0  # tokens chosen without computing the whole output head
    exact_head_rows: float = 0.0  # share of the head's rows computed for them, 0 to 1
    exact_head_stopped: bool = False  # the exact head did not save time with this model
    finish_reason: FinishReason | None = None
    cancelled: bool = False  # set from any thread: it ends before the next pass
    deadline: float = math.inf  # ``time.monotonic`` after which it ends
    admitted_at: float | None = None  # ``time.perf_counter`` when it left the queue
    error: Exception | None = None  # the failure that ended it, if any
    pieces: deque[Piece] = field(default_factory=deque)  # pieces that Scheduler.run has not yielded
    foresight: Foresight | None = None  # the drafter's view of it, if there is a drafter
    # for a drafter that reads them: end position of the last pass, and its hidden states, (T, dim)
    hidden: tuple[int, Array] | None = None
    # pooled hidden states so far, (dim,), then the vector that the model makes of them
    embedding: NDArray[np.floating[Any]] | None = None
    cache: KVCache | None = None  # while it runs
    stored: KVCache | None = None  # the longest prefix that is in a file, until it runs
    segment: Segment | None = None  # its tokens in the next pass
    proposed: list[int] = field(default_factory=list)  # drafts, the last tokens of *segment*
    start: int = 0  # positions in the cache before the pass

    def __post_init__(self) -> None:
        self.prompt_tokens: int = len(self.ids)
        self.sampler: Sampler = Sampler(self.request, self.ids)
        rules = self.request.budget
        self._budget = None if rules is None else ReasoningBudget(rules)
        self._matcher = self.request.constraint.start() if self.request.constraint else None
        self._is_looked_up = False  # *proposed* is from its own text, not from a drafter

    @property
    def positions(self) -> int:
        """Cache positions it may need, regardless of the context length."""
        return self.prompt_tokens + (0 if self.request.embed else self.request.length_limit - 1)

    @property
    def decodes(self) -> bool:
        """True if its next pass runs its last id only; False in prefill, and if it is embedded."""
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
        """Most tokens of a draft: the model itself adds one more, within the length limit."""
        return max(0, self.request.length_limit - self.tokens - 1)

    def plan(self, tokens: list[int], proposed: list[int] | None = None) -> None:
        """Contribute *tokens*, which end with those *proposed*, to the next pass."""
        cache = cache_of(self)
        view = self.foresight
        self.proposed = proposed or []
        self.start = cache.length
        complete = cache.length + len(tokens) - len(self.proposed) == len(self.ids)
        outputs: Literal["none", "last", "all"] = "last" if complete else "none"
        pools_all = self.request.embed and self.config.pooling != "last"
        if self.proposed or pools_all or (complete and view and view.reads_hidden):
            outputs = "all"
        self.segment = Segment(tokens, cache, outputs, second=self.request.second)

    def plan_with_draft(self, draft: list[int], *, is_looked_up: bool) -> None:
        """Contribute the last id and *draft*, as far as it can follow the text.

        *is_looked_up*: it is from the text itself, not from a drafter. The vocabulary, the grammar
        and RoPE scaling may permit a beginning of it only.
        """
        self._is_looked_up = is_looked_up
        # A draft model may have more rows of padding than the model.
        outside = (at for at, token in enumerate(draft) if token >= self.config.vocab_size)
        del draft[next(outside, len(draft)) :]
        if draft and self._matcher:
            del draft[self._matcher.count_valid(draft) :]
        cache = cache_of(self)
        length = len(self.ids)
        # *reach* is the prompt length that selected the RoPE regime.
        regime = self.config.regime(max(cache.reach, length))
        while draft and self.config.regime(max(cache.reach, length + len(draft))) != regime:
            draft.pop()  # its RoPE frequencies would differ from those of the token before
        if draft:
            cache.mark()  # a state returns here if drafts are rejected
        self.plan([self.ids[-1], *draft], draft)

    def undo(self) -> None:
        """Undo a pass that failed; if that costs earlier positions, plan to run those again."""
        cache = cache_of(self)
        planned = self.segment
        cache.truncate(self.start)
        if cache.length == self.start or planned is None:
            return
        if self.request.embed:
            cache.truncate(0)  # hidden states were added up
            self.embedding = None
        end = self.start + len(planned.tokens) - len(self.proposed)
        self.plan(self.ids[cache.length : end])

    def start_over(self) -> None:
        """Forget everything that was computed; its ids are run again."""
        cache = cache_of(self)
        cache.truncate(0)
        cache.keep_truncatable_to(self.prompt_tokens - 1)
        self.reused_tokens = 0
        self.proposed = []
        self.segment = self.hidden = None

    def start_over_beyond_original_context(self) -> None:
        """Rerun an answer that crosses the original context length as a prompt of its length now.

        Long and short frequency factors do not mix (transformers does the same: Phi-3's
        ``prepare_inputs_for_generation``).
        """
        cache = cache_of(self)
        config = self.config
        length = len(self.ids)
        has_border = any(rope.long_freq_factors is not None for rope in config.ropes)
        if (
            has_border
            and length > cache.reach
            and config.regime(length) != config.regime(cache.reach)
        ):
            logger.info("beyond the original context: %d positions are run again", cache.length)
            cache.truncate(0)
            cache.reach = length

    def should_wait(self, ahead: list[Sequence]) -> bool:
        """True if a sequence *ahead* computes a prefix that this one can copy after the pass."""
        lora = self.request.lora
        regime = self.config.regime(cache_of(self).reach)
        alike = [
            sequence
            for sequence in ahead
            if sequence.request.lora == lora
            and self.config.regime(cache_of(sequence).reach) == regime
        ]
        shared = [
            (common_prefix(sequence.ids, self.ids), cache_of(sequence).length) for sequence in alike
        ]
        # What others have computed already was copied, or cannot be copied.
        coming = max((count for count, computed in shared if computed < count), default=0)
        return coming - cache_of(self).length >= WORTH_WAITING

    def needs(self) -> Needed | None:
        """Logits needed to choose the next tokens; ``None``: all of them."""
        if self.request.logprobs is not None or self._matcher or self._is_too_short:
            return None
        if self._budget is not None:
            return None  # the end of its reasoning may be forced
        return self.sampler.needs(self.proposed)

    def advance(
        self, logits: abc.Iterable[Logits], *, context: int, price: float = 0.0
    ) -> list[Piece]:
        """The token after the last id, and further ones while they equal those of the draft.

        *logits* are those after the last id and after each proposed token; *context* bounds the
        number of ids, *price* is what a drafted token costs, in tokens (:meth:`PassTimes.observe`).
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
        # Each source of drafts learns from its own.
        if draft and self._is_looked_up:
            self.sampler.report(len(self.ids), drafted=len(draft), accepted=accepted, price=price)
        elif draft and self.foresight:
            self.foresight.report(drafted=len(draft), accepted=accepted)
        if self.foresight and self.hidden:
            self.foresight.add(*self.hidden)
            self.hidden = None
        return pieces

    def add_hidden(self, states: NDArray[np.floating[Any]], model: Model) -> list[Piece]:
        """Pool *states*, ``(T, dim)``, of prompt ids; the final piece after the last of them.

        *model* makes the vector, or the scores, of the pooled states.
        """
        rows = states.astype(np.float64)
        if self.config.pooling == "last":
            self.embedding = rows[-1]
        elif self.config.pooling != "cls":
            share: NDArray[np.float64] = rows.sum(axis=0) / self.prompt_tokens
            self.embedding = share if self.embedding is None else self.embedding + share
        elif self.embedding is None:
            self.embedding = rows[0]
        if self.remaining:
            return []
        head = model.scores if self.request.scored else model.vector
        self.embedding = head(self.embedding)
        if not np.isfinite(self.embedding).all():
            error = InferenceError(
                "the model's hidden states are not finite numbers",
                hint="the weights are damaged: fetch the model again",
            )
            return [self.fail(error)]
        return [self._end("stop")]

    def vector(self, *, normalize: bool, dimensions: int | None) -> NDArray[np.float32]:
        """The first *dimensions* of its vector; see :meth:`LanguageModel.embed`."""
        assert self.embedding is not None, "a vector that is complete"
        vector = self.embedding[:dimensions]
        length = float(np.linalg.norm(vector)) if normalize else 1.0
        return (vector / (length or 1.0)).astype(np.float32)

    def scores(self) -> NDArray[np.floating[Any]]:
        """Score of each label of the model's classifier, ``(labels,)``."""
        assert self.embedding is not None, "scores that are complete"
        return self.embedding

    def fail(self, error: Exception) -> Piece:
        """End with *error*."""
        self.error = error
        return self._end("error")

    def _end(self, reason: FinishReason) -> Piece:
        self.finish_reason = reason
        return Piece(None, finish_reason=reason)

    @property
    def _is_too_short(self) -> bool:
        return self.tokens < self.request.min_tokens and bool(self.request.stop_ids)

    def _sample(self, logits: Logits) -> Piece:
        """The next token, one that the grammar, the reasoning budget and ``min_tokens`` allow."""
        allowed = self._matcher.next_ids() if self._matcher else None
        forced = None if self._budget is None else self._budget.next_token
        if forced is not None:
            allowed = np.array([forced])
        if self._is_too_short:
            allowed = np.arange(len(logits.all())) if allowed is None else allowed
            continuing = np.setdiff1d(allowed, list(self.request.stop_ids))
            allowed = continuing if len(continuing) else allowed  # the grammar may be complete
        sampled = self.sampler.sample(logits, top=self.request.logprobs, allowed=allowed)
        if logits.found:  # still set: the exact head decided it, and all() was not called
            share = len(logits.found.ids) / logits.found.vocab_size
            self.exact_head_tokens += 1
            self.exact_head_rows += (share - self.exact_head_rows) / self.exact_head_tokens
        return sampled

    def _next(self, logits: Logits, context: int) -> list[Piece]:
        """The next token as a piece, and a final piece if the token completes the grammar."""
        request = self.request
        matcher = self._matcher
        sampled = self._sample(logits)
        token = sampled.token
        assert token is not None, "a sampler chooses one"
        full = len(self.ids) >= context
        self.ids.append(token)
        if self._budget is not None:
            self._budget.add(token)
        if token in request.stop_ids:
            self.finish_reason = "stop"
        else:
            if matcher:
                matcher.accept(token)
            if self.tokens >= request.length_limit:
                self.finish_reason = "length"
            elif full:
                self.finish_reason = "context"
        if matcher is not None and matcher.finished and self.finish_reason != "stop":
            return [sampled, self._end("stop")]
        return [replace(sampled, finish_reason=self.finish_reason)]


def plan_decoding(
    decoding: list[Sequence], drafter: Drafter | None, context: int, *, looking_up: bool
) -> None:
    """Plan a pass of *decoding* sequences with drafts from their own texts or from *drafter*."""
    room = max(0, DECODE_ROWS - len(decoding)) if looking_up or drafter else 0
    drafts = {}
    for sequence in decoding:
        most = min(room, sequence.draft_room, context - len(sequence.ids)) if looking_up else 0
        drafts[sequence] = sequence.sampler.draft(sequence.ids, most)
        room -= len(drafts[sequence])
    looked_up = {sequence for sequence, draft in drafts.items() if draft}
    if drafter:
        undrafted = [sequence for sequence in decoding if not drafts[sequence]]
        drafts |= _foresee(drafter, undrafted, room, context)
    for sequence, draft in drafts.items():
        sequence.plan_with_draft(draft, is_looked_up=sequence in looked_up)


def _foresee(
    drafter: Drafter, sequences: list[Sequence], room: int, context: int
) -> dict[Sequence, list[int]]:
    """Drafts of *drafter* for *sequences*, at most *room* tokens in all; {} if it fails."""
    requested: dict[Foresight, int] = {}
    owners: dict[Foresight, Sequence] = {}
    for sequence in sequences:
        most = min(room, sequence.draft_room, context - len(sequence.ids))
        if (view := sequence.foresight) and most > 0 and view.is_ready:
            owners[view] = sequence
            requested[view] = min(most, view.length)
            room -= requested[view]
    try:
        drafts = drafter.draft(requested) if requested else {}
    except Exception as error:  # noqa: BLE001 - the answers themselves do not need it
        if not isinstance(error, MemoryError):
            logger.warning("the drafter failed, its answers go on without drafts: %s", error)
        for view in requested:
            view.cache.truncate(0)  # the drafter may have read part of a draft into it
        for sequence in sequences:
            sequence.foresight = None
        return {}
    return {owners[view]: draft for view, draft in drafts.items()}


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
        needed_by_row = [need for at, need in zip(places, needed, strict=True) for _ in results[at]]
        logits = iter(model.head.logits(hidden, needed_by_row))
        for at in places:
            results[at] = list(islice(logits, len(results[at])))
    return results


def cache_of(sequence: Sequence) -> KVCache:
    """The cache of *sequence*, which runs."""
    assert sequence.cache is not None, "a sequence that runs has a cache"
    return sequence.cache


def with_caches_read(running: list[Sequence]) -> list[Sequence]:
    """The *running* sequences whose caches are in memory, or were read from their files.

    If there is none, wait for the file of the first.
    """
    backings = [cache_of(sequence).backing for sequence in running]
    unread = [backing for backing in backings if backing is not None and not backing.is_read]
    if not unread:
        return running
    if len(unread) == len(running):
        unread[0].wait()
    return [
        sequence
        for sequence, backing in zip(running, backings, strict=True)
        if backing is None or backing.is_read
    ]


def no_memory(sequence: Sequence, error: MemoryError) -> InferenceError:
    """The error of a sequence whose caches find no memory."""
    reason = f": {error}" if str(error) else ""
    return InferenceError(
        f"not enough memory for {len(sequence.ids):,} positions{reason}",
        hint="shorten the prompt or lower --max-tokens",
    )


def check_vectors(dim: int, dimensions: int | None, precision: str = "float32") -> None:
    """Check the requested form of vectors that have *dim* dimensions, of which some are kept."""
    check_type("dimensions", dimensions, "a whole number or None", Integral, None)
    if dimensions is not None and not 1 <= dimensions <= dim:
        raise UsageError(
            f"{dimensions:,} dimensions, the vectors of this model have {dim:,}",
            hint="leave it out for whole vectors",
            field="dimensions",
        )
    if precision not in PRECISIONS:
        raise UsageError(
            f"{precision!r} is not a precision: {', '.join(PRECISIONS)}", field="precision"
        )
    count = dimensions or dim
    if precision.endswith("binary") and count % 8:
        # Fewer dimensions, or more if fewer than 8 were asked for of a longer vector.
        whole = count // 8 * 8 or (8 if dim >= 8 else 0)
        raise UsageError(
            f"{precision} packs 8 dimensions into a byte, {count:,} are not a multiple",
            hint=f"ask for {whole:,} dimensions" if whole else "choose another precision",
            field="precision",
        )


def round_vectors(vectors: NDArray[np.float32], precision: Precision) -> NDArray[Any]:
    """*vectors*, ``(N, dim)`` of 32 bits, in fewer; compare them by cosine similarity.

    ``int8`` and ``uint8`` scale each vector by its largest absolute value to -127..127, or to
    1..255 with zero at 128. Bits of ``ubinary`` tell which numbers are positive, the first one in
    the highest bit, 8 per byte; ``binary`` has the same bytes minus 128, as sentence-transformers.
    """
    if precision == "float32":
        return vectors
    if precision.endswith("binary"):
        bits = np.packbits(vectors > 0, axis=-1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    largest = np.abs(vectors).max(axis=-1, keepdims=True)
    whole = np.rint(vectors * (127 / np.where(largest > 0, largest, 1)))
    return (whole + 128).astype(np.uint8) if precision == "uint8" else whole.astype(np.int8)


def as_list(ids: TokenIds) -> list[int]:
    """*ids* as a list of Python's numbers, a new one."""
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)


def span_of(ids: TokenIds) -> tuple[int, int]:
    """The smallest and the largest of *ids*, of which there is at least one."""
    if isinstance(ids, np.ndarray):
        return int(ids.min()), int(ids.max())
    return min(ids), max(ids)

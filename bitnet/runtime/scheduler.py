"""Continuous batching: several sequences, one forward pass at a time.

A sequence is waiting, then running, then finished. Each step admits, plans and runs:

- admit: waiting sequences start in order of arrival, while fewer than ``max_batch`` run and the
  memory budget has room for their KV caches;
- plan: each decoding sequence contributes its last token and its drafts; prompts share one prefill
  chunk, the one with the fewest tokens left first, and a quarter of it for the oldest prompt: a
  long prompt delays the others for a bounded time only, and never stands still behind them;
- run: one forward pass; each sequence samples from its own logits and may finish.

The text of a sequence depends on nothing but itself: it has its own sampler, and the model's
results for a token do not depend on the rest of the batch.

Single-threaded: requests from several threads are handed over between steps.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bitnet.errors import InferenceError, UsageError
from bitnet.models.transformer import Segment
from bitnet.runtime.kv_cache import KVCache
from bitnet.runtime.prefix_cache import Lease, PrefixCache, common_prefix
from bitnet.runtime.request import Request
from bitnet.runtime.sequence import Sequence

if TYPE_CHECKING:
    from collections import abc

    from numpy.typing import DTypeLike

    from bitnet.models.transformer import Model
    from bitnet.runtime.piece import Piece

__all__ = ["PREFILL_CHUNK", "Scheduler", "Sequence"]

logger = logging.getLogger(__name__)

PREFILL_CHUNK = 256  # tokens: enough to keep the matrix products busy
MAX_STALL_S = 0.25  # a delay that readers of other answers hardly notice
SMALLEST_CHUNK = 16  # tokens: smaller passes are not faster
RESERVE_SHARE = 4  # a quarter of the prompt tokens of a pass is the oldest prompt's
WORTH_WAITING = 32  # prompt tokens worth copying after this pass instead of computing them in it
DECODE_ROWS = 16  # rows of the decode kernels; drafts beyond them are not worth it


@dataclass(frozen=True)
class _Part:
    """The tokens that one sequence contributes to a pass."""

    sequence: Sequence
    segment: Segment
    draft: list[int]
    start: int


class Scheduler:
    """Runs several sequences together.

    Attributes:
        model: the model that runs.
        context: positions a sequence may reach.
        max_batch: sequences that run at the same time; others wait.
        prefill_chunk: most prompt tokens in one pass.
        max_stall_s: seconds by which prompts may delay a pass while others decode.
        new_cache: creates an empty cache for one sequence.
    """

    def __init__(
        self,
        model: Model,
        *,
        context: int | None = None,
        max_batch: int = 8,
        prefill_chunk: int = PREFILL_CHUNK,
        max_stall_s: float = MAX_STALL_S,
        kv_budget_bytes: int | None = None,
        cache_dtype: DTypeLike = np.int16,
    ) -> None:
        """A scheduler for *model*.

        Args:
            model: the model to run.
            context: positions a sequence may reach; the model's own length by default.
            max_batch: sequences that run at the same time, at least one; also the number of caches
                kept for later prompts.
            prefill_chunk: most prompt tokens in one pass, at least one.
            max_stall_s: seconds by which prompts may delay a pass while others decode; measured,
                and observed by reducing the chunk.
            kv_budget_bytes: memory of all KV caches; a sequence waits until its prompt and the
                longest answer it may generate fit. ``None``: unlimited.
            cache_dtype: of keys and values, as of a :class:`KVCache`.

        Raises:
            UsageError: a number is out of its range, or the context longer than the model
                supports.
        """
        limit = model.config.context_length
        stretches = any(rope.scaling == "dynamic" for rope in model.config.ropes)
        if context is not None and context > limit and not stretches:
            raise UsageError(
                f"a context of {context:,} positions, the model was made for {limit:,}",
                hint=f"--context {limit}",
            )
        for name, value in (("max_batch", max_batch), ("prefill_chunk", prefill_chunk)):
            if value < 1:
                raise UsageError(f"{name} is {value}, expected at least 1", field=name)
        self.model = model
        self.context = limit if context is None else context
        self.max_batch = max_batch
        self.prefill_chunk = prefill_chunk
        self.max_stall_s = max_stall_s
        self._prefill_token_s = 0.0  # of recent passes with prompts
        # Not a method: with a way back here, the model would stay until the garbage collector runs.
        self.new_cache = partial(KVCache, model.config, self.context, dtype=cache_dtype)
        self._caches = PrefixCache(
            self.new_cache,
            slots=max_batch,
            budget_bytes=kv_budget_bytes,
            step=prefill_chunk,
            regime=model.config.regime,
        )
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    def step(self) -> list[tuple[Sequence, Piece]]:
        """Run one forward pass; the pieces that the sequences generated.

        A sequence that fails ends with a piece that reports it; the others continue.
        """
        pieces = self._admit()
        parts = self._plan()
        if parts:
            pieces += self._run(parts)
        for sequence in [one for one in self._running if one.finish_reason]:
            self._leave(sequence)
        return pieces

    def _admit(self) -> list[tuple[Sequence, Piece]]:
        """Move waiting sequences to running, in order of arrival, while they fit."""
        while self._waiting and len(self._running) < self.max_batch:
            sequence = self._waiting[0]
            try:
                sequence.lease = self._caches.lease(
                    sequence.ids, self._positions(sequence), reuse=not sequence.request.embed
                )
            except MemoryError as error:
                if self._caches.drop_idle():
                    continue
                self._waiting.popleft()
                return [(sequence, sequence.fail(_no_memory(sequence, error)))]
            if sequence.lease is None:
                break
            self._running.append(self._waiting.popleft())
            sequence.admitted_at = time.perf_counter()
            sequence.reused = sequence.lease.cache.length
            logger.debug("%d sequences run, %d wait", len(self._running), len(self._waiting))
        return []

    def _plan(self) -> list[_Part]:
        """Parts of the next pass: last tokens and drafts of decoding sequences, a prefill chunk."""
        for sequence in self._running:
            self._start_over_beyond_border(sequence)
        decoding = [sequence for sequence in self._running if sequence.decodes]
        spare = max(0, DECODE_ROWS - len(decoding))
        parts = []
        for sequence in decoding:
            draft = sequence.draft(min(spare, self.context - len(sequence.ids)))
            reach, regime = _lease(sequence).cache.reach, self.model.config.regime
            while draft and regime(max(reach, len(sequence.ids) + len(draft))) != regime(
                max(reach, len(sequence.ids))
            ):
                draft.pop()  # its RoPE frequencies would differ from those of the token before
            if draft:
                _lease(sequence).cache.mark()  # a state returns here if drafts are rejected
            spare -= len(draft)
            parts.append(_part(sequence, [sequence.ids[-1], *draft], draft))
        return parts + self._prefills(self._chunk() if decoding else self.prefill_chunk)

    def _prefills(self, room: int) -> list[_Part]:
        """Next chunks of the prompts that are not in a cache yet, *room* tokens in all.

        The prompt with the fewest tokens left comes first, so that short ones are answered within
        a pass or two; of the room, the sequence that came first has its reserve, so that a long
        prompt never stands still behind short ones.
        """
        prompts = [sequence for sequence in self._running if not sequence.decodes]
        parts: list[_Part] = []
        reserve = -(-room // RESERVE_SHARE)
        for sequence in sorted(prompts, key=lambda one: one.left):
            if sequence is prompts[0]:
                reserve = 0  # it takes it now
            if not (sequence.passes or sequence.request.embed):
                # Even without room: with a window, pages that can be copied now are soon freed.
                sequence.reused = self._caches.improve(_lease(sequence))
                if _should_wait(sequence, [part.sequence for part in parts]):
                    continue
            if room <= reserve:
                continue
            start = _lease(sequence).cache.length
            # With bidirectional attention a text is run as a whole.
            whole = not self.model.config.causal
            end = None if whole else start + room - reserve
            chunk = sequence.ids[start:end]
            stop = _lease(sequence).cache.next_stop
            if stop is not None:
                chunk = chunk[: stop - start]
            room = max(reserve, room - len(chunk))
            parts.append(_part(sequence, chunk, []))
        return parts

    def _run(self, parts: list[_Part]) -> list[tuple[Sequence, Piece]]:
        """Run one pass and advance its sequences."""
        started = time.perf_counter()
        try:
            results = self._pass(parts)
        except BaseException as error:
            for part in parts:
                _return_to_start(part)
            if isinstance(error, MemoryError):
                return self._without_memory(parts, error)
            if not isinstance(error, Exception):
                raise
            return self._one_by_one(parts, error)
        self._observe(parts, time.perf_counter() - started)
        pieces = []
        for part, rows in zip(parts, results, strict=True):
            sequence = part.sequence
            sequence.passes += 1
            sequence.exact_head_stopped = self.model.head.stopped
            if part.segment.outputs == "none":
                continue
            if sequence.request.embed:
                pieces += [(sequence, piece) for piece in sequence.add_hidden(rows)]
                continue
            written = sequence.advance(rows, part.draft, context=self.context)
            if part.draft:
                # The last token has not been run, and rejected drafts have to be removed.
                _lease(sequence).cache.truncate(len(sequence.ids) - 1)
            pieces += [(sequence, piece) for piece in written]
        return pieces

    @property
    def busy(self) -> bool:
        """True if :meth:`step` has something to do."""
        return bool(self._waiting or self._running)

    @property
    def waiting(self) -> int:
        """Number of sequences that wait for room."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of running sequences."""
        return len(self._running)

    @property
    def kv_bytes(self) -> int:
        """Bytes counted for running sequences and kept caches."""
        return self._caches.size_bytes

    def submit(self, ids: abc.Sequence[int], request: Request | None = None) -> Sequence:
        """Queue the continuation of *ids*.

        Raises:
            UsageError: *ids* is empty, or an id or a biased id is outside the vocabulary.
            InferenceError: *ids* is longer than the context, or the budget is too small for it and
                the longest answer it may generate.
        """
        sequence = self.prepare(ids, request)
        self.queue(sequence)
        return sequence

    def prepare(self, ids: abc.Sequence[int], request: Request | None = None) -> Sequence:
        """The sequence that continues *ids*, not queued yet.

        Raises:
            UsageError: as :meth:`submit`.
            InferenceError: as :meth:`submit`.
        """
        request = request or Request()
        self.check(ids)
        size = self.model.config.vocab_size
        outside = [token for token in request.sampling.logit_bias if not 0 <= token < size]
        if outside:
            raise UsageError(
                f"logit bias for token id {outside[0]}, the vocabulary has {size:,}",
                hint="use the model's own tokenizer",
            )
        sequence = Sequence(ids, request, self.model.config.pooling)
        self._check_budget(sequence)
        return sequence

    def queue(self, sequence: Sequence) -> None:
        """Run *sequence*, from :meth:`prepare`, as soon as there is room."""
        self._waiting.append(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """End *sequence* in any state; a finished one is unchanged."""
        if sequence.finish_reason:
            return
        sequence.finish_reason = "cancelled"
        if sequence in self._running:
            self._leave(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def reusable(self, ids: abc.Sequence[int]) -> int:
        """Number of leading *ids* that need not be run again."""
        return self._caches.best(list(ids))[1]

    def forget(self) -> None:
        """Free the caches that no sequence uses."""
        self._caches.drop_idle()

    def cost(self, positions: int) -> int:
        """Bytes of keys and values that a sequence of *positions* takes at most."""
        return self._caches.cost(positions)

    def affordable(self, size_bytes: int) -> int:
        """Positions that a sequence may have within *size_bytes* of keys and values."""
        return min(self.context, self._caches.affordable(size_bytes))

    def check(self, ids: abc.Sequence[int]) -> None:
        """Check a prompt.

        Raises:
            UsageError: *ids* is empty, or holds an id outside the vocabulary.
            InferenceError: *ids* is longer than the context.
        """
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

    def _check_budget(self, sequence: Sequence) -> None:
        budget, needed = self._caches.budget_bytes, self._caches.cost(self._positions(sequence))
        if budget is not None and needed > budget:
            raise InferenceError(
                f"{sequence.prompt_tokens:,} tokens of prompt and {sequence.request.max_tokens:,} "
                f"of answer take {needed:,} bytes of keys and values, the budget is {budget:,}",
                hint="shorten the prompt or lower --max-tokens",
            )

    def _positions(self, sequence: Sequence) -> int:
        return min(self.context, sequence.positions)

    def _start_over_beyond_border(self, sequence: Sequence) -> None:
        """Rerun an answer that crosses the original context length, as a prompt of that length.

        Long and short frequency factors do not mix (transformers does the same: Phi-3's
        ``prepare_inputs_for_generation``).
        """
        cache, config = _lease(sequence).cache, self.model.config
        borders = any(rope.long_freq_factors is not None for rope in config.ropes)
        if not borders or len(sequence.ids) <= cache.reach:
            return
        if config.regime(len(sequence.ids)) != config.regime(cache.reach):
            logger.info("beyond the original context: %d positions are run again", cache.length)
            cache.truncate(0)
            cache.reach = len(sequence.ids)

    def _chunk(self) -> int:
        """Prompt tokens per pass while other sequences decode."""
        if not self._prefill_token_s:
            return min(self.prefill_chunk, SMALLEST_CHUNK)
        affordable = int(self.max_stall_s / self._prefill_token_s)
        return min(self.prefill_chunk, max(SMALLEST_CHUNK, affordable))

    def _pass(self, parts: list[_Part]) -> list[Any]:
        """Logits of the requested tokens of each part; hidden states for embeddings."""
        segments = [part.segment for part in parts]
        results: list[Any] = self.model.hidden(segments)
        places = [at for at, part in enumerate(parts) if not part.sequence.request.embed]
        if places:
            hidden = np.concatenate([results[at] for at in places])
            needed = [parts[at].sequence.needed(parts[at].draft) for at in places]
            each = [one for at, one in zip(places, needed, strict=True) for _ in results[at]]
            logits = iter(self.model.head.logits(hidden, each))
            for at in places:
                results[at] = list(islice(logits, len(results[at])))
        return results

    def _one_by_one(self, parts: list[_Part], error: Exception) -> list[tuple[Sequence, Piece]]:
        """Run the pass again for each sequence alone, so that only the failing one is affected."""
        if len(parts) > 1:
            return [piece for part in parts for piece in self._run([_repeated(part)])]
        sequence = parts[0].sequence
        return [(sequence, sequence.fail(error))]

    def _observe(self, parts: list[_Part], passed_s: float) -> None:
        """Update the measured time per prompt token; decoding tokens in the pass are included."""
        chunks = [part for part in parts if len(part.segment.tokens) > 1 + len(part.draft)]
        tokens = sum(len(part.segment.tokens) for part in chunks)
        if tokens >= SMALLEST_CHUNK:
            known = self._prefill_token_s or passed_s / tokens
            self._prefill_token_s = (known + passed_s / tokens) / 2

    def _without_memory(
        self, parts: list[_Part], error: MemoryError
    ) -> list[tuple[Sequence, Piece]]:
        """Free memory for another try; as a last resort, fail the sequence that came last."""
        if self._caches.drop_idle():
            return []
        sequence = max((part.sequence for part in parts), key=self._running.index)
        return [(sequence, sequence.fail(_no_memory(sequence, error)))]

    def _leave(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._caches.release(_lease(sequence), keep=sequence.finish_reason != "error")
        sequence.lease = None


def _part(sequence: Sequence, tokens: list[int], draft: list[int]) -> _Part:
    cache = _lease(sequence).cache
    complete = cache.length + len(tokens) - len(draft) == len(sequence.ids)
    outputs: Literal["none", "last", "all"] = "none"
    if draft or (sequence.request.embed and not sequence.pools_last):
        outputs = "all"
    elif complete:
        outputs = "last"
    return _Part(sequence, Segment(tokens, cache, outputs), draft, cache.length)


def _return_to_start(part: _Part) -> None:
    """Undo a pass that failed; what cannot be undone exactly will be run again."""
    cache = _lease(part.sequence).cache
    cache.truncate(part.start)
    if cache.length < part.start and part.sequence.request.embed:
        cache.truncate(0)  # hidden states were added up
        part.sequence.embedding = None


def _repeated(part: _Part) -> _Part:
    """*part* once more, after :func:`_return_to_start`."""
    start = _lease(part.sequence).cache.length
    if start == part.start:
        return part
    end = part.start + len(part.segment.tokens) - len(part.draft)
    return _part(part.sequence, part.sequence.ids[start:end], [])


def _lease(sequence: Sequence) -> Lease:
    assert sequence.lease is not None, "a sequence that runs has a cache"
    return sequence.lease


def _should_wait(sequence: Sequence, ahead: list[Sequence]) -> bool:
    """True if a sequence in *ahead* computes in this pass a prefix that *sequence* can copy."""
    shared = [(common_prefix(one.ids, sequence.ids), _lease(one).cache.length) for one in ahead]
    # What it has computed already was copied, or cannot be.
    to_come = max((count for count, computed in shared if computed < count), default=0)
    return to_come - _lease(sequence).cache.length >= WORTH_WAITING


def _no_memory(sequence: Sequence, error: MemoryError) -> InferenceError:
    return InferenceError(
        f"not enough memory for {len(sequence.ids):,} positions: {error}",
        hint="shorten the prompt or lower --max-tokens",
    )

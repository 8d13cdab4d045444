"""Continuous batching: several sequences, one forward pass at a time.

A sequence is waiting, then running, then finished. :meth:`Scheduler.step` is the policy:

1. *expire*: sequences that are cancelled, or whose time is over, end.
2. *admit*: waiting sequences start in order of arrival, while fewer than ``max_batch`` run and the
   memory budget has room for their KV caches (**bounds**); what another sequence computed of their
   prompt is copied (**prefix reuse**).
3. *schedule*: each decoding sequence contributes its last token and its **drafts**; prompts share
   one prefill chunk, the one with the fewest tokens left first, and a quarter of it is reserved for
   the oldest prompt (**fairness**): a long prompt delays the others for a bounded time only, and
   never waits for all of them.
4. *run*: one forward pass.
5. *postprocess*: each sequence samples from its own logits and may finish.

The text of a sequence depends on nothing but itself: it has its own sampler, and the model's
results for a token do not depend on the rest of the batch.

:meth:`Scheduler.step` belongs to one thread; :meth:`Scheduler.run` takes a lock for each step, so
several threads may use it. In a forked child, the sequences of the parent are dropped.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InferenceError, TooLong, UsageError
from bitnet.base.locks import renew_in_child
from bitnet.kernels.kv_cache import KVCache
from bitnet.runtime.drafts import Drafter, Pace
from bitnet.runtime.pass_times import PassTimes
from bitnet.runtime.piece import Piece
from bitnet.runtime.prefix_cache import PrefixCache
from bitnet.runtime.request import Request
from bitnet.runtime.sequence import (
    Sequence,
    as_list,
    cache_of,
    no_memory,
    plan_decoding,
    run_together,
    span_of,
    with_caches_read,
)

if TYPE_CHECKING:
    from collections import abc
    from collections.abc import Iterator

    from numpy.typing import DTypeLike, NDArray

    from bitnet.models.transformer import Model
    from bitnet.runtime.piece import FinishReason
    from bitnet.runtime.prompt_cache import PromptCache
    from bitnet.runtime.text_ids import TokenIds

    Pieces = list[tuple[Sequence, Piece]]

logger = logging.getLogger(__name__)

PREFILL_CHUNK = 256  # tokens: enough to keep the matrix products busy
MAX_STALL_S = 0.15  # prompts may prolong a pass by this; readers hardly notice such a pause
RESERVE_SHARE = 4  # a quarter of the prompt tokens of a pass is the oldest prompt's


class Scheduler:
    """Runs several sequences together."""

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
        draft_model: Model | None = None,
        prompt_cache: PromptCache | None = None,
    ) -> None:
        """A scheduler for *model*, with *max_batch* caches.

        Caches are of running sequences, or kept for later prompts. All together take at most
        *kv_budget_bytes*: a sequence waits until its prompt and the longest answer it may generate
        fit; ``None``: unlimited. They have keys and values of *cache_dtype*, as :class:`KVCache`.
        *draft_model*, a smaller model with the same vocabulary, drafts tokens. *prompt_cache*
        stores what is computed of prompts, and is searched for each new one.
        """
        limit = model.config.context_length
        stretches = any(rope.scaling == "dynamic" for rope in model.config.ropes)
        if context is not None and context > limit and not stretches:
            raise UsageError(
                f"a context of {context:,} positions, the model was made for {limit:,}",
                hint=f"--context {limit}",
            )
        if min(max_batch, prefill_chunk) < 1:
            sizes = f"max_batch is {max_batch}, prefill_chunk {prefill_chunk}"
            raise UsageError(f"{sizes}, expected at least 1", field="max_batch")
        self.model = model
        self.context: int = limit if context is None else context  # positions of a sequence
        self.prompt_cache = prompt_cache
        self.max_batch = max_batch  # sequences that run at the same time; others wait
        self.prefill_chunk = prefill_chunk  # most prompt tokens in one pass
        self._times = PassTimes(max_stall_s)
        self._drafter: Drafter | None = None
        if draft_model or model.config.drafter:
            is_block = draft_model is None
            self._drafter = Drafter(draft_model or model, chunk=prefill_chunk, is_block=is_block)
        config = replace(model.config, drafter=self._drafter.config if self._drafter else None)
        self._pace = Pace()
        self._kv_budget_bytes = kv_budget_bytes
        # Not a method: a reference cycle would keep the model until the garbage collector runs.
        self.new_cache: partial[KVCache] = partial(KVCache, config, self.context, dtype=cache_dtype)
        self._begin()
        renew_in_child(self, Scheduler._renew)

    def _begin(self) -> None:
        """Start without any sequence or cache."""
        self.waiting: deque[Sequence] = deque()  # in order of arrival
        self.running: list[Sequence] = []  # with a cache
        self._process = os.getpid()
        self._lock = threading.Lock()
        self.caches: PrefixCache = PrefixCache(
            self.new_cache,
            slots=self.max_batch,
            budget_bytes=self._kv_budget_bytes,
            step=self.prefill_chunk,
            regime=self.model.config.regime,
        )

    def _renew(self) -> None:
        """In a forked child: drop the parent's sequences, and a pass that the fork cut off."""
        if self.busy or self._lock.locked():
            self._begin()

    # --- the policy ------------------------------------------------------------------------------

    def step(self) -> Pieces:
        """Run one forward pass; the pieces that the sequences generated.

        A sequence that fails ends with a piece that reports it; the others continue.
        """
        pieces = self._expire() + self._admit()
        with self._measure_drafts():
            batch = self._schedule()
            pieces += self._run(batch)
        for sequence in [sequence for sequence in self.running if sequence.finish_reason]:
            self._leave(sequence)
        return pieces

    def _expire(self) -> Pieces:
        """End sequences that are cancelled or past their deadline."""
        now = time.monotonic()
        pieces = []
        for sequence in [*self.running, *self.waiting]:
            if sequence.cancelled or now > sequence.deadline:
                self.cancel(sequence, "cancelled" if sequence.cancelled else "deadline")
                pieces.append((sequence, Piece(None, finish_reason=sequence.finish_reason)))
        return pieces

    def _admit(self) -> Pieces:
        """Move waiting sequences to running, in order of arrival, while they fit."""
        while self.waiting and len(self.running) < self.max_batch:
            sequence = self.waiting[0]
            try:
                cache = self.caches.acquire(
                    sequence.ids,
                    min(self.context, sequence.positions),
                    reuse=self.model.config.looks_back and not sequence.request.embed,
                    adapter=sequence.request.lora,
                    stored=sequence.stored,
                )
            except MemoryError as error:
                if self.caches.drop_idle():
                    continue
                self.waiting.popleft()
                return [(sequence, sequence.fail(no_memory(sequence, error)))]
            if cache is None:
                break  # until another sequence ends
            self.running.append(self.waiting.popleft())
            sequence.admitted_at = time.perf_counter()
            sequence.cache = cache
            sequence.reused_tokens = cache.length
            if cache is sequence.stored and cache.backing is not None:
                cache.backing.begin()  # reads the file, and compares its checksums
            sequence.stored = None
            if self._drafter and cache.drafter and not sequence.request.embed:
                sequence.foresight = self._drafter.foresight(sequence.ids, cache.drafter)
            logger.debug("%d sequences run, %d wait", len(self.running), len(self.waiting))
        return []

    def _schedule(self) -> list[Sequence]:
        """Plan the next pass: last ids and drafts of decoding sequences, and a prefill chunk."""
        for sequence in self.running:
            sequence.start_over_beyond_original_context()
        ready = with_caches_read(self.running)
        decoding = [sequence for sequence in ready if sequence.decodes]
        drafter = self._drafter if self._pace.drafting else None
        # What drafts cost is known only beside the time of a pass without any: until one of this
        # number of sequences was timed, no draft is looked up, and this pass gives that time. With
        # attention in both directions, a token would see the drafts after it; such models have no
        # drafter.
        looking_up = self._times.has_undrafted(len(decoding)) and self.model.config.looks_back
        plan_decoding(decoding, drafter, self.context, looking_up=looking_up)
        prompts = [sequence for sequence in ready if not sequence.decodes]
        room = self._times.prompt_tokens(self.prefill_chunk) if decoding else self.prefill_chunk
        return decoding + self._prefill(prompts, room)

    def _prefill(self, prompts: list[Sequence], room: int) -> list[Sequence]:
        """Plan the next chunks of *prompts* that are not in a cache yet, *room* tokens in all.

        The prompt with the fewest tokens left comes first, so that short ones are answered within
        a pass or two. A reserve of the room belongs to the prompt that came first, so that a long
        one never waits for all short ones.
        """
        planned: list[Sequence] = []
        reserve = math.ceil(room / RESERVE_SHARE)  # tokens that only the oldest prompt may take
        for sequence in sorted(prompts, key=lambda sequence: sequence.remaining):
            cache = cache_of(sequence)
            if sequence is prompts[0]:
                reserve = 0  # this is the oldest one
            looks_back = self.model.config.looks_back
            if looks_back and not (sequence.passes or sequence.request.embed):
                # Even without room: with a window, pages that can be copied now are soon freed.
                sequence.reused_tokens = self.caches.improve(cache)
                if sequence.should_wait(planned):
                    continue
            if room <= reserve:
                continue
            start = cache.length
            # With attention in both directions the whole prompt is run in one pass. An answer that
            # is run again then takes one pass per token, since no token may see later ones.
            end = sequence.prompt_tokens if start < sequence.prompt_tokens else start + 1
            if looks_back:
                end = start + room - reserve
            if cache.next_stop is not None:  # a state is saved there
                end = min(end, cache.next_stop)
            chunk = sequence.ids[start:end]
            room = max(reserve, room - len(chunk))
            sequence.plan(chunk)
            planned.append(sequence)
        return planned

    def _run(self, batch: list[Sequence]) -> Pieces:
        """Run one pass and advance its sequences; after a failure, run them one by one."""
        if not batch:
            return []
        started = time.perf_counter()
        try:
            results = run_together(self.model, batch)
        except BaseException as error:
            for sequence in batch:
                sequence.undo()
            if isinstance(error, MemoryError):
                return self._without_memory(batch, error)
            if not isinstance(error, Exception):
                raise
            if len(batch) > 1:  # so that only the failing one is affected
                return [piece for sequence in batch for piece in self._run([sequence])]
            if self._drop_damaged(batch[0]):
                return []
            return [(batch[0], batch[0].fail(error))]
        for at, sequence in enumerate(batch):
            if self._drop_damaged(sequence):
                results[at] = []
        price = self._times.observe(batch, time.perf_counter() - started)
        return self._postprocess(batch, results, price)

    def _drop_damaged(self, sequence: Sequence) -> bool:
        """True if the cache of *sequence* has pages of a damaged file; it then starts over."""
        backing = cache_of(sequence).backing
        if backing is None:
            return False
        problem = backing.problem()
        if not problem:
            return False
        # Another process may have replaced the file by one that is right.
        if self.prompt_cache is not None and not backing.is_replaced:
            self.prompt_cache.discard(backing.path, problem)
        sequence.start_over()
        return True

    def _postprocess(self, batch: list[Sequence], results: list[Any], price: float) -> Pieces:
        """Sample the next tokens of each sequence, and remove rejected drafts from its cache."""
        pieces: Pieces = []
        for sequence, rows in zip(batch, results, strict=True):
            sequence.passes += 1
            sequence.exact_head_stopped = self.model.head.stopped
            if not len(rows):  # within its prompt, or starting over
                continue
            if sequence.request.embed:
                pieces += [(sequence, piece) for piece in sequence.add_hidden(rows, self.model)]
                continue
            new = sequence.advance(rows, context=self.context, price=price)
            pieces += [(sequence, piece) for piece in new]
            if sequence.proposed:
                # The last token has not been run, and rejected drafts have to be removed.
                cache_of(sequence).truncate(len(sequence.ids) - 1)
        return pieces

    @property
    def busy(self) -> bool:
        """True if :meth:`step` has something to do."""
        return bool(self.waiting or self.running)

    def submit(self, ids: TokenIds, request: Request | None = None) -> Sequence:
        """Queue the continuation of *ids*."""
        sequence = self.prepare(ids, request)
        self.queue(sequence)
        return sequence

    def prepare(self, ids: TokenIds, request: Request | None = None) -> Sequence:
        """The sequence that continues *ids*, not queued yet; from any thread."""
        request = request or Request()
        self.check(ids, field="input" if request.embed else "prompt")
        size = self.model.config.vocab_size
        outside = [token for token in request.logit_bias if not 0 <= token < size]
        if outside:
            raise UsageError(
                f"logit bias for token id {outside[0]}, the vocabulary has {size:,}",
                hint="use the model's own tokenizer",
                field="logit_bias",
            )
        if request.lora not in {"", *self.model.adapters}:
            raise UsageError(f"there is no adapter {request.lora[:80]!r}", field="lora")
        sequence = Sequence(as_list(ids), request, self.model.config)
        if self.prompt_cache is not None and not request.embed:
            sequence.stored = self.prompt_cache.find(
                sequence.ids, request.lora, self.new_cache, self.model.config.regime
            )
        budget = self.caches.budget_bytes
        needed = self.caches.cost(min(self.context, sequence.positions))
        if budget is not None and needed > budget:
            count = f"{sequence.prompt_tokens:,} tokens"
            tokens = f"{count} of prompt and {request.length_limit:,} of answer"
            hint = "shorten the prompt or lower --max-tokens"
            if request.embed:  # it has no answer
                tokens = f"{count} of input"
                hint = "shorten the input"
            raise TooLong(
                f"{tokens} take {needed:,} bytes of keys and values, the budget is {budget:,}",
                hint=hint,
            )
        return sequence

    def queue(self, sequence: Sequence) -> None:
        """Run *sequence*, from :meth:`prepare`, as soon as there is room."""
        self.waiting.append(sequence)

    def cancel(self, sequence: Sequence, reason: FinishReason = "cancelled") -> None:
        """End *sequence* in any state; a finished one is unchanged."""
        if sequence.finish_reason:
            return
        sequence.finish_reason = reason
        if sequence in self.running:
            self._leave(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def generate(self, ids: TokenIds, request: Request | None = None) -> abc.Generator[Piece]:
        """The continuation of *ids*, piece by piece, from any thread; see :meth:`run`."""
        return self.run(self.prepare(ids, request))

    def run(self, sequence: Sequence) -> abc.Generator[Piece]:
        """The pieces of *sequence*, from :meth:`prepare`; closing the iterator cancels it."""
        process = self._process
        with self._lock:
            self.queue(sequence)
        try:
            while True:
                while not sequence.pieces:
                    if process != self._process:
                        raise InferenceError(
                            "this answer was begun before the process was forked, and goes on in "
                            "the parent alone",
                            hint="start the answer in the child",
                        )
                    with self._lock:
                        # Another thread may have run this sequence while this one waited.
                        if not sequence.pieces:
                            for writer, piece in self.step():
                                writer.pieces.append(piece)
                piece = sequence.pieces.popleft()
                if piece.finish_reason == "error" and sequence.error:
                    raise sequence.error
                yield piece
                if piece.finish_reason:
                    return
        finally:
            with self._lock:
                if process == self._process:
                    self.cancel(sequence)

    def logits(self, ids: abc.Sequence[int]) -> NDArray[np.floating[Any]]:
        """Logits at every position of *ids*, ``(T, vocab_size)``; the caches are not changed."""
        self.check(ids)
        cache = self.new_cache()
        cache.reach = len(ids)  # the prompt length that selects the RoPE regime
        chunk = self.prefill_chunk if self.model.config.looks_back else len(ids)
        with self._lock:
            parts = [
                self.model.forward(ids[at : at + chunk], cache, all_positions=True)
                for at in range(0, len(ids), chunk)
            ]
        return np.concatenate(parts)

    def forget(self) -> None:
        """Free the caches that no sequence uses."""
        with self._lock:
            self.caches.drop_idle()

    def check(self, ids: TokenIds, *, field: str = "prompt") -> None:
        """Check a prompt, which clients call *field*."""
        size = self.model.config.vocab_size
        if not len(ids):
            raise UsageError(f"the {field} has no tokens", hint="pass some text", field=field)
        if len(ids) > self.context:
            raise TooLong(
                f"the {field} has {len(ids):,} tokens, the context holds {self.context:,}",
                hint="shorten the prompt or raise the context size",
            )
        smallest, largest = span_of(ids)
        if smallest < 0 or largest >= size:
            raise UsageError(
                f"the {field} has token ids outside the model's vocabulary of {size:,}",
                hint="use the model's own tokenizer, without its tokens that have no embedding",
                field=field,
            )

    @contextmanager
    def _measure_drafts(self) -> Iterator[None]:
        """Report the time and the tokens of the pass in this context to :class:`Pace`.

        Passes that read a prompt are left out: they take longer with drafts or without.
        """
        if self._drafter is None:
            yield
            return
        sequences = list(self.running)
        has_prompts = {sequence: not sequence.tokens for sequence in sequences}
        passes = {sequence: sequence.passes for sequence in sequences}
        tokens_before = sum(sequence.tokens for sequence in sequences)
        # A pass before which the drafter reads a whole prompt is longer than those that follow.
        is_steady = not any(
            sequence.foresight and sequence.foresight.is_behind for sequence in sequences
        )
        started = time.perf_counter()
        yield
        passed_s = time.perf_counter() - started

        ran = [sequence for sequence in sequences if sequence.passes > passes[sequence]]
        if ran and not any(has_prompts[sequence] for sequence in ran):
            tokens = sum(sequence.tokens for sequence in sequences)
            self._pace.observe(tokens - tokens_before, passed_s, steady=is_steady)
        for sequence in ran:
            sequence.draft_gain = self._pace.gain

    def _without_memory(self, batch: list[Sequence], error: MemoryError) -> Pieces:
        """Free idle caches, so that the pass can be repeated; else fail the newest sequence."""
        if self.caches.drop_idle():
            return []
        sequence = max(batch, key=self.running.index)
        return [(sequence, sequence.fail(no_memory(sequence, error)))]

    def _leave(self, sequence: Sequence) -> None:
        """End the run of *sequence*; its cache serves later prompts, unless it failed."""
        self.running.remove(sequence)
        cache = cache_of(sequence)
        self.caches.release(cache, keep=sequence.finish_reason != "error")
        is_kept = cache in self.caches
        if is_kept and not sequence.request.embed and self.prompt_cache is not None:
            self.prompt_cache.offer(cache, self.new_cache)
        sequence.cache = None
        sequence.segment = None

"""Generation for one sequence at a time: the scheduler with a batch of one."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.errors import InferenceError
from bitnet.forks import renew_in_child
from bitnet.runtime.piece import Piece
from bitnet.runtime.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from numpy.typing import DTypeLike, NDArray

    from bitnet.models.transformer import Model
    from bitnet.runtime import sequence
    from bitnet.runtime.request import Request

__all__ = ["Engine"]


class Engine:
    """Runs one sequence at a time; the prefix a prompt shares with the last one is not run again.

    Several threads may use it: their sequences run one after the other. So may a forked child;
    sequences started before the fork continue in the parent only.

    Attributes:
        model: the model that runs.
        context: positions a sequence may reach.
    """

    def __init__(
        self, model: Model, *, context: int | None = None, cache_dtype: DTypeLike = np.int16
    ) -> None:
        """An engine for *model*.

        Args:
            model: the model to run.
            context: positions a sequence may reach; the model's own length by default.
            cache_dtype: of keys and values, as of a :class:`KVCache`.

        Raises:
            UsageError: *context* is below one, or longer than the model supports.
        """
        self.model = model
        self._cache_dtype = cache_dtype
        self._begin(context)
        self.context = self._scheduler.context
        renew_in_child(self, Engine._after_fork)

    def _begin(self, context: int | None) -> None:
        """Start without any sequence or cache."""
        self._scheduler = Scheduler(
            self.model,
            context=context,
            max_batch=1,
            cache_dtype=self._cache_dtype,
        )
        self._pieces: dict[sequence.Sequence, deque[Piece]] = {}
        self._lock = threading.Lock()  # scheduler and caches are not thread-safe

    def generate(
        self,
        ids: Sequence[int],
        request: Request | None = None,
        *,
        cancel: Callable[[], bool] = lambda: False,
    ) -> Generator[Piece]:
        """The continuation of *ids*, piece by piece.

        Args:
            ids: the prompt.
            request: how to continue it.
            cancel: called before every forward pass; true ends the generation.

        Raises:
            UsageError: *ids* is empty, or holds an id outside the vocabulary.
            InferenceError: *ids* is longer than the context, the logits are not finite, or memory
                runs out.
        """
        return self.run(self.start(ids, request), cancel=cancel)

    def start(self, ids: Sequence[int], request: Request | None = None) -> sequence.Sequence:
        """The sequence that continues *ids*, before it runs; :meth:`run` yields its pieces.

        Raises:
            UsageError: as :meth:`generate`.
            InferenceError: as :meth:`generate`.
        """
        with self._lock:
            return self._scheduler.prepare(ids, request)

    def run(
        self, sequence: sequence.Sequence, *, cancel: Callable[[], bool] = lambda: False
    ) -> Generator[Piece]:
        """The pieces of a sequence from :meth:`start`; closing the iterator cancels it.

        Raises:
            InferenceError: as :meth:`generate`.
        """
        waiting: deque[Piece] = deque()
        with self._lock:
            scheduler = self._scheduler
            self._pieces[sequence] = waiting
            scheduler.queue(sequence)
        try:
            while True:
                while not waiting:
                    if cancel():
                        yield Piece(None, finish_reason="cancelled")
                        return
                    if scheduler is not self._scheduler:
                        raise InferenceError(
                            "this answer was begun before the process was forked, and goes on in "
                            "the parent alone",
                            hint="start the answer in the child",
                        )
                    self._step(waiting)
                piece = waiting.popleft()
                if piece.finish_reason == "error" and sequence.error:
                    raise sequence.error
                yield piece
                if piece.finish_reason:
                    return
        finally:
            with self._lock:
                if scheduler is self._scheduler:
                    scheduler.cancel(sequence)
                    del self._pieces[sequence]

    def logits(self, ids: Sequence[int]) -> NDArray[np.floating[Any]]:
        """Logits at every position of *ids*, ``(T, vocab_size)``; the cache is not changed.

        Raises:
            UsageError: *ids* is empty, or holds an id outside the vocabulary.
            InferenceError: *ids* is longer than the context.
        """
        with self._lock:
            self._scheduler.check(ids)
            cache = self._scheduler.new_cache()
            cache.reach = len(ids)
            chunk = self._scheduler.prefill_chunk if self.model.config.causal else len(ids)
            parts = [
                self.model.forward(ids[at : at + chunk], cache, all_positions=True)
                for at in range(0, len(ids), chunk)
            ]
        return np.concatenate(parts)

    def reusable(self, ids: Sequence[int]) -> int:
        """Number of leading *ids* that need not be run again."""
        with self._lock:
            return self._scheduler.reusable(ids)

    def reset(self) -> None:
        """Forget the last sequence and free its cache."""
        with self._lock:
            self._scheduler.forget()

    def _step(self, waiting: deque[Piece]) -> None:
        """Run the model once, unless another thread has done what *waiting* waits for."""
        with self._lock:
            if waiting:
                return
            # Answers of one engine may be read alternately; each keeps its own pieces.
            for sequence, piece in self._scheduler.step():
                self._pieces[sequence].append(piece)

    def _after_fork(self) -> None:
        """In a forked child: drop the sequences of other threads and a pass cut off by the fork."""
        if self._pieces or self._lock.locked():
            self._begin(self.context)

"""A served model: facts about it, and the thread that runs it while it is loaded.

Handlers never touch the model and the thread never touches HTTP. Between them are an inbox of
answers and, for each answer, a function that hands its pieces to the event loop.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from bitnet.base.errors import UsageError
from bitnet.server.loading import check_kv_budget, digest_of, read_header, run_detached
from bitnet.server.metrics import count_answer
from bitnet.server.refusals import Refused, from_error, stopping

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.runtime.answer import Answer
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.piece import Piece
    from bitnet.runtime.request import Request
    from bitnet.runtime.scheduler import Scheduler
    from bitnet.runtime.sequence import Sequence
    from bitnet.runtime.text_ids import TokenIds
    from bitnet.server.narration import Narrate
    from bitnet.wire.presets import Preset

    #: Hands a piece of an answer to the event loop, from any thread.
    Put = Callable[[Piece], None]

logger = logging.getLogger(__name__)

State = Literal["unloaded", "waiting", "loading", "loaded", "unloading", "failed"]
FOREVER = float("inf")


@dataclass(eq=False, repr=False)
class Slot:
    """One of the models, loaded or not."""

    name: str  # of the model, for clients
    path: Path  # its file or folder
    open: Callable[[], Checkpoint]  # as :func:`bitnet.formats.containers.open_checkpoint`
    load: Callable[[Checkpoint], LanguageModel]  # makes a model of what *open* returned
    aliases: tuple[str, ...] = ()  # other names that clients may use
    adapters: tuple[str, ...] = ()  # names that stand for the model with one of its adapters
    context: int | None = None  # positions of a sequence; None: as many as the model was made for
    preset: Preset | None = None  # options and messages of requests that have none
    narrate: Narrate = field(init=False)  # reports its events; Models sets it
    state: State = "unloaded"  # waiting: until other models have made room
    users: int = 0  # requests that use it or wait for it
    queued: int = 0  # those of them that wait until it is loaded
    pinned: bool = False  # loaded when the worker starts, and never unloaded
    idle_s: float = FOREVER  # seconds without a request after which it is unloaded
    used_at: float = 0.0  # ``time.monotonic``
    size_bytes: int = 0  # memory that it takes, or took when it was loaded last
    expires_at: float | None = None  # when it is unloaded, in seconds since the epoch
    timer: asyncio.TimerHandle | None = None  # unloads it then
    loading: asyncio.Task[None] | None = None
    places: int = 0  # answers that are generated or wait, at most
    fair_positions: int = 0  # positions per answer with which a full batch fits the memory
    draining: bool = False  # new requests are refused
    failure: BaseException | None = None  # the error that ended the thread
    _model: LanguageModel | None = None
    _header: dict[str, Any] = field(default_factory=dict)
    _digest: str = ""
    # guards the inbox, the counts and the flags; notified of work, and of the end
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _open: int = 0  # places taken

    @property
    def names(self) -> tuple[str, ...]:
        """All names that clients may use."""
        return (self.name, *self.aliases, *self.adapters)

    def adapter(self, name: str | None) -> str:
        """The adapter that clients call *name*; empty if it is not an adapter."""
        name = (name or "").removesuffix(":latest")  # a tag of Ollama's clients
        return name if name in self.adapters else ""

    def fill_in(self, request: Request) -> Request:
        """*request* with the options of the preset that is served, where it has none."""
        return request if self.preset is None else self.preset.fill(request)

    @property
    def loaded(self) -> bool:
        """True if the model is in memory, and no request has to wait for it."""
        return self.state == "loaded"

    @property
    def model(self) -> LanguageModel:
        """The model, which is loaded."""
        if self._model is None:
            raise stopping()
        return self._model

    def watch(self, metrics: dict[str, Any]) -> None:
        """Report its state and its answers in *metrics*."""

        def running() -> int:
            return len(self._scheduler.running) if self.loaded else 0

        def kv_usage() -> float:
            budget = self._kv_budget_bytes if self.loaded else None
            return self._scheduler.caches.size_bytes / budget if budget else 0.0

        self._metrics = metrics
        metrics["loaded"].set_function(lambda: self.loaded)
        metrics["open"].set_function(lambda: self.open_jobs)
        metrics["running"].set_function(running)
        metrics["waiting"].set_function(lambda: max(0, self.open_jobs - running()))
        metrics["kv_usage"].set_function(kv_usage)

    async def header(self) -> dict[str, Any]:
        """Facts about its file, read by :func:`read_header` in a thread; the result is kept."""
        if not self._header:
            self._header = await run_detached(lambda: read_header(self.open(), self.context))
        return self._header

    async def digest(self) -> str:
        """Digest of its files, computed by :func:`digest_of` in a thread; the result is kept."""
        if not self._digest:
            files = (await self.header())["files"]
            folder = self.path if self.path.is_dir() else self.path.parent
            self._digest = await run_detached(partial(digest_of, files, folder))
        return self._digest

    def cancel_timer(self) -> None:
        """Stop the timer that unloads the model: it is in use, or is being unloaded."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.expires_at = None

    # --- while it is loaded ----------------------------------------------------------------------

    def fill(
        self, model: LanguageModel, *, max_batch: int, kv_budget_bytes: int | None = None
    ) -> None:
        """Start the thread in which *model* answers; the model must not be used elsewhere.

        *max_batch* answers are generated at the same time. Their keys and values take at most
        *kv_budget_bytes*, or as much as they need if it is None. If no answer fits into these, the
        model is closed.
        """
        self.draining = False
        self.failure = None
        self._kv_budget_bytes = kv_budget_bytes
        self._new_scheduler = partial(
            model.scheduler, max_batch=max_batch, kv_budget_bytes=kv_budget_bytes
        )
        self._scheduler: Scheduler = self._new_scheduler()
        try:
            self.fair_positions = self._share_positions(model.context, max_batch, kv_budget_bytes)
        except UsageError:
            model.close()
            del self._scheduler, self._new_scheduler  # which have its weights, too
            raise
        self._inbox: list[tuple[Answer, Put]] = []
        self._running: dict[Sequence, tuple[Answer, Put]] = {}
        self._stopped = False
        self._ends_at = FOREVER  # ``time.monotonic`` after which every answer ends
        self._model = model
        self.state = "loaded"
        self.used_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="bitnet-worker", daemon=True)
        self._thread.start()

    def _share_positions(self, context: int, max_batch: int, kv_budget_bytes: int | None) -> int:
        """Positions per answer with which *max_batch* answers fit *kv_budget_bytes*."""
        if kv_budget_bytes is None:
            return context
        caches = self._scheduler.caches
        check_kv_budget(caches.cost(1), kv_budget_bytes, max_batch)
        return min(context, caches.affordable(kv_budget_bytes // max_batch))

    @property
    def open_jobs(self) -> int:
        """Answers that wait, for the model too, or are being generated."""
        return self.queued + self._open

    @contextmanager
    def place(self, count: int = 1, *, admitted: bool = False) -> Iterator[list[int]]:
        """Reserve *count* places in the queue; yield a list with this number.

        The places are freed when the context ends, unless the caller has cleared the list: then
        each is freed when its answer ends. A later part of an *admitted* request gets its places
        even if the queue is full.
        """
        with self._changed:
            if self.draining or self.failure is not None:
                raise stopping()
            most = self.places
            if count > most:
                raise Refused(400, f"{count} answers in one request, {most} are taken at a time")
            if self._open + count > most and not admitted:
                raise self.queue_full(f"{self._open} answers wait or are being written, {most} may")
            self._open += count
        reservation = [count]
        try:
            yield reservation
        finally:
            with self._changed:
                self._open -= sum(reservation)

    def prepare(self, ids: TokenIds, request: Request) -> Sequence:
        """A sequence for *ids* that does not run yet; thread-safe."""
        return self._scheduler.prepare(ids, request)

    def submit(self, answers: list[Answer], puts: list[Put]) -> None:
        """Run *answers*, whose places are reserved; each of *puts* takes the pieces of one."""
        with self._changed:
            if self.failure is not None or self._stopped:
                raise stopping()
            self._inbox += zip(answers, puts, strict=True)
            self._changed.notify()

    def cancel(self, answers: list[Answer]) -> None:
        """End those of *answers* that still run before the next pass; callable from any thread."""
        for answer in answers:
            answer.sequence.cancelled = True

    def drain(self, within_s: float | None = None) -> None:
        """Refuse new requests; answers are cut short after *within_s*, or at their own deadline."""
        with self._changed:
            self.draining = True
            if within_s is not None:
                self._ends_at = min(self._ends_at, time.monotonic() + within_s)

    def close(self) -> None:
        """End every answer, the thread and the model."""
        with self._changed:
            self.draining = self._stopped = True
            self._changed.notify()
        self._thread.join()
        self.model.close()
        self._model = None
        del self._scheduler, self._new_scheduler
        self.state = "unloaded"

    def queue_full(self, message: str) -> Refused:
        """The refusal of a request that finds the queue full, which is counted."""
        self._metrics["refused"].inc()
        return Refused(429, message, kind="rate_limit_error", code="queue_full", retry_after_s=1)

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        """Generate answers until the model is closed, or an error ends the thread."""
        try:
            while self._take_in():
                self._step()
        except BaseException as error:
            logger.exception("the thread that runs the model %s has ended", self.path.name)
            with self._changed:
                self.failure = error
        finally:
            self._end_all()

    def _end_all(self) -> None:
        """End all open answers: as failed if the thread failed, else as cancelled."""
        with self._changed:
            inbox = self._inbox
            self._inbox = []
        unfinished = [*self._running.values(), *inbox]
        self._running = {}
        for answer, put in unfinished:
            has_failed = self.failure is not None
            last = answer.end("error", stopping()) if has_failed else answer.end("cancelled")
            self._finish(answer, put, last)

    def _step(self) -> None:
        """Run one pass; if it fails as a whole, its answers fail, and the worker continues."""
        try:
            if time.monotonic() > self._ends_at:
                self.cancel([answer for answer, _ in self._running.values()])
            if self._scheduler.busy:
                for sequence, piece in self._scheduler.step():
                    self._deliver(sequence, piece)
        except Exception as error:
            logger.exception("a pass of the model %s failed", self.path.name)
            failed_answers = self._running
            self._running = {}
            # First of all: a new scheduler may fail, too, for want of memory.
            for answer, put in failed_answers.values():
                self._finish(answer, put, answer.end("error", from_error(error)))
            self._scheduler = self._new_scheduler()

    def _take_in(self) -> bool:
        """Wait for answers, and queue them in the scheduler; return False if the model is closed.

        While the scheduler has work, it does not wait.
        """
        with self._changed:
            while not (self._inbox or self._stopped or self._scheduler.busy):
                self._changed.wait()
            if self._stopped:
                return False
            arrived = self._inbox
            self._inbox = []
        for answer, put in arrived:
            self._running[answer.sequence] = answer, put
            self._scheduler.queue(answer.sequence)
        return True

    def _deliver(self, sequence: Sequence, piece: Piece) -> None:
        """Pass what *piece* adds to its answer on to the client; end the answer if it is over."""
        if sequence not in self._running:
            return
        answer, put = self._running[sequence]
        try:
            before_s = answer.decode_s
            client_piece = answer.take(piece)
        except Exception as error:  # noqa: BLE001 - the client is told
            self._scheduler.cancel(sequence)
            del self._running[sequence]
            self._finish(answer, put, answer.end("error", from_error(error)))
            return
        if client_piece.token is not None:
            self._metrics["tokens"].inc()
            if answer.tokens > 1:
                self._metrics["between_s"].observe(answer.decode_s - before_s)
        if client_piece.finish_reason is None:
            put(client_piece)
            return
        if piece.finish_reason is None:  # a stop string
            self._scheduler.cancel(sequence)
        del self._running[sequence]
        self._finish(answer, put, client_piece)

    def _finish(self, answer: Answer, put: Put, last: Piece) -> None:
        """Count *answer*, free its place, and pass on its *last* piece."""
        # Counted before its place is freed: the metrics of an idle worker must be complete.
        count_answer(self._metrics, answer)
        with self._changed:
            self._open -= 1
        put(last)

"""The thread that owns the model: sequences in, pieces of answers out.

Handlers never touch the model and the thread never touches HTTP. Between them are an inbox and, for
each request, an :class:`Order` whose pieces arrive in the handler's event loop. Slow preparations
(templates, tokenizing, grammars) run in a few separate threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from bitnet.base.errors import UsageError
from bitnet.runtime.answer import Answer
from bitnet.server.metrics import count_answer
from bitnet.server.refusals import Refused, from_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from fastapi import Request as HttpRequest

    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.piece import Piece
    from bitnet.runtime.request import Request
    from bitnet.runtime.scheduler import Scheduler
    from bitnet.runtime.sequence import Sequence
    from bitnet.server.narration import Narrator
    from bitnet.wire.fields import Form

__all__ = ["Order", "Worker", "WorkerLimits", "stopping", "too_late"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

PREPARING = 2  # threads that turn requests into sequences
COMPILING = 2  # threads for requests whose grammar must be compiled, which may take seconds
COMPILE_S = 10.0  # time limit for compiling a grammar
TURN_S = 10.0  # time limit for the grammars before it


@dataclass(frozen=True)
class WorkerLimits:
    """Limits of a worker, which hold for each of its models.

    Attributes:
        max_batch: answers generated at the same time.
        queue: answers that may wait.
        deadline_s: seconds a request may take, including waiting.
        kv_budget_bytes: memory for KV caches; ``None``: unlimited.
        max_output_tokens: tokens one answer may have.
    """

    max_batch: int = 8
    queue: int = 64
    deadline_s: float = 600.0
    kv_budget_bytes: int | None = None
    max_output_tokens: int = 4096

    @property
    def places(self) -> int:
        """Answers that are generated or wait, at most."""
        return self.max_batch + self.queue


class Order:
    """The answers to one HTTP request, between the model's thread and the event loop.

    Iterate over it for ``(index, piece)`` of all answers, as they come, until all have ended.

    Attributes:
        request: of the client.
        form: of its body.
        body: its fields.
        worker: of the model that answers.
        lora: name of the adapter that the client names as the model; empty: none.
        choices: answers to each prompt.
        answers: updated in the worker's thread; a finished one is complete.
        writes: it has answers that have not ended.
        began_at: ``time.perf_counter`` when work on it began.
        cancelled: the client has gone.
        deadline: ``time.monotonic`` after which the answers are ended.
        places: places in the queue that it still holds.
        remaining: answers that have not ended, for the worker's thread.
    """

    def __init__(
        self, request: HttpRequest, form: Form, body: dict[str, Any], worker: Worker
    ) -> None:
        """An order, created in the event loop that reads the pieces."""
        self.request, self.form, self.body, self.worker = request, form, body, worker
        name = (body.get("model") or "").removesuffix(":latest")  # a tag of Ollama's clients
        self.lora: str = name if name in worker.model.model.adapters else ""
        self.choices: int = body.get("n") or 1
        self.answers: list[Answer] = []
        self.writes = False
        self.began_at = 0.0
        self.cancelled = False
        self.deadline: float = request.state.deadline
        self.places = self.remaining = 0
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue()

    @property
    def name(self) -> str:
        """Name of the model or the adapter that answers."""
        return self.lora or self.worker.name

    @property
    def path(self) -> str:
        """Address of the request."""
        return self.request.url.path

    async def __aiter__(self) -> AsyncIterator[tuple[int, Piece]]:
        left = len(self.answers)
        while left:
            index, piece = await self._pieces.get()
            yield index, piece
            left -= piece.finish_reason is not None

    def put(self, index: int, piece: Piece) -> None:
        """Pass on a piece of answer *index*, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, (index, piece))
        except RuntimeError:  # the loop is closed
            self.cancelled = True


class Worker:
    """Generates answers with one model, several at a time.

    Attributes:
        name: of the model, as clients see it.
        model: the model.
        limits: of its answers.
        narrate: reports what happens.
        draining: new requests are refused.
        fair_positions: positions per answer with which a full batch fits the memory.
        failure: error that ended the thread; ``None`` while it runs normally.
    """

    def __init__(
        self,
        name: str,
        model: LanguageModel,
        metrics: dict[str, Any],
        limits: WorkerLimits,
        narrate: Narrator,
    ) -> None:
        """A worker whose thread is started by :meth:`start`.

        *model*, which clients call *name*, must not be used elsewhere from then on.
        """
        self.name = name
        self.model = model
        self.narrate = narrate
        self.draining = False
        self.limits = limits
        self.failure: BaseException | None = None
        self._metrics = metrics
        self._changed = threading.Condition()
        self._inbox: deque[Order] = deque()
        self._open = 0  # places taken
        self._running: dict[Sequence, tuple[Order, int]] = {}
        self._scheduler = self._new_scheduler()
        self.fair_positions: int = self._share()
        self._stopped = False
        self._ends_at = float("inf")  # ``time.monotonic`` after which every answer ends
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="bitnet-worker", daemon=True)
        self._preparing = ThreadPoolExecutor(PREPARING, "bitnet-prepare")
        self._compiling = ThreadPoolExecutor(COMPILING, "bitnet-grammar")

    @property
    def open_jobs(self) -> int:
        """Number of answers that wait or are being generated."""
        return self._open

    @property
    def running(self) -> int:
        """Number of answers that are being generated."""
        return len(self._scheduler.running)

    @property
    def kv_usage(self) -> float:
        """Used share of the KV caches' memory, 0 to 1; 0 if unlimited."""
        budget = self.limits.kv_budget_bytes
        return self._scheduler.kv_bytes / budget if budget else 0.0

    @property
    def alive(self) -> bool:
        """True if the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, in this process; a later forked child refuses requests."""
        self._process = os.getpid()
        self._thread.start()

    def prepare(self, ids: list[int], request: Request) -> Sequence:
        """A sequence for *ids* that does not run yet; thread-safe."""
        return self._scheduler.prepare(ids, request)

    async def submit(
        self,
        order: Order,
        make: Callable[[], list[Sequence]],
        places: int,
        *,
        compiles: bool = False,
    ) -> None:
        """Submit the sequences that *make* returns in a thread as answers of *order*, all or none.

        They take *places* of the queue together; *compiles*: a grammar may have to be compiled.

        Raises:
            Refused: the worker stops (503), the queue is full (429), or there are more than it
                can ever hold (400); or as *make*.
        """
        with self.place(places) as reservation:
            tokenizer = self.model.tokenizer
            order.answers = await self.run_in_thread(
                lambda: [Answer(tokenizer, sequence) for sequence in make()], compiles=compiles
            )
            order.places, order.remaining = places, len(order.answers)
            with self._changed:
                if self.failure is not None or self._stopped:
                    raise stopping()
                self._inbox.append(order)
                reservation.clear()  # the order has them now
                self._changed.notify()

    async def run_in_thread(self, make: Callable[[], T], *, compiles: bool = False) -> T:
        """Result of *make*, called in a thread, with limited concurrency.

        Raises:
            Refused: a grammar takes too long (400), or those before it do (503).
        """
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def run() -> T:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(begun.set)
            return make()

        pool = self._compiling if compiles else self._preparing
        longest_s = self.limits.deadline_s
        limit_s = min(COMPILE_S, longest_s) if compiles else longest_s
        making = loop.run_in_executor(pool, run)
        try:
            await asyncio.wait_for(begun.wait(), min(TURN_S, longest_s) if compiles else longest_s)
            return await asyncio.wait_for(making, limit_s)
        except asyncio.TimeoutError:
            if compiles and not begun.is_set():
                raise Refused(
                    503, "the grammars of other requests are being compiled",
                    kind="server_error", code="compiling", retry_after_s=5,
                ) from None  # fmt: skip
            if compiles:
                raise Refused(
                    400, f"the grammar of the answer was not ready after {limit_s:g} s: simplify it"
                ) from None
            raise too_late(limit_s) from None
        finally:
            making.cancel()

    @contextmanager
    def place(self, count: int = 1) -> Iterator[list[int]]:
        """Reserve places in the queue; those left in the list are returned at the end."""
        self._check_process()
        with self._changed:
            self._take_places(count)
        reservation = [count]
        try:
            yield reservation
        finally:
            with self._changed:
                self._open -= sum(reservation)

    def cancel(self, order: Order) -> None:
        """End the remaining answers of *order* at the next step."""
        with self._changed:
            order.cancelled = True
            self._changed.notify()

    def drain(self, within_s: float | None = None) -> None:
        """Refuse new requests; answers are cut short after *within_s*, or at their own deadline."""
        with self._changed:
            self.draining = True
            if within_s is not None:
                self._ends_at = min(self._ends_at, time.monotonic() + within_s)

    def stop(self) -> None:
        """End every answer and the thread; a no-op in a forked child, which has no thread."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self.draining = self._stopped = True
            self._changed.notify()
        for pool in (self._preparing, self._compiling):
            pool.shutdown(wait=False, cancel_futures=True)
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """End every answer, the thread and the model."""
        self.stop()
        self.model.close()

    def _check_process(self) -> None:
        """Refuse work in a forked child, where there is no thread to do it."""
        if os.getpid() != self._process:
            raise Refused(
                503,
                "this process was forked from the worker's, whose thread stayed there: "
                "start the worker in each process",
                kind="server_error",
            )

    def _take_places(self, count: int) -> None:
        if self.draining or self.failure is not None:
            raise stopping()
        if count > self.limits.places:
            raise Refused(
                400,
                f"{count} answers in one request; this worker takes {self.limits.places} at a time",
            )
        if self._open + count > self.limits.places:
            self._metrics["refused"].inc()
            raise Refused(
                429,
                f"{self._open} answers wait or are being written, {self.limits.places} may",
                kind="rate_limit_error",
                code="queue_full",
                retry_after_s=1,
            )
        self._open += count

    def _new_scheduler(self) -> Scheduler:
        return self.model.scheduler(
            max_batch=self.limits.max_batch, kv_budget_bytes=self.limits.kv_budget_bytes
        )

    def _share(self) -> int:
        if self.limits.kv_budget_bytes is None:
            return self.model.context
        shortest = self._scheduler.cost(1)
        if shortest > self.limits.kv_budget_bytes:
            raise UsageError(
                f"keys and values of the shortest answer take {shortest:,} bytes, the budget is "
                f"{self.limits.kv_budget_bytes:,}",
                hint=f"--kv-memory {-(-shortest // 10**6) * self.limits.max_batch}",
            )
        return self._scheduler.affordable(self.limits.kv_budget_bytes // self.limits.max_batch)

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take_in():
                self._step()
        except BaseException as error:
            logger.exception("the thread that runs the model %s has ended", self.model.path.name)
            with self._changed:
                self.failure = error
        finally:
            self._end_all()

    def _end_all(self) -> None:
        """End all open answers: as failed if the thread failed, else as cancelled."""
        with self._changed:
            inbox, self._inbox = self._inbox, deque()
        left = [*self._running.values()]
        left += [(order, index) for order in inbox for index in range(len(order.answers))]
        self._running = {}
        for order, index in left:
            if self.failure is None:
                self._finish(order, index, order.answers[index].end("cancelled"))
            else:
                self._fail(order, index, stopping())

    def _step(self) -> None:
        """Run one pass; if it fails as a whole, its answers fail, and the worker continues."""
        try:
            self._expire()
            for sequence, piece in self._scheduler.step() if self._scheduler.busy else ():
                self._deliver(sequence, piece)
        except Exception as error:
            logger.exception("a pass of the model %s failed", self.model.path.name)
            failed, self._running = self._running, {}
            self._scheduler = self._new_scheduler()
            for order, index in failed.values():
                self._fail(order, index, error)

    def _take_in(self) -> bool:
        """Wait for work and queue it; false when the worker stops."""
        with self._changed:
            while not (self._inbox or self._stopped or self._scheduler.busy):
                self._changed.wait()
            if self._stopped:
                return False
            arrived, self._inbox = self._inbox, deque()
        for order in arrived:
            for index, answer in enumerate(order.answers):
                if order.cancelled:
                    self._finish(order, index, answer.end("cancelled"))
                else:
                    self._running[answer.sequence] = order, index
                    self._scheduler.queue(answer.sequence)
        return True

    def _expire(self) -> None:
        """End answers that are cancelled or past their deadline."""
        now = time.monotonic()
        for sequence, (order, index) in list(self._running.items()):
            late = now > order.deadline
            if not (order.cancelled or late or now > self._ends_at):
                continue
            self._scheduler.cancel(sequence)
            del self._running[sequence]
            answer = order.answers[index]
            if late and not order.cancelled:
                last = answer.end("deadline", too_late(self.limits.deadline_s))
            else:
                last = answer.end("cancelled")
            self._finish(order, index, last)

    def _deliver(self, sequence: Sequence, piece: Piece) -> None:
        order, index = self._running.get(sequence, (None, 0))
        if order is None:
            return
        try:
            answer = order.answers[index]
            before_s = answer.stats.decode_s
            taken = answer.take(piece)
        except Exception as error:  # noqa: BLE001 - the client is told
            self._scheduler.cancel(sequence)
            del self._running[sequence]
            self._fail(order, index, error)
            return
        if taken.token is not None:
            self._metrics["tokens"].inc()
            if answer.stats.tokens > 1:
                self._metrics["between_s"].observe(answer.stats.decode_s - before_s)
        if taken.finish_reason is None:
            order.put(index, taken)
            return
        if piece.finish_reason is None:  # a stop string
            self._scheduler.cancel(sequence)
        del self._running[sequence]
        self._finish(order, index, taken)

    def _fail(self, order: Order, index: int, error: Exception) -> None:
        self._finish(order, index, order.answers[index].end("error", from_error(error)))

    def _finish(self, order: Order, index: int, last: Piece) -> None:
        # First: when its place is free, it must already be counted.
        count_answer(self._metrics, order.answers[index])
        with self._changed:
            order.remaining -= 1
            if order.remaining < order.places:
                order.places -= 1
                self._open -= 1
        order.put(index, last)


def stopping() -> Refused:
    """No more requests are taken."""
    return Refused(503, "the worker is stopping", kind="server_error", retry_after_s=5)


def too_late(limit_s: float) -> Refused:
    """The answer took longer than *limit_s* seconds."""
    return Refused(
        504, f"the answer was not ready after {limit_s:g} s", kind="server_error", code="deadline"
    )

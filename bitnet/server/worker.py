"""The thread that owns the model: jobs in, deltas of text out.

Handlers never touch the model and the thread never touches HTTP. Between them stand an inbox and,
for each request, an :class:`Order` whose deltas arrive in the handler's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from bitnet.errors import InferenceError, UsageError
from bitnet.runtime.scheduler import Scheduler
from bitnet.runtime.text import AnswerText
from bitnet.server.faults import Refused, from_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from bitnet.runtime.generation import GenerationParams, Piece
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.scheduler import Sequence as Running
    from bitnet.server.metrics import Metrics

__all__ = ["Delta", "Job", "Order", "Ticket", "Worker"]

logger = logging.getLogger(__name__)

Finish = Literal["stop", "length", "context", "cancelled", "deadline"]


@dataclass(frozen=True)
class Job:
    """One answer to write.

    Attributes:
        request_id: of the request it belongs to.
        ids: the prompt.
        params: what to generate.
        stops: texts that end the answer.
    """

    request_id: str
    ids: Sequence[int]
    params: GenerationParams
    stops: Sequence[str] = ()


@dataclass(frozen=True)
class Delta:
    """A part of an answer; the last one has a finish reason or an error.

    Attributes:
        text: what is certain of the text now, often empty.
        piece: the token behind it; ``None`` where text that was held back comes out.
        finish: why the answer ends here.
        error: why there is no more.
        reused: ids of the prompt that were not run again, known with the last one.
    """

    text: str = ""
    piece: Piece | None = None
    finish: Finish | None = None
    error: Refused | None = None
    reused: int = 0

    @property
    def is_last(self) -> bool:
        """Whether nothing follows."""
        return self.finish is not None or self.error is not None


@dataclass(eq=False)
class Ticket:
    """A job with the worker.

    Attributes:
        job: what was asked for.
        index: its place in its :class:`Order`.
        order: where its deltas go.
        deadline: ``time.monotonic`` after which the answer is ended.
        queued_at: when the job was accepted.
        first_at: when its first token came; ``None`` before.
    """

    job: Job
    index: int
    order: Order
    deadline: float
    queued_at: float = field(default_factory=time.monotonic)
    first_at: float | None = None

    def put(self, delta: Delta) -> None:
        """Hand *delta* to the handler; called by the worker's thread."""
        self.order.put(self.index, delta)


class Order:
    """The handler's side of the jobs of one request.

    Iterate over it for ``(index, delta)`` of all jobs, as they come, until every job has ended.

    Attributes:
        cancelled: nobody wants the rest.
    """

    def __init__(self, jobs: Sequence[Job], deadline: float) -> None:
        """Tickets for *jobs*; made in the event loop that reads the deltas."""
        self.cancelled = False
        self.tickets = [Ticket(job, index, self, deadline) for index, job in enumerate(jobs)]
        self._loop = asyncio.get_running_loop()
        self._deltas: asyncio.Queue[tuple[int, Delta]] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Delta]]:
        left = len(self.tickets)
        while left:
            index, delta = await self._deltas.get()
            yield index, delta
            left -= delta.is_last

    def put(self, index: int, delta: Delta) -> None:
        """Add to the deltas, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._deltas.put_nowait, (index, delta))
        except RuntimeError:  # the loop is closed: nobody waits any more
            self.cancelled = True


class _Writing:
    """A job in the scheduler: its text as it grows."""

    def __init__(self, ticket: Ticket, model: LanguageModel) -> None:
        self.ticket = ticket
        self._text = AnswerText(model.tokenizer, ticket.job.ids, ticket.job.stops)

    def delta(self, piece: Piece, error: Exception | None) -> Delta:
        """What *piece* adds; *error* is the reason if it ends the answer with one."""
        if piece.finish_reason == "error":
            return Delta(error=from_error(error or RuntimeError("no reason given")))
        self.ticket.first_at = self.ticket.first_at or time.monotonic()
        text = ""
        if piece.token is not None and piece.finish_reason != "stop":
            text = self._text.push(piece.token)
            if self._text.stopped:
                return Delta(text, piece, "stop")
        if piece.finish_reason is not None:
            text += self._text.finish()
        return Delta(text, piece, piece.finish_reason)

    def ended(self, finish: Finish) -> Delta:
        """The last delta of an answer that is ended from outside."""
        return Delta(self._text.finish(), None, finish)


class Worker:
    """Runs jobs on one model, several at a time.

    Attributes:
        model: what writes.
        draining: no more jobs are taken.
        deadline_s: seconds an answer may take, waiting included.
    """

    def __init__(
        self,
        model: LanguageModel,
        metrics: Metrics,
        *,
        max_batch: int = 8,
        queue: int = 64,
        deadline_s: float = 600.0,
        kv_budget_bytes: int | None = None,
    ) -> None:
        """A worker whose thread is started by :meth:`start`.

        Args:
            model: what writes; nobody else may use it from then on.
            metrics: counts what happens.
            max_batch: answers written at the same time.
            queue: jobs that may wait.
            deadline_s: seconds an answer may take, waiting included.
            kv_budget_bytes: memory for keys and values; ``None``: no bound.

        Raises:
            UsageError: no answer fits *kv_budget_bytes*.
        """
        self.model = model
        self.draining = False
        self._metrics = metrics
        self._max_batch = max_batch
        self._limit = max_batch + queue
        self.deadline_s = deadline_s
        self._kv_budget_bytes = kv_budget_bytes
        self._changed = threading.Condition()
        self._inbox: deque[Ticket] = deque()
        self._calls: deque[tuple[Callable[[], object], asyncio.Future[object]]] = deque()
        self._open = 0  # tickets accepted and not answered
        self._running: dict[Running, _Writing] = {}
        self._scheduler = self._new_scheduler()
        self._fair_positions = self._share()
        self._stopped = False
        self._ends_at = float("inf")  # ``time.monotonic`` after which every answer ends
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="bitnet-worker", daemon=True)

    @property
    def open_jobs(self) -> int:
        """Jobs that wait or are being written."""
        return self._open

    @property
    def fair_positions(self) -> int:
        """Prompt and answer of which as many fit the memory as are written at the same time."""
        return self._fair_positions

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, in this process; after that a forked child is refused jobs."""
        self._process = os.getpid()
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> Order:
        """Accept *jobs*, all or none; called in the event loop that will read the deltas.

        Raises:
            Refused: the worker stops (503), as many jobs wait as may (429), or there are more of
                them than ever may (400).
        """
        self._check_process()
        with self._changed:
            self._take_places(len(jobs))
            order = Order(jobs, time.monotonic() + self.deadline_s)
            self._inbox.extend(order.tickets)
            self._changed.notify()
        return order

    @contextmanager
    def place(self) -> Iterator[None]:
        """Count as an answer that waits, for work that :meth:`call` does.

        Raises:
            Refused: as :meth:`submit`.
        """
        self._check_process()
        with self._changed:
            self._take_places(1)
        try:
            yield
        finally:
            with self._changed:
                self._open -= 1

    def cancel(self, order: Order) -> None:
        """End what is left of *order* at the next step."""
        with self._changed:
            order.cancelled = True
            self._changed.notify()

    async def call(self, function: Callable[[], object]) -> object:
        """The result of *function*, run by the thread between two steps.

        Raises:
            Refused: the worker stops.
        """
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._check_process()
        with self._changed:
            if self._stopped or time.monotonic() > self._ends_at:
                raise _stopping()
            self._calls.append((function, future))
            self._changed.notify()
        return await future

    def drain(self, within_s: float | None = None) -> None:
        """Take no more jobs.

        Args:
            within_s: seconds after which answers end with what there is of them; ``None``: each
                has the time it had.
        """
        with self._changed:
            self.draining = True
            if within_s is not None:
                self._ends_at = min(self._ends_at, time.monotonic() + within_s)

    def stop(self) -> None:
        """End every answer and the thread; nothing in a forked child, which has none."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self.draining = self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

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
        if self.draining:
            raise _stopping()
        if count > self._limit:
            raise Refused(
                400, f"{count} answers in one request; this worker takes {self._limit} at a time"
            )
        if self._open + count > self._limit:
            self._metrics.refused.inc()
            raise Refused(
                429,
                f"{self._open} answers wait or are being written, {self._limit} may",
                kind="rate_limit_error",
                code="queue_full",
                retry_after_s=1,
            )
        self._open += count

    def _new_scheduler(self) -> Scheduler:
        engine = self.model.engine
        return Scheduler(
            engine.model,
            context=engine.context,
            max_batch=self._max_batch,
            kv_budget_bytes=self._kv_budget_bytes,
        )

    def _share(self) -> int:
        context = self.model.engine.context
        if self._kv_budget_bytes is None:
            return context
        shortest = self._scheduler.cost(1)
        if shortest > self._kv_budget_bytes:
            raise UsageError(
                f"keys and values of the shortest answer take {shortest:,} bytes, the budget is "
                f"{self._kv_budget_bytes:,}",
                hint=f"--kv-memory {-(-shortest // 10**6) * self._max_batch}",
            )
        return self._scheduler.affordable(self._kv_budget_bytes // self._max_batch)

    def _run(self) -> None:
        while self._take_in():
            self._step()
        for writing in list(self._running.values()):
            self._finish(writing.ticket, writing.ended("cancelled"))
        for ticket in self._inbox:
            self._finish(ticket, Delta(finish="cancelled"))
        for _, future in self._calls:
            _settle(future, None, _stopping())

    def _step(self) -> None:
        """One pass of the model; if it fails as a whole, its answers do, and the worker goes on."""
        try:
            self._expire()
            for running, piece in self._scheduler.step() if self._scheduler.busy else ():
                self._deliver(running, piece)
        except Exception as error:
            logger.exception("a pass of the model failed")
            failed, self._running = self._running, {}
            self._scheduler = self._new_scheduler()
            for writing in failed.values():
                self._finish(writing.ticket, Delta(error=from_error(error)))

    def _take_in(self) -> bool:
        """Wait for work and admit it; false when the worker stops."""
        with self._changed:
            while not (self._inbox or self._calls or self._stopped or self._scheduler.busy):
                self._changed.wait()
            if self._stopped:
                return False
            arrived, self._inbox = list(self._inbox), deque()
            calls, self._calls = list(self._calls), deque()
        for function, future in calls:
            self._answer(function, future)
        for ticket in arrived:
            self._admit(ticket)
        return True

    def _admit(self, ticket: Ticket) -> None:
        if ticket.order.cancelled:
            self._finish(ticket, Delta(finish="cancelled"))
            return
        try:
            writing = _Writing(ticket, self.model)
            running = self._scheduler.submit(ticket.job.ids, ticket.job.params)
        except InferenceError as error:  # it would never fit
            refused = Refused(400, error.message, code="context_length_exceeded")
            self._finish(ticket, Delta(error=refused))
            return
        except Exception as error:  # noqa: BLE001 - the client is told
            self._finish(ticket, Delta(error=from_error(error)))
            return
        self._running[running] = writing

    def _expire(self) -> None:
        """End what nobody wants or what has taken too long."""
        now = time.monotonic()
        for running, writing in list(self._running.items()):
            ticket = writing.ticket
            if ticket.order.cancelled or now > min(ticket.deadline, self._ends_at):
                self._scheduler.cancel(running)
                del self._running[running]
                reason: Finish = "cancelled" if ticket.order.cancelled else "deadline"
                self._finish(ticket, replace(writing.ended(reason), reused=running.reused))

    def _deliver(self, running: Running, piece: Piece) -> None:
        writing = self._running.get(running)
        if writing is None:
            return
        try:
            delta = writing.delta(piece, running.error)
        except Exception as error:  # noqa: BLE001 - the client is told
            delta = Delta(error=from_error(error))
        if not delta.is_last:
            if delta.piece is not None:
                self._metrics.tokens.inc()
            writing.ticket.put(delta)
            return
        if piece.finish_reason is None:  # a stop string, or an error of ours
            self._scheduler.cancel(running)
        del self._running[running]
        self._finish(writing.ticket, replace(delta, reused=running.reused))

    def _finish(self, ticket: Ticket, delta: Delta) -> None:
        self._metrics.finished(ticket, delta)  # first: who sees the place free sees it counted
        with self._changed:
            self._open -= 1
        ticket.put(delta)

    def _answer(self, function: Callable[[], object], future: asyncio.Future[object]) -> None:
        if future.cancelled():
            return
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            _settle(future, None, error)
        else:
            _settle(future, result, None)


def _stopping() -> Refused:
    return Refused(503, "the worker is stopping", kind="server_error", retry_after_s=5)


def _settle(future: asyncio.Future[object], result: object, error: Exception | None) -> None:
    """Give *future* its outcome in its own loop."""

    def give() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    try:
        future.get_loop().call_soon_threadsafe(give)
    except RuntimeError:  # the loop is closed
        logger.debug("nobody waits for a result any more")

"""The models of a worker, loaded on request and unloaded again.

A request names a model. If the model is not loaded, a thread loads it, once for all requests that
wait for it. It stays while a request uses it, and after that until it has been idle for too long or
another model needs its memory. Models are loaded and unloaded one at a time, in the order in which
they were asked for. Everything here happens in the event loop, except where a thread is named.
Templates and tokenizing run in a small pool of threads, and grammars are compiled in another.
"""

from __future__ import annotations

import asyncio
import gc
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from bitnet.base.quantities import human_size
from bitnet.runtime.request import Request, SamplingOptions
from bitnet.server.loading import load_narrated, memory_of, open_narrated, run_detached
from bitnet.server.refusals import Refused, from_error, stopping, too_late
from bitnet.server.slot import FOREVER, Slot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.piece import Piece
    from bitnet.server.metrics import Metrics
    from bitnet.server.narration import Narrate

    #: Waits for a model that is being loaded, or raises the reason to stop waiting.
    Wait = Callable[[Awaitable[None]], Awaitable[None]]
    #: Pieces of the answers to a request, by number; None: the worker stops, and no more come.
    Pieces = asyncio.Queue[tuple[int, Piece] | None]

T = TypeVar("T")

PREPARING = 2  # threads that turn requests into sequences
COMPILING = 2  # threads for requests whose grammar must be compiled, which may take seconds
COMPILE_S = 10.0  # time limit for compiling a grammar
TURN_S = 10.0  # longest time that a grammar waits until its own compilation begins


class Models:
    """The models of a worker by their names, and the threads that prepare their requests."""

    def __init__(
        self,
        slots: Sequence[Slot],
        metrics: Metrics,
        narrate: Narrate,
        *,
        max_batch: int = 8,
        queue: int = 64,
        deadline_s: float = 600.0,
        max_output_tokens: int = 4096,
        kv_budget_bytes: int | None = None,
        idle_s: float = FOREVER,
        memory_bytes: int | None = None,
        strict_names: bool = False,
        sampling: SamplingOptions | None = None,
    ) -> None:
        """None of *slots* is loaded; the first one answers requests that name none.

        Of each model, *queue* answers may wait, and keys and values take *kv_budget_bytes*. It is
        unloaded after *idle_s* without a request; loaded ones may take *memory_bytes* together.
        A single model without adapters answers to any name, unless *strict_names*. *sampling*
        replaces what the models' files recommend, and a request may replace it.
        """
        options = asdict(sampling or SamplingOptions())
        self.defaults = Request(**options).with_origin("command line")
        self.slots = {slot.name: slot for slot in slots}
        self.default = slots[0]
        self._named = {name: slot for slot in slots for name in slot.names} | self.slots
        self._idle_s = idle_s
        for name, slot in self.slots.items():
            many = len(slots) > 1
            slot.narrate = partial(narrate, model_name=name) if many else narrate
            slot.idle_s = idle_s
            slot.places = max_batch + queue
            slot.watch(metrics.of(name))
        is_single = len(slots) == 1 and not slots[0].adapters
        self._takes_any_name = is_single and not strict_names
        self.ignored: set[tuple[str, str]] = set()  # forms and fields reported so far
        self.created = int(time.time())
        self.max_batch = max_batch  # answers that one model generates at the same time
        self.deadline_s = deadline_s  # of a request, including waiting
        self.max_output_tokens = max_output_tokens  # of one answer
        self._sizes: dict[str, Any] = {"max_batch": max_batch, "kv_budget_bytes": kv_budget_bytes}
        self._preparing = ThreadPoolExecutor(PREPARING, "bitnet-prepare")
        self._compiling = ThreadPoolExecutor(COMPILING, "bitnet-grammar")
        self._memory_bytes = memory_bytes
        self._draining = False
        self._closed = False
        self._turn = asyncio.Lock()  # to load or to unload
        self._freed = asyncio.Event()  # a request ended: a model may be idle, or a load unnecessary
        self._tasks: set[asyncio.Task[None]] = set()
        self.given_up = asyncio.Event()  # open requests must end now
        self.queues: set[Pieces] = set()  # of requests whose answers are being generated

    @property
    def open_jobs(self) -> int:
        """Answers of all models that wait or are being written."""
        return sum(slot.open_jobs for slot in self.slots.values())

    @property
    def draining(self) -> bool:
        """True if new requests are refused."""
        return self._draining or any(slot.draining for slot in self._in_memory())

    @property
    def dead(self) -> Slot | None:
        """A model whose thread failed, or None while all is well."""
        return next((slot for slot in self.slots.values() if slot.failure is not None), None)

    def has(self, name: str) -> bool:
        """True if a model, or an adapter of one, is called *name*."""
        return self._slot_of(name) is not None

    def find(self, name: str | None, *, exactly: bool = False) -> Slot:
        """The model, or its adapter, that clients call *name*; the first one if they name none.

        A single model without adapters is found by any name: programs send the name of the model
        that they were written for. With *exactly*, its own names are the only ones.
        """
        if name is None:
            return self.default
        slot = self._slot_of(name)
        if slot is None and self._takes_any_name and not exactly:
            return self.default
        if slot is None:
            message = f"there is no model {name[:100]!r}, only {', '.join(map(repr, self.slots))}"
            raise Refused(404, message, code="model_not_found", param="model")
        return slot

    def _slot_of(self, name: str) -> Slot | None:
        """The slot with the model or adapter *name*, or None."""
        # Ollama's clients add a tag.
        return self._named.get(name) or self._named.get(name.removesuffix(":latest"))

    def drain(self, within_s: float | None = None) -> None:
        """Refuse new requests and those that wait for a model; drain each model that is loaded."""
        self._draining = True
        self._freed.set()
        for slot in self._in_memory():
            slot.drain(within_s)

    def give_up(self) -> None:
        """End every request now, without waiting for a running pass or load to finish."""
        self.drain(0)
        self.given_up.set()
        for pieces in self.queues:
            pieces.put_nowait(None)

    def close(self) -> None:
        """End every answer, every thread and every model."""
        self._draining = True
        self._closed = True
        for slot in self.slots.values():
            slot.cancel_timer()
        for slot in self._in_memory():
            slot.close()
        for pool in (self._preparing, self._compiling):
            pool.shutdown(wait=False, cancel_futures=True)

    def load_first(self) -> None:
        """Load the first model, here and now; it stays until the end."""
        slot = self.default
        checkpoint = open_narrated(slot.open, slot.narrate)
        self.pin(slot, load_narrated(checkpoint, slot.load, slot.narrate))

    def pin(self, slot: Slot, model: LanguageModel) -> None:
        """Put the loaded *model* into *slot*, where it stays until the end."""
        slot.pinned = True
        slot.fill(model, **self._sizes)

    @asynccontextmanager
    async def get(
        self, name: str | None, deadline: float, while_loading: Wait | None = None
    ) -> AsyncIterator[Slot]:
        """Yield the slot of the model that clients call *name*; it stays loaded within the context.

        A model that is not loaded is loaded first, until *deadline*, by ``time.monotonic``.
        *while_loading* awaits that, and may raise the reason to stop waiting.
        """
        slot = self.find(name)
        if self._draining:
            raise stopping()
        slot.users += 1
        slot.cancel_timer()
        try:
            if not slot.loaded:
                loading = self._wait_until_loaded(slot, deadline)
                await (loading if while_loading is None else while_loading(loading))
            if not slot.loaded or self._draining:
                raise stopping()
            yield slot
        finally:
            slot.users -= 1
            if not slot.users:
                slot.used_at = time.monotonic()
                self.keep(slot)
            self._freed.set()

    def keep(self, slot: Slot, idle_s: float | None = None) -> None:
        """Keep *slot* loaded for *idle_s* seconds without a request.

        With None, the time of the last request that set one applies; if none has set one since the
        model was loaded, the worker's.
        """
        slot.idle_s = slot.idle_s if idle_s is None else idle_s
        slot.cancel_timer()
        is_idle = slot.loaded and not (slot.users or slot.pinned or self._draining)
        if is_idle and slot.idle_s != FOREVER:
            expires_at = slot.expires_at = time.time() + slot.idle_s
            loop = asyncio.get_running_loop()
            slot.timer = loop.call_later(
                slot.idle_s, lambda: self._begin(self._unload_idle(slot, expires_at))
            )

    async def run_in_thread(
        self, make: Callable[[], T], deadline: float, *, compiles: bool = False
    ) -> T:
        """Result of *make*, called in a thread, with limited concurrency.

        It is refused if it is not ready at *deadline*, by ``time.monotonic``; if it *compiles* a
        grammar, also after :data:`TURN_S` in the queue or :data:`COMPILE_S` of work.
        """
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()

        def run() -> T:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(begun.set)
            return make()

        pool = self._compiling if compiles else self._preparing
        turn_s = TURN_S if compiles else FOREVER
        limit_s = COMPILE_S if compiles else FOREVER
        making = loop.run_in_executor(pool, run)
        try:
            await asyncio.wait_for(begun.wait(), min(turn_s, deadline - time.monotonic()))
            return await asyncio.wait_for(making, min(limit_s, deadline - time.monotonic()))
        except asyncio.TimeoutError:
            if not compiles or time.monotonic() >= deadline:
                raise too_late(self.deadline_s) from None
            if not begun.is_set():
                raise Refused(
                    503, "the grammars of other requests are being compiled",
                    kind="server_error", code="compiling", retry_after_s=5,
                ) from None  # fmt: skip
            raise Refused(
                400, f"the grammar of the answer was not ready after {limit_s:g} s: simplify it"
            ) from None
        finally:
            making.cancel()

    # --- loading and unloading -------------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run *work* in a task; requests that await it get its error."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # asyncio holds only a weak reference
        task.add_done_callback(self._tasks.discard)
        # Retrieve the error: otherwise asyncio logs it if no request awaits the task.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return task

    async def _wait_until_loaded(self, slot: Slot, deadline: float) -> None:
        """Begin to load *slot*, or join those that wait for it, until *deadline*."""
        if slot.queued >= slot.places:
            raise slot.queue_full(f"{slot.queued} requests wait for {slot.name!r} to be loaded")
        slot.queued += 1
        try:
            slot.loading = slot.loading or self._begin(self._load(slot))
            await asyncio.wait_for(asyncio.shield(slot.loading), deadline - time.monotonic())
        except asyncio.TimeoutError:
            raise too_late(self.deadline_s) from None
        finally:
            slot.queued -= 1
            self._freed.set()

    async def _load(self, slot: Slot) -> None:
        """Load *slot* in its turn, once there is room."""
        try:
            async with self._turn:
                self._check_needed(slot)
                slot.idle_s = self._idle_s  # a keep_alive lasts until the model is unloaded
                narrate = self._until_closed(slot.narrate)
                checkpoint = await run_detached(partial(open_narrated, slot.open, narrate))
                size = partial(memory_of, checkpoint, slot.context, **self._sizes)
                slot.size_bytes = await run_detached(size)
                await self._make_room(slot)
                slot.state = "loading"
                load = partial(load_narrated, checkpoint, slot.load, narrate)
                model = await run_detached(load)
                slot.fill(model, **self._sizes)
                self.keep(slot)  # its requests may have gone meanwhile
        except Refused:
            slot.state = "unloaded"
            raise
        except Exception as error:  # noqa: BLE001 - those that wait are told
            slot.state = "failed"
            message = f"the model {slot.name!r} cannot be loaded: {from_error(error).message}"
            code = "model_load_failed"
            raise Refused(500, message, kind="server_error", code=code) from None
        finally:
            slot.loading = None

    def _until_closed(self, write: Narrate) -> Narrate:
        """A function like *write* that does nothing once the worker is closed.

        A thread may still be loading a model then.
        """

        def write_unless_closed(*action: Any, **facts: Any) -> None:
            if not self._closed:
                write(*action, **facts)

        return write_unless_closed

    def _check_needed(self, slot: Slot) -> None:
        """Raise the refusal that ends the load of *slot* if no request waits for it any more."""
        if not slot.queued or self._draining:
            raise stopping()

    async def _make_room(self, slot: Slot) -> None:
        """Unload idle models, least recently used first, until there is memory for *slot*.

        If too few are idle, wait until one is.
        """
        bound = self._memory_bytes
        if bound is None:
            return
        if slot.size_bytes > bound:
            raise Refused(
                503, f"the model {slot.name!r} takes up to {human_size(slot.size_bytes)}, "
                f"--memory-budget is {human_size(bound)}",
                kind="server_error", code="model_too_large",
            )  # fmt: skip
        while True:
            loaded = self._in_memory()
            if sum(each.size_bytes for each in loaded) + slot.size_bytes <= bound:
                return
            if idle := [each for each in loaded if not (each.users or each.pinned)]:
                await self._unload(min(idle, key=lambda each: each.used_at))
                continue
            self._check_needed(slot)
            slot.state = "waiting"
            self._freed.clear()
            await self._freed.wait()

    async def _unload_idle(self, slot: Slot, expires_at: float) -> None:
        """Unload *slot*, whose time ended at *expires_at*, unless a request has come since then."""
        async with self._turn:
            if slot.loaded and not slot.users and slot.expires_at == expires_at:
                await self._unload(slot)

    async def _unload(self, slot: Slot) -> None:
        """Take *slot* out of memory; requests that come meanwhile have it loaded again."""
        slot.state = "unloading"
        slot.cancel_timer()
        await asyncio.to_thread(slot.close)
        # The traceback of an earlier error may still refer to the model.
        await asyncio.to_thread(gc.collect)
        slot.narrate("model_unloaded", model=slot.name)

    def _in_memory(self) -> list[Slot]:
        """The slots whose models are loaded."""
        return [slot for slot in self.slots.values() if slot.loaded]

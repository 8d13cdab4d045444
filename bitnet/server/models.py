"""The models of a worker: which there are, and which of them are in memory.

A request names a model. One that is not loaded is loaded for it, once for all that wait, in a
thread; it stays as long as a request uses it, and after that until it has been idle for too long
or another one needs its memory. Models are loaded and unloaded one at a time, in the order in which
they were asked for. Everything here happens in the event loop, except where a thread is named.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import TYPE_CHECKING, Any, Literal

from bitnet.base.progress import human_size
from bitnet.server.loading import (
    digest_of,
    load_narrated,
    memory_of,
    open_narrated,
    read_header,
)
from bitnet.server.refusals import Refused, from_error
from bitnet.server.worker import Worker, WorkerLimits, stopping, too_late

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.server.metrics import Metrics
    from bitnet.server.narration import Narrator

__all__ = ["FOREVER", "Models", "Slot", "State"]

logger = logging.getLogger(__name__)

MOST_NAMES = 20  # in an error


State = Literal["unloaded", "waiting", "loading", "loaded", "unloading", "failed"]
FOREVER = float("inf")


class Slot:
    """One of the models, loaded or not.

    Attributes:
        name: of the model, for clients.
        path: its file or folder.
        open: opens it, as :func:`bitnet.formats.containers.open_checkpoint`.
        load: loads what *open* returned, tokenizer included.
        aliases: other names that clients may use.
        adapters: names that stand for the model with one of its adapters.
        context: positions a sequence may reach; ``None``: as many as the model was made for.
        narrate: reports its events; :class:`bitnet.server.models.Models` sets it.
        state: whether it is in memory; ``waiting``: for others to make room.
        worker: runs the model; ``None`` while it is not loaded.
        users: requests that use it or wait for it.
        queued: those that wait.
        pinned: loaded when the worker starts, and never unloaded.
        idle_s: seconds without a request after which it is unloaded.
        size_bytes: memory that it takes, or took when it was loaded last.
        expires_at: when it is unloaded, in seconds since the epoch; ``None``: not by itself.
    """

    narrate: Narrator

    def __init__(
        self,
        name: str,
        path: Path,
        open_file: Callable[[], Checkpoint],
        load: Callable[[Checkpoint], LanguageModel],
        *,
        aliases: Sequence[str] = (),
        adapters: Sequence[str] = (),
        context: int | None = None,
    ) -> None:
        """An empty slot; arguments are its attributes, *open_file* is ``open``."""
        self.name, self.path = name, path
        self.open, self.load = open_file, load
        self.aliases, self.adapters = tuple(aliases), tuple(adapters)
        self.context = context
        self.state: State = "unloaded"
        self.worker: Worker | None = None
        self.users = 0
        self.queued = 0
        self.pinned = False
        self.idle_s = FOREVER
        self.size_bytes = 0
        self.used_at = 0.0
        self.expires_at: float | None = None
        self.loading: asyncio.Task[None] | None = None
        self._header: dict[str, Any] = {}
        self._digest = ""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names that clients may use."""
        return (self.name, *self.aliases, *self.adapters)

    @property
    def open_jobs(self) -> int:
        """Answers that wait, for the model too, or are being written."""
        return self.queued + (self.worker.open_jobs if self.worker else 0)

    def watch(self, metrics: dict[str, Any]) -> None:
        """Have *metrics* read its state; a worker counts the rest."""

        def running() -> int:
            return self.worker.running if self.worker else 0

        for name, read in {
            "loaded": lambda: self.state == "loaded",
            "open": lambda: self.open_jobs,
            "running": running,
            "waiting": lambda: max(0, self.open_jobs - running()),
            "kv_usage": lambda: self.worker.kv_usage if self.worker else 0.0,
        }.items():
            metrics[name].set_function(read)

    async def header(self) -> dict[str, Any]:
        """Facts about its file, as :func:`read_header` gives them; in a thread, and kept."""
        if not self._header:
            self._header = await asyncio.to_thread(lambda: read_header(self.open(), self.context))
        return self._header

    async def digest(self) -> str:
        """Digest of its file or folder; in a thread, and kept."""
        self._digest = self._digest or await asyncio.to_thread(digest_of, self.path)
        return self._digest

    def call_when_idle(self, unload: Callable[[], object]) -> None:
        """Call *unload* once it has not been used for as long as it may."""
        self.expires_at = None
        if self.idle_s != FOREVER:
            self.expires_at = time.time() + self.idle_s
            self._timer = asyncio.get_running_loop().call_later(self.idle_s, unload)

    def cancel_timer(self) -> None:
        """It is in use, or about to go."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.expires_at = None


class Models:
    """The models of a worker by their names, and what runs those that are loaded.

    Attributes:
        slots: by the names of their models.
        created: when this began, in seconds since the epoch.
        limits: of each model.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        metrics: Metrics,
        narrate: Narrator,
        limits: WorkerLimits,
        *,
        idle_s: float = FOREVER,
        memory_bytes: int | None = None,
    ) -> None:
        """None of *slots* is loaded; the first one answers requests that name none.

        *limits* hold for each model, which is unloaded after *idle_s* without a request; loaded
        models may take *memory_bytes* together.
        """
        self.slots = {slot.name: slot for slot in slots}
        self._named = {name: slot for slot in slots for name in slot.names} | self.slots
        self._metrics = {name: metrics.of(name) for name in self.slots}
        for name, slot in self.slots.items():
            many = len(slots) > 1
            slot.narrate = narrate.about(model_name=name) if many else narrate
            slot.idle_s = idle_s
            slot.watch(self._metrics[name])
        self.created = int(time.time())
        self.limits = limits
        self._memory_bytes = memory_bytes
        self._draining = False
        self._turn = asyncio.Lock()  # to load or to unload
        self._freed = asyncio.Event()  # a model may be idle, or a load not be needed any more
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def default(self) -> Slot:
        """The one that answers requests that name none."""
        return next(iter(self.slots.values()))

    @property
    def open_jobs(self) -> int:
        """Answers of all models that wait or are being written."""
        return sum(slot.open_jobs for slot in self.slots.values())

    @property
    def draining(self) -> bool:
        """True if new requests are refused."""
        return self._draining or any(worker.draining for worker in self._workers())

    @property
    def alive(self) -> bool:
        """True if the thread of every loaded model runs."""
        return all(worker.alive for worker in self._workers())

    @property
    def dead(self) -> Worker | None:
        """A model whose thread ended where it should not have; ``None`` while all is well."""
        return next((worker for worker in self._workers() if worker.failure is not None), None)

    def find(self, name: str | None) -> Slot:
        """The model that clients call *name*, or its adapter; the first one where they name none.

        Raises:
            Refused: there is no such model here (404).
        """
        if name is None:
            return self.default
        # Ollama's clients add a tag.
        slot = self._named.get(name) or self._named.get(name.removesuffix(":latest"))
        if slot is None:
            names = [*map(repr, self.slots)]
            more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
            there = f"only {names[0]}" if len(names) == 1 else ", ".join(names[:MOST_NAMES])
            raise Refused(
                404, f"there is no model {name[:100]!r}, {'' if len(names) == 1 else 'there are '}"
                f"{there}{more}",
                code="model_not_found", param="model",
            )  # fmt: skip
        return slot

    def start(self) -> None:
        """Start the threads of models that are loaded already."""
        for worker in self._workers():
            worker.start()

    def drain(self, within_s: float | None = None) -> None:
        """Take no more requests, as :meth:`Worker.drain`, also none that waits for a model."""
        self._draining = True
        self._freed.set()
        for worker in self._workers():
            worker.drain(within_s)

    def close(self) -> None:
        """End every answer, every thread and every model."""
        self.stop()
        for slot in self.slots.values():
            if slot.worker is not None:
                slot.worker.close()
            slot.worker = None

    def __enter__(self) -> Models:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def stop(self) -> None:
        """End every answer and every thread."""
        self._draining = True
        for slot in self.slots.values():
            slot.cancel_timer()
        for worker in self._workers():
            worker.stop()

    def load_first(self) -> None:
        """Load the first model, here and now; it stays until the end.

        Raises:
            BitnetError: it cannot be loaded; it has been narrated.
        """
        slot = self.default
        checkpoint = open_narrated(slot.open, slot.narrate)
        self.pin(slot, load_narrated(checkpoint, slot.load, slot.narrate))

    def pin(self, slot: Slot, model: LanguageModel) -> None:
        """Have *model*, which is loaded, answer for *slot* until the end."""
        slot.pinned = True
        self._fill(slot, model)

    def _fill(self, slot: Slot, model: LanguageModel) -> Worker:
        slot.worker = Worker(slot.name, model, self._metrics[slot.name], self.limits, slot.narrate)
        slot.state = "loaded"
        slot.used_at = time.monotonic()
        return slot.worker

    def hold(self, slot: Slot) -> None:
        """Keep *slot* in memory, once it is there, until :meth:`release`."""
        if self._draining:
            raise stopping()
        slot.users += 1
        slot.cancel_timer()

    async def worker(self, slot: Slot, deadline: float) -> Worker:
        """Worker of *slot*, whose model is loaded first if necessary.

        The caller holds *slot*, and waits until *deadline*, by ``time.monotonic``.

        Raises:
            Refused: it cannot be loaded (500), too many wait for it (429), it has no room (503),
                it was not loaded in time (504), or the worker stops (503).
        """
        if slot.worker is None:
            await self._wait_for(slot, deadline)
        if slot.worker is None or self._draining:
            raise stopping()
        return slot.worker

    def release(self, slot: Slot) -> None:
        """Give *slot* back: the request that held it has ended."""
        slot.users -= 1
        if not slot.users:
            slot.used_at = time.monotonic()
            self.keep(slot)
        self._freed.set()

    def keep(self, slot: Slot, idle_s: float | None = None) -> None:
        """Keep *slot* loaded for *idle_s* seconds without a request; ``None``: as it was."""
        if idle_s is not None:
            slot.idle_s = idle_s
        slot.cancel_timer()
        if slot.worker and not (slot.users or slot.pinned or self._draining):
            slot.call_when_idle(lambda: self._begin(self._unload_idle(slot)))

    # --- loading and unloading -------------------------------------------------------------------

    async def _wait_for(self, slot: Slot, deadline: float) -> None:
        """Return once *slot* is loaded."""
        if slot.queued >= self.limits.places:
            self._metrics[slot.name]["refused"].inc()
            raise Refused(
                429, f"{slot.queued} requests wait for the model {slot.name!r} to be loaded",
                kind="rate_limit_error", code="queue_full", retry_after_s=1,
            )  # fmt: skip
        slot.queued += 1
        try:
            if slot.loading is None:
                slot.loading = self._begin(self._load(slot))
            await asyncio.wait_for(asyncio.shield(slot.loading), deadline - time.monotonic())
        except asyncio.TimeoutError:
            if slot.state == "waiting":
                raise self._no_room(slot) from None
            raise too_late(self.limits.deadline_s) from None
        finally:
            slot.queued -= 1
            self._freed.set()

    def _no_room(self, slot: Slot) -> Refused:
        busy = [each.name for each in self.slots.values() if each.worker and each.users]
        return Refused(
            503, f"there is no memory for the model {slot.name!r} while others are in use: "
            f"{', '.join(busy[:MOST_NAMES])}",
            kind="server_error", code="no_memory", retry_after_s=5,
        )  # fmt: skip

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run *work* and wake up the requests that wait for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)

        def on_end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()

        task.add_done_callback(on_end)
        return task

    async def _load(self, slot: Slot) -> None:
        """Load *slot* in its turn, once there is room."""
        try:
            async with self._turn:
                self._check_needed(slot)
                checkpoint = await asyncio.to_thread(open_narrated, slot.open, slot.narrate)
                slot.size_bytes = await asyncio.to_thread(
                    memory_of, checkpoint, slot.context, self.limits
                )
                await self._make_room(slot)
                slot.state = "loading"
                model = await asyncio.to_thread(load_narrated, checkpoint, slot.load, slot.narrate)
                self._fill(slot, model).start()
        except Refused:
            slot.state = "unloaded"
            raise
        except Exception as error:  # noqa: BLE001 - those that wait are told
            refused = from_error(error)
            logger.info("the model %s cannot be loaded: %s", slot.name, refused.message)
            slot.state = "failed"
            raise Refused(
                500, f"the model {slot.name!r} cannot be loaded: {refused.message}",
                kind="server_error", code="model_load_failed",
            ) from None  # fmt: skip
        finally:
            slot.loading = None

    def _check_needed(self, slot: Slot) -> None:
        """Give up the load of *slot* if no request waits for it any more."""
        if not slot.queued or self._draining:
            raise stopping()

    async def _make_room(self, slot: Slot) -> None:
        """Unload idle models, least recently used first, until there is memory for *slot*."""
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
            loaded_slots = [each for each in self.slots.values() if each.worker is not None]
            if sum(each.size_bytes for each in loaded_slots) + slot.size_bytes <= bound:
                return
            if idle := [each for each in loaded_slots if not (each.users or each.pinned)]:
                await self._unload(min(idle, key=lambda each: each.used_at))
                continue
            self._check_needed(slot)
            slot.state = "waiting"
            self._freed.clear()
            await self._freed.wait()

    async def _unload_idle(self, slot: Slot) -> None:
        async with self._turn:
            if slot.worker is not None and not slot.users:
                await self._unload(slot)

    async def _unload(self, slot: Slot) -> None:
        """Take *slot* out of memory; requests that come meanwhile have it loaded again."""
        worker, slot.worker = slot.worker, None
        if worker is None:
            return
        slot.state = "unloading"
        slot.cancel_timer()
        await asyncio.to_thread(worker.close)
        del worker
        await asyncio.to_thread(gc.collect)  # a model that an old error still holds
        slot.state = "unloaded"
        slot.narrate("model_unloaded", f"Model {slot.name} is unloaded", "Time for a nap! 😴")

    def _workers(self) -> list[Worker]:
        return [slot.worker for slot in self.slots.values() if slot.worker is not None]

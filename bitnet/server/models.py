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
from functools import partial
from typing import TYPE_CHECKING, Any

from bitnet.progress import human_size
from bitnet.server.entry import FOREVER, ServedModel
from bitnet.server.loading import loaded, narrated, opened
from bitnet.server.refusals import Refused, from_error
from bitnet.server.service import Service
from bitnet.server.source import memory_of
from bitnet.server.streams import unless_gone
from bitnet.server.worker import Worker, WorkerLimits, stopping, too_late

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from fastapi import Request

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.server.metrics import Metrics
    from bitnet.server.narration import Narrator
    from bitnet.server.source import ModelSource

__all__ = ["Models", "entry_of", "service_of"]

logger = logging.getLogger(__name__)

MOST_NAMES = 20  # in an error


class Models:
    """The models of a worker by their names, and what runs those that are loaded.

    Attributes:
        created: when this began, in seconds since the epoch.
        limits: of each model.
    """

    def __init__(
        self,
        sources: Sequence[ModelSource],
        metrics: Metrics,
        narrate: Narrator,
        limits: WorkerLimits,
        *,
        idle_s: float = FOREVER,
        memory_bytes: int | None = None,
        max_output_tokens: int = 4096,
    ) -> None:
        """None of them loaded.

        Args:
            sources: the models; the first one answers requests that name none.
            metrics: counts what happens.
            narrate: told of it.
            limits: of each model.
            idle_s: seconds without a request after which a model is unloaded.
            memory_bytes: memory that loaded models may take together; ``None``: no bound.
            max_output_tokens: tokens one answer may have.
        """
        many = len(sources) > 1
        self.entries = {
            one.name: ServedModel(
                one, narrate.about(model_name=one.name) if many else narrate, idle_s
            )
            for one in sources
        }
        self._named = {
            **{alias: self.entries[one.name] for one in sources for alias in one.aliases},
            **self.entries,
        }
        self._metrics = {name: metrics.of(name) for name in self.entries}
        for name, entry in self.entries.items():
            self._metrics[name].watch(entry)
        self.created = int(time.time())
        self.limits = limits
        self._memory_bytes = memory_bytes
        self._max_output_tokens = max_output_tokens
        self._draining = False
        self._turn = asyncio.Lock()  # to load or to unload
        self._freed = asyncio.Event()  # a model may be idle, or a load not be needed any more
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def default(self) -> ServedModel:
        """The one that answers requests that name none."""
        return next(iter(self.entries.values()))

    @property
    def open_jobs(self) -> int:
        """Answers of all models that wait or are being written."""
        return sum(one.open_jobs for one in self.entries.values())

    @property
    def draining(self) -> bool:
        """True if new requests are refused."""
        return self._draining or any(one.worker.draining for one in self._services())

    @property
    def alive(self) -> bool:
        """True if the thread of every loaded model runs."""
        return all(one.worker.alive for one in self._services())

    @property
    def dead(self) -> Service | None:
        """A model whose thread ended where it should not have; ``None`` while all is well."""
        return next((one for one in self._services() if one.worker.failure is not None), None)

    def find(self, name: str | None) -> ServedModel:
        """The model that clients call *name*; the first one where they name none.

        Raises:
            Refused: there is no such model here (404).
        """
        if name is None:
            return self.default
        found = self._named.get(name)
        if found is None:
            names = [repr(one) for one in self.entries]
            more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
            there = f"only {names[0]}" if len(names) == 1 else ", ".join(names[:MOST_NAMES])
            raise Refused(
                404, f"there is no model {name[:100]!r}, {'' if len(names) == 1 else 'there are '}"
                f"{there}{more}",
                code="model_not_found", param="model",
            )  # fmt: skip
        return found

    def start(self) -> None:
        """Start the threads of models that are loaded already."""
        for service in self._services():
            service.worker.start()

    def drain(self, within_s: float | None = None) -> None:
        """Take no more requests; those that wait for a model are refused.

        Args:
            within_s: as :meth:`bitnet.server.worker.Worker.drain`.
        """
        self._draining = True
        self._freed.set()
        for service in self._services():
            service.worker.drain(within_s)

    def close(self) -> None:
        """End every answer, every thread and every model."""
        self.stop()
        for entry in self.entries.values():
            service, entry.service = entry.service, None
            if service is not None:
                service.close()

    def __enter__(self) -> Models:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def stop(self) -> None:
        """End every answer and every thread."""
        self._draining = True
        for entry in self.entries.values():
            entry.cancel_timer()
        for service in self._services():
            service.worker.stop()

    def load_first(self) -> None:
        """Load the first model, here and now; it stays until the end.

        Raises:
            BitnetError: it cannot be loaded; it has been narrated.
        """
        entry, source = self.default, self.default.source
        self.pin(entry, narrated(source.open, source.load, entry.narrate))

    def pin(self, entry: ServedModel, model: LanguageModel) -> None:
        """Have *model*, which is loaded, answer for *entry* until the end.

        Raises:
            UsageError: no answer fits the memory for keys and values.
        """
        entry.pinned = True
        self._set(entry, self._service(entry, model))

    def _set(self, entry: ServedModel, service: Service) -> None:
        entry.service = service
        entry.state = "loaded"
        entry.used_at = time.monotonic()

    def _service(self, entry: ServedModel, model: LanguageModel) -> Service:
        worker = Worker(model, self._metrics[entry.name], self.limits)
        return Service(worker, entry.narrate, entry.name, self._max_output_tokens)

    def hold(self, entry: ServedModel) -> None:
        """Keep *entry* in memory, once it is there, until :meth:`release`.

        Raises:
            Refused: the worker stops.
        """
        if self._draining:
            raise stopping()
        entry.users += 1
        entry.cancel_timer()

    async def service(self, entry: ServedModel, deadline: float) -> Service:
        """Service of *entry*, which is loaded first if necessary.

        Args:
            entry: which one; the caller holds it.
            deadline: ``time.monotonic`` until which the caller waits.

        Raises:
            Refused: it cannot be loaded (500), too many wait for it (429), it has no room (503),
                it was not loaded in time (504), or the worker stops (503).
        """
        if entry.service is None:
            await self._wait_for(entry, deadline)
        if entry.service is None or self._draining:
            raise stopping()
        return entry.service

    def release(self, entry: ServedModel) -> None:
        """Give *entry* back: the request that held it has ended."""
        entry.users -= 1
        if not entry.users:
            entry.used_at = time.monotonic()
            self.keep(entry)
        self._freed.set()

    def keep(self, entry: ServedModel, idle_s: float | None = None) -> None:
        """Keep *entry* loaded for *idle_s* seconds without a request; ``None``: as it was."""
        if idle_s is not None:
            entry.idle_s = idle_s
        entry.cancel_timer()
        if entry.loaded and not (entry.users or entry.pinned or self._draining):
            entry.call_when_idle(lambda: self._begin(self._unload_idle(entry)))

    # --- loading and unloading -------------------------------------------------------------------

    async def _wait_for(self, entry: ServedModel, deadline: float) -> None:
        """Return once *entry* is loaded.

        Raises:
            Refused: as :meth:`service`.
        """
        if entry.waiting >= self.limits.places:
            self._metrics[entry.name].refused.inc()
            raise Refused(
                429, f"{entry.waiting} requests wait for the model {entry.name!r} to be loaded",
                kind="rate_limit_error", code="queue_full", retry_after_s=1,
            )  # fmt: skip
        entry.waiting += 1
        try:
            if entry.loading is None:
                entry.loading = self._begin(self._load(entry))
            await asyncio.wait_for(asyncio.shield(entry.loading), deadline - time.monotonic())
        except asyncio.TimeoutError:
            if entry.state == "waiting":
                raise self._no_room(entry) from None
            raise too_late(self.limits.deadline_s) from None
        finally:
            entry.waiting -= 1
            self._freed.set()

    def _no_room(self, entry: ServedModel) -> Refused:
        busy = [one.name for one in self.entries.values() if one.loaded and one.users]
        return Refused(
            503, f"there is no memory for the model {entry.name!r} while others are in use: "
            f"{', '.join(busy[:MOST_NAMES])}",
            kind="server_error", code="no_memory", retry_after_s=5,
        )  # fmt: skip

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run *work* and wake up the requests that wait for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()

        task.add_done_callback(ended)
        return task

    async def _load(self, entry: ServedModel) -> None:
        """Load *entry* in its turn, once there is room.

        Raises:
            Refused: it cannot be loaded.
        """
        try:
            async with self._turn:
                self._check_needed(entry)
                checkpoint = await asyncio.to_thread(opened, entry.source.open, entry.narrate)
                entry.size_bytes = await asyncio.to_thread(self._weigh, entry, checkpoint)
                await self._make_room(entry)
                entry.state = "loading"
                service = await asyncio.to_thread(self._loaded, entry, checkpoint)
                service.worker.start()
                self._set(entry, service)
        except Refused:
            entry.state = "unloaded"
            raise
        except Exception as error:  # noqa: BLE001 - those that wait are told
            known = from_error(error)
            logger.info("the model %s cannot be loaded: %s", entry.name, known.message)
            entry.state = "failed"
            raise Refused(
                500, f"the model {entry.name!r} cannot be loaded: {known.message}",
                kind="server_error", code="model_load_failed",
            ) from None  # fmt: skip
        finally:
            entry.loading = None

    def _weigh(self, entry: ServedModel, checkpoint: Checkpoint) -> int:
        """Bytes that *entry* takes once it is loaded."""
        return memory_of(checkpoint, entry.source.context, self.limits)

    def _loaded(self, entry: ServedModel, checkpoint: Checkpoint) -> Service:
        return self._service(entry, loaded(checkpoint, entry.source.load, entry.narrate))

    def _check_needed(self, entry: ServedModel) -> None:
        """Give up the load of *entry* if no request waits for it any more.

        Raises:
            Refused: so it is, or the worker stops.
        """
        if not entry.waiting or self._draining:
            raise stopping()

    async def _make_room(self, entry: ServedModel) -> None:
        """Unload idle models, least recently used first, until there is memory for *entry*.

        Raises:
            Refused: there will never be, or no request waits for it any more.
        """
        bound = self._memory_bytes
        if bound is None:
            return
        if entry.size_bytes > bound:
            raise Refused(
                503, f"the model {entry.name!r} takes up to {human_size(entry.size_bytes)}, "
                f"--memory-budget is {human_size(bound)}",
                kind="server_error", code="model_too_large",
            )  # fmt: skip
        while True:
            there = [one for one in self.entries.values() if one.service is not None]
            if sum(one.size_bytes for one in there) + entry.size_bytes <= bound:
                return
            if idle := [one for one in there if not (one.users or one.pinned)]:
                await self._unload(min(idle, key=lambda one: one.used_at))
                continue
            self._check_needed(entry)
            entry.state = "waiting"
            self._freed.clear()
            await self._freed.wait()

    async def _unload_idle(self, entry: ServedModel) -> None:
        async with self._turn:
            if entry.service is not None and not entry.users:
                await self._unload(entry)

    async def _unload(self, entry: ServedModel) -> None:
        """Take *entry* out of memory; requests that come meanwhile have it loaded again."""
        service, entry.service = entry.service, None
        if service is None:
            return
        entry.state = "unloading"
        entry.cancel_timer()
        await asyncio.to_thread(service.close)
        del service
        await asyncio.to_thread(gc.collect)  # a model that an old error still holds
        entry.state = "unloaded"
        entry.narrate("model_unloaded", f"Model {entry.name} is unloaded", "Time for a nap! 😴")

    def _services(self) -> list[Service]:
        return [one.service for one in self.entries.values() if one.service is not None]


def entry_of(request: Request, name: str | None) -> ServedModel:
    """The model that a request for *name* means.

    Raises:
        Refused: there is no such model here.
    """
    models: Models = request.app.state.models
    return models.find(name)


async def service_of(request: Request, name: str | None) -> Service:
    """Service for a request to the model *name*, which stays loaded until the request has ended.

    Raises:
        Refused: as :meth:`Models.find` and :meth:`Models.service`, or the client has gone.
    """
    models: Models = request.app.state.models
    entry = models.find(name)
    state = request.scope["state"]
    state["deadline"] = time.monotonic() + models.limits.deadline_s
    models.hold(entry)
    state.setdefault("ends", []).append(partial(models.release, entry))
    found = models.service(entry, state["deadline"])
    return await (found if entry.loaded else unless_gone(request, found))

"""One of a worker's models: its state, and what runs it while it is loaded."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Literal

from bitnet.server.source import digest_of, facts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.server.narration import Narrator
    from bitnet.server.service import Service
    from bitnet.server.source import Facts, ModelSource

__all__ = ["FOREVER", "ServedModel", "State"]

State = Literal["unloaded", "waiting", "loading", "loaded", "unloading", "failed"]
FOREVER = float("inf")


class ServedModel:
    """One of the models, loaded or not.

    Attributes:
        source: which one it is, and where.
        state: whether it is in memory; ``waiting``: for others to make room.
        service: what answers; ``None`` while it is not loaded.
        users: requests that use it or wait for it.
        waiting: those that wait.
        pinned: loaded when the worker starts, and never unloaded.
        idle_s: seconds without a request after which it is unloaded.
        size_bytes: memory that it takes, or took when it was loaded last.
        expires_at: when it is unloaded, in seconds since the epoch; ``None``: not by itself.
    """

    def __init__(self, source: ModelSource, narrate: Narrator, idle_s: float) -> None:
        """The model at *source*, not loaded."""
        self.source = source
        self.narrate = narrate
        self.state: State = "unloaded"
        self.service: Service | None = None
        self.users = 0
        self.waiting = 0
        self.pinned = False
        self.idle_s = idle_s
        self.size_bytes = 0
        self.used_at = 0.0
        self.expires_at: float | None = None
        self.loading: asyncio.Task[None] | None = None
        self._facts: Facts | None = None
        self._digest = ""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        """Its name for clients."""
        return self.source.name

    @property
    def loaded(self) -> bool:
        """True if it is in memory."""
        return self.service is not None

    @property
    def open_jobs(self) -> int:
        """Answers that wait, for the model too, or are being written."""
        return self.waiting + (self.service.worker.open_jobs if self.service else 0)

    @property
    def running(self) -> int:
        """Answers that are being written."""
        return self.service.worker.running if self.service else 0

    @property
    def kv_usage(self) -> float:
        """Share of the memory for keys and values that is taken, 0 to 1."""
        return self.service.worker.kv_usage if self.service else 0.0

    async def facts(self) -> Facts:
        """Content of its header, which is read in a thread.

        Raises:
            BitnetError: it is not a model that can be run.
        """
        if self._facts is None:
            self._facts = await asyncio.to_thread(facts_of, self.source)
        return self._facts

    async def digest(self) -> str:
        """SHA-256 of its file, computed in a thread and kept.

        Raises:
            BitnetError: it cannot be read.
        """
        if not self._digest:
            self._digest = await asyncio.to_thread(digest_of, self.source.path)
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

"""A place for one model of a worker: what it serves, who uses it, and when it is emptied."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from bitnet.base.errors import BitnetError
from bitnet.base.options import CacheOptions
from bitnet.models.load import config_from
from bitnet.runtime.kv_cache import KVCache
from bitnet.runtime.scheduler import PREFILL_CHUNK
from bitnet.store import Store
from bitnet.tokenizer import resolve_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.server.narration import Narrator
    from bitnet.server.worker import Worker, WorkerLimits

__all__ = ["FOREVER", "Slot", "State", "memory_of"]

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
        context: int | None = None,
    ) -> None:
        """An empty slot; arguments are its attributes, *open_file* is ``open``."""
        self.name, self.path = name, path
        self.open, self.load = open_file, load
        self.aliases = tuple(aliases)
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
    def open_jobs(self) -> int:
        """Answers that wait, for the model too, or are being written."""
        return self.queued + (self.worker.open_jobs if self.worker else 0)

    @property
    def running(self) -> int:
        """Answers that are being written."""
        return self.worker.running if self.worker else 0

    @property
    def kv_usage(self) -> float:
        """Share of the memory for keys and values that is taken, 0 to 1."""
        return self.worker.kv_usage if self.worker else 0.0

    async def header(self) -> dict[str, Any]:
        """The header of its file, read once in a thread.

        ``architecture`` (GGUF's), ``context`` in positions, ``dim``, ``writes`` (False: vectors
        only), ``template`` (empty: none), number of ``parameters``, and the ``encoding`` of most.

        Raises:
            BitnetError: it is not a model that can be run.
        """
        self._header = self._header or await asyncio.to_thread(self._read_header)
        return self._header

    async def digest(self) -> str:
        """SHA-256 of its file, or of the names and digests of its files; in a thread, and kept.

        Raises:
            BitnetError: it cannot be read.
        """
        self._digest = self._digest or await asyncio.to_thread(_digest_of, self.path)
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

    def _read_header(self) -> dict[str, Any]:
        checkpoint = self.open()
        config = config_from(checkpoint)
        try:
            template = resolve_tokenizer(checkpoint).chat_template or ""
        except BitnetError:  # to be named, or fetched, when the model is loaded
            template = ""
        bytes_of: Counter[str] = Counter()
        for weight in checkpoint.weights.values():
            bytes_of[weight.quant.name] += weight.data.nbytes
        return {
            "architecture": checkpoint.architecture,
            "context": self.context or config.context_length,
            "dim": config.dim,
            "writes": config.writes,
            "template": template,
            "parameters": sum(prod(weight.shape) for weight in checkpoint.weights.values()),
            "encoding": bytes_of.most_common(1)[0][0],
        }


def _digest_of(path: Path) -> str:
    store = Store(CacheOptions().root)
    if path.is_file():
        return store.digest_of(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines = [f"{store.digest_of(file)} {file.relative_to(path)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def memory_of(checkpoint: Checkpoint, context: int | None, limits: WorkerLimits) -> int:
    """Bytes that the model takes at most once it is loaded: weights, and keys and values.

    Args:
        checkpoint: the open model.
        context: positions a sequence may reach; ``None``: as many as it was made for.
        limits: of the worker.

    Raises:
        BitnetError: it is not a model that can be run.
    """
    config = config_from(checkpoint)
    positions = context or config.context_length
    kv_bytes = limits.max_batch * KVCache(config, positions).cost(positions, PREFILL_CHUNK)
    if limits.kv_budget_bytes is not None:
        kv_bytes = min(kv_bytes, limits.kv_budget_bytes)
    return sum(weight.data.nbytes for weight in checkpoint.weights.values()) + kv_bytes

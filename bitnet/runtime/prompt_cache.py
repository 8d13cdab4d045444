"""Prompts on disk: find the longest stored prefix of new ids, and store what sequences computed.

A file counts only if everything that its bits depend on is the same, as
:class:`~bitnet.runtime.prompt_facts.PromptFacts` lists it. Files are written by a thread of this
class, from pages that later passes copy before they change them; the thread that runs the model
never waits for a disk.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import BitnetError
from bitnet.base.locks import renew_in_child
from bitnet.runtime.prompt_file import PromptFile, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from bitnet.cache.prompts import PromptFolder
    from bitnet.kernels.kv_cache import KVCache

    Facts = Mapping[str, str]

logger = logging.getLogger(__name__)

SHORTEST = 256  # least positions of a file, and least that a file must add to those stored
GROWTH = 8  # a prompt that grew by less than an eighth is written when it is idle
IDLE_S = 5.0  # seconds after which a prompt that did not grow is idle
MOST_PENDING = 4  # prompts that wait to be written, in memory; older ones are dropped
#: Facts in which two models in use may differ; a file that differs only in others is outdated.
VARIANTS = ("adapters", "kv_type")


class PromptCache:
    """The files of one model, which its schedulers read and extend."""

    def __init__(self, folder: PromptFolder, facts: Callable[[str], Facts]) -> None:
        """The files in *folder* whose facts are those that *facts* computes for an adapter."""
        self._folder = folder
        self._compute_facts = facts
        self._begin()
        renew_in_child(self, PromptCache._begin)

    def _begin(self) -> None:
        """Start without anything to write; a forked child has no thread of its parent."""
        self._facts_by_adapter: dict[str, Facts] = {}
        self._facts_lock = threading.Lock()
        self._opened: dict[Path, PromptFile | None] = {}  # None: a file that cannot be used
        self._reported: set[Path] = set()  # files about which a warning was logged
        self._changed = threading.Condition()
        self._pending: list[_Pending] = []
        self._thread: threading.Thread | None = None
        self._is_closing = False

    # --- reading ---------------------------------------------------------------------------------

    def find(
        self,
        ids: Sequence[int],
        adapter: str,
        new_cache: Callable[[], KVCache],
        regime: Callable[[int], Hashable],
    ) -> KVCache | None:
        """A cache from *new_cache* with the longest stored prefix of *ids*, but for the last one.

        None if nothing worth it is stored. *regime* is that of :class:`PrefixCache`. Results of
        passes over it count only if its ``backing`` reports no problem afterwards.
        """
        if len(ids) <= SHORTEST:
            return None
        best: KVCache | None = None
        try:
            facts = self._facts(adapter)
            for count, file in self._candidates(facts["weights"], ids[:-1]):
                if best is not None and count <= best.length:
                    break
                cache = self._restore(file, facts, count, new_cache)
                if cache is None or regime(cache.reach) != regime(len(ids)):
                    continue
                if cache.length >= SHORTEST and (best is None or cache.length > best.length):
                    best = cache
                    self._folder.mark_used(file.path)
        except (BitnetError, OSError) as error:
            logger.warning("stored prompts are not used: %s", error)
            return None
        if best is not None:
            best.adapter = adapter
        return best

    def _candidates(self, weights_digest: str, ids: Sequence[int]) -> list[tuple[int, PromptFile]]:
        """Files that share :data:`SHORTEST` leading *ids* or more, each with the number it shares.

        The file that shares the most comes first.
        """
        prompt_ids = np.asarray(ids, dtype=np.uint32)
        files = self._files(weights_digest)
        shared = [(common_length(file.ids, prompt_ids), file) for file in files]
        worth = [(count, file) for count, file in shared if count >= SHORTEST]
        return sorted(worth, key=lambda candidate: candidate[0], reverse=True)

    def _restore(
        self, file: PromptFile, facts: Facts, count: int, new_cache: Callable[[], KVCache]
    ) -> KVCache | None:
        """A cache from *file*, cut to its longest usable prefix of at most *count* positions.

        None if the file cannot be used for a model with these *facts*.
        """
        differing = [name for name in facts if file.facts.get(name) != facts[name]]
        if differing:
            if not set(differing) & set(VARIANTS):
                self._report(file.path, f"it was made with another {' and '.join(differing)}")
            return None
        cache = new_cache()
        try:
            file.restore(cache)
        except BitnetError as error:
            if file.is_current:  # else another process has replaced it by one that may be right
                self.discard(file.path, error.message)
            return None
        cache.truncate(min(count, cache.capacity))
        return cache

    def discard(self, path: Path, problem: str) -> None:
        """Report that the file *path* cannot be used, and delete it."""
        self._report(path, problem)
        self._folder.remove(path)

    def _report(self, path: Path, problem: str) -> None:
        if path not in self._reported:
            self._reported.add(path)
            logger.warning("the stored prompt %s is not used: %s", path, problem)

    def _files(self, weights_digest: str) -> Iterable[PromptFile]:
        """Files for the weights with this digest that can be read."""
        opened: dict[Path, PromptFile | None] = {}
        for path in self._folder.paths(weights_digest[:32]):
            file = self._opened.get(path)
            if path in self._opened and (file is None or file.is_current):
                opened[path] = file
                continue
            try:
                opened[path] = PromptFile.open(path)
            except BitnetError as error:
                opened[path] = None
                self.discard(path, error.message)
        self._opened = opened
        return [file for file in opened.values() if file is not None]

    def _facts(self, adapter: str) -> Facts:
        with self._facts_lock:
            if adapter not in self._facts_by_adapter:
                self._facts_by_adapter[adapter] = self._compute_facts(adapter)
            return self._facts_by_adapter[adapter]

    # --- writing ---------------------------------------------------------------------------------

    def offer(self, cache: KVCache, new_cache: Callable[[], KVCache]) -> None:
        """Store what *cache* holds, in a thread; it may be changed as soon as this returns."""
        # Not if it is too short, or lacks what a prompt that continues it would need.
        if self._is_closing or cache.reusable(cache.length) < max(cache.length, SHORTEST):
            return
        try:
            copy = new_cache()
            copy.copy_prefix(cache, cache.length)
        except MemoryError:  # the answer must not fail because its prompt is not stored
            logger.warning("a prompt is not stored: there is not enough memory to copy it")
            return
        copy.ids = cache.ids[: cache.length]
        copy.reach = cache.reach
        copy.adapter = cache.adapter
        with self._changed:
            self._pending = [pending for pending in self._pending if not pending.is_prefix_of(copy)]
            self._pending.append(_Pending(copy, new_cache, time.monotonic()))
            del self._pending[:-MOST_PENDING]
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._write_pending, name="bitnet-prompt-writer", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Write the prompts that are pending, and wait until they are written."""
        with self._changed:
            self._is_closing = True
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _write_pending(self) -> None:
        """Write the pending prompts when they are due, until none is left."""
        while True:
            with self._changed:
                if not self._pending:
                    self._thread = None
                    return
                first = min(self._pending, key=lambda pending: pending.due_s)
                wait_s = first.due_s - time.monotonic()
                if wait_s > 0 and not self._is_closing:
                    self._changed.wait(wait_s)
                    continue
                self._pending.remove(first)
                is_idle = first.is_idle or self._is_closing
            try:
                is_written = self._write(first, is_idle=is_idle)
            except Exception as error:  # noqa: BLE001 - only speed is lost
                logger.warning("a prompt is not stored: %s", error)
                continue
            if not is_written:
                first.wait_until(time.monotonic() + IDLE_S)
                with self._changed:
                    if not any(first.is_prefix_of(pending.cache) for pending in self._pending):
                        self._pending.append(first)

    def _write(self, pending: _Pending, *, is_idle: bool) -> bool:
        """Write *pending* if that saves enough; False if it has to be idle first."""
        cache = pending.cache
        if cache.backing is not None and cache.backing.problem():
            return True
        facts = self._facts(cache.adapter)
        weights_digest = facts["weights"]
        stored_files = [
            (count, file)
            for count, file in self._candidates(weights_digest, cache.ids)
            if file.facts == facts
        ]
        covered = 0
        for count, file in stored_files:
            if count > covered:
                stored = self._restore(file, facts, count, pending.new_cache)
                covered = max(covered, stored.length if stored is not None else 0)
        added_positions = cache.length - covered
        if added_positions < SHORTEST:
            return True
        if added_positions < covered // GROWTH and not is_idle:
            return False
        started = time.perf_counter()
        parts = encode(cache.content(), cache.ids, facts)
        problem = self._folder.write(weights_digest[:32], _name_of(cache.ids, facts), parts)
        if problem:
            logger.info("a prompt of %d tokens is not stored: %s", cache.length, problem)
            return True
        passed_s = time.perf_counter() - started
        logger.debug("the state of %d tokens was stored in %.2f s", cache.length, passed_s)
        for count, file in stored_files:
            # The new file holds all of the old one, and can return to its length.
            if count == len(file.ids) < cache.length and cache.reusable(count) == count:
                self._folder.remove(file.path)
        return True


@dataclass(eq=False)
class _Pending:
    """A prompt that waits to be written."""

    cache: KVCache
    new_cache: Callable[[], KVCache]
    due_s: float  # ``time.monotonic`` at which it is written
    is_idle: bool = False  # True if no longer prompt came in time

    def wait_until(self, due_s: float) -> None:
        """Write it at *due_s*, however little it adds, unless a longer one comes first."""
        self.due_s = due_s
        self.is_idle = True

    def is_prefix_of(self, longer: KVCache) -> bool:
        """True if *longer* holds everything that this one does, and can return to it."""
        cache = self.cache
        length = cache.length
        return (
            cache.adapter == longer.adapter
            and length <= longer.length
            and longer.ids[:length] == cache.ids
            and longer.reusable(length) == length
        )


def common_length(first: NDArray[np.uint32], second: NDArray[np.uint32]) -> int:
    """Number of leading ids that both have in common."""
    count = min(len(first), len(second))
    differing = np.flatnonzero(first[:count] != second[:count])
    return int(differing[0]) if len(differing) else count


def _name_of(ids: Sequence[int], facts: Facts) -> str:
    digest = hashlib.sha256(repr(sorted(facts.items())).encode())
    digest.update(np.asarray(ids, dtype="<u4").tobytes())
    return digest.hexdigest()[:32]

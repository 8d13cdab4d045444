"""KV caches of running and finished sequences, whose prefixes new prompts can reuse.

When a sequence ends, its cache stays with its ids until a prompt with the same prefix takes it over
or copies from it, or until another sequence needs the memory.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bitnet.kernels.kv_codes import PAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from bitnet.kernels.kv_cache import KVCache

logger = logging.getLogger(__name__)

WORTH_READING = 64  # a file is read if it has this many more ids than any cache in memory


class PrefixCache:
    """A bounded number of caches in bounded memory."""

    def __init__(
        self,
        new_cache: Callable[[], KVCache],
        *,
        slots: int,
        budget_bytes: int | None = None,
        step: int = 256,
        regime: Callable[[int], Hashable] = lambda _reach: 0,
    ) -> None:
        """Room for *slots* caches created by *new_cache*, for passes of up to *step* tokens.

        Prompts can share a cache only if *regime* is the same for their lengths: some models use
        other RoPE frequencies for long prompts.
        """
        self._regime = regime
        self.budget_bytes = budget_bytes  # limit on all caches together; None: unlimited
        self._new_cache = new_cache
        self._slots = slots
        self._caches: list[KVCache] = []  # in use and idle, in the order of acquire() and release()
        self._measure = new_cache()  # an empty one, to ask for costs
        self._step = step

    @property
    def size_bytes(self) -> int:
        """Bytes counted at the moment, for running sequences and idle caches."""
        return sum(cache.reserved_bytes for cache in self._caches)

    def cost(self, positions: int) -> int:
        """Bytes that a sequence of *positions* takes at most, in whole pages."""
        return self._measure.cost(positions, self._step)

    def affordable(self, size_bytes: int) -> int:
        """Positions that a sequence may have within *size_bytes*."""
        return self._measure.affordable(size_bytes, self._step)

    def best(
        self, ids: Sequence[int], adapter: str = "", *, excluded: KVCache | None = None
    ) -> tuple[KVCache | None, int]:
        """The cache of *adapter* that shares the longest prefix with *ids*, and its length.

        The last id has to be run in any case, so it is not counted. *excluded* is the cache that
        *ids* are run with already, if any; it is left out.
        """
        best = None
        longest = 0
        regime = self._regime(excluded.reach if excluded else len(ids))
        for cache in self._caches:
            if cache.adapter != adapter or self._regime(cache.reach) != regime:
                continue
            if not _is_trusted(cache):
                continue
            shared = cache.reusable(min(common_prefix(cache.ids, ids), max(0, len(ids) - 1)))
            # The most recent of equals: nearest in the processor's caches.
            if cache is not excluded and shared and shared >= longest:
                best = cache
                longest = shared
        return best, longest

    def acquire(
        self,
        ids: list[int],
        positions: int,
        *,
        reuse: bool = True,
        adapter: str = "",
        stored: KVCache | None = None,
    ) -> KVCache | None:
        """A cache for *ids* that may grow to *positions*; ``None`` while there is no room.

        It already holds the longest available prefix of *ids*, if *reuse* is true: that of another
        cache, or *stored*, one that was read from a file.
        """
        cache = self._find_or_create(ids, self.cost(positions), adapter, stored, reuse=reuse)
        if cache is not None:
            cache.adapter = adapter
            # It stays truncatable to here, for the same prompt or one that ends differently.
            cache.keep_truncatable_to(len(ids) - 1)
        return cache

    def _find_or_create(
        self, ids: list[int], needed: int, adapter: str, stored: KVCache | None, *, reuse: bool
    ) -> KVCache | None:
        """A cache as :meth:`acquire` returns it, for which *needed* bytes are reserved."""
        source, shared = self.best(ids, adapter) if reuse else (None, 0)
        if stored is not None and stored.length - shared >= WORTH_READING:
            if not self._make_room(needed):
                return None
            logger.debug("a cache from a file, which holds %d of %d ids", stored.length, len(ids))
            return self._use(stored, ids, needed)
        idle = source if source and not source.busy else None
        # Take an idle cache over if nothing of it is lost, or if a copy would not fit beside it.
        if idle and (idle.length == shared or not self._fits(needed)):
            self._caches.remove(idle)
            if not self._make_room(needed):
                self._caches.append(idle)
                return None
            idle.truncate(shared)
            logger.debug("took over a cache that holds %d of %d ids", shared, len(ids))
            return self._use(idle, ids, needed)
        caches = [cache for cache in self._caches if cache.adapter == adapter]
        # Unlike *shared*, these lengths include ids that a cache has not run yet, or has freed.
        common_lengths = {cache: common_prefix(cache.ids, ids) for cache in caches}
        fork = max(common_lengths.values(), default=0)
        if not self._make_room(needed):
            return None
        cache = self._new_cache()
        if source:
            cache.copy_prefix(source, shared)
        if fork >= PAGE:
            # Two prompts diverge here, and a third one may as well.
            cache.keep_truncatable_to(fork)
            for ahead, length in common_lengths.items():
                if ahead.busy and length == fork > ahead.length:
                    # A running prompt gets there, and this one can copy it then.
                    ahead.keep_truncatable_to(fork)
        logger.debug("a cache of its own, %d of %d ids copied", shared, len(ids))
        return self._use(cache, ids, needed)

    def improve(self, cache: KVCache) -> int:
        """Copy what another cache holds of the same prefix by now; the length of *cache* then."""
        source, shared = self.best(cache.ids, cache.adapter, excluded=cache)
        if source and shared > cache.length:
            cache.copy_prefix(source, shared)
            logger.debug("%d ids copied from a sequence that was faster", shared)
        return cache.length

    def release(self, cache: KVCache, *, keep: bool = True) -> None:
        """Take *cache* back from its sequence; keep it for reuse if *keep* is true."""
        self._caches.remove(cache)
        if keep and cache.length and _is_trusted(cache):
            cache.busy = False
            cache.reserved_bytes = cache.size_bytes
            self._caches.append(cache)

    def __contains__(self, cache: KVCache) -> bool:
        """True if *cache* is in use, or kept for reuse."""
        return any(own is cache for own in self._caches)

    def drop_idle(self) -> bool:
        """Free every cache that is not in use; true if there were any."""
        before = len(self._caches)
        self._caches = [cache for cache in self._caches if cache.busy]
        return len(self._caches) < before

    def _use(self, cache: KVCache, ids: list[int], needed: int) -> KVCache:
        cache.ids = ids
        cache.reach = len(ids)
        cache.busy = True
        cache.reserved_bytes = needed
        self._caches.append(cache)
        return cache

    def _fits(self, needed: int) -> bool:
        if len(self._caches) >= self._slots:
            return False
        return self.budget_bytes is None or self.size_bytes + needed <= self.budget_bytes

    def _make_room(self, needed: int) -> bool:
        """Free idle caches, oldest first, until *needed* fits; keep all if that is not enough."""
        caches = list(self._caches)
        for cache in caches:
            if self._fits(needed):
                break
            if not cache.busy:
                self._caches.remove(cache)
        if not self._fits(needed):
            self._caches = caches
            return False
        return True


def _is_trusted(cache: KVCache) -> bool:
    """True unless *cache* is from a file that was not compared with its checksums yet."""
    return cache.backing is None or cache.backing.is_checked


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of leading values that the two have in common."""
    low = 0
    high = min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

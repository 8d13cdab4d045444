"""KV caches of running sequences and of those before them, which new prompts may continue.

A sequence leases a cache. When it ends, the cache stays with the ids it holds, until a prompt that
begins with them takes it over or copies from it, or until others need the room.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bitnet.runtime.kv_cache import PAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from bitnet.runtime.kv_cache import KVCache

__all__ = ["Lease", "PrefixCache", "common_prefix"]

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Lease:
    """A cache in use, or waiting to be used again.

    Attributes:
        cache: it holds a beginning of *ids*.
        ids: of the sequence that has it, or had it last; grows with the sequence.
        size_bytes: what it counts for in the budget.
        busy: whether a sequence has it.
    """

    cache: KVCache
    ids: list[int] = field(default_factory=list)
    size_bytes: int = 0
    busy: bool = True

    def shared(self, ids: Sequence[int]) -> int:
        """How many of *ids* it can go on from; the last one has to be run in any case."""
        shared = min(common_prefix(self.ids, ids), max(0, len(ids) - 1))
        return self.cache.reusable(shared)


class PrefixCache:
    """A bounded number of caches within a bounded memory.

    Attributes:
        budget_bytes: what all of them may take; ``None``: no bound.
    """

    def __init__(
        self,
        new_cache: Callable[[], KVCache],
        *,
        slots: int,
        budget_bytes: int | None = None,
        step: int = 256,
        regime: Callable[[int], Hashable] = lambda _reach: 0,
    ) -> None:
        """Room for *slots* caches as *new_cache* makes them, for passes of up to *step* tokens.

        Prompts share a cache when *regime* gives the same for their lengths.
        """
        self._regime = regime
        self.budget_bytes = budget_bytes
        self._new_cache = new_cache
        self._slots = slots
        self._leases: list[Lease] = []  # idle ones by last use, the oldest first
        self._measure, self._step = new_cache(), step

    @property
    def size_bytes(self) -> int:
        """What counts at the moment, of running sequences and of idle caches."""
        return sum(lease.size_bytes for lease in self._leases)

    def cost(self, positions: int) -> int:
        """Bytes that a sequence of *positions* takes at most, in whole pages."""
        return self._measure.cost(positions, self._step)

    def affordable(self, size_bytes: int) -> int:
        """Positions that a sequence may have within *size_bytes*."""
        return self._measure.affordable(size_bytes, self._step)

    def best(self, ids: Sequence[int], *, but: Lease | None = None) -> tuple[Lease | None, int]:
        """The cache that holds most of the beginning of *ids*, and how much it holds."""
        best, longest = None, 0
        regime = self._regime(but.cache.reach if but else len(ids))
        for lease in self._leases:
            if self._regime(lease.cache.reach) != regime:
                continue
            shared = lease.shared(ids)
            # The latest of equals: its neighbours in memory are the warmest.
            if lease is not but and shared and shared >= longest:
                best, longest = lease, shared
        return best, longest

    def lease(self, ids: list[int], positions: int, *, reuse: bool = True) -> Lease | None:
        """A cache for *ids* that may grow to *positions*, ``None`` while there is no room.

        It holds what it can of the beginning of *ids* already, unless nothing is to be reused.
        """
        lease = self._leased(ids, positions, reuse=reuse)
        if lease:
            lease.cache.keep(len(ids) - 1)  # the same prompt, or one that ends differently
        return lease

    def _leased(self, ids: list[int], positions: int, *, reuse: bool) -> Lease | None:
        needed = self.cost(positions)
        source, shared = self.best(ids) if reuse else (None, 0)
        idle = source if source and not source.busy else None
        if idle and (idle.cache.length == shared or not self._fits(needed)):
            return self._taken_over(idle, ids, positions, shared)
        begun = max((common_prefix(each.ids, ids) for each in self._leases), default=0)
        if not self._make_room(needed):
            return None
        lease = Lease(self._new_cache(), ids, needed)
        if source:
            lease.cache.copy_prefix(source.cache, shared)
        if begun >= PAGE:
            lease.cache.keep(begun)  # where two prompts part, a third one may
        lease.cache.reach = len(ids)
        self._leases.append(lease)
        logger.debug("a cache of its own, %d of %d ids copied", shared, len(ids))
        return lease

    def improve(self, lease: Lease) -> int:
        """Copy what another cache has come to hold of the ids of *lease*; how much it holds."""
        source, shared = self.best(lease.ids, but=lease)
        if source and shared > lease.cache.length:
            lease.cache.copy_prefix(source.cache, shared)
            logger.debug("%d ids copied from a sequence that was faster", shared)
        return lease.cache.length

    def release(self, lease: Lease, *, keep: bool = True) -> None:
        """Take *lease* back from its sequence; to be used again unless it is not to be kept."""
        self._leases.remove(lease)
        if keep and lease.cache.length:
            lease.busy = False
            lease.size_bytes = lease.cache.size_bytes
            self._leases.append(lease)

    def drop_idle(self) -> bool:
        """Let go of every cache that no sequence has; whether there were any."""
        before = len(self._leases)
        self._leases = [lease for lease in self._leases if lease.busy]
        return len(self._leases) < before

    def _taken_over(
        self, lease: Lease, ids: list[int], positions: int, shared: int
    ) -> Lease | None:
        self._leases.remove(lease)
        needed = self.cost(positions)
        if not self._make_room(needed):
            self._leases.append(lease)
            return None
        lease.cache.truncate(shared)
        lease.cache.reach = len(ids)
        lease.ids, lease.size_bytes, lease.busy = ids, needed, True
        self._leases.append(lease)
        logger.debug("took over a cache that holds %d of %d ids", shared, len(ids))
        return lease

    def _fits(self, needed: int) -> bool:
        if len(self._leases) >= self._slots:
            return False
        return self.budget_bytes is None or self.size_bytes + needed <= self.budget_bytes

    def _make_room(self, needed: int) -> bool:
        """Drop idle caches, the oldest first, until there is room; none if that is not enough."""
        kept = list(self._leases)
        for lease in kept:
            if self._fits(needed):
                break
            if not lease.busy:
                self._leases.remove(lease)
        if not self._fits(needed):
            self._leases = kept
            return False
        return True


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many values the two have in common from the first on."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

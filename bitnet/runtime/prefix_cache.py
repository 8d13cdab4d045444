"""KV caches of running and finished sequences, whose prefixes new prompts can reuse.

A sequence leases a cache. When it ends, the cache stays with its ids until a prompt with the same
prefix takes it over or copies from it, or until another sequence needs the memory.
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
    """A cache in use, or available for reuse.

    Attributes:
        cache: keys and values of a prefix of *ids*.
        ids: of the sequence that uses it or used it last; grows with the sequence.
        size_bytes: its part of the memory budget.
        busy: a sequence uses it.
    """

    cache: KVCache
    ids: list[int] = field(default_factory=list)
    size_bytes: int = 0
    busy: bool = True

    def common_length(self, ids: Sequence[int]) -> int:
        """Number of leading *ids* it can reuse; the last id has to be run in any case."""
        shared = min(common_prefix(self.ids, ids), max(0, len(ids) - 1))
        return self.cache.reusable(shared)


class PrefixCache:
    """A bounded number of caches in bounded memory.

    Attributes:
        budget_bytes: memory that all of them may take; ``None``: unlimited.
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
        """Room for *slots* caches created by *new_cache*, for passes of up to *step* tokens.

        Prompts can share a cache only when *regime* is the same for their lengths.
        """
        self._regime = regime
        self.budget_bytes = budget_bytes
        self._new_cache = new_cache
        self._slots = slots
        self._leases: list[Lease] = []  # idle ones by last use, the oldest first
        self._measure, self._step = new_cache(), step

    @property
    def size_bytes(self) -> int:
        """Bytes counted at the moment, for running sequences and idle caches."""
        return sum(lease.size_bytes for lease in self._leases)

    def cost(self, positions: int) -> int:
        """Bytes that a sequence of *positions* takes at most, in whole pages."""
        return self._measure.cost(positions, self._step)

    def affordable(self, size_bytes: int) -> int:
        """Positions that a sequence may have within *size_bytes*."""
        return self._measure.affordable(size_bytes, self._step)

    def best(self, ids: Sequence[int], *, but: Lease | None = None) -> tuple[Lease | None, int]:
        """The cache that shares the longest prefix with *ids*, and its length."""
        best, longest = None, 0
        regime = self._regime(but.cache.reach if but else len(ids))
        for lease in self._leases:
            if self._regime(lease.cache.reach) != regime:
                continue
            shared = lease.common_length(ids)
            # The most recent of equals: nearest in the processor's caches.
            if lease is not but and shared and shared >= longest:
                best, longest = lease, shared
        return best, longest

    def lease(self, ids: list[int], positions: int, *, reuse: bool = True) -> Lease | None:
        """A cache for *ids* that may grow to *positions*; ``None`` while there is no room.

        It already holds the longest available prefix of *ids*, if *reuse* is true.
        """
        lease = self._lease(ids, positions, reuse=reuse)
        if lease:
            lease.cache.keep(len(ids) - 1)  # for the same prompt, or one that ends differently
        return lease

    def _lease(self, ids: list[int], positions: int, *, reuse: bool) -> Lease | None:
        needed = self.cost(positions)
        source, shared = self.best(ids) if reuse else (None, 0)
        idle = source if source and not source.busy else None
        if idle and (idle.cache.length == shared or not self._fits(needed)):
            return self._take_over(idle, ids, positions, shared)
        shares = {lease: common_prefix(lease.ids, ids) for lease in self._leases}
        begun = max(shares.values(), default=0)
        if not self._make_room(needed):
            return None
        lease = Lease(self._new_cache(), ids, needed)
        if source:
            lease.cache.copy_prefix(source.cache, shared)
        if begun >= PAGE:
            lease.cache.keep(begun)  # two prompts diverge here, and a third one may as well
            for ahead, shared_ids in shares.items():
                if ahead.busy and shared_ids == begun > ahead.cache.length:
                    ahead.cache.keep(begun)  # what this prompt waits for
        lease.cache.reach = len(ids)
        self._leases.append(lease)
        logger.debug("a cache of its own, %d of %d ids copied", shared, len(ids))
        return lease

    def improve(self, lease: Lease) -> int:
        """Copy the prefix that another cache has reached meanwhile; the number of ids it holds."""
        source, shared = self.best(lease.ids, but=lease)
        if source and shared > lease.cache.length:
            lease.cache.copy_prefix(source.cache, shared)
            logger.debug("%d ids copied from a sequence that was faster", shared)
        return lease.cache.length

    def release(self, lease: Lease, *, keep: bool = True) -> None:
        """Take *lease* back from its sequence; keep it for reuse if *keep* is true."""
        self._leases.remove(lease)
        if keep and lease.cache.length:
            lease.busy = False
            lease.size_bytes = lease.cache.size_bytes
            self._leases.append(lease)

    def drop_idle(self) -> bool:
        """Free every cache that is not in use; true if there were any."""
        before = len(self._leases)
        self._leases = [lease for lease in self._leases if lease.busy]
        return len(self._leases) < before

    def _take_over(self, lease: Lease, ids: list[int], positions: int, shared: int) -> Lease | None:
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
        """Free idle caches, oldest first, until *needed* fits; none if all would not suffice."""
        leases = list(self._leases)
        for lease in leases:
            if self._fits(needed):
                break
            if not lease.busy:
                self._leases.remove(lease)
        if not self._fits(needed):
            self._leases = leases
            return False
        return True


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of leading values that the two have in common."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

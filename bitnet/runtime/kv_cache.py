"""Keys, values and states of the positions a sequence has seen."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InferenceError, UsageError
from bitnet.kernels import kv_codes
from bitnet.kernels.kv_codes import PAGE
from bitnet.kernels.program import Seen, page_tables, state_ranges
from bitnet.runtime.kv_pages import PageTable, pages_for
from bitnet.runtime.states import States

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from bitnet.families.blocks import ModelConfig
    from bitnet.kernels.ops import Array

__all__ = ["PAGE", "KVCache"]

SPLIT = 4 * PAGE  # keys whose results are merged in one go; ``kSplitPages`` in kernels.hpp
SLACK = 256  # positions before a kept one to which the cache can be truncated as well
KEPT = 2  # positions to which it can be truncated; and with states the start of a drafted pass


class KVCache:
    """Keys and values of every layer, in pages of 64 positions.

    Layers of one shape and attention window share pages (:class:`PageTable`). A page holds the
    keys and then the values of every layer and head, as codes (:mod:`bitnet.kernels.kv_codes`) or
    as floats, ``(layers, 2, kv_heads, 64, head_dim)``. Memory grows with use, one page at a time,
    and for layers with a window only up to its size. Full pages are shared by caches copied from
    each other, until one of them writes to the page. Layers with a state of fixed size have it in
    :class:`States`, which returns to the kept lengths only.

    Attributes:
        length: positions stored.
        capacity: positions it has room for.
        reach: positions of the prompt, which select the RoPE scaling; *capacity* until it is set.
        drafter: the cache of the model's block that drafts tokens; ``None``: it has none.
    """

    def __init__(self, config: ModelConfig, capacity: int, *, dtype: DTypeLike = np.int16) -> None:
        """An empty cache.

        Args:
            config: of the model.
            capacity: positions, at least one.
            dtype: int16, the codes of :mod:`bitnet.kernels.kv_codes`, or a type of floats for
                exact comparisons.

        Raises:
            UsageError: *capacity* is below one, or *dtype* is another.
        """
        if capacity < 1:
            raise UsageError(f"a context of {capacity} positions; at least 1 is needed")
        self.capacity: int = capacity
        self.reach: int = capacity
        self.length: int = 0
        self._dtype = np.dtype(dtype)
        self._coded = self._dtype == np.int16
        if not self._coded and self._dtype.kind != "f":
            raise UsageError(
                f"keys and values as {self._dtype}; int16 codes or floats are possible"
            )
        self._tables: list[PageTable] = []
        self._places: dict[int, tuple[PageTable, int]] = {}  # of each number
        for kind, numbers in page_tables(config.caches).items():
            words = (kv_codes.page_words(kind.head_dim),)
            of_head = words if self._coded else (PAGE, kind.head_dim)
            table = PageTable(kind.window, (len(numbers), 2, kind.kv_heads, *of_head), self._dtype)
            self._tables.append(table)
            self._places |= {number: (table, place) for place, number in enumerate(numbers)}
        ranges = state_ranges(config.caches)
        self._ranges = ranges
        floats = self._dtype if self._dtype == np.float64 else np.float32
        self._states = States(max((its.stop for its in ranges.values()), default=0), floats)
        self._kept: list[int] = []
        self._marked = 0
        self.drafter: KVCache | None = None
        if config.drafter:
            self.drafter = KVCache(config.drafter, capacity, dtype=dtype)

    @property
    def size_bytes(self) -> int:
        """Bytes of its pages, including shared ones."""
        drafts = self.drafter.size_bytes if self.drafter else 0
        return sum(table.size_bytes for table in self._tables) + self._states.size_bytes + drafts

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of a sequence at most, with the copies that it keeps of them."""
        return (2 + KEPT) * self._states.state_bytes

    def cost(self, positions: int, step: int) -> int:
        """Bytes that a sequence of *positions* takes at most, in whole pages.

        Args:
            positions: of the whole sequence.
            step: tokens of one pass at most.
        """
        snapshots = [SLACK] * KEPT
        drafts = self.drafter.cost(positions, step) if self.drafter else 0
        return (
            drafts
            + self.state_bytes
            + sum(
                table.most_pages(positions, step, snapshots) * table.page_bytes
                for table in self._tables
            )
        )

    def affordable(self, size_bytes: int, step: int) -> int:
        """Positions, in whole pages, of a sequence whose :meth:`cost` is at most *size_bytes*."""
        pages = range(1, pages_for(self.capacity) + 1)
        return PAGE * bisect_right(pages, size_bytes, key=lambda n: self.cost(n * PAGE, step))

    def append(self, number: int, keys: Array, values: Array) -> Seen:
        """Store new *keys* and *values* of one cache behind those it has.

        Args:
            number: of the cache in its decoder.
            keys: ``(T, kv_heads, head_dim)``.
            values: as *keys*.

        Returns:
            Copies of its last positions, all of them or, with a window, at least those the
            new ones attend to.

        Raises:
            InferenceError: the capacity is exceeded.
        """
        start, stop = self.length, self.length + len(keys)
        self._make_room(stop)
        table, place = self._places[number]
        for at in range(start // PAGE, pages_for(stop)):
            held = table.pages[at]
            assert held is not None, "there is room"
            page, base = held[place], at * PAGE
            slots = slice(max(0, start - base), min(PAGE, stop - base))
            new = slice(base + slots.start - start, base + slots.stop - start)
            if self._coded:
                kv_codes.store(page, slots, keys[new], values[new])
            else:
                for to, rows in zip(page, (keys, values), strict=True):
                    to[:, slots] = rows[new].transpose(1, 0, 2)
        # Start at a split, so that the partial sums equal those of the native module.
        first = table.first_place(start) * PAGE // SPLIT * SPLIT // PAGE
        stored, count = table.stack(place, first, pages_for(stop)), stop - first * PAGE
        if self._coded:
            all_keys, all_values = kv_codes.load(stored, keys.shape[-1])
            return Seen(all_keys[:, :count], all_values[:, :count], stored)
        pages, _, heads, _, _ = stored.shape
        together = stored.transpose(1, 2, 0, 3, 4).reshape(2, heads, pages * PAGE, keys.shape[-1])
        return Seen(together[0, :, :count], together[1, :, :count], None)

    def pages(self, count: int) -> tuple[NDArray[np.uint64], ...] | None:
        """Addresses of its pages, with room for *count* more positions, for the native module.

        One array for each table, in the order of :func:`page_tables`; 0 where a page was
        freed. They stay valid until the next call of any method. ``None`` if it holds floats.

        Raises:
            InferenceError: the capacity is exceeded.
        """
        if not self._coded:
            return None
        self._make_room(self.length + count)
        return tuple(table.addresses for table in self._tables)

    def begin(self) -> NDArray[np.floating[Any]]:
        """Begin a pass: all states of fixed size, which the pass changes; empty if it has none.

        Raises:
            InferenceError: a pass before did not end.
        """
        return self._states.begin(self.length)

    def state(self, number: int) -> NDArray[np.floating[Any]]:
        """State of cache *number*, which the pass that has begun changes in place."""
        its = self._ranges[number]
        return self._states.live[its.start : its.stop]

    def advance(self, count: int) -> None:
        """Count *count* positions that every layer has appended."""
        self.length += count
        self._states.end(self.length)
        if self.length in self._kept:
            self._states.copy_live()

    @property
    def next_stop(self) -> int | None:
        """The next kept length, if a pass must end there to keep its state; ``None``: none."""
        later = [length for length in self._kept if length > self.length and self._states.size]
        return min(later, default=None)

    def mark(self) -> None:
        """Make the current length one that :meth:`truncate` can return to, until the next mark."""
        if self._states.size:
            self._marked = self.length
            self._states.drop_copies({*self._kept, self._marked})
            self._states.copy_live()

    def keep(self, length: int) -> None:
        """Keep the pages needed to truncate to *length*, or up to 256 positions before.

        Layers with a window would free them otherwise. The two lengths named last are kept.
        """
        self._kept = [*(one for one in self._kept if one != length), length][-KEPT:]
        if length == self.length:
            self._states.copy_live()
        self._states.drop_copies({*self._kept, self._marked})

    def reusable(self, length: int) -> int:
        """The longest prefix of at most *length* positions to which the cache can be truncated."""
        length = max(0, min(length, self.length))
        while (shorter := min(part.reach(length) for part in self._parts)) < length:
            length = shorter
        return length

    @property
    def _parts(self) -> tuple[PageTable | States, ...]:
        return (*self._tables, self._states)

    def truncate(self, length: int) -> None:
        """Forget the positions from *length* on: prefix reuse and rejected drafts.

        If that exact prefix is not available, the cache shrinks to :meth:`reusable`. Positions
        appended since the last :meth:`pages` or :meth:`append` can always be taken back.
        """
        self.length = self.reusable(length)
        self._kept = [one for one in self._kept if one <= self.length]
        for part in self._parts:
            part.cut(self.length)

    def copy_prefix(self, other: KVCache, length: int) -> None:
        """Hold the first *length* positions of *other*, a cache of the same model.

        Raises:
            InferenceError: *other* holds fewer or has freed some, or the capacity is exceeded.
        """
        if length > min(other.reusable(length), self.capacity):
            raise InferenceError(
                f"{length:,} positions to copy; there are {other.reusable(length):,}, and room for "
                f"{self.capacity:,}"
            )
        self._kept = [one for one in other._kept if one <= length]
        for own, its in zip(self._tables, other._tables, strict=True):
            own.copy(its, length, self._snapshot_positions())
        self._states.copy(other._states, length)
        self.length = length

    def _snapshot_positions(self) -> list[range]:
        return [range(max(0, length - SLACK), length) for length in self._kept]

    def _make_room(self, stop: int) -> None:
        """Own the pages for the positions from its length up to *stop*."""
        if stop > self.capacity:
            raise InferenceError(
                f"{stop:,} positions, the context holds {self.capacity:,}",
                hint="shorten the prompt or raise the context size",
            )
        kept = self._snapshot_positions()
        for table in self._tables:
            table.make_room(self.length, stop, kept)

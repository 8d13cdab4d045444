"""Keys, values and states of the positions a sequence has seen."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bitnet.base.errors import InferenceError, InvalidFormat, UsageError
from bitnet.families.blocks import KeysValues, State
from bitnet.kernels import kv_codes
from bitnet.kernels.kv_codes import PAGE
from bitnet.kernels.kv_pages import MOST_KEPT, SLACK, Pages, States, pages_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import DTypeLike, NDArray

    from bitnet.families.blocks import CacheKind, ModelConfig
    from bitnet.kernels.kv_codes import Array
    from bitnet.kernels.kv_pages import Page

# Keys of a split: attention merges partial results of splits in order; kSplitPages in kernels.hpp.
SPLIT = 4 * PAGE


class Backing(Protocol):
    """A file that pages of caches are views of."""

    #: True as soon as its content was compared with its checksums.
    is_checked: bool

    @property
    def path(self) -> Path:
        """Path of the file."""

    @property
    def is_read(self) -> bool:
        """True if the comparison has read all of it."""

    @property
    def is_replaced(self) -> bool:
        """True if its path names another file by now, or none."""

    def begin(self) -> None:
        """Start to compare its content with its checksums."""

    def wait(self) -> None:
        """Wait until :attr:`is_read`."""

    def problem(self) -> str:
        """The reason why results of passes over these pages are wrong; empty: they are right."""


@dataclass(frozen=True)
class CacheContent:
    """Pages and states of a cache behind a prefix of ids."""

    length: int  # positions of the prefix
    reach: int  # positions of the prompt, as :attr:`KVCache.reach`
    kept: tuple[int, ...]  # lengths to which layers with windows and states can return
    tables: tuple[Mapping[int, Page], ...]  # pages of each table, by page number
    states: Mapping[int, Array]  # states of fixed size, by the number of positions before each


class KVCache:
    """Keys and values of every layer, in pages of 64 positions.

    Layers of one shape and attention window share pages (:class:`Pages`). A page holds the keys
    and then the values of every layer and head, as codes of the kind's ``kv_type`` or as floats,
    ``(layers, 2, kv_heads, 64, head_dim)``. Layers with a state of fixed size have it in
    :class:`States`, which returns to the kept lengths only.
    """

    def __init__(self, config: ModelConfig, capacity: int, *, dtype: DTypeLike = np.int16) -> None:
        """An empty cache; *dtype* is int16, for codes, or floats for exact comparisons."""
        if capacity < 1:
            raise UsageError(f"a context of {capacity} positions; at least 1 is needed")
        self.capacity: int = capacity  # positions it has room for
        # positions of the prompt, which select the RoPE scaling; *capacity* until it is set
        self.reach: int = capacity
        self.length: int = 0  # positions stored
        # ids of the sequence that uses the cache, or used it last; a prefix of them is stored
        self.ids: list[int] = []
        self.adapter = ""  # name of the adapter with which the ids were run; empty: none
        self.reserved_bytes = 0  # part of a memory budget that is reserved for it
        self.busy = True  # a sequence uses it
        self.backing: Backing | None = None  # the file that pages are views of
        self._dtype = np.dtype(dtype)
        self._coded = self._dtype == np.int16
        if not self._coded and self._dtype.kind != "f":
            raise UsageError(f"keys and values are int16 codes or floats, not {self._dtype}")
        self._tables: list[Pages] = []
        # table, index of the layer in its pages and kind, by the number of a cache
        self._places: dict[int, tuple[Pages, int, KeysValues]] = {}
        for kind, numbers in page_tables(config.caches).items():
            words = kv_codes.page_words(kind.head_dim, kind.kv_type)
            of_head = (words,) if self._coded else (PAGE, kind.head_dim)
            table = Pages(kind.window, (len(numbers), 2, kind.kv_heads, *of_head), self._dtype)
            self._tables.append(table)
            self._places |= {number: (table, layer, kind) for layer, number in enumerate(numbers)}
        self._ranges = state_ranges(config.caches)
        precision = self._dtype if self._dtype == np.float64 else np.float32
        size = max((range_.stop for range_ in self._ranges.values()), default=0)
        self._states = States(size, precision)
        self._parts: tuple[Pages | States, ...] = (*self._tables, self._states)
        self._kept: list[int] = []  # the lengths that keep() was called with last
        self._marked = 0  # the length that mark() was called at last
        # the cache of the decoder that drafts tokens; ``None``: there is none
        self.drafter: KVCache | None = None
        if drafter_config := config.drafter:
            self.drafter = KVCache(
                drafter_config, min(capacity, drafter_config.context_length), dtype=dtype
            )

    @property
    def size_bytes(self) -> int:
        """Bytes of its pages, including shared ones."""
        drafts = self.drafter.size_bytes if self.drafter else 0
        return sum(table.size_bytes for table in self._tables) + self._states.size_bytes + drafts

    @property
    def state_bytes(self) -> int:
        """Most bytes of a sequence's states: the live one, the kept copies and a marked one."""
        return (2 + MOST_KEPT) * self._states.state_bytes

    def cost(self, positions: int, step: int) -> int:
        """Most bytes that a sequence of *positions*, run *step* at a time, takes in whole pages."""
        pages = sum(table.most_pages(positions, step) * table.page_bytes for table in self._tables)
        drafter = self.drafter
        drafts = drafter.cost(min(positions, drafter.capacity), step) if drafter else 0
        return drafts + self.state_bytes + pages

    def affordable(self, size_bytes: int, step: int) -> int:
        """Positions, in whole pages, of a sequence whose :meth:`cost` is at most *size_bytes*."""
        pages = range(1, pages_for(self.capacity) + 1)
        return PAGE * bisect_right(pages, size_bytes, key=lambda n: self.cost(n * PAGE, step))

    def append(self, number: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Store *keys* and *values*, ``(T, kv_heads, head_dim)``, in a layer's cache *number*.

        Returns the keys and values that these positions attend to, as :meth:`view` does.
        """
        start = self.length
        stop = self.length + len(keys)
        self._make_room(stop)
        table, layer, kind = self._places[number]
        for at in range(start // PAGE, pages_for(stop)):
            whole_page = table.pages[at]
            assert whole_page is not None, "there is room"
            page = whole_page[layer]
            base = at * PAGE
            slots = slice(max(0, start - base), min(PAGE, stop - base))
            new = slice(base + slots.start - start, base + slots.stop - start)
            if self._coded:
                kv_codes.store(page, slots, keys[new], values[new], kind.kv_type)
            else:
                for to, rows in zip(page, (keys, values), strict=True):
                    to[:, slots] = rows[new].transpose(1, 0, 2)
        return self.view(number, len(keys))

    def view(self, number: int, count: int) -> tuple[Array, Array]:
        """Keys and values, ``(kv_heads, S, D)``, that *count* new positions attend to."""
        table, layer, kind = self._places[number]
        start = self.length
        stop = self.length + count
        # Start at a split, so that the partial sums equal those of the native module.
        first = table.first_page(start) * PAGE // SPLIT * SPLIT // PAGE
        stored = table.stack(layer, first, pages_for(stop))
        size = stop - first * PAGE
        if self._coded:
            keys, values = kv_codes.load(stored, kind.head_dim, kind.kv_type)
        else:
            keys, values = stored.transpose(1, 2, 0, 3, 4).reshape(
                2, kind.kv_heads, -1, kind.head_dim
            )
        return keys[:, :size], values[:, :size]

    def pages(self, count: int) -> tuple[NDArray[np.uint64], ...] | None:
        """Addresses of its pages, with room for *count* more positions, for the native module.

        One array for each table, in the order of :func:`page_tables`; 0 where a page was freed. The
        addresses are valid until positions are appended, truncated or copied. The result is None
        if the cache holds floats.
        """
        if not self._coded:
            return None
        self._make_room(self.length + count)
        return tuple(table.addresses for table in self._tables)

    def begin(self) -> NDArray[np.floating[Any]]:
        """Begin a pass; return all states of fixed size, which the pass changes in place.

        The array is one-dimensional, and empty without such states.
        """
        return self._states.begin(self.length)

    def abandon(self) -> None:
        """End a pass that has changed nothing."""
        self._states.end(self.length)

    def state(self, number: int) -> NDArray[np.floating[Any]]:
        """State of cache *number*, which the pass that has begun changes in place."""
        own = self._ranges[number]
        return self._states.live[own.start : own.stop]

    def advance(self, count: int) -> None:
        """Count *count* positions that every layer has appended."""
        self.length += count
        self._states.end(self.length)
        if self.length in self._kept:
            self._states.copy_live()

    @property
    def next_stop(self) -> int | None:
        """The next kept length at which a pass must end, to keep the state; None without one."""
        later = [length for length in self._kept if length > self.length and self._states.size]
        return min(later, default=None)

    def mark(self) -> None:
        """Make the current length one that :meth:`truncate` can return to, until the next mark."""
        if self._states.size:
            self._marked = self.length
            self._states.drop_copies({*self._kept, self._marked})
            self._states.copy_live()

    def keep_truncatable_to(self, length: int) -> None:
        """Keep the pages needed to truncate to *length*, or up to 256 positions before.

        Layers with a window would free them otherwise. The two lengths named last are kept.
        """
        other_lengths = [kept for kept in self._kept if kept != length]
        self._kept = [*other_lengths, length][-MOST_KEPT:]
        if length == self.length:
            self._states.copy_live()
        self._states.drop_copies({*self._kept, self._marked})

    def reusable(self, length: int) -> int:
        """The longest prefix of at most *length* positions to which the cache can be truncated."""
        length = max(0, min(length, self.length))
        while (shorter := min(part.reusable(length) for part in self._parts)) < length:
            length = shorter
        return length

    def truncate(self, length: int) -> None:
        """Forget the positions from *length* on: prefix reuse and rejected drafts.

        If that exact prefix is not available, the cache shrinks to :meth:`reusable`. Positions
        appended since the last :meth:`pages` or :meth:`append` can always be taken back; with
        states only if :meth:`mark` was called before.
        """
        self.length = self.reusable(length)
        self._kept = [position for position in self._kept if position <= self.length]
        for part in self._parts:
            part.cut(self.length)
        if not self.length:
            self.backing = None
        if self.drafter:
            self.drafter.truncate(self.length)

    def copy_prefix(self, source: KVCache, length: int) -> None:
        """Hold the first *length* positions of *source*, a cache of the same model.

        Lengths that were to be kept behind them still are.
        """
        available = source.reusable(length)
        if length > min(available, self.capacity):
            raise InferenceError(
                f"{length:,} positions to copy; there are {available:,}, "
                f"and room for {self.capacity:,}"
            )
        later_lengths = [position for position in self._kept if position > length]
        self._kept = [position for position in source._kept if position <= length]
        for own, copied in zip(self._tables, source._tables, strict=True):
            own.copy(copied, length, self._snapshot_positions())
        self._states.copy(source._states, length)
        self.length = length
        self.backing = source.backing
        if self.drafter and source.drafter:
            self.drafter.copy_prefix(source.drafter, source.drafter.reusable(length))
        # Only now: what is copied depends on the lengths up to *length* alone.
        self._kept = [*self._kept, *later_lengths][-MOST_KEPT:]

    def content(self) -> CacheContent:
        """Its pages and states, not copied: the cache must not change while these are in use."""
        return CacheContent(
            self.length,
            self.reach,
            tuple(length for length in self._kept if length <= self.length),
            tuple(table.list_held(self.length) for table in self._tables),
            self._states.list_held(self.length),
        )

    def restore(self, content: CacheContent, backing: Backing) -> None:
        """Hold *content*, which the file *backing* keeps; pages are copied when they change.

        Raises:
            InvalidFormat: *content* is not that of a cache of this model.
        """
        if len(content.tables) != len(self._tables):
            raise InvalidFormat(
                f"{len(content.tables)} tables of pages, expected {len(self._tables)}"
            )
        for table, held in zip(self._tables, content.tables, strict=True):
            table.fill(content.length, held)
        self._states.fill(content.length, content.states)
        self.length = content.length
        self.reach = content.reach
        self.backing = backing
        self._kept = list(content.kept)

    def _snapshot_positions(self) -> list[range]:
        """Positions before each kept length from which a sequence can continue."""
        return [range(max(0, length - SLACK), length) for length in self._kept]

    def _make_room(self, stop: int) -> None:
        """Own the pages for the positions from its length up to *stop*."""
        if stop > self.capacity:
            raise InferenceError(
                f"{stop:,} positions, the context holds {self.capacity:,}",
                hint="shorten the prompt or raise the context size",
            )
        positions = self._snapshot_positions()
        for table in self._tables:
            table.make_room(self.length, stop, positions)


def page_tables(caches: Sequence[CacheKind]) -> dict[KeysValues, tuple[int, ...]]:
    """Numbers of the caches of each kind of keys and values; caches of one kind share pages."""
    return {
        kind: tuple(number for number, cache in enumerate(caches) if cache == kind)
        for kind in dict.fromkeys(cache for cache in caches if isinstance(cache, KeysValues))
    }


def state_ranges(caches: Sequence[CacheKind]) -> dict[int, range]:
    """Ranges of the caches of fixed size in the one array that holds all of them, by number."""
    sizes = [
        (number, cache.size) for number, cache in enumerate(caches) if isinstance(cache, State)
    ]
    ends = list(accumulate(size for _, size in sizes))
    return {number: range(end - size, end) for (number, size), end in zip(sizes, ends, strict=True)}


def begin_together(caches: Sequence[KVCache]) -> list[NDArray[np.floating[Any]]]:
    """Begin a pass of all *caches*, or of none if one refuses; return the states of each."""
    states: list[NDArray[np.floating[Any]]] = []
    try:
        for cache in caches:
            states.append(cache.begin())  # noqa: PERF401 - those before the one that refuses count
    except InferenceError:
        for cache in caches[: len(states)]:
            cache.abandon()
        raise
    return states

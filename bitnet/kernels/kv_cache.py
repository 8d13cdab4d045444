"""Keys, values and states of the positions a sequence has seen."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bitnet.base.errors import InferenceError, UsageError
from bitnet.families.blocks import KeysValues, State
from bitnet.kernels import kv_codes
from bitnet.kernels.kv_codes import PAGE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from numpy.typing import DTypeLike, NDArray

    from bitnet.families.blocks import CacheKind, ModelConfig
    from bitnet.kernels.kv_codes import Array

    Page: TypeAlias = NDArray[Any]

SPLIT = 4 * PAGE  # keys whose results are merged in one go; ``kSplitPages`` in kernels.hpp
SLACK = 256  # positions before a kept one to which the cache can be truncated as well
MAPPED_BYTES = 256 << 10  # a page from this size on is a mapping: neighbours share huge pages
KEPT = 2  # positions to which it can be truncated; and with states the start of a drafted pass


class KVCache:
    """Keys and values of every layer, in pages of 64 positions.

    Layers of one shape and attention window share pages (:class:`_Pages`). A page holds the keys
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
        # of the sequence that uses it or used it last, of which a prefix is stored
        self.ids: list[int] = []
        self.adapter = ""  # name of the adapter with which they were run; empty: none
        self.reserved_bytes = 0  # its part of a memory budget
        self.busy = True  # a sequence uses it
        self._dtype = np.dtype(dtype)
        self._coded = self._dtype == np.int16
        if not self._coded and self._dtype.kind != "f":
            raise UsageError(f"keys and values are int16 codes or floats, not {self._dtype}")
        self._tables: list[_Pages] = []
        self._places: dict[int, tuple[_Pages, int, KeysValues]] = {}
        for kind, numbers in page_tables(config.caches).items():
            words = kv_codes.page_words(kind.head_dim, kind.kv_type)
            of_head = (words,) if self._coded else (PAGE, kind.head_dim)
            table = _Pages(kind.window, (len(numbers), 2, kind.kv_heads, *of_head), self._dtype)
            self._tables.append(table)
            self._places |= {it: (table, place, kind) for place, it in enumerate(numbers)}
        ranges = self._ranges = state_ranges(config.caches)
        floats = self._dtype if self._dtype == np.float64 else np.float32
        self._states = States(max((its.stop for its in ranges.values()), default=0), floats)
        self._parts: tuple[_Pages | States, ...] = (*self._tables, self._states)
        self._kept: list[int] = []
        self._marked = 0
        # the cache of the decoder that drafts tokens; ``None``: there is none
        self.drafter: KVCache | None = None
        if its := config.drafter:
            self.drafter = KVCache(its, min(capacity, its.context_length), dtype=dtype)

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
        """Bytes that a sequence of *positions*, run *step* at a time, takes at most, in pages."""
        pages = sum(table.most_pages(positions, step) * table.page_bytes for table in self._tables)
        its = self.drafter
        drafts = its.cost(min(positions, its.capacity), step) if its else 0
        return drafts + self.state_bytes + pages

    def affordable(self, size_bytes: int, step: int) -> int:
        """Positions, in whole pages, of a sequence whose :meth:`cost` is at most *size_bytes*."""
        pages = range(1, pages_for(self.capacity) + 1)
        return PAGE * bisect_right(pages, size_bytes, key=lambda n: self.cost(n * PAGE, step))

    def append(self, number: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Store *keys* and *values*, ``(T, kv_heads, head_dim)``, of a layer's cache *number*.

        Returns :meth:`view` of them.
        """
        start = self.length
        stop = self.length + len(keys)
        self._make_room(stop)
        table, place, kind = self._places[number]
        for at in range(start // PAGE, pages_for(stop)):
            held = table.pages[at]
            assert held is not None, "there is room"
            page = held[place]
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
        table, place, kind = self._places[number]
        start = self.length
        stop = self.length + count
        # Start at a split, so that the partial sums equal those of the native module.
        first = table.first_place(start) * PAGE // SPLIT * SPLIT // PAGE
        stored = table.stack(place, first, pages_for(stop))
        held = stop - first * PAGE
        if self._coded:
            all_keys, all_values = kv_codes.load(stored, kind.head_dim, kind.kv_type)
            return all_keys[:, :held], all_values[:, :held]
        together = stored.transpose(1, 2, 0, 3, 4).reshape(2, kind.kv_heads, -1, kind.head_dim)
        return together[0, :, :held], together[1, :, :held]

    def pages(self, count: int) -> tuple[NDArray[np.uint64], ...] | None:
        """Addresses of its pages, with room for *count* more positions, for the native module.

        One array for each table, in the order of :func:`page_tables`; 0 where a page was
        freed. They stay valid until the next call of any method. ``None`` if it holds floats.
        """
        if not self._coded:
            return None
        self._make_room(self.length + count)
        return tuple(table.addresses for table in self._tables)

    def begin(self) -> NDArray[np.floating[Any]]:
        """Begin a pass: all states of fixed size, which the pass changes; empty if it has none."""
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

    def truncate(self, length: int) -> None:
        """Forget the positions from *length* on: prefix reuse and rejected drafts.

        If that exact prefix is not available, the cache shrinks to :meth:`reusable`. Positions
        appended since the last :meth:`pages` or :meth:`append` can always be taken back.
        """
        self.length = self.reusable(length)
        self._kept = [one for one in self._kept if one <= self.length]
        for part in self._parts:
            part.cut(self.length)
        if self.drafter:
            self.drafter.truncate(self.length)

    def copy_prefix(self, source: KVCache, length: int) -> None:
        """Hold the first *length* positions of *source*, a cache of the same model."""
        if length > min(there := source.reusable(length), self.capacity):
            raise InferenceError(
                f"{length:,} positions to copy; there are {there:,}, and room for {self.capacity:,}"
            )
        self._kept = [one for one in source._kept if one <= length]
        for own, its in zip(self._tables, source._tables, strict=True):
            own.copy(its, length, self._snapshot_positions())
        self._states.copy(source._states, length)
        self.length = length
        if self.drafter and source.drafter:
            self.drafter.copy_prefix(source.drafter, source.drafter.reusable(length))

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


def pages_for(positions: int) -> int:
    """Pages that hold *positions* positions."""
    return -(-positions // PAGE)


class _Pages:
    """Pages by place: place i holds positions 64i to 64i + 63, of all layers of one window.

    Pages that no later query attends to are freed and reused for later positions, so memory stops
    growing with a window. A page may be shared with other tables; it is copied before it is
    written to.
    """

    def __init__(self, window: int, page_shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """An empty table."""
        self.window = window  # positions a query attends to, itself included; 0: all
        self.pages: list[Page | None] = []  # by place; ``None``: freed
        # of the pages, 0 for freed ones
        self.addresses: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
        self._page_shape = page_shape
        self._dtype = dtype
        self._shared: set[int] = set()  # places of pages that another table may hold too
        self._spare: list[Page] = []

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return int(np.prod(self._page_shape)) * self._dtype.itemsize

    @property
    def size_bytes(self) -> int:
        """Bytes of its pages, including shared ones."""
        held = sum(page is not None for page in self.pages) + len(self._spare)
        return held * self.page_bytes

    def first_place(self, position: int) -> int:
        """The first place that a query at *position* attends to."""
        return max(0, position + 1 - self.window) // PAGE if self.window else 0

    def most_pages(self, positions: int, step: int) -> int:
        """Pages that a sequence of *positions*, run *step* at a time, takes at most."""
        whole = pages_for(positions)
        if not self.window:
            return whole
        # One more where a window begins within a page, and a spare one.
        running = pages_for(self.window - 1 + step) + 2
        return min(whole, running + KEPT * (pages_for(self.window + SLACK) + 1))

    def make_room(self, length: int, stop: int, rereadable: Iterable[range]) -> None:
        """Own the pages from *length*, what is stored, to *stop*; *rereadable* ones stay."""
        pages = list(self.pages)
        seen = self.first_place(length)
        if any(page is not None for page in pages[:seen]):
            keep = {place for part in rereadable for place in self._places(part)}
            for place in range(min(seen, len(pages))):
                self._let_go(pages, place, keep)
        for place in range(length // PAGE, pages_for(stop)):
            if place >= len(pages):
                pages.append(self._spare.pop() if self._spare else self._new_page())
            elif place in self._shared:
                page = pages[place]
                assert page is not None, "what is written next is never let go of"
                pages[place] = page.copy()
        del self._spare[1:]
        self._set(pages)

    def reach(self, length: int) -> int:
        """The longest prefix of at most *length* positions that can be continued."""
        if not self.window:
            return length
        while missing := [
            place
            for place in range(self.first_place(length), pages_for(length))
            if self.pages[place] is None
        ]:
            length = missing[-1] * PAGE
        return length

    def cut(self, length: int) -> None:
        """Forget the positions from *length* on."""
        self._set(self.pages[: pages_for(length)])

    def copy(self, source: _Pages, length: int, rereadable: Iterable[range]) -> None:
        """Share the first *length* positions of *source*, as far as they may be read again."""
        keep = {place for part in rereadable for place in self._places(part)}
        keep.update(range(self.first_place(length), pages_for(length)))
        held = {place for place in keep if source.pages[place] is not None}
        self._set(
            [source.pages[place] if place in held else None for place in range(pages_for(length))]
        )
        self._shared |= held
        source._shared |= held

    def stack(self, place: int, start: int, stop: int) -> Page:
        """Pages *start* to *stop* of layer *place*, ``(pages, 2, ...)``; zeros for freed ones."""
        empty = np.zeros(self._page_shape[1:], dtype=self._dtype)
        return np.stack([empty if page is None else page[place] for page in self.pages[start:stop]])

    def _places(self, positions: range) -> range:
        """Places of the pages before *positions* that queries there attend to."""
        return range(self.first_place(positions.start), pages_for(positions.stop))

    def _let_go(self, pages: list[Page | None], place: int, keep: set[int]) -> None:
        page = pages[place]
        if page is None or place in keep:
            return
        if place not in self._shared:
            self._spare.append(page)
        pages[place] = None

    def _new_page(self) -> Page:
        if self.page_bytes >= MAPPED_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                memory = mmap.mmap(-1, self.page_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                memory.madvise(mmap.MADV_HUGEPAGE)
                return np.frombuffer(memory, dtype=self._dtype).reshape(self._page_shape)
            except OSError:  # too many mappings, or a system without huge pages
                pass
        return np.empty(self._page_shape, dtype=self._dtype)

    def _set(self, pages: list[Page | None]) -> None:
        if len(pages) == len(self.pages) and all(
            page is old for page, old in zip(pages, self.pages, strict=True)
        ):
            return
        pairs = enumerate(zip(pages, self.pages, strict=False))
        self._shared &= {place for place, (page, old) in pairs if page is old}
        self.pages = pages
        addresses = [0 if page is None else page.ctypes.data for page in pages]
        self.addresses = np.array(addresses, dtype=np.uint64)


class States:
    """States after the positions so far, changed in place by a pass.

    A state cannot be cut as keys and values can: it returns to lengths that were copied.
    """

    def __init__(self, size: int, dtype: DTypeLike) -> None:
        """States of *size* numbers, zero before the first position."""
        self.size = size  # numbers of a state
        self._dtype = np.dtype(dtype)
        self._live: Array = np.zeros(0, dtype=self._dtype)
        self._length: int | None = 0  # of the live one; None: a pass changes it
        self._copies: dict[int, Array] = {}

    @property
    def state_bytes(self) -> int:
        """Bytes of one state."""
        return self.size * self._dtype.itemsize

    @property
    def size_bytes(self) -> int:
        """Bytes of the live state and of all copies."""
        return self._live.nbytes + sum(copy.nbytes for copy in self._copies.values())

    def begin(self, length: int) -> Array:
        """The live state, after *length* positions, which a pass may change."""
        if self._length != length:
            raise InferenceError(
                f"the state after {length:,} positions was lost: a pass was interrupted",
                hint="start the sequence over",
            )
        if len(self._live) != self.size:
            self._live = np.zeros(self.size, self._dtype)
        self._length = None
        return self._live

    @property
    def live(self) -> Array:
        """The state that the running pass changes."""
        assert self._length is None, "a pass has begun"
        return self._live

    def end(self, length: int) -> None:
        """The pass has ended, after *length* positions."""
        self._length = length

    def copy_live(self) -> None:
        """Keep a copy of the live state, whose length is one to return to."""
        if self.size and self._length and self._length not in self._copies:
            self._copies[self._length] = self._live.copy()

    def drop_copies(self, kept: Collection[int]) -> None:
        """Free the copies whose lengths are not among the *kept* ones."""
        self._copies = {at: copy for at, copy in self._copies.items() if at in kept}

    def reach(self, length: int) -> int:
        """The longest length, up to *length*, that it can return to."""
        if not self.size:
            return length
        return max(at for at in (0, self._length or 0, *self._copies) if at <= length)

    def cut(self, length: int) -> None:
        """Return to *length*, which it can reach, also from a pass that did not end."""
        self._copies = {at: copy for at, copy in self._copies.items() if at <= length}
        if self._length != length:
            self._live = self._copies[length].copy() if self.size and length else self._live[:0]
            self._length = length

    def copy(self, source: States, length: int) -> None:
        """Share what *source* has up to *length*, which it can reach."""
        self._copies = {at: copy for at, copy in source._copies.items() if at <= length}
        its = source._live if source._length == length else self._copies.get(length, self._live[:0])
        self._live = its.copy()
        self._length = length


def page_tables(caches: Sequence[CacheKind]) -> dict[KeysValues, tuple[int, ...]]:
    """Caches of keys and values of one kind, which share pages, by number."""
    return {
        kind: tuple(number for number, its in enumerate(caches) if its == kind)
        for kind in dict.fromkeys(it for it in caches if isinstance(it, KeysValues))
    }


def state_ranges(caches: Sequence[CacheKind]) -> dict[int, range]:
    """Numbers of each cache of fixed size, by its own, in one state for all of them."""
    sizes = [(number, its.size) for number, its in enumerate(caches) if isinstance(its, State)]
    ends = list(accumulate(size for _, size in sizes))
    return {number: range(end - size, end) for (number, size), end in zip(sizes, ends, strict=True)}

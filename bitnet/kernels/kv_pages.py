"""Pages of keys and values, and states of fixed size: the parts of a cache.

:class:`bitnet.kernels.kv_cache.KVCache` says what a page holds and which layers share one.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bitnet.base.errors import InferenceError, InvalidFormat
from bitnet.kernels.kv_codes import PAGE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from numpy.typing import DTypeLike, NDArray

    from bitnet.kernels.kv_codes import Array

    Page: TypeAlias = NDArray[Any]

SLACK = 256  # positions before a kept one to which the cache can be truncated as well
# A page of this size or larger is a mapping of its own: neighbouring ones share huge pages.
MAPPED_BYTES = 256 << 10
# Lengths that `KVCache.keep_truncatable_to` remembers. A cache with states can also return to the
# position that was marked last, the start of a pass over drafts.
MOST_KEPT = 2


def pages_for(positions: int) -> int:
    """Pages that hold *positions* positions."""
    return -(-positions // PAGE)


class Pages:
    """Pages by number: page i holds positions 64i to 64i + 63, of all layers of one kind.

    Pages that no later query attends to are freed and reused for later positions, so memory stops
    growing with a window. A page may be shared with other tables; it is copied before it is
    written to.
    """

    def __init__(self, window: int, page_shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """An empty table."""
        self.window = window  # positions a query attends to, itself included; 0: all
        self.pages: list[Page | None] = []  # by number; None for freed ones
        # addresses of the pages, 0 for freed ones
        self.addresses: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
        self._page_shape = page_shape
        self._dtype = dtype
        self._shared: set[int] = set()  # numbers of pages that another table may have, too
        self._spare: list[Page] = []  # freed pages that will be used again

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return int(np.prod(self._page_shape)) * self._dtype.itemsize

    @property
    def size_bytes(self) -> int:
        """Bytes of its pages, including shared ones."""
        held = sum(page is not None for page in self.pages) + len(self._spare)
        return held * self.page_bytes

    def first_page(self, position: int) -> int:
        """Number of the first page that a query at *position* attends to."""
        return max(0, position + 1 - self.window) // PAGE if self.window else 0

    def most_pages(self, positions: int, step: int) -> int:
        """Pages that a sequence of *positions*, run *step* at a time, takes at most."""
        all_pages = pages_for(positions)
        if not self.window:
            return all_pages
        # One more where a window begins within a page, and a spare one.
        needed_at_once = pages_for(self.window - 1 + step) + 2
        return min(all_pages, needed_at_once + MOST_KEPT * (pages_for(self.window + SLACK) + 1))

    def make_room(self, length: int, stop: int, rereadable: Iterable[range]) -> None:
        """Make positions *length* to *stop* writable; the first *length* ones are stored.

        Free the pages that queries from *length* on do not read, except for those that queries at
        *rereadable* positions read.
        """
        # Both lists are replaced at the end, so that a page without memory changes neither.
        pages = list(self.pages)
        spare = list(self._spare)
        first_needed = self.first_page(length)
        if any(page is not None for page in pages[:first_needed]):
            keep = {page_number for part in rereadable for page_number in self._read_pages(part)}
            for page_number in range(min(first_needed, len(pages))):
                self._release(pages, page_number, keep, spare)
        for page_number in range(length // PAGE, pages_for(stop)):
            if page_number >= len(pages):
                pages.append(spare.pop() if spare else self._new_page())
            elif page_number in self._shared:
                page = pages[page_number]
                assert page is not None, "a page that is written next is never freed"
                pages[page_number] = page.copy()
        self._spare = spare[:1]
        self._set(pages)

    def reusable(self, length: int) -> int:
        """The longest prefix of at most *length* positions that can be continued."""
        if not self.window:
            return length
        while missing_pages := [
            page_number
            for page_number in range(self.first_page(length), pages_for(length))
            if self.pages[page_number] is None
        ]:
            length = missing_pages[-1] * PAGE
        return length

    def cut(self, length: int) -> None:
        """Forget the positions from *length* on."""
        self._set(self.pages[: pages_for(length)])

    def copy(self, source: Pages, length: int, rereadable: Iterable[range]) -> None:
        """Share the first *length* positions of *source*, as far as later queries may read them.

        They are read from *length* on, and at *rereadable* positions.
        """
        keep = {page_number for part in rereadable for page_number in self._read_pages(part)}
        keep.update(range(self.first_page(length), pages_for(length)))
        held = {page_number for page_number in keep if source.pages[page_number] is not None}
        self._set(
            [
                source.pages[page_number] if page_number in held else None
                for page_number in range(pages_for(length))
            ]
        )
        self._shared |= held
        source._shared |= held

    def list_held(self, length: int) -> dict[int, Page]:
        """Pages of the first *length* positions that were not freed, by their number."""
        pages = enumerate(self.pages[: pages_for(length)])
        return {page_number: page for page_number, page in pages if page is not None}

    def fill(self, length: int, held: Mapping[int, Page]) -> None:
        """Hold the pages *held* of *length* positions, which are never written to.

        Raises:
            InvalidFormat: they are not pages of this table, or one is missing.
        """
        places = range(pages_for(length))
        required = range(0) if self.window else places  # with a window, pages may be freed
        if not set(required) <= set(held) <= set(places):
            raise InvalidFormat(f"its pages are not those of {length:,} positions")
        for page in held.values():
            if page.shape != self._page_shape or page.dtype != self._dtype:
                raise InvalidFormat(
                    f"a page is {page.dtype} {page.shape}, expected {self._dtype} "
                    f"{self._page_shape}"
                )
        self._set([held.get(page_number) for page_number in places])
        self._shared = set(held)

    def stack(self, layer: int, start: int, stop: int) -> Page:
        """Pages *start* to *stop* of *layer*, ``(pages, 2, ...)``; zeros for freed ones."""
        empty = np.zeros(self._page_shape[1:], dtype=self._dtype)
        return np.stack([empty if page is None else page[layer] for page in self.pages[start:stop]])

    def _read_pages(self, positions: range) -> range:
        """Numbers of the pages that queries at *positions* attend to."""
        return range(self.first_page(positions.start), pages_for(positions.stop))

    def _release(
        self, pages: list[Page | None], page_number: int, keep: set[int], spare: list[Page]
    ) -> None:
        """Free page *page_number* of *pages*, unless it is one to *keep*; *spare* gets it."""
        page = pages[page_number]
        if page is None or page_number in keep:
            return
        if page_number not in self._shared:
            spare.append(page)
        pages[page_number] = None

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
        """Replace the pages of the table by *pages*; those that change are not shared."""
        if len(pages) == len(self.pages) and all(
            page is old for page, old in zip(pages, self.pages, strict=True)
        ):
            return
        pairs = enumerate(zip(pages, self.pages, strict=False))
        self._shared &= {page_number for page_number, (page, old) in pairs if page is old}
        self.pages = pages
        addresses = [0 if page is None else page.ctypes.data for page in pages]
        self.addresses = np.array(addresses, dtype=np.uint64)


class States:
    """The state after the positions so far, which a pass changes in place, and copies of it.

    A state cannot be cut as keys and values can: it can only return to a length at which it was
    copied.
    """

    def __init__(self, size: int, dtype: DTypeLike) -> None:
        """States of *size* numbers, zero before the first position."""
        self.size = size  # numbers of a state
        self._dtype = np.dtype(dtype)
        self._live: Array = np.zeros(0, dtype=self._dtype)
        # positions before the live state; None while a pass changes it
        self._length: int | None = 0
        self._copies: dict[int, Array] = {}  # by the number of positions before each

    @property
    def state_bytes(self) -> int:
        """Bytes of one state."""
        return self.size * self._dtype.itemsize

    @property
    def size_bytes(self) -> int:
        """Bytes of the live state and of all copies."""
        return self._live.nbytes + sum(copy.nbytes for copy in self._copies.values())

    def begin(self, length: int) -> Array:
        """Begin a pass: the live state, after *length* positions, which the pass may change."""
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
        """End the pass, after *length* positions."""
        self._length = length

    def copy_live(self) -> None:
        """Keep a copy of the live state, so that it can return to its length."""
        if self.size and self._length and self._length not in self._copies:
            self._copies[self._length] = self._live.copy()

    def drop_copies(self, lengths: Collection[int]) -> None:
        """Free the copies of other lengths than *lengths*."""
        self._copies = {at: copy for at, copy in self._copies.items() if at in lengths}

    def reusable(self, length: int) -> int:
        """The longest length, up to *length*, that the state can return to."""
        if not self.size:
            return length
        return max(at for at in (0, self._length or 0, *self._copies) if at <= length)

    def list_held(self, length: int) -> dict[int, Array]:
        """The states up to *length*, by the number of positions before each."""
        states = {at: copy for at, copy in self._copies.items() if at <= length}
        if self.size and self._length == length > 0:
            states[length] = self._live
        return states

    def fill(self, length: int, held: Mapping[int, Array]) -> None:
        """Hold copies of the states *held*, of which one is that after *length* positions.

        Raises:
            InvalidFormat: they are not states of this model, or that one is missing.
        """
        is_complete = length in held if self.size and length else not held
        if not is_complete or not all(0 < at <= length for at in held):
            raise InvalidFormat(f"its states are not those of {length:,} positions")
        for state in held.values():
            if state.shape != (self.size,) or state.dtype != self._dtype:
                raise InvalidFormat(
                    f"a state is {state.dtype} {state.shape}, expected {self._dtype} ({self.size},)"
                )
        self._copies = {at: state.copy() for at, state in held.items() if at < length}
        self._live = held[length].copy() if length in held else self._live[:0]
        self._length = length

    def cut(self, length: int) -> None:
        """Return to *length*, which :meth:`reusable` gave, even if a pass was interrupted."""
        self._copies = {at: copy for at, copy in self._copies.items() if at <= length}
        if self._length != length:
            self._live = self._copies[length].copy() if self.size and length else self._live[:0]
            self._length = length

    def copy(self, source: States, length: int) -> None:
        """Share what *source* has up to *length*, which its :meth:`reusable` gave."""
        self._copies = {at: copy for at, copy in source._copies.items() if at <= length}
        if source._length == length:
            state = source._live
        else:
            state = self._copies.get(length, self._live[:0])
        self._live = state.copy()
        self._length = length

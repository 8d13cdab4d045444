"""Pages of keys and values of the layers that share an attention window."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bitnet.kernels.kv_codes import PAGE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Page: TypeAlias = NDArray[Any]

__all__ = ["PageTable", "pages_for"]

MAPPED_BYTES = 256 << 10  # a page from this size on is a mapping: neighbours share huge pages


def pages_for(positions: int) -> int:
    """Pages that hold *positions* positions."""
    return -(-positions // PAGE)


class PageTable:
    """Pages by place: place i holds positions 64i to 64i + 63, of all layers of one window.

    Pages that no later query attends to are freed and reused for later positions, so memory stops
    growing with a window. A page may be shared with other tables; it is copied before it is
    written to.

    Attributes:
        window: positions a query attends to, itself included; 0: all.
        pages: by place; ``None``: freed.
        addresses: of the pages, 0 for freed ones.
    """

    def __init__(
        self, window: int, page_shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> None:
        """An empty table."""
        self.window = window
        self.pages: list[Page | None] = []
        self.addresses: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
        self._page_shape, self._dtype = page_shape, dtype
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

    def most_pages(self, positions: int, step: int, kept: Iterable[int]) -> int:
        """Pages that a sequence of *positions* takes at most.

        Args:
            positions: of the whole sequence.
            step: tokens of one pass at most.
            kept: for each kept position, the positions before it that must stay available.
        """
        whole = pages_for(positions)
        if not self.window:
            return whole
        # One more where a window begins within a page, and a spare one.
        running = pages_for(self.window - 1 + step) + 2
        return min(whole, running + sum(pages_for(self.window + back) + 1 for back in kept))

    def make_room(self, length: int, stop: int, kept: Iterable[range]) -> None:
        """Own the pages for the positions from *length* up to *stop*.

        Args:
            length: positions stored.
            stop: end of the positions to make room for.
            kept: positions that may be read again, besides those to come.
        """
        pages = list(self.pages)
        seen = self.first_place(length)
        if any(page is not None for page in pages[:seen]):
            keep = {place for part in kept for place in self._places(part)}
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

    def copy(self, other: PageTable, length: int, kept: Iterable[range]) -> None:
        """Share the first *length* positions of *other*, as far as they may be read again."""
        keep = {place for part in kept for place in self._places(part)}
        keep.update(range(self.first_place(length), pages_for(length)))
        held = {place for place in keep if other.pages[place] is not None}
        self._set(
            [other.pages[place] if place in held else None for place in range(pages_for(length))]
        )
        self._shared |= held
        other._shared |= held

    def stack(self, place: int, start: int, stop: int) -> Page:
        """Pages *start* to *stop* of layer *place* of the table; zeros for freed ones.

        Returns:
            ``(pages, 2, ...)``, as the pages are.
        """
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

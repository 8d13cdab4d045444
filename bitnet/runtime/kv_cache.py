"""Keys and values of the positions a sequence has seen."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from bitnet.errors import InferenceError, UsageError
from bitnet.kernels.program import layers_by_window
from bitnet.runtime.kv_pages import PAGE, PageTable, pages_for

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from bitnet.kernels.ops import Array
    from bitnet.models.config import TransformerConfig

__all__ = ["PAGE", "KVCache"]

SPLIT = 4 * PAGE  # keys whose results are merged in one go; ``kSplitPages`` in kernels.hpp
SLACK = 256  # positions before a kept one to which the cache can be truncated as well
KEPT = 2  # positions to which it can be truncated


class KVCache:
    """Keys and values of every layer, in pages of 64 positions.

    Layers with the same attention window share their pages (:class:`PageTable`). A page is
    ``(layers, 2, kv_heads, head_dim * 64)``: for each head the keys transposed, ``(head_dim, 64)``,
    and the values, ``(64, head_dim)``. Memory grows with use, one page at a time, and for layers
    with a window only up to its size. Full pages are shared by caches copied from each other, until
    one of them writes to the page.

    Attributes:
        length: positions stored.
        capacity: positions it has room for.
        reach: positions of the prompt, which select the RoPE scaling; *capacity* until it is set.
    """

    def __init__(
        self, config: TransformerConfig, capacity: int, *, dtype: DTypeLike = np.float16
    ) -> None:
        """An empty cache.

        Args:
            config: of the model.
            capacity: positions, at least one.
            dtype: float16, or a wider type for exact comparisons.

        Raises:
            UsageError: *capacity* is below one.
        """
        if capacity < 1:
            raise UsageError(f"a context of {capacity} positions; at least 1 is needed")
        self.capacity = self.reach = capacity
        self.length = 0
        self._dtype = np.dtype(dtype)
        self._heads, self._head_dim = config.n_kv_heads, config.head_dim
        self._tables: list[PageTable] = []
        self._places: dict[int, tuple[PageTable, int]] = {}  # of each layer
        for window, layers in layers_by_window(config.windows).items():
            shape = (len(layers), 2, self._heads, self._head_dim * PAGE)
            table = PageTable(window, shape, self._dtype)
            self._tables.append(table)
            self._places |= {layer: (table, place) for place, layer in enumerate(layers)}
        self._kept: list[int] = []

    @property
    def size_bytes(self) -> int:
        """Bytes of its pages, including shared ones."""
        return sum(table.size_bytes for table in self._tables)

    @property
    def bytes_per_position(self) -> int:
        """Bytes of one position while every layer keeps it."""
        return sum(table.page_bytes for table in self._tables) // PAGE

    def cost(self, positions: int, step: int) -> int:
        """Bytes that a sequence of *positions* takes at most, in whole pages.

        Args:
            positions: of the whole sequence.
            step: tokens of one pass at most.
        """
        kept = [SLACK] * KEPT
        return sum(
            table.most_pages(positions, step, kept) * table.page_bytes for table in self._tables
        )

    def affordable(self, size_bytes: int, step: int) -> int:
        """Positions, in whole pages, of a sequence whose :meth:`cost` is at most *size_bytes*."""
        pages = range(1, pages_for(self.capacity) + 1)
        return PAGE * bisect_right(pages, size_bytes, key=lambda n: self.cost(n * PAGE, step))

    def append(self, layer: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Store new *keys* and *values* of one layer behind those it has.

        Args:
            layer: number of the block.
            keys: ``(T, kv_heads, head_dim)``.
            values: as *keys*.

        Returns:
            Keys and values of the layer, ``(kv_heads, S, head_dim)``: copies of the last S
            positions, all of them or, with a window, at least those the new ones attend to.

        Raises:
            InferenceError: the capacity is exceeded.
        """
        stop = self.length + len(keys)
        self._make_room(stop)
        table, place = self._places[layer]
        for at in range(self.length, stop):
            held = table.pages[at // PAGE]
            assert held is not None, "there is room"
            page, slot = held[place], at % PAGE
            new = at - self.length
            page[0].reshape(self._heads, self._head_dim, PAGE)[:, :, slot] = keys[new]
            page[1].reshape(self._heads, PAGE, self._head_dim)[:, slot] = values[new]
        # Start at a split, so that the partial sums equal those of the native module.
        first = table.seen_from(self.length) * PAGE // SPLIT * SPLIT // PAGE
        used = table.stored(place, first, pages_for(stop))
        stored = used.reshape(len(used), 2, self._heads, self._head_dim, PAGE)
        all_keys = stored[:, 0].transpose(1, 0, 3, 2)  # (KV, pages, PAGE, D)
        all_values = stored[:, 1].reshape(len(used), self._heads, PAGE, self._head_dim)
        shape, count = (self._heads, -1, self._head_dim), stop - first * PAGE
        return (
            all_keys.reshape(shape)[:, :count],
            all_values.transpose(1, 0, 2, 3).reshape(shape)[:, :count],
        )

    def pages(self, count: int) -> tuple[NDArray[np.uint64], ...] | None:
        """Addresses of its pages, with room for *count* more positions, for the native module.

        One array for each window, in the order of :func:`layers_by_window`; 0 where a page was
        freed. They stay valid until the next call of any method. ``None`` if the dtype is not
        float16.

        Raises:
            InferenceError: the capacity is exceeded.
        """
        if self._dtype != np.float16:
            return None
        self._make_room(self.length + count)
        return tuple(table.addresses for table in self._tables)

    def advance(self, count: int) -> None:
        """Count *count* positions that every layer has appended."""
        self.length += count

    def keep(self, length: int) -> None:
        """Keep the pages needed to truncate to *length*, or up to 256 positions before.

        Layers with a window would free them otherwise. The two lengths named last are kept.
        """
        self._kept = [*(one for one in self._kept if one != length), length][-KEPT:]

    def reusable(self, length: int) -> int:
        """The longest prefix of at most *length* positions to which the cache can be truncated."""
        length = max(0, min(length, self.length))
        while (shorter := min(table.reach(length) for table in self._tables)) < length:
            length = shorter
        return length

    def truncate(self, length: int) -> None:
        """Forget the positions from *length* on: prefix reuse and rejected drafts.

        If that exact prefix is not available, the cache shrinks to :meth:`reusable`. Positions
        appended since the last :meth:`pages` or :meth:`append` can always be taken back.
        """
        self.length = self.reusable(length)
        self._kept = [one for one in self._kept if one <= self.length]
        for table in self._tables:
            table.cut(self.length)

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
            own.copy(its, length, self._kept_positions())
        self.length = length

    def _kept_positions(self) -> list[range]:
        return [range(max(0, length - SLACK), length) for length in self._kept]

    def _make_room(self, stop: int) -> None:
        """Own the pages for the positions from its length up to *stop*."""
        if stop > self.capacity:
            raise InferenceError(
                f"{stop:,} positions, the context holds {self.capacity:,}",
                hint="shorten the prompt or raise the context size",
            )
        kept = self._kept_positions()
        for table in self._tables:
            table.make_room(self.length, stop, kept)

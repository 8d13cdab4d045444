"""Keys and values of the positions a sequence has seen."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from bitnet.errors import InferenceError, UsageError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from bitnet.kernels.ops import Array
    from bitnet.models.config import TransformerConfig

__all__ = ["PAGE", "KVCache"]

PAGE = 64  # positions; ``kKeyBlock`` in kernels/native/kernels.hpp


class KVCache:
    """Keys and values of every layer, in pages of 64 positions.

    A page is ``(layers, 2, kv_heads, head_dim * 64)``: of each head the keys transposed,
    ``(head_dim, 64)``, and the values as they come, ``(64, head_dim)``. Memory grows with use, by
    pages. Full pages are shared by the caches that were copied from each other until one of them
    writes there again.

    Attributes:
        length: positions stored.
        capacity: positions there is room for.
    """

    def __init__(
        self, config: TransformerConfig, capacity: int, *, dtype: DTypeLike = np.float16
    ) -> None:
        """An empty cache.

        Args:
            config: of the model it serves.
            capacity: positions, at least one.
            dtype: float16, or a wider type for exact comparisons.

        Raises:
            UsageError: *capacity* is below one.
        """
        if capacity < 1:
            raise UsageError(f"a context of {capacity} positions; at least 1 is needed")
        self.capacity = capacity
        self.length = 0
        self._dtype = np.dtype(dtype)
        self._heads, self._head_dim = config.n_kv_heads, config.head_dim
        self._layers = config.n_layers
        self._page_shape = (self._layers, 2, self._heads, self._head_dim * PAGE)
        self._pages: list[Array] = []
        self._shared: set[int] = set()  # places of pages another cache may hold too
        self._addresses = np.empty(0, dtype=np.uint64)

    @property
    def size_bytes(self) -> int:
        """Bytes of its pages, with those that others hold as well."""
        return len(self._pages) * PAGE * self.bytes_per_position

    @property
    def bytes_per_position(self) -> int:
        """Bytes that one position takes."""
        return 2 * self._layers * self._heads * self._head_dim * self._dtype.itemsize

    def append(self, layer: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Store new *keys* and *values* of one layer behind those it has.

        Args:
            layer: number of the block.
            keys: ``(T, kv_heads, head_dim)``.
            values: as *keys*.

        Returns:
            All keys and values of the layer, ``(kv_heads, S, head_dim)``: copies.

        Raises:
            InferenceError: the capacity does not suffice.
        """
        stop = self.length + len(keys)
        self._make_room(stop)
        for at in range(self.length, stop):
            page, slot = self._pages[at // PAGE][layer], at % PAGE
            new = at - self.length
            page[0].reshape(self._heads, self._head_dim, PAGE)[:, :, slot] = keys[new]
            page[1].reshape(self._heads, PAGE, self._head_dim)[:, slot] = values[new]
        used = [page[layer] for page in self._pages[: -(-stop // PAGE)]]
        stored = np.stack(used).reshape(len(used), 2, self._heads, self._head_dim, PAGE)
        all_keys = stored[:, 0].transpose(1, 0, 3, 2)  # (KV, pages, PAGE, D)
        all_values = stored[:, 1].reshape(len(used), self._heads, PAGE, self._head_dim)
        shape = (self._heads, -1, self._head_dim)
        return (
            all_keys.reshape(shape)[:, :stop],
            all_values.transpose(1, 0, 2, 3).reshape(shape)[:, :stop],
        )

    def pages(self, count: int) -> NDArray[np.uint64] | None:
        """Addresses of its pages, with room for *count* more positions, to be filled in C++.

        They stay valid until the next call of any method. ``None``: its numbers are not float16.

        Raises:
            InferenceError: the capacity does not suffice.
        """
        if self._dtype != np.float16:
            return None
        self._make_room(self.length + count)
        return self._addresses

    def advance(self, count: int) -> None:
        """Count *count* positions that every layer has appended."""
        self.length += count

    def truncate(self, length: int) -> None:
        """Forget the positions from *length* on; prefix reuse and rejected drafts."""
        self.length = min(self.length, max(length, 0))
        self._set_pages(self._pages[: -(-self.length // PAGE)])

    def copy_prefix(self, other: KVCache, length: int) -> None:
        """Hold what *other*, of the same model, holds of its first *length* positions.

        Raises:
            InferenceError: *other* holds fewer, or the capacity does not suffice.
        """
        if length > min(other.length, self.capacity):
            raise InferenceError(
                f"{length:,} positions to copy; there are {other.length:,}, and room for "
                f"{self.capacity:,}"
            )
        count = -(-length // PAGE)
        self._set_pages([*other._pages[:count], *self._pages[count:]])
        self._shared |= set(range(count))
        other._shared |= self._shared
        self.length = length

    def _make_room(self, stop: int) -> None:
        """Pages of its own for the positions from its length up to *stop*."""
        if stop > self.capacity:
            raise InferenceError(
                f"{stop:,} positions, the context holds {self.capacity:,}",
                hint="shorten the prompt or raise the context size",
            )
        pages = list(self._pages)
        for place in range(self.length // PAGE, -(-stop // PAGE)):
            if place >= len(pages):
                pages.append(np.empty(self._page_shape, dtype=self._dtype))
            elif place in self._shared:
                pages[place] = pages[place].copy()
        self._set_pages(pages)

    def _set_pages(self, pages: list[Array]) -> None:
        if len(pages) == len(self._pages) and all(map(operator.is_, pages, self._pages)):
            return
        kept = zip(pages, self._pages, strict=False)
        same = {place for place, (page, old) in enumerate(kept) if page is old}
        self._shared &= same
        self._pages = pages
        self._addresses = np.array([page.ctypes.data for page in pages], dtype=np.uint64)

"""Keys and values of the positions a sequence has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bitnet.errors import InferenceError, UsageError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from bitnet.kernels.ops import Array
    from bitnet.models.config import TransformerConfig

__all__ = ["KVCache"]


class KVCache:
    """Keys and values of every layer, each ``(kv_heads, capacity, head_dim)``.

    Memory grows with use: the arrays start small and double up to the capacity.

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
        self._heads = (config.n_kv_heads, config.head_dim)
        self._layers = config.n_layers
        self._room = 0
        self._keys: list[Array] = [self._empty(0) for _ in range(self._layers)]
        self._values: list[Array] = [self._empty(0) for _ in range(self._layers)]

    @property
    def size_bytes(self) -> int:
        """Bytes allocated at the moment."""
        return sum(array.nbytes for array in (*self._keys, *self._values))

    @property
    def bytes_per_position(self) -> int:
        """Bytes that one position takes."""
        heads, head_dim = self._heads
        return 2 * self._layers * heads * head_dim * self._dtype.itemsize

    def append(self, layer: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Store new *keys* and *values* of one layer behind those it has.

        Args:
            layer: number of the block.
            keys: ``(T, kv_heads, head_dim)``.
            values: as *keys*.

        Returns:
            All keys and values of the layer, ``(kv_heads, S, head_dim)``: views.

        Raises:
            InferenceError: the capacity does not suffice.
        """
        start, stop = self.length, self.length + len(keys)
        if stop > self.capacity:
            raise InferenceError(
                f"{stop:,} positions, the context holds {self.capacity:,}",
                hint="shorten the prompt or raise the context size",
            )
        if stop > self._room:
            self._grow(stop)
        for store, new in ((self._keys[layer], keys), (self._values[layer], values)):
            store[:, start:stop] = new.transpose(1, 0, 2)
        return self._keys[layer][:, :stop], self._values[layer][:, :stop]

    def advance(self, count: int) -> None:
        """Count *count* positions that every layer has appended."""
        self.length += count

    def truncate(self, length: int) -> None:
        """Forget the positions from *length* on; prefix reuse and rejected drafts."""
        self.length = min(self.length, max(length, 0))

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
        self.length = 0
        if length > self._room:
            self._grow(length)
        for layer in range(self._layers):
            self._keys[layer][:, :length] = other._keys[layer][:, :length]
            self._values[layer][:, :length] = other._values[layer][:, :length]
        self.length = length

    def reserve(self, positions: int) -> None:
        """Take the memory for *positions* at once: growing step by step takes up to twice that."""
        if min(positions, self.capacity) > self._room:
            self._grow(positions, exactly=True)

    def _empty(self, room: int) -> Array:
        heads, head_dim = self._heads
        return np.empty((heads, room, head_dim), dtype=self._dtype)

    def _grow(self, needed: int, *, exactly: bool = False) -> None:
        self._room = min(self.capacity, needed if exactly else max(needed, 2 * self._room, 64))
        for stores in (self._keys, self._values):
            for layer, old in enumerate(stores):
                stores[layer] = self._empty(self._room)
                stores[layer][:, : self.length] = old[:, : self.length]

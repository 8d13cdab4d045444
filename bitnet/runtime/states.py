"""States of fixed size of a sequence's recurrent layers, and copies of them at chosen lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import InferenceError

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import DTypeLike

    from bitnet.kernels.ops import Array

__all__ = ["States"]


class States:
    """States after the positions so far, changed in place by a pass.

    A state cannot be cut as keys and values can: it returns to lengths that were copied.

    Attributes:
        size: numbers of a state.
    """

    def __init__(self, size: int, dtype: DTypeLike) -> None:
        """States of *size* numbers, zero before the first position."""
        self.size = size
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
        """The live state, after *length* positions, which a pass may change.

        Raises:
            InferenceError: there is none of that length: a pass before was interrupted.
        """
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
        live = 0 if self._length is None else self._length
        return max(at for at in (0, live, *self._copies) if at <= length)

    def cut(self, length: int) -> None:
        """Return to *length*, which it can reach, also from a pass that did not end."""
        self._copies = {at: copy for at, copy in self._copies.items() if at <= length}
        if self._length != length:
            self._live = self._copies[length].copy() if self.size and length else self._live[:0]
            self._length = length

    def copy(self, other: States, length: int) -> None:
        """Share what *other* has up to *length*, which it can reach."""
        self._copies = {at: copy for at, copy in other._copies.items() if at <= length}
        its = other._live if other._length == length else self._copies.get(length, self._live[:0])
        self._live, self._length = its.copy(), length

"""A named weight tensor, still in its encoding."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from bitnet.quants.types import QuantType


# Types with one scale behind all weights of a tensor; no engine writes several matrices in them.
_ONE_SCALE = {"I2_S", "I2_S_ARM", "TL1", "TL2"}


class Deferred:
    """Bytes of a tensor that are computed when they are first read.

    *compute* returns one-dimensional uint8, *size_bytes* of them.
    """

    def __init__(self, compute: Callable[[], NDArray[np.uint8]], size_bytes: int) -> None:
        self._compute: Callable[[], NDArray[np.uint8]] | None = compute
        self._array: NDArray[np.uint8] | None = None
        self._lock = threading.Lock()
        self.size_bytes = size_bytes

    def read(self) -> NDArray[np.uint8]:
        """The bytes, which are computed once, by one thread."""
        with self._lock:
            if self._compute is not None:
                self._array = self._compute()
                self._compute = None  # releases the arrays that it refers to
        assert self._array is not None
        return self._array


class _Bytes:
    """Descriptor of ``Weight.data``: takes an array or a :class:`Deferred`, reads as an array."""

    def __get__(self, weight: Weight | None, owner: type) -> NDArray[np.uint8]:
        if weight is None:
            raise AttributeError  # as read from the class, so that dataclass sees no default
        stored: NDArray[np.uint8] | Deferred = weight.__dict__["stored"]
        return stored.read() if isinstance(stored, Deferred) else stored

    def __set__(self, weight: Weight, data: NDArray[np.uint8] | Deferred) -> None:
        weight.__dict__["stored"] = data


@dataclass(frozen=True, eq=False)
class Weight:
    """A named tensor in its encoding: bytes of a file, or bytes computed from one."""

    name: str  # GGUF name, such as ``blk.0.attn_q.weight``
    # rows first: ``(outputs, inputs)`` for a linear layer, ``(n,)`` for a norm, ``(experts,
    # outputs, inputs)`` for the matrices of experts
    shape: tuple[int, ...]
    quant: QuantType  # quantization type of *data*
    # the tensor's bytes, one-dimensional uint8, usually a view into the mapped file
    data: _Bytes = _Bytes()
    scale: float = 1.0  # additional factor on the decoded *data* (a scale stored in another tensor)
    # if ternary, the layer rounds its input to int8 per token (W1.58A8), as BitNet models are
    # trained; false for ternary models trained with float inputs
    rounds_input: bool = True
    # the bytes, matrix by matrix, if they are in several arrays; *data* is empty then
    pieces: tuple[NDArray[np.uint8], ...] = ()

    @property
    def views(self) -> tuple[NDArray[np.uint8], ...]:
        """The arrays of bytes: ``pieces``, or ``data`` alone."""
        return self.pieces or (self.data,)

    @property
    def size_bytes(self) -> int:
        """Number of bytes, without computing deferred ones."""
        stored = self.__dict__["stored"]
        if isinstance(stored, Deferred):
            return stored.size_bytes
        return sum(view.nbytes for view in self.views)

    @property
    def is_deferred(self) -> bool:
        """True if the bytes are computed when they are first read."""
        return isinstance(self.__dict__["stored"], Deferred)

    def like(self, **changes: Any) -> Weight:
        """A copy with *changes* to its fields; ``replace`` would compute deferred bytes."""
        return replace(self, **{"data": self.__dict__["stored"], **changes})

    @property
    def stores_rows(self) -> bool:
        """True if the bytes are those of the rows of a matrix, one row after another.

        I2_S has a scale behind all rows, packed U8 and IQ2_BN_R4 have four rows in one. TL1 and
        TL2, which also have such a scale, are not excluded: they are never decoded.
        """
        is_mixed = self.quant.name.startswith(("I2_S", "PACKED", "IQ2_BN_R4"))
        return len(self.shape) > 1 and not is_mixed and self.data.size % self.shape[0] == 0

    def take_rows(self, rows: slice | list[int]) -> Weight:
        """The *rows* as a matrix of their own; the weight must have :attr:`stores_rows`."""
        raw = self.data.reshape(self.shape[0], -1)[rows]
        return replace(self, shape=(len(raw), *self.shape[1:]), data=raw.reshape(-1))

    def matrices(self) -> tuple[Weight, ...]:
        """The matrices ``(outputs, inputs)`` of three dimensions, or the weight itself if fewer."""
        if len(self.shape) < 3:
            return (self,)
        count, *shape = self.shape
        if not self.pieces and self.quant.name in _ONE_SCALE:
            raise Unsupported(
                f"{self.name}: {count:,} matrices in one tensor in {self.quant.name}, whose scale "
                "is one for a whole tensor",
                hint="choose a file in another encoding, such as TQ2_0",
            )
        size = self.data.size // max(count, 1)
        pieces = self.pieces or [self.data[at * size : (at + 1) * size] for at in range(count)]
        return tuple(
            replace(self, name=f"{self.name}[{at}]", shape=tuple(shape), data=piece, pieces=())
            for at, piece in enumerate(pieces)
        )

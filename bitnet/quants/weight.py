"""A named weight tensor, still in its encoding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bitnet.quants.types import QuantType


@dataclass(frozen=True, eq=False)
class Weight:
    """A named tensor as stored in the file."""

    name: str  # GGUF name, such as ``blk.0.attn_q.weight``
    # rows first: ``(outputs, inputs)`` for a linear layer, ``(n,)`` for a norm, ``(experts,
    # outputs, inputs)`` for the matrices of experts
    shape: tuple[int, ...]
    quant: QuantType  # quantization type of *data*
    # the tensor's bytes, one-dimensional uint8, usually a view into the mapped file
    data: NDArray[np.uint8]
    scale: float = 1.0  # additional factor on the decoded *data* (a scale stored in another tensor)
    # if ternary, the layer rounds its input to int8 per token (W1.58A8), as BitNet models are
    # trained; false for ternary models trained with float inputs
    rounds_input: bool = True
    # bytes of each of its matrices, where they do not follow each other in *data*, which is empty
    # then
    pieces: tuple[NDArray[np.uint8], ...] = ()

    @property
    def views(self) -> tuple[NDArray[np.uint8], ...]:
        """Its bytes, in one or several arrays."""
        return self.pieces or (self.data,)

    @property
    def size_bytes(self) -> int:
        """Number of its bytes."""
        return sum(view.nbytes for view in self.views)

    def matrices(self) -> tuple[Weight, ...]:
        """The matrices of a weight of three dimensions; the weight itself, if it has fewer."""
        if len(self.shape) < 3:
            return (self,)
        count, *shape = self.shape
        size = self.data.size // max(count, 1)
        pieces = self.pieces or [self.data[at * size : (at + 1) * size] for at in range(count)]
        return tuple(
            replace(self, name=f"{self.name}[{at}]", shape=tuple(shape), data=piece, pieces=())
            for at, piece in enumerate(pieces)
        )

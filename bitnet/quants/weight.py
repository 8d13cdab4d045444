"""A named weight tensor, still in its encoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bitnet.quants.types import QuantType

__all__ = ["Weight"]


@dataclass(frozen=True, eq=False)
class Weight:
    """A named tensor as the file holds it.

    Attributes:
        name: GGUF name, such as ``blk.0.attn_q.weight``.
        shape: rows first: ``(outputs, inputs)`` for a linear layer, ``(n,)`` for a norm.
        quant: the encoding of *data*.
        data: the tensor's bytes, one-dimensional uint8, usually a view into the mapped file.
        scale: factor on top of what *data* decodes to (a scale kept in another tensor).
        rounds_input: a layer of ternary weights rounds its input to int8 per token (W1.58A8), as
            BitNets are trained; ``False`` for ternary models that were trained without that.
    """

    name: str
    shape: tuple[int, ...]
    quant: QuantType
    data: NDArray[np.uint8]
    scale: float = 1.0
    rounds_input: bool = True

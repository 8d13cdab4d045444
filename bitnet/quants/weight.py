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
    """A named tensor as stored in the file.

    Attributes:
        name: GGUF name, such as ``blk.0.attn_q.weight``.
        shape: rows first: ``(outputs, inputs)`` for a linear layer, ``(n,)`` for a norm.
        quant: quantization type of *data*.
        data: the tensor's bytes, one-dimensional uint8, usually a view into the mapped file.
        scale: additional factor on the decoded *data* (a scale stored in another tensor).
        rounds_input: if ternary, the layer rounds its input to int8 per token (W1.58A8), as BitNet
            models are trained; false for ternary models trained with float inputs.
    """

    name: str
    shape: tuple[int, ...]
    quant: QuantType
    data: NDArray[np.uint8]
    scale: float = 1.0
    rounds_input: bool = True

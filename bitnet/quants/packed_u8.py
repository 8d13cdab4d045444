"""The packed ternary weights of BitNet safetensors files: four rows in the bits of one byte row.

Row ``r`` of the stored ``(rows / 4, columns)`` bytes holds, in bits ``2 i`` and ``2 i + 1``, row
``r + i * rows / 4`` of the matrix; codes 0, 1, 2 stand for -1, 0, +1. The scale is a tensor of its
own (``weight_scale``). Source: transformers, ``integrations/bitnet.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import InvalidFormat
from bitnet.quants.ternary import Ternary, codes_from_unsigned, pow2_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["pack_u8", "u8_scale", "unpack_u8"]


def unpack_u8(packed: NDArray[np.uint8], shape: Sequence[int]) -> Ternary:
    """Ternary matrix, with scale 1, of packed bytes; *shape* is that of the unpacked matrix."""
    rows, columns = shape
    fields = pow2_fields(packed.reshape(rows // 4, columns).T, (0, 2, 4, 6))  # (columns, 4, rows/4)
    codes = codes_from_unsigned(fields, "packed U8").reshape(columns, rows).T
    return Ternary(np.ascontiguousarray(codes), np.ones((1, 1), dtype=np.float32))


def u8_scale(packed: NDArray[np.uint8], shape: Sequence[int]) -> NDArray[np.float32]:
    """Scale of :func:`unpack_u8`: 1, shape ``(1, 1)``; ValueError if the size is wrong."""
    packed.reshape(shape[0] // 4, shape[1])
    return np.ones((1, 1), dtype=np.float32)


def pack_u8(codes: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Bytes, shape ``(rows / 4, columns)``, that hold *codes*, shape ``(rows, columns)``."""
    rows, columns = codes.shape
    if rows % 4:
        raise InvalidFormat(
            f"packed U8 weights hold four rows per byte, {rows} rows do not fit",
            hint="choose another encoding",
        )
    fields = (codes.reshape(4, rows // 4, columns) + np.int8(1)).astype(np.uint8)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None, None]
    return np.bitwise_or.reduce(fields << shifts, axis=0)

"""IQ1_BN, IQ2_BN and IQ2_BN_R4, ik_llama.cpp's ternary encodings: blocks of 64, a scale per row.

IQ2_BN: a float32 row scale, then 16 bytes per block; bits ``2 i``, ``2 i + 1`` of byte j are weight
``16 i + j``.

IQ2_BN_R4: four rows together. Their four float32 scales, then 64 bytes per block: byte
``16 g + 4 r + j`` belongs to row r and holds weights ``16 g + 4 i + j`` in bits ``2 i``.

IQ1_BN: a float16 row scale, then 13 bytes per block: twelve with five weights each in base 3, the
last with the 16th weight of each run of 16.

Source: ik_llama.cpp, ``ggml/src/iqk/iqk_quantize.cpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import InvalidFormat
from bitnet.quants.ternary import Ternary, codes_from_unsigned, pow2_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = [
    "SHORTEST_ROW",
    "iq2_bn_scales",
    "pack_iq2_bn",
    "unpack_iq1_bn",
    "unpack_iq2_bn",
    "unpack_iq2_bn_r4",
]

# Of weights; ik_llama.cpp's products of IQ1_BN and IQ2_BN abort at shorter ones.
SHORTEST_ROW = 512
_BLOCK = 64
_POW3_DOWN = np.array([81, 27, 9, 3, 1], dtype=np.uint8)


def unpack_iq2_bn(packed: NDArray[np.uint8], shape: Sequence[int]) -> Ternary:
    """Ternary matrix of an IQ2_BN tensor of *shape* ``(rows, columns)``."""
    rows = packed.reshape(shape[0], -1)
    fields = pow2_fields(rows[:, 4:].reshape(-1, 16), (0, 2, 4, 6))  # (blocks, 4, 16)
    codes = codes_from_unsigned(fields, "IQ2_BN").reshape(tuple(shape))
    return Ternary(codes, _row_scales(rows[:, :4], "<f4"))


def iq2_bn_scales(packed: NDArray[np.uint8], shape: Sequence[int]) -> NDArray[np.float32]:
    """Row scales of an IQ2_BN tensor, shape ``(rows, 1)``."""
    return _row_scales(packed.reshape(shape[0], 4 + shape[1] // 4)[:, :4], "<f4")


def pack_iq2_bn(ternary: Ternary) -> NDArray[np.uint8]:
    """The bytes of an IQ2_BN tensor; a single scale is that of every row."""
    rows, columns = ternary.codes.shape
    if columns % _BLOCK or ternary.scales.shape[1] != 1:
        raise InvalidFormat(
            f"IQ2_BN holds rows of blocks of {_BLOCK} weights with one scale, not of {columns:,} "
            f"with {ternary.scales.shape[1]:,}",
            hint="choose another encoding, such as TQ2_0",
        )
    fields = (ternary.codes.reshape(rows, -1, 4, _BLOCK // 4) + np.int8(1)).astype(np.uint8)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    codes = np.bitwise_or.reduce(fields << shifts, axis=2).reshape(rows, -1)
    scales = np.broadcast_to(ternary.scales, (rows, 1)).astype("<f4").view(np.uint8)
    return np.concatenate([scales, codes], axis=1).reshape(-1)


def unpack_iq2_bn_r4(packed: NDArray[np.uint8], shape: Sequence[int]) -> Ternary:
    """Ternary matrix of an IQ2_BN_R4 tensor; the number of rows is a multiple of four."""
    rows, columns = shape
    quads = packed.reshape(rows // 4, -1)
    body = quads[:, 16:].reshape(rows // 4, columns // _BLOCK, 4, 4, 4)  # quad, block, g, r, j
    fields = pow2_fields(body, (0, 2, 4, 6))  # quad, block, g, r, i, j
    ordered = fields.transpose(0, 3, 1, 2, 4, 5)  # quad, r, block, g, i, j
    codes = codes_from_unsigned(ordered, "IQ2_BN_R4").reshape(rows, columns)
    return Ternary(codes, _row_scales(quads[:, :16], "<f4"))


def unpack_iq1_bn(packed: NDArray[np.uint8], shape: Sequence[int]) -> Ternary:
    """Ternary matrix of an IQ1_BN tensor of *shape* ``(rows, columns)``."""
    rows = packed.reshape(shape[0], -1)
    blocks = rows[:, 2:].reshape(-1, 13)
    fives = _digits(blocks[:, :12, None] * _POW3_DOWN)  # (blocks, 12, 5)
    singles = _digits(blocks[:, 12:] * _POW3_DOWN[:4])  # (blocks, 4)
    runs = np.concatenate([fives.reshape(-1, 4, 15), singles[:, :, None]], axis=2)
    codes = codes_from_unsigned(runs, "IQ1_BN").reshape(tuple(shape))
    return Ternary(codes, _row_scales(rows[:, :2], "<f2"))


def _digits(bytes_: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return ((bytes_.astype(np.uint16) * 3) >> 8).astype(np.uint8)


def _row_scales(stored: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    return np.ascontiguousarray(stored).view(dtype).astype(np.float32).reshape(-1, 1)

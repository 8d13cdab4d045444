"""Ternary matrices: codes -1, 0, +1 (in some encodings also 2), their scales, and five encodings.

I2_S is bitnet.cpp's: two bits per weight and one scale per tensor. A tensor of ``n`` weights is
``n / 4`` bytes of codes, one little-endian float32 scale, and padding up to ``n / 4 + 32`` bytes.
Codes 0, 1, 2 stand for -1, 0, +1. The writer's processor decides the order, and nothing in the file
records it:

    x86   128 weights in 32 bytes; byte j holds weights j, 32+j, 64+j, 96+j, the first on top
    ARM    64 weights in 16 bytes; byte j holds weights j, 16+j, 32+j, 48+j, the first on top

Published files use the x86 order. Source: microsoft/BitNet, ``src/ggml-bitnet-mad.cpp``.

IQ1_BN, IQ2_BN and IQ2_BN_R4 are ik_llama.cpp's: blocks of 64, a scale per row.

    IQ2_BN      a float32 row scale, then 16 bytes per block; bits ``2 i``, ``2 i + 1`` of byte j
                are weight ``16 i + j``
    IQ2_BN_R4   four rows together: their four float32 scales, then 64 bytes per block; byte
                ``16 g + 4 r + j`` belongs to row r and holds weights ``16 g + 4 i + j`` in bits
                ``2 i``
    IQ1_BN      a float16 row scale, then 13 bytes per block: twelve with five weights each in
                base 3, the last with the 16th weight of each run of 16

Source: ik_llama.cpp, ``ggml/src/iqk/iqk_quantize.cpp``.

The packed weights of BitNet safetensors files have four rows in the bits of one byte row: row ``r``
of the stored ``(rows / 4, columns)`` bytes holds, in bits ``2 i`` and ``2 i + 1``, row
``r + i * rows / 4`` of the matrix. The scale is a tensor of its own (``weight_scale``). Source:
transformers, ``integrations/bitnet.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import InvalidFormat
from bitnet.base.tables import quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_TAIL_BYTES = 32
_UP = np.array([[0], [2], [4], [6]], dtype=np.uint8)  # shifts of the fields of a byte
_DOWN = _UP[::-1]
# Weights in a block of I2_S.
X86_BLOCK = 128
_ARM_BLOCK = 64
# Weights of a row; ik_llama.cpp aborts in products of IQ1_BN and IQ2_BN with shorter rows.
SHORTEST_ROW = 512
_BLOCK = 64  # of IQ1_BN and IQ2_BN


@dataclass(frozen=True, eq=False)
class Ternary:
    """A ternary matrix."""

    codes: NDArray[np.int8]  # int8 -1, 0, +1 or 2, shape ``(rows, columns)``
    # float32, shape ``(rows or 1, groups)``; group *g* of a row scales its columns ``g * columns /
    # groups`` and following: one group, or one per block of the encoding
    scales: NDArray[np.float32]

    def dequantize(self) -> NDArray[np.float32]:
        """The weights as float32, shape ``(rows, columns)``."""
        rows, columns = self.codes.shape
        groups = self.scales.shape[1]
        grouped = self.codes.reshape(rows, groups, columns // groups) * self.scales[:, :, None]
        return grouped.reshape(rows, columns).astype(np.float32, copy=False)


def ternarize(weights: NDArray[np.floating]) -> Ternary:
    """Quantize weights trained for BitNet b1.58 as its training does: by the mean magnitude."""
    wide = weights.astype(np.float32, copy=False)
    inverse = np.float32(1) / np.maximum(np.abs(wide).mean(dtype=np.float32), np.float32(1e-5))
    codes = np.clip(np.rint(wide * inverse), -1, 1).astype(np.int8)
    return Ternary(codes, np.full((1, 1), np.float32(1) / inverse, dtype=np.float32))


def codes_from_unsigned(
    fields: NDArray[np.uint8], encoding: str, *, largest: int = 2
) -> NDArray[np.int8]:
    """Codes -1, 0, +1 (and 2) from the stored 0 to *largest*."""
    if fields.size and int(fields.max()) > largest:
        raise InvalidFormat(
            f"{encoding}: code 3 where only 0, 1 and 2 are weights",
            hint="the file is damaged, or written with another layout; download it again",
        )
    return fields.astype(np.int8) - np.int8(1)


def split_digits(packed: NDArray[np.uint8], base: int, count: int) -> NDArray[np.uint8]:
    """The codes of *count* digits of every byte, as a new last axis.

    Digit 0 is in the lowest bits, but in base 3 it is the most significant digit;
    ``scaled_blocks.py`` describes the bytes.
    """
    n = np.arange(count, dtype=np.uint8)
    if base == 3:
        moved = packed[..., None] * (np.uint8(3) ** n)  # modulo 256
        return ((moved.astype(np.uint16) * 3) >> 8).astype(np.uint8)
    if base == 2:  # the codes are 0 and 2
        return (packed[..., None] >> n & np.uint8(1)) << np.uint8(1)
    return packed[..., None] >> (2 * n) & np.uint8(3)


def pow2_fields(packed: NDArray[np.uint8], shifts: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The two-bit fields of each byte as a new second-last axis, in the order of *shifts*."""
    return packed[..., None, :] >> shifts & np.uint8(3)


def _pack_fields(codes: NDArray[np.int8], shifts: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes of *codes*, whose second-last axis has the fields of a byte, as in ``pow2_fields``."""
    fields = (codes + np.int8(1)).astype(np.uint8)
    packed: NDArray[np.uint8] = np.bitwise_or.reduce(fields << shifts, axis=-2)
    return packed


def unpack_i2_s(packed: NDArray[np.uint8], shape: Sequence[int], *, arm: bool = False) -> Ternary:
    """Ternary matrix of one I2_S tensor, whose padding is ignored."""
    n = math.prod(shape)
    block = _ARM_BLOCK if arm else X86_BLOCK
    scales = i2_s_scale(packed, shape, block)
    fields = pow2_fields(packed[: n // 4].reshape(-1, block // 4), _DOWN)  # (blocks, 4, bytes)
    return Ternary(codes_from_unsigned(fields, "I2_S").reshape(tuple(shape)), scales)


def i2_s_scale(
    packed: NDArray[np.uint8], shape: Sequence[int], block: int = X86_BLOCK
) -> NDArray[np.float32]:
    """Only the scale of :func:`unpack_i2_s`, shape ``(1, 1)``; raises the same errors for it."""
    n = math.prod(shape)
    if n % block or len(packed) < n // 4 + 4:
        raise InvalidFormat(
            f"I2_S tensor of shape {tuple(shape)}: {len(packed):,} bytes, expected blocks of "
            f"{block} weights in {n // 4 + _TAIL_BYTES:,} bytes",
            hint="the file is damaged; download it again",
        )
    scale = packed[n // 4 : n // 4 + 4].view("<f4").astype(np.float32)
    if not np.isfinite(scale[0]):
        raise InvalidFormat(
            f"I2_S tensor of shape {tuple(shape)}: its scale is {scale[0]}",
            hint="the file is damaged; download it again",
        )
    return scale.reshape(1, 1)


def pack_i2_s(ternary: Ternary, *, arm: bool = False) -> NDArray[np.uint8]:
    """Bytes of an I2_S tensor, ``n / 4 + 32`` of them."""
    block = _ARM_BLOCK if arm else X86_BLOCK
    n = ternary.codes.size
    if n % block or ternary.scales.size != 1:
        raise InvalidFormat(
            f"I2_S holds blocks of {block} weights and one scale, not {n:,} weights and "
            f"{ternary.scales.size:,} scales",
            hint="choose an encoding with row scales, such as TQ2_0",
        )
    packed = np.zeros(n // 4 + _TAIL_BYTES, dtype=np.uint8)
    fields = ternary.codes.reshape(-1, 4, block // 4)
    packed[: n // 4] = _pack_fields(fields, _DOWN).reshape(-1)
    packed[n // 4 : n // 4 + 4] = ternary.scales.astype("<f4").reshape(-1).view(np.uint8)
    return packed


def unpack_iq2_bn(packed: NDArray[np.uint8], shape: Sequence[int]) -> Ternary:
    """Ternary matrix of an IQ2_BN tensor of *shape* ``(rows, columns)``."""
    rows = packed.reshape(shape[0], -1)
    fields = pow2_fields(rows[:, 4:].reshape(-1, 16), _UP)  # (blocks, 4, 16)
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
            f"IQ2_BN has rows of blocks of {_BLOCK} weights, with one scale a row; this matrix has "
            f"{columns:,} columns and {quantity(ternary.scales.shape[1], 'scale')} a row",
            hint="choose another encoding, such as TQ2_0",
        )
    codes = _pack_fields(ternary.codes.reshape(rows, -1, 4, _BLOCK // 4), _UP).reshape(rows, -1)
    scales = np.broadcast_to(ternary.scales, (rows, 1)).astype("<f4").view(np.uint8)
    return np.concatenate([scales, codes], axis=1).reshape(-1)


def unpack_iq2_bn_r4(packed: NDArray[np.uint8], shape: Sequence[int]) -> Ternary:
    """Ternary matrix of an IQ2_BN_R4 tensor; the number of rows is a multiple of four."""
    rows, columns = shape
    quads = packed.reshape(rows // 4, -1)
    body = quads[:, 16:].reshape(rows // 4, columns // _BLOCK, 4, 4, 4)  # quad, block, g, r, j
    fields = pow2_fields(body, _UP)  # quad, block, g, r, i, j
    ordered = fields.transpose(0, 3, 1, 2, 4, 5)  # quad, r, block, g, i, j
    codes = codes_from_unsigned(ordered, "IQ2_BN_R4").reshape(rows, columns)
    return Ternary(codes, _row_scales(quads[:, :16], "<f4"))


def unpack_iq1_bn(packed: NDArray[np.uint8], shape: Sequence[int]) -> Ternary:
    """Ternary matrix of an IQ1_BN tensor of *shape* ``(rows, columns)``."""
    rows = packed.reshape(shape[0], -1)
    blocks = rows[:, 2:].reshape(-1, 13)
    # The first weight is the least significant digit, which is the last one here.
    fives = split_digits(blocks[:, :12], 3, 5)[..., ::-1]  # (blocks, 12, 5)
    # Four digits in a byte that would hold five: the first of the five is 0.
    singles = split_digits(blocks[:, 12], 3, 5)[:, 1:][:, ::-1]  # (blocks, 4)
    runs = np.concatenate([fives.reshape(-1, 4, 15), singles[:, :, None]], axis=2)
    codes = codes_from_unsigned(runs, "IQ1_BN").reshape(tuple(shape))
    return Ternary(codes, _row_scales(rows[:, :2], "<f2"))


def _row_scales(stored: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    return np.ascontiguousarray(stored).view(dtype).astype(np.float32).reshape(-1, 1)


def unpack_u8(packed: NDArray[np.uint8], shape: Sequence[int]) -> Ternary:
    """Ternary matrix, with scale 1, of packed bytes; *shape* is that of the unpacked matrix."""
    rows, columns = shape
    fields = pow2_fields(packed.reshape(rows // 4, columns).T, _UP)  # (columns, 4, rows/4)
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
    fields = codes.reshape(4, rows // 4, columns).swapaxes(0, 1)
    return _pack_fields(fields, _UP)

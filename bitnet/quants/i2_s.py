"""I2_S, bitnet.cpp's ternary encoding: two bits per weight and one scale per tensor.

A tensor of ``n`` weights is ``n / 4`` bytes of codes, one little-endian float32 scale, and padding
up to ``n / 4 + 32`` bytes. Codes 0, 1, 2 stand for -1, 0, +1. The writer's processor decides the
order, and nothing in the file records it:

    x86   128 weights in 32 bytes; byte j holds weights j, 32+j, 64+j, 96+j, the first on top
    ARM    64 weights in 16 bytes; byte j holds weights j, 16+j, 32+j, 48+j, the first on top

Published files use the x86 order. Source: microsoft/BitNet, ``src/ggml-bitnet-mad.cpp``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import InvalidFormat
from bitnet.quants.ternary import Ternary, codes_from_unsigned, pow2_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["i2_s_scale", "pack_i2_s", "unpack_i2_s"]

_TAIL_BYTES = 32
_SHIFTS = (6, 4, 2, 0)
_X86_BLOCK, _ARM_BLOCK = 128, 64


def unpack_i2_s(packed: NDArray[np.uint8], shape: Sequence[int], *, arm: bool = False) -> Ternary:
    """Ternary matrix of one I2_S tensor.

    Args:
        packed: the tensor's bytes, codes and scale; padding after them is ignored.
        shape: ``(rows, columns)``.
        arm: the file was written on ARM.
    """
    n, block = math.prod(shape), _ARM_BLOCK if arm else _X86_BLOCK
    scales = _scale(packed, shape, block)
    fields = pow2_fields(packed[: n // 4].reshape(-1, block // 4), _SHIFTS)  # (blocks, 4, bytes)
    return Ternary(codes_from_unsigned(fields, "I2_S").reshape(tuple(shape)), scales)


def i2_s_scale(packed: NDArray[np.uint8], shape: Sequence[int]) -> NDArray[np.float32]:
    """Only the scale of :func:`unpack_i2_s`, shape ``(1, 1)``; raises the same errors for it."""
    return _scale(packed, shape, _X86_BLOCK)


def _scale(packed: NDArray[np.uint8], shape: Sequence[int], block: int) -> NDArray[np.float32]:
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
    block = _ARM_BLOCK if arm else _X86_BLOCK
    n = ternary.codes.size
    if n % block or ternary.scales.size != 1:
        raise InvalidFormat(
            f"I2_S holds blocks of {block} weights and one scale, not {n:,} weights and "
            f"{ternary.scales.size:,} scales",
            hint="choose an encoding with row scales, such as TQ2_0",
        )
    fields = (ternary.codes.reshape(-1, 4, block // 4) + np.int8(1)).astype(np.uint8)
    packed = np.zeros(n // 4 + _TAIL_BYTES, dtype=np.uint8)
    shifted = fields << np.array(_SHIFTS, dtype=np.uint8)[:, None]
    packed[: n // 4] = np.bitwise_or.reduce(shifted, axis=1).reshape(-1)
    packed[n // 4 : n // 4 + 4] = ternary.scales.astype("<f4").reshape(-1).view(np.uint8)
    return packed

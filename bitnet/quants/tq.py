"""TQ1_0 and TQ2_0, llama.cpp's ternary encodings: blocks of 256 weights with a float16 scale each.

TQ2_0 (66 bytes): bytes 0..63 hold two-bit codes, then the scale; of the bytes ``32 h + m``, bits
``2 i`` and ``2 i + 1`` are weight ``128 h + 32 i + m``.

TQ1_0 (54 bytes): five weights per byte in base 3 (32 bytes, then 16 bytes, strided like TQ2_0),
then four per byte (4 bytes), then the scale. A byte stores ``ceil(value * 256 / 243)``, so that
multiplying by a power of three and taking the top digit decodes it.

Source: llama.cpp, ``ggml/src/ggml-quants.c``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bitnet.quants.ternary import Ternary, codes_from_unsigned, pow2_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = [
    "as_q4_0",
    "pack_tq1_0",
    "pack_tq2_0",
    "tq1_0_scales",
    "tq2_0_scales",
    "unpack_tq1_0",
    "unpack_tq2_0",
]

_BLOCK = 256
_TQ1_BYTES, _TQ2_BYTES = 54, 66
_POW3 = np.array([1, 3, 9, 27, 81], dtype=np.uint8)


def unpack_tq2_0(packed: NDArray[np.uint8], shape: Sequence[int]) -> Ternary:
    """Ternary matrix of a TQ2_0 tensor of *shape* ``(rows, columns)``."""
    blocks = packed.reshape(-1, _TQ2_BYTES)
    fields = pow2_fields(blocks[:, :64].reshape(-1, 2, 32), (0, 2, 4, 6))  # (blocks, 2, 4, 32)
    codes = codes_from_unsigned(fields, "TQ2_0").reshape(tuple(shape))
    return Ternary(codes, _scales(blocks[:, 64:], shape))


def unpack_tq1_0(packed: NDArray[np.uint8], shape: Sequence[int]) -> Ternary:
    """Ternary matrix of a TQ1_0 tensor of *shape* ``(rows, columns)``."""
    blocks = packed.reshape(-1, _TQ1_BYTES)
    parts = [
        _top_digits(blocks[:, None, start:stop] * _POW3[:count, None])
        for start, stop, count in ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    ]
    codes = np.concatenate([part.reshape(len(blocks), -1) for part in parts], axis=1)
    return Ternary(codes.reshape(tuple(shape)), _scales(blocks[:, 52:], shape))


def tq1_0_scales(packed: NDArray[np.uint8], shape: Sequence[int]) -> NDArray[np.float32]:
    """Block scales of a TQ1_0 tensor, shape ``(rows, columns / 256)``."""
    return _scales(packed.reshape(-1, _TQ1_BYTES)[:, 52:], shape)


def tq2_0_scales(packed: NDArray[np.uint8], shape: Sequence[int]) -> NDArray[np.float32]:
    """Block scales of a TQ2_0 tensor, shape ``(rows, columns / 256)``."""
    return _scales(packed.reshape(-1, _TQ2_BYTES)[:, 64:], shape)


def pack_tq2_0(ternary: Ternary) -> NDArray[np.uint8]:
    """Bytes of a TQ2_0 tensor; scales are rounded to float16."""
    fields = (ternary.codes.reshape(-1, 2, 4, 32) + np.int8(1)).astype(np.uint8)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    codes = np.bitwise_or.reduce(fields << shifts, axis=2).reshape(-1, 64)
    return np.concatenate([codes, _scale_bytes(ternary)], axis=1).reshape(-1)


def pack_tq1_0(ternary: Ternary) -> NDArray[np.uint8]:
    """Bytes of a TQ1_0 tensor; scales are rounded to float16."""
    digits = (ternary.codes.reshape(-1, _BLOCK) + np.int8(1)).astype(np.uint16)
    columns = [
        _base3(digits[:, :160].reshape(-1, 5, 32)),
        _base3(digits[:, 160:240].reshape(-1, 5, 16)),
        _base3(digits[:, 240:].reshape(-1, 4, 4)),
        _scale_bytes(ternary),
    ]
    return np.concatenate(columns, axis=1).reshape(-1)


def as_q4_0(ternary: Ternary) -> NDArray[np.uint8]:
    """The bytes of a Q4_0 tensor of the same numbers: blocks of 32 that share a scale by eights."""
    codes = (ternary.codes.reshape(-1, 2, 16) + np.int8(8)).astype(np.uint8)
    scales = np.repeat(_scale_bytes(ternary), _BLOCK // 32, axis=0)
    return np.concatenate([scales, codes[:, 0] | codes[:, 1] << 4], axis=1).reshape(-1)


def _top_digits(bytes_: NDArray[np.uint8]) -> NDArray[np.int8]:
    return ((bytes_.astype(np.uint16) * 3) >> 8).astype(np.int8) - np.int8(1)


def _base3(digits: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Bytes whose successive top digits in base 3 are *digits* along the middle axis."""
    weights = np.array([81, 27, 9, 3, 1], dtype=np.uint16)[: digits.shape[1]]
    value = (digits * weights[:, None]).sum(axis=1, dtype=np.uint16)
    return ((value * np.uint32(256) + 242) // 243).astype(np.uint8)


def _scales(stored: NDArray[np.uint8], shape: Sequence[int]) -> NDArray[np.float32]:
    values = np.ascontiguousarray(stored).view("<f2").astype(np.float32)
    return values.reshape(shape[0], shape[1] // _BLOCK)


def _scale_bytes(ternary: Ternary) -> NDArray[np.uint8]:
    rows, columns = ternary.codes.shape
    groups = columns // _BLOCK
    repeated = np.repeat(ternary.scales, groups // ternary.scales.shape[1], axis=1)
    scales = np.broadcast_to(repeated, (rows, groups)).astype("<f2")
    return scales.reshape(-1, 1).view(np.uint8)

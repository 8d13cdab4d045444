"""Ternary matrices: codes -1, 0, +1 (in some encodings also 2) and their scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import InvalidFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Ternary", "codes_from_unsigned", "pow2_fields", "ternarize"]


@dataclass(frozen=True, eq=False)
class Ternary:
    """A ternary matrix.

    Attributes:
        codes: int8 -1, 0, +1 or 2, shape ``(rows, columns)``.
        scales: float32, shape ``(rows or 1, groups)``; group *g* of a row scales its columns
            ``g * columns / groups`` and following: one group, or one per block of the encoding.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]

    def dequantize(self) -> NDArray[np.float32]:
        """The weights as float32, shape ``(rows, columns)``."""
        rows, columns = self.codes.shape
        groups = self.scales.shape[1]
        grouped = self.codes.reshape(rows, groups, columns // groups) * self.scales[:, :, None]
        return grouped.reshape(rows, columns).astype(np.float32, copy=False)


def ternarize(weights: NDArray[np.floating]) -> Ternary:
    """Quantize weights trained for BitNet b1.58 as its training does: by the mean magnitude.

    Args:
        weights: master weights, shape ``(rows, columns)``.
    """
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


def pow2_fields(packed: NDArray[np.uint8], shifts: tuple[int, ...]) -> NDArray[np.uint8]:
    """The two-bit fields of each byte as a new second-last axis, in the order of *shifts*."""
    moved = packed[..., None, :] >> np.array(shifts, dtype=np.uint8)[:, None]
    return moved & np.uint8(3)

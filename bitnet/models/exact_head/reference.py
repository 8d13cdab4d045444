"""The copy of an exact head in NumPy: its weights, and the norms of what they leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["BLOCK", "TILE_ROWS", "unpack_copy"]

TILE_ROWS = 16
BLOCK = 64  # columns
_BLOCK_BYTES = TILE_ROWS * BLOCK * 5 // 8
_MIDDLE = 15.5  # of the codes 0 .. 31
_FINER = 32  # how much finer the second codes of block 0 are
_GROUP = 4  # blocks whose sixth bits lie together


def unpack_copy(
    arrays: Mapping[str, NDArray[Any]], rows: int, *, sixth: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights of a copy and the norms of what they leave out.

    Args:
        arrays: ``order factors tiles sixth step residual norm`` of a :class:`HeadCopy`.
        rows: of the head.
        sixth: with the sixth bits.

    Returns:
        The copied weights, permuted and scaled, ``(rows, blocks * 64)``, and upper bounds on the
        norms of the differences to the true ones, ``(rows, blocks)``.
    """
    columns = len(arrays["order"])
    blocks = -(-columns // BLOCK) + 1
    head = -(-blocks * TILE_ROWS // 64) * 64
    tiles = arrays["tiles"].reshape(-1, head + blocks * _BLOCK_BYTES)
    counts = tiles[:, : blocks * TILE_ROWS].reshape(-1, blocks, TILE_ROWS)
    packed = tiles[:, head:].reshape(
        -1, blocks, 2, 5, TILE_ROWS, 4
    )  # two halves: bits, four nibbles
    group = np.arange(8)
    high = packed[:, :, :, 0, None] >> group[:, None, None] & 1  # (tiles, blocks, 2, 8, 16, 4)
    low = packed[:, :, :, 1 + group // 2] >> (4 * (group % 2))[:, None, None] & 15
    codes = (
        (low + 16 * high).transpose(0, 4, 1, 2, 3, 5).reshape(len(tiles) * TILE_ROWS, blocks, BLOCK)
    )
    step = arrays["step"].astype(np.float64)[:, None, None]
    values = step * (codes - _MIDDLE)
    values[:, 0] += values[:, -1] / _FINER
    if sixth:
        bits, norms = _sixth_bits(arrays["sixth"], blocks - 1, len(step))
        quarters = np.full(blocks - 1, 0.25)
        quarters[0] /= _FINER
        values[:, :-1] += step * quarters[:, None] * (2.0 * bits - 1.0)
        return values[:rows, :-1].reshape(rows, -1), norms[:rows]
    norms = (
        counts.transpose(0, 2, 1).reshape(-1, blocks)
        * arrays["residual"].astype(np.float64)[:, None]
    )
    return values[:rows, :-1].reshape(rows, -1), norms[:rows, :-1]


def _sixth_bits(
    sixth: NDArray[np.uint8], blocks: int, rows: int
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Sixth bits of all rows, ``(rows, blocks, 64)``, and the norms they leave."""
    lines = sixth.reshape(rows, -1)
    unit = lines[:, :4].copy().view(np.float32).astype(np.float64)
    begin = -(-(4 + blocks) // 8) * 8
    groups = -(-blocks // _GROUP)
    octets = lines[:, begin : begin + groups * _GROUP * 8].reshape(rows, -1, 1, 8)[:, :blocks]
    bits = (octets >> np.arange(8)[:, None] & 1).astype(np.uint8)  # (rows, blocks, bit, byte)
    norms: NDArray[np.float64] = lines[:, 4 : 4 + blocks] * unit
    return bits.reshape(rows, blocks, BLOCK), norms

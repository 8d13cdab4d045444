"""Check the premises of the bounds of an exact head.

``docs/architecture/exact-head.md`` derives the bounds from premises that :meth:`HeadCopy.build`
establishes. A copy that was kept on a disk has them only if they are checked: those of its columns
and rows for all of them, those that need the weights for some rows, drawn again each time.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.models.exact_head.reference import BLOCK, TILE_ROWS, unpack_copy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from bitnet.kernels.native import NativeOps
    from bitnet.kernels.packing import Matrix

__all__ = ["FACTOR_BITS", "broken_premise", "sample_tiles"]

FACTOR_BITS = 20  # columns are scaled by at most 2 to this power
_TILES = 4  # that are compared with the head
_SMALLEST_NORM, _LARGEST_NORM = 1e-17, 1e15  # norm_up and kHeadLimit of the compiled module


def sample_tiles(rows: int) -> list[int]:
    """Numbers of some tiles of a head with *rows* rows, others each time."""
    tiles = -(-rows // TILE_ROWS)
    return random.sample(range(tiles), min(_TILES, tiles))


def broken_premise(
    ops: NativeOps, matrix: Matrix, arrays: Mapping[str, NDArray[Any]], tiles: Iterable[int]
) -> str:
    """The reason why *arrays* cannot bound the logits of *matrix*; empty if there is none.

    Args:
        ops: the backend, which reads rows of the head.
        matrix: the head.
        arrays: of a :class:`HeadCopy`.
        tiles: whose rows are compared with the head.
    """
    return _of_numbers(arrays) or next(
        filter(None, (_of_rows(ops, matrix, arrays, tile) for tile in tiles)), ""
    )


def _of_numbers(arrays: Mapping[str, NDArray[Any]]) -> str:
    order, factors, norm = arrays["order"], arrays["factors"], arrays["norm"]
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        return "the order of its columns is not a permutation"
    parts, exponents = np.frexp(factors)
    if not ((parts == 0.5) & (np.abs(exponents - 1) <= FACTOR_BITS)).all():
        return f"a factor of its columns is not a power of two within 2^±{FACTOR_BITS}"
    units = arrays["sixth"].reshape(len(norm), -1)[:, :4].copy().view(np.float32)
    for name, values in (
        ("step", arrays["step"]),
        ("unit of the residual norms", arrays["residual"]),
        ("unit of the norms of six bits", units),
    ):
        if not ((values >= 0) & np.isfinite(values)).all():
            return f"the {name} of a row is negative or not finite"
    if not ((norm >= np.float32(_SMALLEST_NORM)) & (norm < _LARGEST_NORM)).all():
        return "the norm of a row is out of its range"
    return ""


def _of_rows(ops: NativeOps, matrix: Matrix, arrays: Mapping[str, NDArray[Any]], tile: int) -> str:
    begin, end = tile * TILE_ROWS, min((tile + 1) * TILE_ROWS, matrix.rows)
    part = dict(arrays)
    for name in ("tiles", "sixth", "step", "residual", "norm"):
        part[name] = arrays[name].reshape(len(arrays["norm"]) // TILE_ROWS, -1)[tile]
    rows = ops.embed(matrix, range(begin, end)).astype(np.float64)
    norm = part["norm"][: end - begin].astype(np.float64)
    for sixth in (False, True):
        copied, norms = unpack_copy(part, end - begin, sixth=sixth)
        true = np.zeros_like(copied)
        true[:, : matrix.columns] = rows[:, arrays["order"]] / arrays["factors"]
        left = np.linalg.norm((true - copied).reshape(len(rows), -1, BLOCK), axis=2)
        sizes = np.maximum(np.linalg.norm(true, axis=1), np.linalg.norm(copied, axis=1))
        if not ((left <= norms).all() and (sizes <= norm).all()):
            return f"rows {begin:,} to {end - 1:,} are further from the head than their norms say"
    return ""

"""A weight in the bytes that the kernels of the compiled module read.

Block-quantized and float matrices are copied with their rows interleaved 16 by 16 (``*_R16``;
``native/kernels/encodings/tiles.hpp`` has the layout), and the pages of the mapped file they came
from are given back. Ternary ones go through ``ternary_packing``. Matrices of experts may stay in
the file, where a product makes tiles of their rows each time: about half the speed in decode, but
the system can drop their pages and read them again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base import settings
from bitnet.base.errors import InferenceError, InvalidFormat
from bitnet.base.machine import free_memory, free_swap
from bitnet.base.progress import human_size
from bitnet.kernels.file_pages import give_back_pages
from bitnet.kernels.ternary_packing import pack_ternary
from bitnet.quants import registry
from bitnet.quants.scaled_blocks import SCALED_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType

    from numpy.typing import NDArray

    from bitnet.quants.weight import Weight

__all__ = ["Matrix", "experts_stay", "multiplies_in_rows", "prepare_matrix"]

logger = logging.getLogger(__name__)

_TILE_ROWS = 16
_SAME_LAYOUT = {"Q2_0_G128": "PQ2_0"}  # types whose bytes are those of another one
_COPIED = ("Q2_K", "Q3_K")  # types of other numbers than those of any kernel, or of other codes
_SLICE_BYTES = 8 << 20  # of a file that are in memory beside their copy


@dataclass(frozen=True, eq=False)
class Matrix:
    """A packed matrix, as the compiled module takes it.

    Attributes:
        kind: number of the encoding in the compiled module.
        data: its bytes.
        rows: outputs.
        columns: inputs, a whole number of blocks.
        scale: factor the ternary kernels apply.
        factors: what each output is multiplied with afterwards, ``(rows,)`` or ``(1,)``.
        inputs: width of the matrix in the model; the columns behind it are zeros.
    """

    kind: int
    data: NDArray[np.uint8]
    rows: int
    columns: int
    scale: float
    factors: NDArray[np.float32] | None
    inputs: int


def multiplies_in_rows(weight: Weight) -> bool:
    """True if *weight* can be multiplied as it lies in a file, tile by tile."""
    name = weight.quant.name
    return not weight.quant.is_ternary and name not in SCALED_BLOCKS and name not in _COPIED


def experts_stay(weights: Collection[Weight]) -> bool:
    """True if matrices of experts among *weights* stay in their files.

    Raises:
        InferenceError: copies of all others do not fit in memory.
    """
    choice, free = settings.experts(), free_memory()
    total = sum(weight.size_bytes for weight in weights)
    staying = sum(
        weight.size_bytes
        for weight in weights
        if len(weight.shape) == 3 and multiplies_in_rows(weight)
    )
    stay = choice == "mapped" or (choice == "auto" and free is not None and total > free)
    if free is not None and total - stay * staying > free + free_swap():
        raise InferenceError(
            f"weights of {human_size(total - stay * staying)} must be in memory, "
            f"{human_size(free)} are free",
            hint="choose a file with fewer bits per weight",
        )
    if stay and staying:
        logger.info("%s of experts stay in the file (mapped)", human_size(staying))
    return stay


def prepare_matrix(
    native: ModuleType, weight: Weight, *, in_rows: bool = False, dense: bool = False
) -> Matrix:
    """*weight*, of two dimensions, for the kernels of the compiled module *native*.

    An encoding without a kernel is unpacked to F32.

    Args:
        native: the compiled module.
        weight: what to prepare.
        in_rows: keep a block-quantized or float matrix where it is in the file, which is enough for
            ``embed``; ``linear`` is slower on it, and slow where it is not multiplies_in_rows.
        dense: pack ternary weights at 1.6 bits, where two are more.

    Raises:
        InvalidFormat: the weight's bytes are damaged.
    """
    rows, columns = weight.shape
    weight = registry.with_kernels(weight)
    name = _SAME_LAYOUT.get(weight.quant.name, weight.quant.name)
    if registry.rounds_activations(weight):
        packed = pack_ternary(native, weight, dense=dense)
        return _matrix(
            native,
            packed.kind,
            packed.data,
            rows,
            packed.columns,
            scale=packed.scale,
            factors=packed.factors,
            inputs=columns,
        )
    if name not in native.kernel_types() or columns % weight.quant.block_size:
        values = np.ascontiguousarray(registry.dequantize(weight), dtype=np.float32)
        logger.debug("%s: no kernel for %s, kept as F32", weight.name, name)
        return _tile(native, "F32", values.view(np.uint8).reshape(-1), rows, columns)
    size = weight.quant.size_bytes(weight.shape)
    if size is None or len(weight.data) < size:
        raise InvalidFormat(
            f"{weight.name}: {len(weight.data):,} bytes, expected {size:,} for {name} "
            f"{weight.shape}",
            hint="the file is damaged; download it again",
        )
    factors = None if weight.scale == 1.0 else np.array([weight.scale], dtype=np.float32)
    if in_rows or f"{name}_R16" not in native.kernel_types():
        return _matrix(native, name, weight.data, rows, columns, factors=factors)
    return _tile(native, name, weight.data[:size], rows, columns, factors=factors)


def _tile(
    native: ModuleType,
    name: str,
    data: NDArray[np.uint8],
    rows: int,
    columns: int,
    *,
    factors: NDArray[np.float32] | None = None,
) -> Matrix:
    """A copy of the matrix *data* with interleaved rows, made slice by slice."""
    kind = native.kernel_types().index(name)
    wide = native.tiled_columns(kind, columns)
    tile_bytes = _TILE_ROWS * native.row_bytes(native.kernel_types().index(f"{name}_R16"), wide)
    row_bytes = native.row_bytes(kind, columns)
    tiles = native.allocate_weights(-(-rows // _TILE_ROWS) * tile_bytes)
    data = np.ascontiguousarray(data)
    step = max(1, _SLICE_BYTES // (_TILE_ROWS * row_bytes)) * _TILE_ROWS
    for begin in range(0, rows, step):
        count = min(step, rows - begin)
        piece = data[begin * row_bytes : (begin + count) * row_bytes]
        first, last = begin // _TILE_ROWS, -(-(begin + count) // _TILE_ROWS)
        native.pack_rows(kind, piece, count, columns, tiles[first * tile_bytes : last * tile_bytes])
        give_back_pages(piece)
    return _matrix(native, f"{name}_R16", tiles, rows, wide, factors=factors, inputs=columns)


def _matrix(
    native: ModuleType,
    name: str,
    data: NDArray[np.uint8],
    rows: int,
    columns: int,
    *,
    scale: float = 1.0,
    factors: NDArray[np.float32] | None = None,
    inputs: int = 0,
) -> Matrix:
    return Matrix(
        native.kernel_types().index(name),
        np.ascontiguousarray(data),
        rows,
        columns,
        scale,
        factors,
        inputs or columns,
    )

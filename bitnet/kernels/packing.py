"""A weight in the bytes that the kernels of the compiled module read.

Block-quantized and float matrices are copied with their rows interleaved 16 by 16 (``*_R16``;
``kernels/native/tiles.hpp`` has the layout), and the pages of the mapped file they came from are
given back. Ternary ones become I2_S.
"""

from __future__ import annotations

import logging
import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bitnet.errors import InvalidFormat
from bitnet.quants import registry
from bitnet.quants.i2_s import pack_i2_s
from bitnet.quants.ternary import Ternary

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

    from bitnet.quants.weight import Weight

__all__ = ["Matrix", "prepare_matrix"]

logger = logging.getLogger(__name__)

_I2_S_BLOCK = 128
_TILE_ROWS = 16
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


def prepare_matrix(native: ModuleType, weight: Weight, *, in_rows: bool = False) -> Matrix:
    """*weight*, of two dimensions, for the kernels of the compiled module *native*.

    An encoding without a kernel is unpacked to F32.

    Args:
        native: the compiled module.
        weight: what to prepare.
        in_rows: keep a block-quantized or float matrix where it is in the file, which is enough for
            ``embed``; ``linear`` is slow on it.

    Raises:
        InvalidFormat: the weight's bytes are damaged.
    """
    rows, columns = weight.shape
    name = weight.quant.name
    if name == "I2_S" and columns % _I2_S_BLOCK == 0:
        return _i2_s(native, weight)
    if registry.rounds_activations(weight.quant):
        return _repacked(native, registry.unpack_ternary(weight))
    if name not in native.kernel_types() or columns % weight.quant.block_size:
        values = np.ascontiguousarray(registry.dequantize(weight), dtype=np.float32)
        logger.debug("%s: no kernel for %s, kept as F32", weight.name, name)
        return _tiled(native, "F32", values.view(np.uint8).reshape(-1), rows, columns)
    size = weight.quant.size_bytes(weight.shape)
    if size is None or len(weight.data) < size:
        raise InvalidFormat(
            f"{weight.name}: {len(weight.data):,} bytes, expected {size:,} for {name} "
            f"{weight.shape}",
            hint="the file is damaged; download it again",
        )
    _check_codes(native, weight)
    factors = None if weight.scale == 1.0 else np.array([weight.scale], dtype=np.float32)
    if in_rows or f"{name}_R16" not in native.kernel_types():
        return _matrix(native, name, weight.data, rows, columns, factors=factors)
    return _tiled(native, name, weight.data[:size], rows, columns, factors=factors)


def _tiled(
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
    tile_bytes = _TILE_ROWS * native.row_bytes(native.kernel_types().index(f"{name}_R16"), columns)
    row_bytes = native.row_bytes(kind, columns)
    tiles = native.allocate_weights(-(-rows // _TILE_ROWS) * tile_bytes)
    data = np.ascontiguousarray(data)
    step = max(1, _SLICE_BYTES // (_TILE_ROWS * row_bytes)) * _TILE_ROWS
    for begin in range(0, rows, step):
        count = min(step, rows - begin)
        piece = data[begin * row_bytes : (begin + count) * row_bytes]
        first, last = begin // _TILE_ROWS, -(-(begin + count) // _TILE_ROWS)
        native.pack_rows(kind, piece, count, columns, tiles[first * tile_bytes : last * tile_bytes])
        _give_back_pages(piece)
    return _matrix(native, f"{name}_R16", tiles, rows, columns, factors=factors)


def _give_back_pages(data: NDArray[np.uint8]) -> None:
    """Let go of the whole pages of a file, mapped to be read, that *data* lies in."""
    base: object = data
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if not isinstance(base, memoryview) or not base.readonly or not hasattr(mmap, "MADV_DONTNEED"):
        return
    mapped = base.obj
    if not isinstance(mapped, mmap.mmap):
        return
    start = data.ctypes.data - np.frombuffer(mapped, dtype=np.uint8).ctypes.data
    begin = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (start + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if length > 0:
        mapped.madvise(mmap.MADV_DONTNEED, begin, length)


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


def _i2_s(native: ModuleType, weight: Weight) -> Matrix:
    rows, columns = weight.shape
    codes = rows * columns // 4
    if len(weight.data) < codes + 4:
        raise InvalidFormat(
            f"{weight.name}: {len(weight.data):,} bytes, expected {codes + 32:,} for I2_S "
            f"{weight.shape}",
            hint="the file is damaged; download it again",
        )
    _check_codes(native, weight)
    stored = weight.data[codes : codes + 4].view("<f4").astype(np.float32)
    if not np.isfinite(stored[0]):
        raise InvalidFormat(
            f"{weight.name}: its scale is {stored[0]}",
            hint="the file is damaged; download it again",
        )
    scale = float(stored[0] * np.float32(weight.scale))
    return _matrix(native, "I2_S", weight.data[:codes], rows, columns, scale=scale)


def _check_codes(native: ModuleType, weight: Weight) -> None:
    name = weight.quant.name
    if name not in ("I2_S", "TQ2_0"):
        return
    rows, columns = weight.shape
    kind = native.kernel_types().index(name)
    if not native.codes_are_valid(kind, weight.data, rows, columns):
        raise InvalidFormat(
            f"{weight.name}: code 3 where only 0, 1 and 2 are {name} weights",
            hint="the file is damaged, or written with another layout; download it again",
        )


def _repacked(native: ModuleType, ternary: Ternary) -> Matrix:
    """Any other BitNet encoding as I2_S, padded with zero weights to whole blocks."""
    rows, inputs = ternary.codes.shape
    padding = -inputs % _I2_S_BLOCK
    codes = np.pad(ternary.codes, ((0, 0), (0, padding)))
    packed = pack_i2_s(Ternary(codes, np.ones((1, 1), dtype=np.float32)))
    columns = inputs + padding
    return _matrix(
        native,
        "I2_S",
        packed[: rows * columns // 4],
        rows,
        columns,
        factors=ternary.scales[:, 0].astype(np.float32),
        inputs=inputs,
    )

"""Weights in the layouts that the compiled kernels read, and pages of the files they come from.

Block-quantized and float matrices are copied with their rows interleaved 16 by 16 (``*_R16``;
``native/kernels/encodings/tiles.hpp``), and the pages of the mapped file are given back, so weights
take their place in memory once. Matrices of experts may stay in the file: about half the speed in
decode, but the system can drop their pages. Ternary encodings become one with two bits per weight,
or one with five weights per byte (``native/kernels/ternary/layout.hpp``), in memory with huge
pages, which a core reads almost twice as fast as a mapped file.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base import settings
from bitnet.base.errors import InferenceError, InvalidFormat, Unsupported
from bitnet.base.machine import free_memory, free_swap
from bitnet.base.quantities import human_size
from bitnet.quants import registry
from bitnet.quants.scaled_blocks import SCALED_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType

    from numpy.typing import NDArray

    from bitnet.quants.weight import Weight

logger = logging.getLogger(__name__)

_TILE_ROWS = 16
_SAME_LAYOUT = {"Q2_0_G128": "PQ2_0"}  # types whose bytes are those of another one
_SLICE_BYTES = 8 << 20  # bytes of a file that are in memory at a time, beside their copy

_LINE = 64  # bytes of a line, which has some columns of all rows of a tile
# Columns of a line, by layout.
COLUMNS = {"TERNARY": 16, "TERNARY_BLOCKS": 16, "TERNARY_DENSE": 20}
_SCALED_COLUMNS = 256  # columns of a scale in TERNARY_BLOCKS; kTernaryBlock in ternary/layout.hpp
# The most columns of a matrix, by layout: most_ternary_cols in native/kernels/ternary/layout.hpp.
_MOST_COLUMNS = {"TERNARY": 1 << 19, "TERNARY_DENSE": 1 << 17}
# Encodings that are packed from the bytes of the file, if the width is a multiple of so many
# columns; other ternary weights are unpacked to int8 codes first.
_IN_PLACE = {"I2_S": 128, "TQ1_0": 256, "TQ2_0": 256, "PACKED_U8": 1, "IQ2_BN": 64}


@dataclass(frozen=True, eq=False)
class Matrix:
    """A packed matrix, as the compiled module takes it."""

    kind: int  # number of the encoding in the compiled module
    data: NDArray[np.uint8]  # its bytes
    rows: int  # outputs
    columns: int  # inputs, a whole number of blocks
    inputs: int  # width of the matrix in the model; the columns behind it are zeros
    # factors on the outputs, ``(rows,)`` or ``(1,)``
    factors: NDArray[np.float32] | None = None
    scale: float = 1.0  # factor that the ternary kernels apply


def multiplies_in_rows(weight: Weight, kinds: Collection[str]) -> bool:
    """True if *weight* can be multiplied as it lies in a file, by kernels of the types *kinds*."""
    quant = weight.quant
    return (
        not quant.is_ternary
        and quant.name not in SCALED_BLOCKS
        and registry.type_for_kernels(weight) is quant
        and _has_kernel(weight, kinds)
    )


def _has_kernel(weight: Weight, kinds: Collection[str]) -> bool:
    quant = registry.type_for_kernels(weight)
    is_known = _SAME_LAYOUT.get(quant.name, quant.name) in kinds
    return is_known and weight.shape[-1] % quant.block_size == 0


def bytes_in_memory(weight: Weight, kinds: Collection[str]) -> int:
    """Bytes of *weight* as kernels of the types *kinds* take it.

    Ternary weights have two bits, although some may have fewer; types without a kernel are F32.
    """
    numbers = math.prod(weight.shape)
    if registry.rounds_activations(weight):
        return numbers // 4
    if len(weight.shape) < 2 or not _has_kernel(weight, kinds):
        return 4 * numbers
    return registry.type_for_kernels(weight).size_bytes(weight.shape) or weight.size_bytes


def experts_stay(weights: Collection[Weight], kinds: Collection[str]) -> bool:
    """True if matrices of experts among *weights* stay in their files.

    *kinds* are the types that kernels take.

    Raises:
        InferenceError: the copies of the other weights do not fit in memory.
    """
    choice = settings.experts()
    free = free_memory()
    total = sum(bytes_in_memory(weight, kinds) for weight in weights)
    expert_bytes = sum(
        bytes_in_memory(weight, kinds)
        for weight in weights
        if len(weight.shape) == 3 and multiplies_in_rows(weight, kinds)
    )
    are_mapped = choice == "mapped" or (choice == "auto" and free is not None and total > free)
    in_memory = total - expert_bytes if are_mapped else total
    if free is not None and in_memory > free + free_swap():
        raise InferenceError(
            f"weights of {human_size(in_memory)} must be in memory, {human_size(free)} are free",
            hint="choose a smaller file; types without a kernel take 32 bits per weight",
        )
    if are_mapped and expert_bytes:
        logger.info("%s of experts stay in the file (mapped)", human_size(expert_bytes))
    return are_mapped


def prepare_matrix(
    native: ModuleType, weight: Weight, *, in_rows: bool = False, dense: bool = False
) -> Matrix:
    """Pack the matrix *weight* for the kernels of *native*; a type without a kernel becomes F32.

    *in_rows* leaves a block-quantized or float matrix in the file, row by row. That is enough for
    ``embed``; ``linear`` is slower on it, and very slow unless :func:`multiplies_in_rows`. *dense*
    packs ternary weights with 1.6 bits each instead of two.
    """
    rows, columns = weight.shape
    weight = registry.with_kernels(weight)
    name = _SAME_LAYOUT.get(weight.quant.name, weight.quant.name)
    kinds = native.kernel_types()
    if registry.rounds_activations(weight):
        return _pack_ternary(native, weight, dense=dense)
    if name not in kinds or columns % weight.quant.block_size:
        values = np.ascontiguousarray(registry.dequantize(weight), dtype=np.float32)
        logger.debug("%s: no kernel for %s, kept as F32", weight.name, name)
        return _tile(native, "F32", values.view(np.uint8).reshape(-1), rows, columns, None)
    size = weight.quant.size_bytes(weight.shape)
    if size is None or len(weight.data) < size:
        raise InvalidFormat(
            f"{weight.name}: {len(weight.data):,} bytes, expected {size or 'another number'} for "
            f"{name} {weight.shape}",
            hint="the file is damaged; download it again",
        )
    factors = None if weight.scale == 1.0 else np.array([weight.scale], dtype=np.float32)
    data = np.ascontiguousarray(weight.data)
    if in_rows or f"{name}_R16" not in kinds:
        return Matrix(kinds.index(name), data, rows, columns, columns, factors)
    return _tile(native, name, data[:size], rows, columns, factors)


def _tile(
    native: ModuleType,
    name: str,
    data: NDArray[np.uint8],
    rows: int,
    columns: int,
    factors: NDArray[np.float32] | None,
) -> Matrix:
    """A copy of the matrix *data* with interleaved rows, made slice by slice to save memory."""
    kind, tiled = map(native.kernel_types().index, (name, f"{name}_R16"))
    padded_columns = native.tiled_columns(kind, columns)
    row_bytes = native.row_bytes(kind, columns)
    tile_bytes = _TILE_ROWS * native.row_bytes(tiled, padded_columns)
    tiles = native.allocate_weights(-(-rows // _TILE_ROWS) * tile_bytes)
    step = max(1, _SLICE_BYTES // (_TILE_ROWS * row_bytes)) * _TILE_ROWS
    for begin in range(0, rows, step):
        count = min(step, rows - begin)
        piece = data[begin * row_bytes : (begin + count) * row_bytes]
        first = begin // _TILE_ROWS
        last = -(-(begin + count) // _TILE_ROWS)
        native.pack_rows(kind, piece, count, columns, tiles[first * tile_bytes : last * tile_bytes])
        give_back_pages(piece)
    return Matrix(tiled, tiles, rows, padded_columns, columns, factors)


def _pack_ternary(native: ModuleType, weight: Weight, *, dense: bool) -> Matrix:
    """Pack the ternary matrix *weight*, whatever its encoding.

    Bytes have five weights if *dense*, unless blocks of a row have scales of their own, which are
    stored behind the codes of all rows.

    Raises:
        Unsupported: the kernels have no form for its scales or its weights.
    """
    rows, inputs = weight.shape
    name = weight.quant.name
    if inputs % _IN_PLACE.get(name, inputs + 1) == 0:
        source = name
        codes = weight.data
        scales = registry.ternary_scales(weight)
    else:
        ternary = registry.unpack_ternary(weight)
        source = "CODES"
        codes = ternary.codes.view(np.uint8).reshape(-1)
        scales = ternary.scales
    tiles = -(-rows // _TILE_ROWS)
    groups = scales.shape[1]
    if groups > 1 and groups * _SCALED_COLUMNS != inputs:
        raise _not_packed(weight, f"a scale for each {inputs // groups} columns")
    layout = "TERNARY"
    if groups > 1:
        layout = "TERNARY_BLOCKS"
    elif dense and _whole_lines("TERNARY_DENSE", inputs) <= _MOST_COLUMNS["TERNARY_DENSE"]:
        layout = "TERNARY_DENSE"
    columns = _whole_lines(layout, inputs)
    if columns > _MOST_COLUMNS.get(layout, columns):
        raise _not_packed(weight, f"rows of {inputs:,} weights")
    code_bytes = tiles * columns // COLUMNS[layout] * _LINE
    scale_bytes = tiles * _TILE_ROWS * groups * 4 if groups > 1 else 0
    data: NDArray[np.uint8] = native.allocate_weights(code_bytes + scale_bytes)
    kind = native.kernel_types().index(layout)
    if not native.pack_ternary(source, codes, rows, inputs, kind, columns, data[:code_bytes]):
        if source == "CODES":  # whose code 2, twice the scale, fits in no tile
            raise _not_packed(weight, "weights of twice their scale")
        raise InvalidFormat(
            f"{weight.name}: code 3 where only 0, 1 and 2 are {name} weights",
            hint="the file is damaged, or written with another layout; download it again",
        )
    give_back_pages(weight.data)
    first_scale = scales[0, 0]
    factors = None
    scale = 1.0
    if groups > 1:
        padded_scales = np.zeros((tiles * _TILE_ROWS, groups), dtype=np.float32)
        padded_scales[:rows] = scales
        tail = data[code_bytes:].view(np.float32).reshape(tiles, groups, _TILE_ROWS)
        tail[:] = padded_scales.reshape(tiles, _TILE_ROWS, groups).transpose(0, 2, 1)
    elif (scales != first_scale).any():
        factors = scales[:, 0].copy()
    else:
        scale = float(first_scale)
    return Matrix(kind, data, rows, columns, inputs, factors, scale)


def _not_packed(weight: Weight, problem: str) -> Unsupported:
    return Unsupported(
        f"{weight.name}: {problem} in {weight.quant.name}, which the compiled kernels do not "
        "multiply with inputs rounded to int8",
        hint="compute with NumPy, slowly: BITNET_BACKEND=reference",
    )


def _whole_lines(layout: str, inputs: int) -> int:
    """*inputs* columns, rounded up to whole lines of *layout*."""
    return -(-inputs // COLUMNS[layout]) * COLUMNS[layout]


def give_back_pages(data: NDArray[np.uint8]) -> None:
    """Drop the pages that *data* fills, if it is part of a file mapped for reading.

    The system reads them again when they are used.
    """
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


def open_again(data: NDArray[np.uint8]) -> tuple[int, int] | None:
    """Open the file that *data* is mapped from; its descriptor and the offset of *data* in it.

    The caller closes the descriptor. The result is None if the system is not Linux, if *data* is
    not part of a mapped file, or if that file has been replaced.
    """
    if sys.platform != "linux" or not data.nbytes:
        return None
    start = data.ctypes.data
    try:
        for line in Path("/proc/self/maps").read_bytes().splitlines():
            addresses, _, offset, device, inode, *path = line.split(maxsplit=5)
            first, last = (int(address, 16) for address in addresses.split(b"-"))
            if not path or start < first or last < start + data.nbytes:
                continue
            file = os.open(path[0], os.O_RDONLY | os.O_CLOEXEC)
            status = os.fstat(file)
            major, minor = (int(number, 16) for number in device.split(b":"))
            if (status.st_dev, status.st_ino) == (os.makedev(major, minor), int(inode)):
                return file, int(offset, 16) + start - first
            os.close(file)
    except OSError:
        pass
    return None

"""Ternary weights in the tiles that the compiled kernels read: 16 rows together.

Every ternary encoding becomes one with two bits per weight, or one with five weights per byte
(``ternary_choice``), when a model is loaded, in memory with huge pages. Packing
costs less than reading the file did, and a core reads such memory almost twice as fast as a mapped
file. The pages of the file are given back as they are done with, so the weights take their place
in memory once. ``native/kernels/ternary/layout.hpp`` draws the layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bitnet.base.errors import InvalidFormat
from bitnet.kernels.file_pages import give_back_pages
from bitnet.quants import registry

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

    from bitnet.quants.weight import Weight

__all__ = ["COLUMNS", "PackedTernary", "pack_ternary"]

_ROWS, _LINE = 16, 64  # of a tile; bytes of all its rows
COLUMNS = {"TERNARY": 16, "TERNARY_BLOCKS": 16, "TERNARY_DENSE": 20}  # of a line
_MOST_DENSE = 1 << 17  # columns of whole lines; kDenseCols in native/kernels/ternary/layout.hpp
# Columns of a block where rows must be whole blocks to be read in place.
_IN_PLACE = {"I2_S": 128, "TQ1_0": 256, "TQ2_0": 256, "PACKED_U8": 1, "IQ2_BN": 64}


class PackedTernary(NamedTuple):
    """A ternary matrix in tiles.

    Attributes:
        kind: ``TERNARY``, ``TERNARY_DENSE``, or ``TERNARY_BLOCKS`` where a row has a scale per 256
            columns.
        data: codes, and for ``TERNARY_BLOCKS`` the scales behind them.
        columns: of the tiles, whole lines; those behind the matrix's are zero weights.
        scale: of all weights.
        factors: of each row, ``(rows,)`` float32, or ``None``.
    """

    kind: str
    data: NDArray[np.uint8]
    columns: int
    scale: float
    factors: NDArray[np.float32] | None


def pack_ternary(native: ModuleType, weight: Weight, *, dense: bool = False) -> PackedTernary:
    """*weight*, a ternary matrix in any encoding, for the kernels of the compiled module *native*.

    Args:
        native: the compiled module.
        weight: what to pack.
        dense: five weights to a byte, unless blocks have scales of their own.

    Raises:
        InvalidFormat: too few bytes, an invalid code, or a scale that is not finite.
        Unsupported: no decoder for the encoding.
    """
    rows, inputs = weight.shape
    name = weight.quant.name
    if inputs % _IN_PLACE.get(name, inputs + 1) == 0:
        source, codes, scales = name, weight.data, registry.ternary_scales(weight)
    else:
        ternary = registry.unpack_ternary(weight)
        source, codes, scales = "CODES", ternary.codes.view(np.uint8).reshape(-1), ternary.scales
    tiles = -(-rows // _ROWS)
    groups = scales.shape[1]
    dense = dense and _whole_lines("TERNARY_DENSE", inputs) <= _MOST_DENSE
    kind = "TERNARY_BLOCKS" if groups > 1 else "TERNARY_DENSE" if dense else "TERNARY"
    columns = _whole_lines(kind, inputs)
    code_bytes = tiles * columns // COLUMNS[kind] * _LINE
    data: NDArray[np.uint8] = native.allocate_weights(
        code_bytes + (tiles * _ROWS * groups * 4 if groups > 1 else 0)
    )
    number = native.kernel_types().index(kind)
    if not native.pack_ternary(source, codes, rows, inputs, number, columns, data[:code_bytes]):
        raise InvalidFormat(
            f"{weight.name}: code 3 where only 0, 1 and 2 are {name} weights",
            hint="the file is damaged, or written with another layout; download it again",
        )
    give_back_pages(weight.data)
    if groups > 1:
        filled = np.zeros((tiles * _ROWS, groups), dtype=np.float32)
        filled[:rows] = scales
        tail = data[code_bytes:].view(np.float32).reshape(tiles, groups, _ROWS)
        tail[:] = filled.reshape(tiles, _ROWS, groups).transpose(0, 2, 1)
        return PackedTernary(kind, data, columns, 1.0, None)
    first = scales[0, 0]
    if (scales == first).all():
        return PackedTernary(kind, data, columns, float(first), None)
    return PackedTernary(kind, data, columns, 1.0, scales[:, 0].copy())


def _whole_lines(kind: str, inputs: int) -> int:
    """Columns of the lines that hold *inputs*."""
    return -(-inputs // COLUMNS[kind]) * COLUMNS[kind]

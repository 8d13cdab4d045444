"""Scales and zero points of the blocks of a quantized matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat
from bitnet.families.keys import COMPARE

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class ScaleGrid:
    """Factors of a matrix: one in all, or one for each row, group of columns, or block.

    Zero points are stored in the same way, and read as the *factors* of a grid of their own.
    """

    factors: NDArray[np.float32]  # (rows, columns) of blocks
    block: tuple[int, int]  # rows and columns of a block; the last blocks may be smaller
    shape: tuple[int, int]  # of the matrix

    @classmethod
    def of(
        cls,
        factors: NDArray[np.float32],
        shape: tuple[int, ...],
        name: str,
        model: str,
        block: Any = None,
        block_key: str = "weight_block_size",
    ) -> ScaleGrid:
        """The *factors* of the matrix *name* of *shape*.

        *block* is the value of *block_key* in the quantization's configuration: rows and columns
        of a block; None: the factors divide the matrix evenly.
        """
        rows, columns = shape
        if factors.size == 1:
            return cls(factors.reshape(1, 1), (rows, columns), (rows, columns))
        grid = factors.reshape(-1, 1) if factors.ndim == 1 else factors
        if grid.ndim != 2 or not grid.size or 0 in shape:
            raise _no_grid(name, grid, shape, model)
        if block is None:
            if rows % grid.shape[0] or columns % grid.shape[1]:
                raise _no_grid(name, grid, shape, model)
            block = (rows // grid.shape[0], columns // grid.shape[1])
        is_pair = isinstance(block, list | tuple) and len(block) == 2
        if not is_pair or not all(type(size) is int and size > 0 for size in block):
            problem = f"quantization_config has {block_key} {block!r:.80}"
            raise InvalidFormat(f"{model}: {problem}", hint=COMPARE)
        if grid.shape != (-(-rows // block[0]), -(-columns // block[1])):
            raise _no_grid(name, grid, shape, model)
        # A block is stated, and may be larger than the whole matrix.
        return cls(grid, (min(block[0], rows), min(block[1], columns)), (rows, columns))

    def spread(self) -> NDArray[np.float32]:
        """The factor of each number, shape ``(rows, columns)``, or the only one, ``(1, 1)``."""
        if self.factors.size == 1:
            return self.factors
        rows, columns = self.shape
        tall = np.repeat(self.factors, self.block[0], axis=0)[:rows]
        return np.repeat(tall, self.block[1], axis=1)[:, :columns]


def _no_grid(name: str, grid: NDArray[Any], shape: tuple[int, ...], model: str) -> InvalidFormat:
    return InvalidFormat(
        f"{model}: scales of shape {grid.shape} do not fit {name} of shape {shape}", hint=COMPARE
    )

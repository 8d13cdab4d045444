"""The copy of an output head, with which the logits that matter are found.

Five bits a weight give approximate logits and a bound on how far each is off; for rows whose upper
bound reaches the best logits found so far a sixth bit tightens it. :func:`unpack_copy` says in
NumPy what its bytes mean.

``docs/architecture/exact-head.md`` derives the bounds from premises that :meth:`HeadCopy.build`
establishes. For a copy from the cache they are checked: premises on the numbers of the copy alone
for all columns and rows, those on its distance from the head for a few tiles of rows, drawn at
random each time.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import Unsupported
from bitnet.kernels.native import NativeOps
from bitnet.kernels.packing import give_back_pages, open_again
from bitnet.models.exact_head import Found, Needed
from bitnet.models.exact_head.kept_copies import content_digest, copy_path, read_copy, write_copy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bitnet.kernels.kv_codes import Array
    from bitnet.kernels.packing import Matrix
    from bitnet.kernels.program import Ops, Prepared
    from bitnet.quants.weight import Weight

logger = logging.getLogger(__name__)

ENCODINGS = ("F16", "BF16", "F32")  # their kernels take the activations as they are
SAMPLED_ROWS = 2048  # about as many rows estimate the size of a column's weights
SLICE_BYTES = 32 << 20  # of the head that are in memory at once while a copy is built
SMALLEST = 32 << 20  # bytes of a head below which the full product is fast enough

# The layout of the codes.
TILE_ROWS = 16  # rows of a tile
BLOCK = 64  # columns of a block
_BLOCK_BYTES = TILE_ROWS * BLOCK * 5 // 8
_MIDDLE = 15.5  # of the codes 0 .. 31
# The columns of block 0, which add most to a logit, have a second code for what the first leaves.
_FINER = 32  # how much finer these second codes are
_GROUP = 4  # blocks whose sixth bits are next to each other

FACTOR_BITS = 20  # columns are scaled by at most 2 to this power
_SAMPLED_TILES = 4  # tiles of a copy from the cache that are compared with the head
# Range of the norms that the compiled module bounds: its norm_up and kHeadLimit.
_SMALLEST_NORM = 1e-17
_LARGEST_NORM = 1e15


class HeadCopy:
    """The copy of an output head, which finds the candidates, and the head, which gives logits."""

    def __init__(self, module: Any, matrix: Matrix, arrays: dict[str, NDArray[Any]]) -> None:
        """Use :meth:`build`."""
        file, offset = open_again(matrix.data) or (-1, 0)
        if file >= 0:
            weakref.finalize(self, os.close, file)
        head = (matrix.kind, matrix.data, matrix.rows, matrix.columns)
        self._native = module.ExactHead(*head, **arrays, file=file, file_offset=offset)
        self._matrix = matrix
        # the copy: order and factors of the columns, tiles of codes, sixth bits, and step, unit of
        # the residual norms and norm of each row
        self.arrays = arrays
        self.size_bytes: int = sum(array.nbytes for array in arrays.values())  # memory of the copy
        self.sixth_bytes: int = arrays["sixth"].nbytes  # of it for the sixth bits
        self.head_bytes: int = matrix.data.nbytes  # of the head itself

    @classmethod
    def build(
        cls,
        ops: Ops,
        weight: Prepared,
        *,
        importance: Array | None = None,
        model: str = "the model",
    ) -> HeadCopy:
        """The copy of *weight*, from the cache if a valid one is there, otherwise computed.

        Args:
            ops: the compiled backend.
            weight: the head, as *ops* has prepared it with ``looked_up``: its rows as in the file.
            importance: ``(dim,)``, how large the hidden states usually are in each column, up to a
                factor, such as the weight of the norm before the head. It never changes a result,
                only how many rows are computed.
            model: name of the model in messages.

        Raises:
            Unsupported: the backend or the encoding has no exact head, or a weight is not finite.
        """
        matrix: Matrix = weight
        if not isinstance(ops, NativeOps):
            raise refusal(model, "only the compiled backend can")
        name = ops.module.kernel_types()[matrix.kind]
        if name not in ENCODINGS:
            raise refusal(model, f"it is {name}, expected {', '.join(ENCODINGS)} in rows")
        memory, arrays = _memory(ops.module, matrix)
        # Smaller heads are copied in less time than files are looked for and checked.
        path = None
        if matrix.data.nbytes >= SMALLEST:
            # The copy follows from every byte of the head and from the importance of its columns.
            digest = hashlib.sha256(f"{matrix.kind} {matrix.rows} {matrix.columns}".encode())
            if importance is not None:
                digest.update(np.ascontiguousarray(importance, dtype=np.float32).tobytes())
            for _, _, piece in _slices(ops.module, matrix):
                digest.update(content_digest(piece))
            path = copy_path(digest.hexdigest()[:32])
            if read_copy(path, memory):
                problem = broken_premise(ops, matrix, arrays, sample_tiles(matrix.rows))
                if not problem:
                    return cls(ops.module, matrix, arrays)
                logger.warning("%s cannot be used, made again: %s", path, problem)
        order, factors = _columns(ops, matrix, importance)
        arrays["order"][:] = order
        arrays["factors"][:] = factors
        copy = cls(ops.module, matrix, arrays)
        for begin, end, _ in _slices(ops.module, matrix):
            if not copy._native.build(begin, end):
                raise refusal(model, "it has weights that are not finite, or huge")
        if path is not None:
            write_copy(path, memory)
        return copy

    def find(self, hidden: Array, needed: Sequence[Needed]) -> list[Found | None]:
        """For each hidden state the logits that can be among the needed ones.

        *hidden* is ``(n, dim)``, and the copy is read once for all of them. ``None`` stands
        for one that is not finite or too long to be bounded.
        """
        x = np.ascontiguousarray(hidden, dtype=np.float32)
        # The largest count serves all, so that one pass answers sequences with other samplers.
        parts = self._native.find(
            x,
            max(each.count for each in needed),
            [-1.0 if each.margin is None else each.margin for each in needed],
            [each.ids for each in needed],
        )
        names = ("ids", "logits", "bound", "tail", "refined")
        rows = self._matrix.rows
        return [
            Found(**dict(zip(names, part, strict=True)), vocab_size=rows) if part else None
            for part in parts
        ]


def _memory(module: Any, matrix: Matrix) -> tuple[NDArray[np.uint8], dict[str, NDArray[Any]]]:
    """Memory of a copy, in one piece as it is kept in the cache, and the arrays in it, by name."""
    tiles, sixth, padded = module.exact_head_sizes(matrix.rows, matrix.columns)
    parts: dict[str, tuple[int, type[np.generic]]] = {
        "tiles": (tiles, np.uint8),
        "sixth": (sixth, np.uint8),
        "step": (padded, np.float32),
        "residual": (padded, np.float32),
        "norm": (padded, np.float32),
        "order": (matrix.columns, np.int32),
        "factors": (matrix.columns, np.float32),
    }
    ends = np.cumsum([count * np.dtype(kind).itemsize for count, kind in parts.values()]).tolist()
    memory: NDArray[np.uint8] = module.allocate_weights(ends[-1])
    arrays = {
        name: memory[begin:end].view(kind)
        for (name, (_, kind)), begin, end in zip(parts.items(), [0, *ends[:-1]], ends, strict=True)
    }
    return memory, arrays


def _slices(module: Any, matrix: Matrix) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
    """First tile, end of the tiles and bytes of each slice of the head, in order.

    The pages of a slice are given back after use, so that a mapped head is never in memory as a
    whole beside its copy.
    """
    tile_bytes = TILE_ROWS * module.row_bytes(matrix.kind, matrix.columns)
    step = max(1, SLICE_BYTES // tile_bytes)
    tiles = -(-matrix.rows // TILE_ROWS)
    for begin in range(0, tiles, step):
        end = min(begin + step, tiles)
        piece = matrix.data[begin * tile_bytes : end * tile_bytes]
        yield begin, end, piece
        give_back_pages(piece)


def refusal(model: str, reason: str) -> Unsupported:
    """The error of *model*, whose output head cannot be an exact head, for *reason*."""
    return Unsupported(
        f"the output head of {model} cannot be an exact head: {reason}",
        hint="leave out --exact-head",
    )


def reason_against(ops: Ops, weight: Weight) -> str:
    """The reason why a :class:`HeadCopy` cannot use *weight* on *ops*; empty if it can."""
    if not isinstance(ops, NativeOps):
        return "only the compiled backend can"
    if weight.quant.name not in ENCODINGS:
        return f"it is {weight.quant.name}, expected {', '.join(ENCODINGS)}"
    if weight.scale != 1.0:
        return "it has a scale of its own"
    if weight.shape[1] > ops.module.EXACT_HEAD_COLUMNS:
        return f"{weight.shape[1]:,} columns, at most {ops.module.EXACT_HEAD_COLUMNS:,}"
    return ""


def saves_time(ops: Ops, weight: Weight) -> bool:
    """True if a copy of *weight* is possible and saves time."""
    return not reason_against(ops, weight) and weight.data.nbytes >= SMALLEST


def _columns(
    ops: NativeOps, matrix: Matrix, importance: Array | None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Columns in the order of the copy, and the powers of two that make their weights alike.

    Columns that add most to a logit, by the size of weights and inputs, are first.
    """
    step = max(1, matrix.rows // SAMPLED_ROWS)
    sample = ops.embed(matrix, range(0, matrix.rows, step)).astype(np.float64)
    size = np.sqrt(np.mean(sample * sample, axis=0))
    size = np.where(np.isfinite(size), size, 0.0)
    typical = float(np.median(size)) or 1.0
    exponents = np.rint(np.log2(np.maximum(size / typical, 2.0**-FACTOR_BITS)))
    input_sizes = np.ones(matrix.columns) if importance is None else np.abs(importance)
    order = np.argsort(-size * input_sizes, kind="stable").astype(np.int32)
    factors = np.exp2(np.clip(exponents, -FACTOR_BITS, FACTOR_BITS)).astype(np.float32)
    return order, factors[order]


def unpack_copy(
    arrays: Mapping[str, NDArray[Any]], rows: int, *, sixth: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights of a copy and the norms of what they leave out.

    The weights, permuted and scaled, are ``(rows, blocks * 64)``; the upper bounds on the norms
    of the differences to the true ones, ``(rows, blocks)``. *arrays* are those of a
    :class:`HeadCopy`; with *sixth*, the weights include their sixth bits.
    """
    columns = len(arrays["order"])
    blocks = -(-columns // BLOCK) + 1  # the last one holds the second codes of block 0
    # A tile begins with a norm for each block and row, a byte in units of the row's "residual".
    norms_bytes = -(-blocks * TILE_ROWS // 64) * 64  # padded to a cache line
    tiles = arrays["tiles"].reshape(-1, norms_bytes + blocks * _BLOCK_BYTES)
    byte_norms = tiles[:, : blocks * TILE_ROWS].reshape(-1, blocks, TILE_ROWS)
    # A half of a block is eight groups of four columns. For each row it has four bytes with the
    # highest bits of all groups, then four times four bytes with the lower bits of two groups each.
    packed = tiles[:, norms_bytes:].reshape(-1, blocks, 2, 5, TILE_ROWS, 4)
    group = np.arange(8)
    high = packed[:, :, :, 0, None] >> group[:, None, None] & 1  # (tiles, blocks, 2, 8, 16, 4)
    low = packed[:, :, :, 1 + group // 2] >> (4 * (group % 2))[:, None, None] & 15
    codes = (low + 16 * high).transpose(0, 4, 1, 2, 3, 5)  # (tiles, 16, blocks, 2, 8, 4)
    codes = codes.reshape(len(tiles) * TILE_ROWS, blocks, BLOCK)
    step = arrays["step"].astype(np.float64)[:, None, None]
    values = step * (codes - _MIDDLE)
    values[:, 0] += values[:, -1] / _FINER
    if sixth:
        # A sixth bit moves a value by a quarter of its step, up or down.
        bits, norms = _sixth_bits(arrays["sixth"], blocks - 1, len(step))
        quarters = np.full(blocks - 1, 0.25)
        quarters[0] /= _FINER
        values[:, :-1] += step * quarters[:, None] * (2.0 * bits - 1.0)
        return values[:rows, :-1].reshape(rows, -1), norms[:rows]
    norms = (
        byte_norms.transpose(0, 2, 1).reshape(-1, blocks)
        * arrays["residual"].astype(np.float64)[:, None]
    )
    return values[:rows, :-1].reshape(rows, -1), norms[:rows, :-1]


def _sixth_bits(
    sixth: NDArray[np.uint8], blocks: int, rows: int
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Sixth bits of all rows, ``(rows, blocks, 64)``, and norms of what six bits leave.

    A row has the unit of its norms (float32), the norms of its blocks (a byte each), zeros up to a
    multiple of eight bytes, and the bits (eight bytes a block, whole groups of blocks).
    """
    lines = sixth.reshape(rows, -1)
    unit = lines[:, :4].copy().view(np.float32).astype(np.float64)
    begin = -(-(4 + blocks) // 8) * 8
    groups = -(-blocks // _GROUP)
    octets = lines[:, begin : begin + groups * _GROUP * 8].reshape(rows, -1, 1, 8)[:, :blocks]
    bits = (octets >> np.arange(8)[:, None] & 1).astype(np.uint8)  # (rows, blocks, bit, byte)
    norms: NDArray[np.float64] = lines[:, 4 : 4 + blocks] * unit
    return bits.reshape(rows, blocks, BLOCK), norms


def sample_tiles(rows: int) -> list[int]:
    """Numbers of a few tiles of a head with *rows* rows, drawn at random."""
    tiles = -(-rows // TILE_ROWS)
    return random.sample(range(tiles), min(_SAMPLED_TILES, tiles))


def broken_premise(
    ops: NativeOps, matrix: Matrix, arrays: Mapping[str, NDArray[Any]], tiles: Iterable[int]
) -> str:
    """The reason why *arrays* cannot bound the logits of *matrix*; empty if there is none.

    Rows of *tiles* are compared with those of the head.
    """
    problem = _problem_of_numbers(arrays)
    if problem:
        return problem
    for tile in tiles:
        problem = _problem_of_tile(ops, matrix, arrays, tile)
        if problem:
            return problem
    return ""


def _problem_of_numbers(arrays: Mapping[str, NDArray[Any]]) -> str:
    """The premise that the numbers in *arrays* break by themselves; empty if none."""
    order = arrays["order"]
    factors = arrays["factors"]
    norm = arrays["norm"]
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        return "the order of its columns is not a permutation"
    parts, exponents = np.frexp(factors)  # 0.5 and n + 1 for 2 to the power n
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


def _problem_of_tile(
    ops: NativeOps, matrix: Matrix, arrays: Mapping[str, NDArray[Any]], tile: int
) -> str:
    """The premise that the rows of *tile* break, compared with those of the head; empty if none."""
    begin = tile * TILE_ROWS
    end = min((tile + 1) * TILE_ROWS, matrix.rows)
    part = dict(arrays)
    for name in ("tiles", "sixth", "step", "residual", "norm"):
        part[name] = arrays[name].reshape(len(arrays["norm"]) // TILE_ROWS, -1)[tile]
    rows = ops.embed(matrix, range(begin, end)).astype(np.float64)
    norm = part["norm"][: end - begin].astype(np.float64)
    for sixth in (False, True):
        copied, norms = unpack_copy(part, end - begin, sixth=sixth)
        true = np.zeros_like(copied)
        true[:, : matrix.columns] = rows[:, arrays["order"]] / arrays["factors"]
        differences = np.linalg.norm((true - copied).reshape(len(rows), -1, BLOCK), axis=2)
        sizes = np.maximum(np.linalg.norm(true, axis=1), np.linalg.norm(copied, axis=1))
        if not ((differences <= norms).all() and (sizes <= norm).all()):
            return f"rows {begin:,} to {end - 1:,} are further from the head than their norms say"
    return ""

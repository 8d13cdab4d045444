"""The backend that defines what is correct, in NumPy.

Weights become float arrays once, when they are prepared. Ternary weights of BitNet models stay int8
codes: their product with int8 activations is exact in float32 (fewer than 2**17 inputs).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import UsageError
from bitnet.kernels.program import KERNELS, Ops
from bitnet.quants import registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import DTypeLike, NDArray

    from bitnet.kernels.kv_codes import Array
    from bitnet.kernels.program import Instruction, Pass
    from bitnet.quants.weight import Weight

_CHUNK = 1 << 18  # codes turned into floats at a time: they stay in the processor's cache

# OpenBLAS computes products of up to 2**18 multiplications (matrix by matrix), or of fewer than
# 9,216 weights (matrix by vector), on the calling thread. For larger ones its threads wait for each
# other, and on a busy machine that takes a hundred times as long as the product.
_FEW_TOKENS = 32  # up to so many tokens, a product is computed in pieces
_PIECE = 8192  # weights of a piece; 2**18 multiplications for _FEW_TOKENS tokens
_calls: Counter[str] = Counter()


@dataclass(frozen=True, eq=False)
class _TernaryMatrix:
    """A ternary matrix whose product rounds activations to int8.

    Codes are ``(outputs, inputs)`` int8, scales ``(outputs or 1, groups)``.
    """

    codes: NDArray[np.int8]
    scales: Array


@dataclass(frozen=True, eq=False)
class _Table:
    """A matrix whose rows are decoded when they are looked up; its product decodes all of it."""

    weight: Weight

    def rows(self, numbers: Sequence[int]) -> Array:
        shape = (1, self.weight.shape[1])
        size = len(self.weight.data) // self.weight.shape[0]
        rows = (self.weight.data[at * size : (at + 1) * size] for at in numbers)
        return np.concatenate(
            [registry.dequantize(replace(self.weight, shape=shape, data=row)) for row in rows]
        )


class ReferenceOps(Ops):
    """NumPy in float32, or in float64 to measure how exact the others are."""

    name = "reference"

    def __init__(self, *, dtype: DTypeLike = np.float32) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise UsageError(f"the reference computes in float32 or float64, not in {self.dtype}")

    def prepare(self, weight: Weight, *, looked_up: bool = False, expert: bool = False) -> Any:  # noqa: ARG002
        if registry.rounds_activations(weight) and len(weight.shape) == 2:
            ternary = registry.unpack_ternary(weight)
            return _TernaryMatrix(ternary.codes, ternary.scales.astype(self.dtype))
        if looked_up and not weight.quant.is_ternary:
            return _Table(weight)
        return registry.dequantize(weight).astype(self.dtype, copy=False)

    def reads(self, prepared: Any) -> list[NDArray[np.uint8]]:
        return [prepared.weight.data] if isinstance(prepared, _Table) else []

    def run(self, instruction: Instruction, on: Pass) -> None:
        if name := KERNELS.get(type(instruction).__name__):
            _calls[f"{name}/numpy"] += 1
        instruction.run(on)

    def counters(self) -> Mapping[str, int]:
        return dict(_calls)

    def embed(self, table: Any, tokens: Sequence[int]) -> Array:
        _calls[f"embed/{_kind(table)}/numpy"] += 1
        rows = np.asarray(tokens, dtype=np.intp)
        if isinstance(table, _TernaryMatrix):
            codes = table.codes
            scales = table.scales
            scales = np.broadcast_to(scales, (len(codes), scales.shape[1]))[rows]
            per_column = np.repeat(scales, codes.shape[1] // scales.shape[1], axis=1)
            embedded: Array = codes[rows] * per_column
            return embedded
        if isinstance(table, _Table):
            return table.rows(tokens).astype(self.dtype)
        return table[rows]

    def linear(self, x: Array, weight: Any, bias: Any | None = None) -> Array:
        _calls[f"linear/{_kind(weight)}/numpy"] += 1
        if isinstance(weight, _Table):
            weight = registry.dequantize(weight.weight).astype(self.dtype)
        y = self._ternary(x, weight) if isinstance(weight, _TernaryMatrix) else _product(x, weight)
        return y if bias is None else y + bias

    def _ternary(self, x: Array, weight: _TernaryMatrix) -> Array:
        """The product that :meth:`Ops.linear` defines for ternary weights, ``(T, outputs)``."""
        largest = np.maximum(np.abs(x).max(axis=-1, keepdims=True), self.dtype.type(1e-5))
        scale = self.dtype.type(127) / largest  # (T, 1)
        q = np.clip(np.rint(x * scale), -128, 127)
        outputs, inputs = weight.codes.shape
        step = max(1, _CHUNK // inputs)
        starts = range(0, outputs, step)
        if weight.scales.shape[1] == 1:
            sums = [_product(q, weight.codes[r : r + step].astype(self.dtype)) for r in starts]
            return np.concatenate(sums, axis=1) / scale * weight.scales[:, 0]
        sums = [
            _group_sums(q, weight.codes[r : r + step], weight.scales[r : r + step]) for r in starts
        ]
        return np.concatenate(sums, axis=1).astype(self.dtype) / scale

    def softcap(self, x: Array, cap: float) -> Array:
        limit = self.dtype.type(cap)
        return np.tanh(x / limit) * limit


def _kind(weight: Any) -> str:
    """Encoding of the prepared *weight*, as counters name it."""
    if isinstance(weight, _Table):
        return weight.weight.quant.name
    return "ternary" if isinstance(weight, _TernaryMatrix) else str(weight.dtype)


def _product(x: Array, weight: Array) -> Array:
    """``x @ weight.T``, for few tokens in pieces that are too small for threads of BLAS."""
    outputs, inputs = weight.shape
    if len(x) > _FEW_TOKENS:
        return x @ weight.T
    rows = max(1, _PIECE // inputs)
    count = outputs // rows
    in_pieces = count * rows
    out = np.empty((len(x), outputs), dtype=weight.dtype)
    pieces = np.matmul(weight[:in_pieces].reshape(count, rows, inputs), x.T)  # (count, rows, T)
    out[:, :in_pieces] = pieces.reshape(in_pieces, len(x)).T
    out[:, in_pieces:] = x @ weight[in_pieces:].T
    return out


def _group_sums(q: Array, codes: NDArray[np.int8], scales: Array) -> Array:
    """Integer sums per group of columns, scaled and added in float64, first to last: ``(T, n)``."""
    groups = scales.shape[1]
    width = codes.shape[1] // groups
    total = np.zeros((len(q), len(codes)), dtype=np.float64)
    for g in range(groups):
        part = slice(g * width, (g + 1) * width)
        sums = _product(q[:, part], codes[:, part].astype(q.dtype))
        total += sums.astype(np.float64) * scales[:, g].astype(np.float64)
    return total

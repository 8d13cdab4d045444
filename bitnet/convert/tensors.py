"""Convert one tensor to another type, and decode the result."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import Unsupported
from bitnet.convert.convert_options import BLOCKS, MIXES, ROUNDED, TERNARY
from bitnet.convert.mixes import importance_of
from bitnet.models.orders import column_order, row_order
from bitnet.quants import registry, types
from bitnet.quants.scaled_blocks import SCALED_BLOCKS
from bitnet.quants.ternary import Ternary, pack_i2_s, pack_iq2_bn, ternarize
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from numpy.typing import NDArray

    from bitnet.convert.convert_options import ConvertOptions
    from bitnet.convert.mixes import Importance
    from bitnet.families.blocks import ModelConfig
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.quants.types import QuantType

_I2_S_BLOCK = 128  # weights
_TQ2_0_BLOCK = 256  # weights
_FLOATS = frozenset({"F32", "F16", "BF16", "F64"})
_CHUNK = 1 << 22  # weights at a time
_COPY_BYTES = 8 << 20
_ALLOW = "to accept that: --allow-lossy"

_UNNUMBERED = (registry.I2_S_ARM, registry.PACKED_U8)  # layouts without a number in GGUF
#: The type in a new file, where it is not that of the source.
_RENAMED = {
    registry.I2_S_ARM: types.by_name("I2_S"),
    types.Q2_0_G128: types.by_name("PQ2_0"),
}
_PACKERS = {
    "I2_S": pack_i2_s,
    "IQ2_BN": pack_iq2_bn,
    **{name: layout.pack for name, layout in SCALED_BLOCKS.items()},
}
# Endings of the matrices that are stored as F32, as in llama.cpp's files: routers, and tables whose
# rows are added to embeddings.
_EXACT = (
    ".ffn_gate_inp.weight",
    ".ffn_gate_inp_shexp.weight",
    "position_embd.weight",
    "token_types.weight",
)
_PROBE_ROWS = 16  # of a matrix outside of the blocks, which may be ternary as well


@dataclass(frozen=True)
class Encoded:
    """A part of a new tensor."""

    data: bytes | memoryview
    exact: bool = True  # it decodes to the same numbers
    error: float = 0.0  # largest difference, as a share of the largest weight of the part


@dataclass(frozen=True)
class Job:
    """A tensor of the source and its new type."""

    weight: Weight  # of the source
    target: QuantType  # its new type
    # row i of the new tensor is row ``order[i]`` of the source; ``None``: the order is unchanged
    order: NDArray[np.intp] | None
    allow_lossy: bool  # allow a loss beyond the rounding of floats
    rounds: bool = False  # products with the new tensor round their input to int8 per token
    columns: NDArray[np.intp] | None = None  # the order of columns, as *order*
    # weights of the inputs' squared errors, ``(columns,)`` or ``(experts, columns)``
    importance: NDArray[np.float32] | None = None

    @property
    def matrices(self) -> tuple[Job, ...]:
        """A job for each matrix of experts; none for other tensors."""
        if len(self.weight.shape) != 3:
            return ()
        if self.importance is None:
            return tuple(replace(self, weight=matrix) for matrix in self.weight.matrices())
        return tuple(
            replace(self, weight=matrix, importance=importance)
            for matrix, importance in zip(self.weight.matrices(), self.importance, strict=True)
        )

    @property
    def is_copy(self) -> bool:
        """True if the bytes are unchanged."""
        is_reordered = self.order is not None or self.columns is not None
        same_type = self.target == self.weight.quant
        return same_type and not is_reordered and self.weight.scale == 1.0

    @property
    def from_ternary(self) -> bool:
        """True if the source stores ternary codes and scales, not numbers."""
        # ``is_ternary`` knows types of GGUF only.
        return self.weight.quant.is_ternary or self.weight.quant in _UNNUMBERED

    def pieces(self) -> Iterator[Encoded]:
        """The new tensor, some million weights or one ternary matrix at a time."""
        if self.matrices:
            for matrix in self.matrices:
                yield from matrix.pieces()
        elif self.is_copy:
            raw = self.weight.data[: self.target.size_bytes(self.weight.shape)].data
            for start in range(0, len(raw), _COPY_BYTES):
                yield Encoded(raw[start : start + _COPY_BYTES])
        else:
            for values in self.values():
                yield self._encode(values)

    def _encode(self, values: NDArray[np.float32]) -> Encoded:
        """*values* in the new type, with the error that decoding them again shows.

        A loss beyond the rounding of floats is refused. For a ternary type, *values* are those of
        the whole matrix.
        """
        name = self.weight.name
        target = self.target
        if not np.isfinite(values).all():
            raise Unsupported(
                f"{name}: some of its weights are infinite or NaN", hint="fetch the model again"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            if target.name in TERNARY:
                packed = _PACKERS[target.name](self._fit_scales())
                encoded = Weight(name, values.shape, target, packed.reshape(-1).view(np.uint8))
            else:
                encoded = registry.quantize(name, values, target, self.importance)
            decoded = registry.dequantize(encoded)
            difference = float(np.abs(values - decoded).max(initial=0))
        exact = np.array_equal(values, decoded)
        largest = float(np.abs(values).max(initial=0))
        error = difference / (largest or 1.0)
        if not math.isfinite(error):
            wider = "F32" if target.name == "BF16" else "BF16 or F32"
            raise Unsupported(
                f"{name}: {target.name} cannot hold its largest weights", hint=f"choose {wider}"
            )
        is_rounding = self.weight.quant.name in _FLOATS and target.name in ROUNDED
        if not (exact or is_rounding or self.allow_lossy):
            raise Unsupported(
                f"{name}: {self.weight.quant.name} -> {target.name} would not be exact (by "
                f"{error:.2g} of the largest weight)",
                hint=f"choose F32, or, {_ALLOW}",
            )
        return Encoded(encoded.data.data, exact, error)

    @property
    def keeps_rounding(self) -> bool:
        """True if a product rounds its input as one with the source's weights does."""
        if len(self.weight.shape) < 2:
            return True
        return registry.rounds_activations(self.weight) == self.rounds

    @property
    def size_bytes(self) -> int:
        """Number of bytes of the new tensor."""
        return self.target.size_bytes(self.weight.shape) or 0

    def values(self) -> Iterator[NDArray[np.float32]]:
        """Values of a vector or matrix in their new order, some rows at a time.

        They are returned all at once if the rows of the source or the new type cannot be separated.
        """
        weight = self.weight
        if self.from_ternary or self.target.is_ternary or len(weight.shape) < 2:
            values = registry.dequantize(weight)
            yield self._with_columns(values if self.order is None else values[self.order])
            return
        rows, columns = weight.shape
        step = max(1, _CHUNK // max(columns, 1))
        data = weight.data[: weight.quant.size_bytes(weight.shape)].reshape(rows, -1)
        for start in range(0, rows, step):
            part = slice(start, start + step)
            packed = data[part] if self.order is None else data[self.order[part]]
            shape = (len(packed), columns)
            values = registry.dequantize(replace(weight, shape=shape, data=packed.reshape(-1)))
            yield self._with_columns(values)

    def _with_columns(self, values: NDArray[Any]) -> NDArray[Any]:
        """*values*, or codes, with their columns in the new order."""
        return values if self.columns is None else values[:, self.columns]

    def ternary(self) -> Ternary:
        """Codes and scales of the tensor in their new order."""
        if self.from_ternary:
            ternary = registry.unpack_ternary(self.weight)
            if self.columns is not None and ternary.scales.shape[1] > 1:
                raise Unsupported(
                    f"{self.weight.name}: GGUF has its columns in another order, in which those "
                    "that share a scale are not neighbours",
                    hint="run the model as it is",
                )
            ternary = Ternary(self._with_columns(ternary.codes), ternary.scales)
        else:  # Numbers that are ternary already are unchanged; others are rounded if allowed.
            values = self._with_columns(registry.dequantize(self.weight))
            exact = _as_ternary(values, self.target)
            if exact is None and not self.allow_lossy:
                raise Unsupported(
                    f"{self.weight.name} ({self.weight.quant.name}) is not ternary: as "
                    f"{self.target.name} the model would be another one",
                    hint=f"choose Q8_0; or, {_ALLOW}",
                )
            ternary = ternarize(values) if exact is None else exact
        if self.order is None:
            return ternary
        scales = ternary.scales if len(ternary.scales) == 1 else ternary.scales[self.order]
        return Ternary(ternary.codes[self.order], scales)

    def _fit_scales(self) -> Ternary:
        """:meth:`ternary` with scales that the target can store; others are refused."""
        if self.weight.shape[1] % self.target.block_size:
            raise Unsupported(
                f"{self.weight.name} has rows of {self.weight.shape[1]:,} weights, and "
                f"{self.target.name} blocks of {self.target.block_size}",
                hint="choose I2_S, or F16",
            )
        if self.target.name == "I2_S" and math.prod(self.weight.shape) % _I2_S_BLOCK:
            raise Unsupported(
                f"{self.weight.name} has {math.prod(self.weight.shape):,} weights, and I2_S blocks "
                f"of {_I2_S_BLOCK}",
                hint="choose F16",
            )
        ternary = self.ternary()
        n_nonzero = _count_nonzero(ternary)
        layout = SCALED_BLOCKS.get(self.target.name)
        if layout is None and (ternary.codes > 1).any():
            raise Unsupported(
                f"{self.weight.name} has weights of twice their scale, which {self.target.name} "
                "has no code for",
                hint="choose PQ2_0 or Q2_0",
            )
        columns_of_a_scale = ternary.codes.shape[1] // ternary.scales.shape[1]
        alternative = "TQ2_0" if columns_of_a_scale >= _TQ2_0_BLOCK else "Q2_0"
        if self.target.name == "I2_S":
            scales = self._one_each(
                ternary.scales.reshape(1, -1), n_nonzero.reshape(1, -1), "tensor", alternative
            )
            return Ternary(ternary.codes, scales)
        if layout is None:  # IQ2_BN
            return Ternary(
                ternary.codes, self._one_each(ternary.scales, n_nonzero, "row", alternative)
            )
        # All other types store a float16 scale for each block.
        blocks = ternary.codes.shape[1] // self.target.block_size
        rows, groups = ternary.scales.shape
        if groups > blocks:  # several scales of the source fall into one block
            shape = (rows * blocks, groups // blocks)
            scales = self._one_each(
                ternary.scales.reshape(shape), n_nonzero.reshape(shape), "block", alternative
            )
            ternary = Ternary(ternary.codes, scales.reshape(rows, blocks))
            n_nonzero = _count_nonzero(ternary)
        if reason := layout.refusal(ternary):
            raise Unsupported(f"{self.weight.name} has {reason}", hint="choose PQ2_0 or Q2_0")
        with np.errstate(over="ignore"):
            halves = ternary.scales.astype(np.float16).astype(np.float32)
        if not np.isfinite(halves).all():
            raise Unsupported(
                f"{self.weight.name}: its scale {np.abs(ternary.scales).max():g} does not fit into "
                f"the float16 of {self.target.name}",
                hint="choose I2_S",
            )
        # A scale of zeros alone does not count.
        differs = (halves != ternary.scales) & (n_nonzero > 0)
        if differs.any() and not self.allow_lossy:
            at = np.unravel_index(int(differs.argmax()), differs.shape)
            raise Unsupported(
                f"{self.weight.name} has the scale {ternary.scales[at]:.9g}, which "
                f"{self.target.name} holds as {halves[at]:.9g} (float16)",
                hint=f"choose I2_S, or, {_ALLOW}",
            )
        return Ternary(ternary.codes, halves)

    def _one_each(
        self,
        scales: NDArray[np.float32],
        n_nonzero: NDArray[np.int64],
        owner: str,
        alternative: str,
    ) -> NDArray[np.float32]:
        """The one scale of each row of *scales*, shape ``(rows, 1)``.

        *n_nonzero* has the number of nonzero weights of each. Scales that multiply only zeros do
        not count; where all do, it is 1. *owner* is what has one scale in the new type, and
        *alternative* a type with enough of them.
        """
        is_used = n_nonzero > 0
        low = np.where(is_used, scales, np.inf).min(axis=1, keepdims=True)
        several = low < np.where(is_used, scales, -np.inf).max(axis=1, keepdims=True)
        if several.any():
            at = int(several.argmax())
            raise Unsupported(
                f"{self.weight.name} has {len(np.unique(scales[at][is_used[at]])):,} different "
                f"scales, {self.target.name} holds one per {owner}",
                hint=f"choose {alternative} or F16",
            )
        single: NDArray[np.float32] = np.where(np.isinf(low), 1, low).astype(np.float32)
        return single


def _count_nonzero(ternary: Ternary) -> NDArray[np.int64]:
    """Number of nonzero weights of each scale, in the shape of the scales."""
    rows = ternary.codes.shape[0]
    groups = ternary.scales.shape[1]
    counts: NDArray[np.int64] = np.count_nonzero(ternary.codes.reshape(rows, groups, -1), axis=2)
    if len(ternary.scales) != rows:  # one scale for all rows
        counts = counts.sum(axis=0, keepdims=True)
    return counts


def job(
    weight: Weight,
    checkpoint: Checkpoint,
    config: ModelConfig,
    request: ConvertOptions,
    vectors: Container[str],
    mix: Mapping[str, QuantType],
    importance: Importance | None,
) -> Job:
    """Job for one *weight* of *checkpoint*, a model of *config*, according to *request*.

    *vectors* names matrices that take part in no product: they keep their numbers. *mix* has
    the types of some tensors by name. *importance* weighs the errors of rounding.
    """
    is_gguf = checkpoint.path.is_file()
    is_exact = len(weight.shape) < 2 or weight.name in vectors or weight.name.endswith(_EXACT)
    if weight.name in mix:
        target = mix[weight.name]
    elif is_exact or request.type in MIXES:  # which name everything that they round
        target = _RENAMED.get(weight.quant, weight.quant) if is_gguf else types.by_name("F32")
    else:
        target = _target(weight, request, keeps=is_gguf)
    if len(weight.shape) == 3 and target.name == "I2_S":
        raise Unsupported(
            f"{weight.name} has {weight.shape[0]:,} matrices, and I2_S has one scale for a tensor",
            hint="choose TQ2_0 or TQ1_0",
        )
    rounds = target.is_ternary and (
        checkpoint.rounds_inputs or target.name not in registry.OF_ANY_MODEL
    )
    rows = row_order(weight.name, checkpoint, config)
    columns = column_order(weight.name, config)
    weights_of_inputs = None
    if importance is not None and target.name in BLOCKS and target != weight.quant:
        weights_of_inputs = importance_of(importance, weight)
    return Job(weight, target, rows, request.allow_lossy, rounds, columns, weights_of_inputs)


def _target(weight: Weight, request: ConvertOptions, *, keeps: bool) -> QuantType:
    """New type of the matrix *weight*; with *keeps*, its own type if it need not change."""
    own_type = _RENAMED.get(weight.quant, weight.quant)
    quant = types.by_name(request.type)
    if own_type.name == "MXFP4" and request.type != "F32":  # smaller than any other, and exact
        return own_type
    if request.type in TERNARY:
        in_block = weight.name.startswith("blk.") and weight.name.endswith(".weight")
        if in_block or (request.type in SCALED_BLOCKS and _seems_ternary(weight, quant)):
            return quant
        return own_type if keeps else types.by_name("F16")
    return quant


def _seems_ternary(weight: Weight, target: QuantType) -> bool:
    """True if the first rows of *weight*, an embedding or a head, are ternary in such blocks."""
    if weight.shape[1] % target.block_size:
        return False
    if weight.quant.is_ternary:
        return True
    rows = min(weight.shape[0], _PROBE_ROWS)
    size = weight.quant.size_bytes((rows, weight.shape[1]))
    probe = replace(weight, shape=(rows, weight.shape[1]), data=weight.data[:size])
    return _as_ternary(registry.dequantize(probe), target) is not None


def _as_ternary(values: NDArray[np.float32], target: QuantType) -> Ternary | None:
    """*values* as codes and scales, exactly; ``None`` if *target* cannot hold them.

    There is a scale for each block of *target*, for each row, or for the whole matrix.
    """
    rows, columns = values.shape
    layout = SCALED_BLOCKS.get(target.name)
    if target.name == "I2_S":
        groups = values.reshape(1, -1)
        shape = (1, 1)
    elif layout is None:  # IQ2_BN
        groups = values
        shape = (rows, 1)
    elif columns % layout.weights:
        return None
    else:
        groups = values.reshape(-1, layout.weights)
        shape = (rows, columns // layout.weights)
    sizes = np.abs(groups)
    smallest = np.where(sizes == 0, np.inf, sizes).min(axis=1, initial=np.inf, keepdims=True)
    scales = np.where(np.isinf(smallest), 0, smallest).astype(np.float32)
    with np.errstate(all="ignore"):
        codes = np.where(scales > 0, np.clip(groups / scales, -1, 2), 0)
    codes = np.nan_to_num(codes).astype(np.int8)
    if not np.array_equal(codes * scales, groups):
        return None
    return Ternary(codes.reshape(rows, columns), scales.reshape(shape))

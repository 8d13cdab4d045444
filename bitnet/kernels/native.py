"""The backend in C++: the same operations as ``reference.py``, on packed weights, in place.

Matrices stay in the bytes of the mapped file. Their products round activations to int8, in groups
or, for ternary weights, per token; ``kernels/native/kernels.hpp`` states the numerics. Results do
not depend on the number of threads.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet import native, settings
from bitnet.errors import InvalidFormat, Unsupported
from bitnet.kernels.ops import Activation, Array, Ops
from bitnet.quants import registry
from bitnet.quants.i2_s import pack_i2_s
from bitnet.quants.ternary import Ternary

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import RopeStyle
    from bitnet.quants.weight import Weight

__all__ = ["NativeOps", "thread_count"]

logger = logging.getLogger(__name__)

_GATES: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1, "relu_squared": 2}
_I2_S_BLOCK = 128


@dataclass(frozen=True, eq=False)
class _Matrix:
    """A packed matrix.

    Attributes:
        kind: number of the encoding in the compiled module.
        data: its bytes, rows one after the other.
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


def thread_count() -> int:
    """Compute threads to use: ``BITNET_THREADS``, else the cores this process may run on."""
    wanted = settings.threads()
    if wanted:
        return wanted
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _self_test(module: ModuleType) -> None:
    """Once per process: kernels that disagree with the scalar ones are replaced by them."""
    replaced = module.kernel_self_test()
    if replaced:
        logger.warning(
            "kernels for %s give wrong results on this machine and are not used (slower): %s",
            module.kernel_level(),
            ", ".join(replaced),
        )


class NativeOps(Ops):
    """C++ kernels of the best instruction set this processor has.

    Attributes:
        name: ``native``, and the instruction set.
    """

    def __init__(self, *, threads: int = 0) -> None:
        """Start *threads* threads, :func:`thread_count` by default, and test the kernels.

        Raises:
            Unsupported: the compiled module is not installed.
        """
        module = native.module()
        if module is None:
            raise Unsupported(
                "the compiled module is not installed or switched off",
                hint="unset BITNET_BACKEND, install a C++ compiler and reinstall bitnet-xtask",
            )
        _self_test(module)
        module.set_threads(threads or thread_count())
        self._native = module
        self._kinds = {name: kind for kind, name in enumerate(module.kernel_types())}
        self._turns: tuple[Array, float, Array, Array] | None = None
        self.name = f"native ({module.kernel_level()})"

    def prepare(self, weight: Weight) -> Any:
        if len(weight.shape) != 2:
            return np.ascontiguousarray(registry.dequantize(weight), dtype=np.float32)
        rows, columns = weight.shape
        name = weight.quant.name
        if name == "I2_S" and columns % _I2_S_BLOCK == 0:
            return self._i2_s(weight)
        if registry.rounds_activations(weight.quant):
            return self._repacked(registry.unpack_ternary(weight))
        if name not in self._kinds or columns % weight.quant.block_size:
            values = np.ascontiguousarray(registry.dequantize(weight), dtype=np.float32)
            logger.debug("%s: no kernel for %s, kept as F32", weight.name, name)
            return self._matrix("F32", values.view(np.uint8).reshape(-1), rows, columns)
        size = weight.quant.size_bytes(weight.shape)
        if size is None or len(weight.data) < size:
            raise InvalidFormat(
                f"{weight.name}: {len(weight.data):,} bytes, expected {size:,} for {name} "
                f"{weight.shape}",
                hint="the file is damaged; download it again",
            )
        self._check_codes(weight)
        factors = None if weight.scale == 1.0 else np.array([weight.scale], dtype=np.float32)
        return self._matrix(name, weight.data, rows, columns, factors=factors)

    def _matrix(
        self,
        name: str,
        data: NDArray[np.uint8],
        rows: int,
        columns: int,
        *,
        scale: float = 1.0,
        factors: NDArray[np.float32] | None = None,
        inputs: int = 0,
    ) -> _Matrix:
        return _Matrix(
            self._kinds[name],
            np.ascontiguousarray(data),
            rows,
            columns,
            scale,
            factors,
            inputs or columns,
        )

    def _i2_s(self, weight: Weight) -> _Matrix:
        rows, columns = weight.shape
        codes = rows * columns // 4
        if len(weight.data) < codes + 4:
            raise InvalidFormat(
                f"{weight.name}: {len(weight.data):,} bytes, expected {codes + 32:,} for I2_S "
                f"{weight.shape}",
                hint="the file is damaged; download it again",
            )
        self._check_codes(weight)
        stored = weight.data[codes : codes + 4].view("<f4").astype(np.float32)
        if not np.isfinite(stored[0]):
            raise InvalidFormat(
                f"{weight.name}: its scale is {stored[0]}",
                hint="the file is damaged; download it again",
            )
        scale = float(stored[0] * np.float32(weight.scale))
        return self._matrix("I2_S", weight.data[:codes], rows, columns, scale=scale)

    def _check_codes(self, weight: Weight) -> None:
        name = weight.quant.name
        if name not in ("I2_S", "TQ2_0"):
            return
        rows, columns = weight.shape
        if not self._native.codes_are_valid(self._kinds[name], weight.data, rows, columns):
            raise InvalidFormat(
                f"{weight.name}: code 3 where only 0, 1 and 2 are {name} weights",
                hint="the file is damaged, or written with another layout; download it again",
            )

    def _repacked(self, ternary: Ternary) -> _Matrix:
        """Any other BitNet encoding as I2_S, padded with zero weights to whole blocks."""
        rows, inputs = ternary.codes.shape
        padding = -inputs % _I2_S_BLOCK
        codes = np.pad(ternary.codes, ((0, 0), (0, padding)))
        packed = pack_i2_s(Ternary(codes, np.ones((1, 1), dtype=np.float32)))
        columns = inputs + padding
        return self._matrix(
            "I2_S",
            packed[: rows * columns // 4],
            rows,
            columns,
            factors=ternary.scales[:, 0].astype(np.float32),
            inputs=inputs,
        )

    def embed(self, table: Any, tokens: Sequence[int]) -> Array:
        ids = np.ascontiguousarray(tokens, dtype=np.int64)
        m: _Matrix = table
        out = np.empty((len(ids), m.columns), dtype=np.float32)
        self._native.embed(m.kind, m.data, m.rows, m.columns, m.scale, ids, out)
        if m.factors is not None:
            out *= np.broadcast_to(m.factors, m.rows)[ids][:, None]
        return out[:, : m.inputs]

    def linear(self, x: Array, weight: Any, bias: Any | None = None) -> Array:
        m: _Matrix = weight
        if m.inputs != m.columns:
            x = np.pad(x, ((0, 0), (0, m.columns - m.inputs)))
        out = np.empty((len(x), m.rows), dtype=np.float32)
        self._native.linear(m.kind, m.data, m.rows, m.columns, m.scale, _floats(x), out)
        if m.factors is not None:
            out *= m.factors
        if bias is not None:
            out += bias
        return out

    def rms_norm(self, x: Array, weight: Any, eps: float) -> Array:
        x = _floats(x)
        out = np.empty_like(x)
        self._native.rms_norm(x, weight, eps, out)
        return out

    def rope(self, x: Array, angles: Array, *, style: RopeStyle, scale: float = 1.0) -> Array:
        # Every layer passes the same angles for its queries and its keys.
        turns = self._turns
        if turns is None or turns[0] is not angles or turns[1] != scale:
            cos = (np.cos(angles) * scale).astype(np.float32)
            sin = (np.sin(angles) * scale).astype(np.float32)
            turns = self._turns = (angles, scale, cos, sin)
        x = _floats(x)
        out = np.empty_like(x)
        self._native.rope(x, turns[2], turns[3], style != "interleaved", out)
        return out

    def attention(
        self,
        q: Array,
        keys: Array,
        values: Array,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
    ) -> Array:
        q = _floats(q)
        out = np.empty_like(q)
        start = keys.shape[1] - len(q)
        self._native.attention(
            q, _halves(keys), _halves(values), start, scale, window, softcap, out
        )
        return out.reshape(len(q), -1)

    def gate(self, gate: Array, up: Array, activation: Activation) -> Array:
        gate, up = _floats(gate), _floats(up)
        out = np.empty_like(gate)
        self._native.gate(_GATES[activation], gate, up, out)
        return out

    def softcap(self, x: Array, cap: float) -> Array:
        limit = np.float32(cap)
        return np.tanh(x / limit) * limit


def _floats(x: Array) -> NDArray[np.float32]:
    return np.ascontiguousarray(x, dtype=np.float32)


def _halves(cached: Array) -> NDArray[np.uint16]:
    """``(kv_heads, S, D)`` as the bits of its f16, ``(S, kv_heads, D)``; a view if it is f16."""
    halves = cached if cached.dtype == np.float16 else cached.astype(np.float16)
    return halves.view(np.uint16).transpose(1, 0, 2)

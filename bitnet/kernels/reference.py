"""The backend that defines what is correct: NumPy, one expression per formula.

Weights become float arrays once, when they are prepared. Ternary weights of BitNet's stay int8
codes, since their product with int8 activations is exact in float32 (fewer than 2**17 inputs).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import UsageError
from bitnet.kernels.interpreter import Interpreter
from bitnet.kernels.ops import Ops
from bitnet.quants import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import DTypeLike, NDArray

    from bitnet.families.keys import RopeStyle
    from bitnet.families.mixers import Activation, Routing
    from bitnet.kernels.kv_cache import Seen
    from bitnet.kernels.kv_codes import Array
    from bitnet.kernels.ops import Scores
    from bitnet.kernels.program import Program, Segment
    from bitnet.quants.weight import Weight

_CHUNK = 1 << 18  # codes turned into floats at a time: they stay in the processor's cache

# OpenBLAS computes products of up to 2**18 multiplications (matrix by matrix), or of fewer than
# 9,216 weights (matrix by vector), on the thread that asks; its threads wait for each other with
# every other product, which takes a hundred times as long as the product on a busy machine.
_FEW_TOKENS = 32
_PIECE = 8192  # weights; times _FEW_TOKENS 2**18
LEAST_SUM = 2.0**-14  # of weights that are divided by it, as in llama.cpp
_calls: Counter[str] = Counter()


@dataclass(frozen=True, eq=False)
class _TernaryMatrix:
    """Codes ``(outputs, inputs)`` int8, scales ``(outputs or 1, groups)``; rounds its input."""

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

    def compile(
        self, program: Program, weights: Mapping[str, Any]
    ) -> Callable[[Sequence[Segment]], Array]:
        return Interpreter(program, weights, self).run

    def counters(self) -> Mapping[str, int]:
        return dict(_calls)

    def embed(self, table: Any, tokens: Sequence[int]) -> Array:
        _calls[f"embed/{_kind(table)}/numpy"] += 1
        rows = np.asarray(tokens, dtype=np.intp)
        if isinstance(table, _TernaryMatrix):
            codes, scales = table.codes, table.scales
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

    def rms_norm(self, x: Array, weight: Any, eps: float) -> Array:
        _calls["rms_norm/numpy"] += 1
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean + self.dtype.type(eps)) * weight

    def rope(self, x: Array, angles: Array, *, style: RopeStyle, scale: float = 1.0) -> Array:
        _calls["rope/numpy"] += 1
        pairs = angles.shape[1]
        cos = (np.cos(angles) * scale).astype(self.dtype)[:, None, :]  # (T, 1, pairs)
        sin = (np.sin(angles) * scale).astype(self.dtype)[:, None, :]
        if style == "interleaved":
            first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        else:
            first, second = slice(0, pairs), slice(pairs, 2 * pairs)
        rotated = x.copy()
        rotated[..., first] = x[..., first] * cos - x[..., second] * sin
        rotated[..., second] = x[..., second] * cos + x[..., first] * sin
        return rotated

    def attention(self, q: Array, seen: Seen, by: Scores) -> Array:
        _calls["attention/numpy"] += 1
        t, heads, head_dim = q.shape
        keys, values = (it.astype(self.dtype, copy=False) for it in (seen.keys, seen.values))
        kv_heads, s, _ = keys.shape
        group = heads // kv_heads
        # Query heads that share a key head are neighbours.
        q = q.reshape(t, kv_heads, group, head_dim).transpose(1, 2, 0, 3)  # (KV, G, T, D)
        scores = (q * self.dtype.type(by.scale)) @ keys[:, None].transpose(
            0, 1, 3, 2
        )  # (KV, G, T, S)
        if by.softcap:
            scores = self.softcap(scores, by.softcap)
        at = np.arange(s - t, s)[:, None]
        distance = at - np.arange(s)[None, :]  # (T, S)
        hidden = distance < 0 if by.causal else np.zeros_like(distance, dtype=bool)
        if by.window:
            hidden |= abs(distance) >= by.window
        scores[..., hidden] = -np.inf
        if by.sinks is not None:
            sink = np.broadcast_to(by.sinks.reshape(kv_heads, group, 1, 1), (*scores.shape[:3], 1))
            scores = np.concatenate([scores, sink.astype(self.dtype, copy=False)], axis=-1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        weights = weights[..., :s]
        with np.errstate(invalid="ignore"):
            mixed = weights @ values[:, None]  # (KV, G, T, D)
        if not np.isfinite(mixed).all():
            mixed = _without_hidden(mixed, weights, values, hidden)
        return mixed.transpose(2, 0, 1, 3).reshape(t, heads * head_dim)

    def convolve(
        self, x: Array, weight: Any, bias: Any | None, *, silu: bool, out_state: Array
    ) -> Array:
        _calls["convolve/numpy"] += 1
        taps = weight.reshape(x.shape[1], -1).T  # (width, channels)
        inputs = np.concatenate([out_state.astype(self.dtype), x])
        out_state[:] = inputs[len(x) :]
        mixed = sum(tap * inputs[at : at + len(x)] for at, tap in enumerate(taps))
        mixed = np.asarray(mixed if bias is None else mixed + bias, dtype=self.dtype)
        return _silu(mixed) if silu else mixed

    def delta_rule(
        self, rows: Sequence[Array], a: Any, dt: Any, *, grouped: bool, out_state: Array
    ) -> Array:
        _calls["delta_rule/numpy"] += 1
        q, k, v, alpha, beta = rows
        heads, key_dim, _ = out_state.shape
        repeats = heads // k.shape[1]
        spread = partial(np.repeat, repeats=repeats) if grouped else _tile_heads(repeats)
        root = self.dtype.type(np.sqrt(key_dim))
        q, k = spread(_of_length_one(q) / root, axis=1), spread(_of_length_one(k), axis=1)
        decay = np.exp(a * np.logaddexp(self.dtype.type(0), alpha + dt))  # (T, H)
        rate = _sigmoid(beta)  # (T, H)
        state = out_state.astype(self.dtype)
        out = np.empty_like(v)
        for t in range(len(v)):
            state *= decay[t, :, None, None]
            change = rate[t, :, None] * (v[t] - np.einsum("hij,hi->hj", state, k[t]))
            state += k[t, :, :, None] * change[:, None, :]
            out[t] = np.einsum("hij,hi->hj", state, q[t])
        out_state[:] = state
        return out

    def selective_scan(
        self, rows: Sequence[Array], vectors: Sequence[Any], *, out_state: Array
    ) -> Array:
        _calls["selective_scan/numpy"] += 1
        (x, b, c, dt), (a, bias, skip) = rows, vectors
        repeats = x.shape[1] // b.shape[1]
        b, c = (np.repeat(it, repeats, axis=1) for it in (b, c))  # (T, H, N)
        step = np.logaddexp(self.dtype.type(0), dt + bias)  # (T, H)
        decay, written = np.exp(a * step), step[:, :, None] * x
        state = out_state.astype(self.dtype)
        out = np.empty_like(x)
        for t in range(len(x)):
            state *= decay[t, :, None, None]
            state += b[t, :, :, None] * written[t, :, None, :]
            out[t] = np.einsum("hnp,hn->hp", state, c[t]) + skip[:, None] * x[t]
        out_state[:] = state
        return out

    def route(self, logits: Array, bias: Any | None, routing: Routing) -> tuple[Array, Array]:
        _calls["route/numpy"] += 1
        scores = _GATINGS[routing.gating](logits)
        choice = scores if bias is None else scores + bias
        if routing.groups > 1:
            choice = _only_best_groups(choice, routing)
        # A stable order: of equal scores the lower number is first.
        experts = np.argsort(-choice, axis=1, kind="stable")[:, : routing.used]
        weights = np.take_along_axis(scores, experts, axis=1)
        if routing.gating == "softmax_chosen":
            weights = _softmax(weights)
        if routing.renormalised:
            sums = weights.sum(axis=1, keepdims=True)
            weights = weights / np.maximum(sums, self.dtype.type(LEAST_SUM))
        return experts.astype(self.dtype), weights * self.dtype.type(routing.scale)

    def gate(self, gate: Array, up: Array, activation: Activation) -> Array:
        _calls["gate/numpy"] += 1
        if activation in _CLAMPED:
            gate, up = np.minimum(gate, _LIMIT), np.clip(up, -_LIMIT, _LIMIT)
            if activation == "swiglu_oai":
                return gate * _sigmoid(gate * self.dtype.type(1.702)) * (up + 1)
        return _ACTIVATIONS[activation](gate) * up

    def softcap(self, x: Array, cap: float) -> Array:
        limit = self.dtype.type(cap)
        return np.tanh(x / limit) * limit


def _kind(weight: Any) -> str:
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
    whole = count * rows
    out = np.empty((len(x), outputs), dtype=weight.dtype)
    pieces = np.matmul(weight[:whole].reshape(count, rows, inputs), x.T)  # (count, rows, T)
    out[:, :whole] = pieces.reshape(whole, len(x)).T
    out[:, whole:] = x @ weight[whole:].T
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


def _without_hidden(
    mixed: Array, weights: Array, values: Array, hidden: NDArray[np.bool_]
) -> Array:
    """*mixed* where a value that is not finite is seen; elsewhere, without its 0 * NaN."""
    bad = ~np.isfinite(np.abs(values).max(axis=-1))  # (KV, S)
    lost = (bad[:, None] & ~hidden).any(axis=-1)  # (KV, T)
    clean = weights @ np.where(bad[..., None], values.dtype.type(0), values)[:, None]
    return np.where(lost[:, None, :, None], mixed, clean)


def _of_length_one(x: Array) -> Array:
    squares = np.sum(x * x, axis=-1, keepdims=True)
    unit: Array = x / np.sqrt(squares + x.dtype.type(1e-6))
    return unit


def _tile_heads(repeats: int) -> Callable[..., Array]:
    """Function that repeats all heads together *repeats* times."""
    return lambda x, axis: np.concatenate([x] * repeats, axis=axis)


def _only_best_groups(scores: Array, routing: Routing) -> Array:
    """*scores*, with minus infinity outside of each token's best groups."""
    groups = scores.reshape(len(scores), routing.groups, -1)
    of_group = np.sort(groups, axis=2)[..., -2:].sum(axis=2)  # (T, groups)
    best = np.argsort(-of_group, axis=1, kind="stable")[:, : routing.groups_used]
    masked = np.full_like(groups, -np.inf)
    np.put_along_axis(
        masked, best[..., None], np.take_along_axis(groups, best[..., None], axis=1), axis=1
    )
    return masked.reshape(scores.shape)


def _softmax(x: Array) -> Array:
    weights: Array = np.exp(x - x.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _silu(x: Array) -> Array:
    # exp of a large negative x overflows to inf, and x / inf is the right 0.
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def _gelu_tanh(x: Array) -> Array:
    root = x.dtype.type(np.sqrt(2 / np.pi))
    return x * (1 + np.tanh(root * (x + x.dtype.type(0.044715) * x * x * x))) / 2


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


_GATINGS: dict[str, Callable[[Array], Array]] = {
    "softmax": _softmax,
    "softmax_chosen": lambda logits: logits,
    "sigmoid": _sigmoid,
}
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": _silu,
    "gelu_tanh": _gelu_tanh,
    "relu_squared": lambda x: np.square(np.maximum(x, 0)),
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": _sigmoid,
    "silu_clamped": _silu,
    "identity": lambda x: x,
}
_CLAMPED, _LIMIT = ("silu_clamped", "swiglu_oai"), 7

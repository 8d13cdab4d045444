"""Instructions of layers with a state of fixed size, of mixtures of experts, and of streams.

The compiled module builds them in ``native/kernels/graph/mixer_instructions.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bitnet.kernels.activations import sigmoid, silu, softmax
from bitnet.kernels.program import NAMES_WEIGHT, equal_parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bitnet.families.blocks import Routing
    from bitnet.kernels.kv_codes import Array
    from bitnet.kernels.program import Pass, Register

# Weights of experts are divided by their sum, or by this if it is larger, as in llama.cpp.
LEAST_SUM = 2.0**-14


@dataclass(frozen=True)
class Convolve:
    """*out* is a causal convolution of each column of *x*, or silu of it.

    The kernels are *weights*, ``(columns, width)``, the last number of each for the position
    itself; several tensors have those of neighbouring columns. The inputs before those of a pass
    are the first numbers of state *cache*, ``(width - 1, columns)``. An empty *bias* means no bias.
    """

    out: Register
    x: Register
    weights: tuple[str, ...] = field(metadata=NAMES_WEIGHT)
    bias: str = field(metadata=NAMES_WEIGHT)
    cache: int
    silu: bool

    def run(self, on: Pass) -> None:
        x = on.registers[self.x]
        kernels = np.concatenate([on.weights[name].reshape(-1) for name in self.weights])
        taps = kernels.reshape(x.shape[1], -1).T  # (width, columns)
        parts = []
        for rows, state in on.states_of(self.cache, (len(taps) - 1, x.shape[1]), first=True):
            count = rows.stop - rows.start
            inputs = np.concatenate([state.astype(x.dtype), x[rows]])
            state[:] = inputs[count:]
            mixed = sum(tap * inputs[at : at + count] for at, tap in enumerate(taps))
            parts.append(mixed + on.weights[self.bias] if self.bias else mixed)
        together = np.concatenate(parts, dtype=x.dtype)
        on.registers[self.out] = silu(together) if self.silu else together


@dataclass(frozen=True)
class DeltaRule:
    """*out* is what the queries *q* read from a matrix per head, to which keys *k* add values *v*.

    The matrices S are the last numbers of state *cache*, ``(heads, key_dim, value_dim)``. With q
    and k of length one, position by position::

        S = S * exp(a * softplus(alpha + dt))
        S = S + outer(k, strength * sigmoid(beta) * (v - S.T @ k))
        out = S.T @ q / sqrt(key_dim)

    *alpha* and *dt* have a number for each head, or for each row of its matrix (Kimi delta
    attention, arXiv:2510.26692). Where the logarithm of a decay has a *floor* below 0, it is
    ``floor * sigmoid(a * (alpha + dt))`` instead.

    If *grouped*, neighbouring heads share a key head; otherwise every key_heads-th head does.
    """

    out: Register
    q: Register
    k: Register
    v: Register
    alpha: Register
    beta: Register
    a: str = field(metadata=NAMES_WEIGHT)
    dt: str = field(metadata=NAMES_WEIGHT)
    cache: int
    key_heads: int
    grouped: bool
    strength: float = 1.0
    floor: float = 0.0

    def run(self, on: Pass) -> None:
        heads = self.beta.width
        key_dim = self.k.width // self.key_heads
        value_dim = self.v.width // heads
        v = on.heads(self.v, value_dim)
        q = self._for_each_head(_of_length_one(on.heads(self.q, key_dim)), heads)  # (T, H, key_dim)
        k = self._for_each_head(_of_length_one(on.heads(self.k, key_dim)), heads)
        q = q / v.dtype.type(np.sqrt(key_dim))
        decay = self._decays(on, heads).astype(v.dtype)  # (T, H, 1), or (T, H, key_dim)
        rate = v.dtype.type(self.strength) * sigmoid(on.registers[self.beta])  # (T, H)
        out = np.empty_like(v)
        for rows, state in on.states_of(self.cache, (heads, key_dim, value_dim)):
            matrices = state.astype(v.dtype)
            for t in range(rows.start, rows.stop):
                matrices *= decay[t, :, :, None]
                change = rate[t, :, None] * (v[t] - np.einsum("hij,hi->hj", matrices, k[t]))
                matrices += k[t, :, :, None] * change[:, None, :]
                out[t] = np.einsum("hij,hi->hj", matrices, q[t])
            state[:] = matrices
        on.registers[self.out] = out.reshape(-1, self.out.width)

    def _for_each_head(self, vectors: Array, heads: int) -> Array:
        """*vectors* of key heads, ``(T, key_heads, D)``, repeated for each of the *heads*."""
        repeats = heads // self.key_heads
        if self.grouped:
            return np.repeat(vectors, repeats, axis=1)
        return np.concatenate([vectors] * repeats, axis=1)

    def _decays(self, on: Pass, heads: int) -> Array:
        """Factors on the rows of the matrices, ``(T, H, 1)`` or ``(T, H, key_dim)``."""
        step = on.registers[self.alpha] + on.weights[self.dt]
        step = equal_parts(step, heads)
        a = on.weights[self.a][:, None]
        zero = step.dtype.type(0)
        if self.floor < 0:
            logarithms = step.dtype.type(self.floor) * sigmoid(a * step)
        else:
            logarithms = a * np.logaddexp(zero, step)
        decays: Array = np.exp(logarithms)
        return decays


def _of_length_one(x: Array) -> Array:
    """Vectors of *x* scaled to length one; 1e-6 is added to the squared length, as in training."""
    squares = np.sum(x * x, axis=-1, keepdims=True)
    unit: Array = x / np.sqrt(squares + x.dtype.type(1e-6))
    return unit


@dataclass(frozen=True)
class SelectiveScan:
    """*out* is what *c* reads from a state per head, to which *b* adds *x* (Mamba).

    Neighbouring heads share one of the *groups* of *b* and *c*. The states S are the last numbers
    of state *cache*, ``(heads, state_size, head_dim)``. With ``step = softplus(dt + bias)``,
    position by position::

        S = S * exp(a * step) + outer(b, step * x)
        out = S.T @ c + skip * x

    *a* has a number for each head (Mamba-2), or for each row of a head's state (Mamba-1, where *dt*
    includes the bias already).
    """

    out: Register
    x: Register
    b: Register
    c: Register
    dt: Register
    a: str = field(metadata=NAMES_WEIGHT)
    bias: str = field(metadata=NAMES_WEIGHT)
    skip: str = field(metadata=NAMES_WEIGHT)
    cache: int
    groups: int

    def run(self, on: Pass) -> None:
        heads = self.dt.width
        state_size = self.b.width // self.groups
        head_dim = self.x.width // heads
        x = on.heads(self.x, head_dim)
        b, c = (
            np.repeat(on.heads(vectors, state_size), heads // self.groups, axis=1)  # (T, H, N)
            for vectors in (self.b, self.c)
        )
        dt = on.registers[self.dt]
        if self.bias:
            dt = dt + on.weights[self.bias]
        step = np.logaddexp(x.dtype.type(0), dt)  # (T, H)
        decay = np.exp(on.weights[self.a].reshape(heads, -1) * step[:, :, None])
        written = step[:, :, None] * x
        skip = on.weights[self.skip][:, None]
        out = np.empty_like(x)
        for rows, state in on.states_of(self.cache, (heads, state_size, head_dim)):
            states = state.astype(x.dtype)
            for t in range(rows.start, rows.stop):
                states *= decay[t, :, :, None]
                states += b[t, :, :, None] * written[t, :, None, :]
                out[t] = np.einsum("hnp,hn->hp", states, c[t]) + skip * x[t]
            state[:] = states
        on.registers[self.out] = out.reshape(-1, self.out.width)


@dataclass(frozen=True)
class Route:
    """*experts* are the numbers of each token's experts, best first, and *weights* their weights.

    *bias* is added to the scores for the choice alone, not for the weights; an empty name means no
    bias.
    """

    experts: Register
    weights: Register
    logits: Register
    bias: str = field(metadata=NAMES_WEIGHT)
    routing: Routing

    def run(self, on: Pass) -> None:
        logits = on.registers[self.logits]
        bias = on.weights[self.bias] if self.bias else None
        on.registers[self.experts], on.registers[self.weights] = self.choose(logits, bias)

    def choose(self, logits: Array, bias: Array | None) -> tuple[Array, Array]:
        """Numbers of the experts of each token, best first, and their weights: ``(T, used)``."""
        rule = self.routing
        scores = _GATINGS[rule.gating](logits)
        choice = scores if bias is None else scores + bias
        if rule.groups > 1:
            groups = equal_parts(choice, rule.groups)
            # A group counts as much as its two best experts together, as in DeepSeek-V3.
            of_group = np.sort(groups, axis=2)[..., -2:].sum(axis=2)  # (T, groups)
            best = np.argsort(-of_group, axis=1, kind="stable")[:, : rule.groups_used, None]
            masked = np.full_like(groups, -np.inf)
            np.put_along_axis(masked, best, np.take_along_axis(groups, best, axis=1), axis=1)
            choice = masked.reshape(scores.shape)
        # A stable order: of equal scores the lower number is first.
        experts = np.argsort(-choice, axis=1, kind="stable")[:, : rule.used]
        weights = np.take_along_axis(scores, experts, axis=1)
        if rule.gating == "sparse":
            weights = _shares_of_near(logits, experts, rule.nearness)
        if rule.gating == "softmax_chosen":
            weights = softmax(weights)
        if rule.renormalised:
            sums = weights.sum(axis=1, keepdims=True)
            weights = weights / np.maximum(sums, logits.dtype.type(LEAST_SUM))
        return experts.astype(logits.dtype), weights * logits.dtype.type(rule.scale)


@dataclass(frozen=True)
class Enumerate:
    """*experts* are the numbers of all experts, 0 first, for matrices that every token uses."""

    experts: Register

    def run(self, on: Pass) -> None:
        rows = sum(map(len, on.positions()))
        used = self.experts.width
        on.registers[self.experts] = np.tile(np.arange(used, dtype=np.float32), (rows, 1))


@dataclass(frozen=True)
class ExpertLinear:
    """``outs[i]`` = products of *x* with the matrices ``weights[i]`` of each token's *experts*.

    A row of *outs* has the products of all experts of a token, one after the other. If the inputs
    are *apart*, a row of *x* has an input for each expert in the same way; otherwise it is the
    input of all of them. An empty name means no bias.
    """

    outs: tuple[Register, ...]
    x: Register
    experts: Register
    weights: tuple[str, ...] = field(metadata=NAMES_WEIGHT)
    biases: tuple[str, ...] = field(metadata=NAMES_WEIGHT)
    apart: bool = False

    def run(self, on: Pass) -> None:
        x = on.registers[self.x]
        n_used = self.experts.width
        experts = on.registers[self.experts].astype(np.intp).reshape(-1)  # (T * n_used,)
        parts = x.reshape(-1, x.shape[1] // n_used) if self.apart else np.repeat(x, n_used, axis=0)
        for out, weight, bias in zip(self.outs, self.weights, self.biases, strict=True):
            matrices = on.weights[weight]
            rows = out.width // n_used
            biases = (
                on.weights[bias].reshape(len(matrices), rows) if bias else [None] * len(matrices)
            )
            y = np.empty((len(experts), rows), dtype=x.dtype)
            for expert in np.unique(experts):
                uses = experts == expert
                y[uses] = on.ops.linear(parts[uses], matrices[expert], biases[expert])
            on.registers[out] = y.reshape(len(x), out.width)


@dataclass(frozen=True)
class Combine:
    """*out* is the sum of the parts of *x*, each times its weight, added from first to last.

    Each of the *weights* belongs to one part of a row. A *bias* is added at the end.
    """

    out: Register
    x: Register
    weights: Register
    bias: str = field(default="", metadata=NAMES_WEIGHT)

    def run(self, on: Pass) -> None:
        x = on.registers[self.x]
        weights = on.registers[self.weights]
        parts = x.reshape(len(x), self.weights.width, self.out.width)
        total = parts[:, 0] * weights[:, :1]
        for part in range(1, self.weights.width):
            total = total + parts[:, part] * weights[:, part : part + 1]
        if self.bias:
            total = total + on.weights[self.bias]
        on.registers[self.out] = total


@dataclass(frozen=True)
class Blend:
    """``out = x_share * x + y_share * y``."""

    out: Register
    x: Register
    y: Register
    x_share: float
    y_share: float

    def run(self, on: Pass) -> None:
        x = on.registers[self.x]
        y = on.registers[self.y]
        number = x.dtype.type
        on.registers[self.out] = x * number(self.x_share) + y * number(self.y_share)


@dataclass(frozen=True)
class MatchMagnitude:
    """*out* is *x*, scaled to the root mean square of *like*.

    The mean square of *x* is taken to be at least *eps*. *out* is not the register of *like*.
    """

    out: Register
    x: Register
    like: Register
    eps: float

    def run(self, on: Pass) -> None:
        x = on.registers[self.x]
        target = _mean_square(on.registers[self.like])
        own = np.maximum(_mean_square(x), self.eps)
        on.registers[self.out] = x * (np.sqrt(target) / np.sqrt(own)).astype(x.dtype)


@dataclass(frozen=True)
class Cutoff:
    """``out = max(x - (mean(x) + deviations * std(x)), 0)``."""

    out: Register
    x: Register
    deviations: float

    def run(self, on: Pass) -> None:
        x = on.registers[self.x]
        mean = x.mean(axis=-1, keepdims=True, dtype=np.float64)
        deviation = np.sqrt(_mean_square(x.astype(np.float64) - mean))
        threshold = (mean + deviation * self.deviations).astype(x.dtype)
        on.registers[self.out] = np.maximum(x - threshold, x.dtype.type(0))


def _mean_square(x: Array) -> NDArray[np.float64]:
    """Mean of the squares of each row of *x*, ``(T, 1)``."""
    squares = np.square(x.astype(np.float64))
    mean: NDArray[np.float64] = squares.mean(axis=-1, keepdims=True)
    return mean


#: As :data:`bitnet.kernels.instructions.WHOLE`, for the instructions of this module.
WHOLE_IN_MIXERS = (Convolve, DeltaRule, ExpertLinear, SelectiveScan)


def _shares_of_near(logits: Array, experts: NDArray[np.intp], nearness: float) -> Array:
    """Weights of *experts*, best first: each is a softmax over *logits* of experts not chosen yet.

    Only logits near the best one count: their distance, divided by the larger of the best logit and
    their own magnitude, is at most *nearness* (SparseMixer, arXiv:2409.12136).
    """
    remaining = logits.copy()
    weights = np.empty(experts.shape, dtype=logits.dtype)
    for column, next_experts in enumerate(experts.T):
        best = np.take_along_axis(logits, next_experts[:, None], axis=1)  # (T, 1)
        size = np.maximum(np.abs(logits), best)
        with np.errstate(divide="ignore", invalid="ignore"):
            is_far = (best - remaining) / size > nearness
        shares = np.exp(remaining - best)
        weights[:, column] = 1 / np.where(is_far, 0, shares).sum(axis=1)
        np.put_along_axis(remaining, next_experts[:, None], -np.inf, axis=1)
    return weights


def _logits_alone(logits: Array) -> Array:
    """*logits* as scores; these gatings compute weights from those of the chosen experts."""
    return logits


_GATINGS = {
    "softmax": softmax,
    "softmax_chosen": _logits_alone,
    "sigmoid": sigmoid,
    "sparse": _logits_alone,
}

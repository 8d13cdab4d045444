"""Instructions of layers with a state of fixed size, and of mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bitnet.families.mixers import Routing
    from bitnet.kernels.ops import Pass
    from bitnet.kernels.program import Register


@dataclass(frozen=True)
class Convolve:
    """*out* is a causal convolution of each column of *x*, or silu of it.

    The inputs before those of a pass are the first numbers of state *cache*. An empty *bias* means
    that there is none.
    """

    out: Register
    x: Register
    weight: str
    bias: str
    cache: int
    silu: bool

    def run(self, on: Pass) -> None:
        x, weight = on.registers[self.x], on.weights[self.weight]
        before = (weight.size // x.shape[1] - 1, x.shape[1])
        bias = on.weights[self.bias] if self.bias else None
        parts = [
            on.ops.convolve(x[rows], weight, bias, silu=self.silu, out_state=state)
            for rows, state in on.states(self.cache, before, first=True)
        ]
        on.registers[self.out] = np.concatenate(parts)


@dataclass(frozen=True)
class DeltaRule:
    """*out* is what the queries *q* read from a matrix per head, into which keys write values.

    The matrices are the last numbers of state *cache*; ``Ops.delta_rule`` has the equations.
    """

    out: Register
    q: Register
    k: Register
    v: Register
    alpha: Register
    beta: Register
    a: str
    dt: str
    cache: int
    key_heads: int
    grouped: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the matrices, ``(heads, key_dim, value_dim)``."""
        heads = self.alpha.width
        return heads, self.k.width // self.key_heads, self.v.width // heads

    def run(self, on: Pass) -> None:
        _, key_dim, value_dim = self.shape
        heads = (self.q, key_dim), (self.k, key_dim), (self.v, value_dim)
        rows = [on.heads(*it) for it in heads]
        rows += [on.registers[self.alpha], on.registers[self.beta]]
        a, dt = on.weights[self.a], on.weights[self.dt]
        parts = [
            on.ops.delta_rule([x[its] for x in rows], a, dt, grouped=self.grouped, out_state=state)
            for its, state in on.states(self.cache, self.shape)
        ]
        on.registers[self.out] = np.concatenate(parts).reshape(-1, self.out.width)


@dataclass(frozen=True)
class SelectiveScan:
    """*out* is what *c* reads from a state per head, into which *b* writes *x*.

    The states are the last numbers of state *cache*; ``Ops.selective_scan`` has the equations.
    """

    out: Register
    x: Register
    b: Register
    c: Register
    dt: Register
    a: str
    bias: str
    skip: str
    cache: int
    groups: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the states, ``(heads, state_size, head_dim)``."""
        heads = self.dt.width
        return heads, self.b.width // self.groups, self.x.width // heads

    def run(self, on: Pass) -> None:
        _, state_size, head_dim = self.shape
        heads = (self.x, head_dim), (self.b, state_size), (self.c, state_size)
        rows = [*(on.heads(*it) for it in heads), on.registers[self.dt]]
        vectors = [on.weights[name] for name in (self.a, self.bias, self.skip)]
        parts = [
            on.ops.selective_scan([x[its] for x in rows], vectors, out_state=state)
            for its, state in on.states(self.cache, self.shape)
        ]
        on.registers[self.out] = np.concatenate(parts).reshape(-1, self.out.width)


@dataclass(frozen=True)
class Route:
    """*experts* are the numbers of each token's experts, best first, and *weights* their weights.

    An empty name means that no *bias* corrects the choice.
    """

    experts: Register
    weights: Register
    logits: Register
    bias: str
    routing: Routing

    def run(self, on: Pass) -> None:
        logits, bias = on.registers[self.logits], on.weights[self.bias] if self.bias else None
        chosen, weights = on.ops.route(logits, bias, self.routing)
        on.registers[self.experts], on.registers[self.weights] = chosen, weights


@dataclass(frozen=True)
class Enumerate:
    """*experts* are the numbers of all experts, 0 first, for matrices that every token uses."""

    experts: Register

    def run(self, on: Pass) -> None:
        rows, used = sum(1 for _ in on.positions()), self.experts.width
        on.registers[self.experts] = np.tile(np.arange(used, dtype=np.float32), (rows, 1))


@dataclass(frozen=True)
class ExpertLinear:
    """``outs[i]`` = products of *x* with the matrices ``weights[i]`` of each token's *experts*.

    The products of a token follow each other, and so do the parts of *x* if they are *apart*, each
    for one expert; otherwise *x* is the input of all. An empty name means no bias.
    """

    outs: tuple[Register, ...]
    x: Register
    experts: Register
    weights: tuple[str, ...]
    biases: tuple[str, ...]
    apart: bool = False

    def run(self, on: Pass) -> None:
        x, used = on.registers[self.x], self.experts.width
        chosen = on.registers[self.experts].astype(np.intp).reshape(-1)  # (T * used,)
        parts = x.reshape(-1, x.shape[1] // used) if self.apart else np.repeat(x, used, axis=0)
        for out, weight, bias in zip(self.outs, self.weights, self.biases, strict=True):
            matrices, rows = on.weights[weight], out.width // used
            biases = (
                on.weights[bias].reshape(len(matrices), rows) if bias else [None] * len(matrices)
            )
            y = np.empty((len(chosen), rows), dtype=x.dtype)
            for expert in np.unique(chosen):
                at = chosen == expert
                y[at] = on.ops.linear(parts[at], matrices[expert], biases[expert])
            on.registers[out] = y.reshape(len(x), out.width)


@dataclass(frozen=True)
class Combine:
    """*out* is the sum of the parts of *x*, each times its of the *weights*, first to last."""

    out: Register
    x: Register
    weights: Register

    def run(self, on: Pass) -> None:
        x, weights = on.registers[self.x], on.registers[self.weights]
        parts = x.reshape(len(x), self.weights.width, self.out.width)
        total = parts[:, 0] * weights[:, :1]
        for part in range(1, self.weights.width):
            total = total + parts[:, part] * weights[:, part : part + 1]
        on.registers[self.out] = total

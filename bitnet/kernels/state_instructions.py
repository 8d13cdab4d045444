"""The instructions of layers whose state has a fixed size; ``instructions.py`` has the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bitnet.kernels.program import Register
    from bitnet.kernels.targets import Graph, Pass

__all__ = ["Convolve", "DeltaRule", "SelectiveScan"]


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
        parts = []
        for rows, cache in on.rows():
            state = cache.state(self.cache)[: math.prod(before)].reshape(before)
            parts.append(on.ops.convolve(x[rows], weight, bias, silu=self.silu, out_state=state))
        on.registers[self.out] = np.concatenate(parts)

    def compile(self, to: Graph) -> None:
        start = to.states[self.cache].start
        bias = to.weights[self.bias] if self.bias else None
        weight = to.weights[self.weight]
        to.native.convolve(to[self.out], to[self.x], weight, bias, self.silu, start)


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
        heads, key_dim, value_dim = self.shape
        q, k = on.heads(self.q, key_dim), on.heads(self.k, key_dim)
        v = on.heads(self.v, value_dim)
        alpha, beta = on.registers[self.alpha], on.registers[self.beta]
        parts = []
        for rows, cache in on.rows():
            state = cache.state(self.cache)[-math.prod(self.shape) :].reshape(self.shape)
            mixed = on.ops.delta_rule(
                q[rows],
                k[rows],
                v[rows],
                alpha[rows],
                beta[rows],
                on.weights[self.a],
                on.weights[self.dt],
                grouped=self.grouped,
                out_state=state,
            )
            parts.append(mixed.reshape(-1, heads * value_dim))
        on.registers[self.out] = np.concatenate(parts)

    def compile(self, to: Graph) -> None:
        to.native.delta(
            *(to[it] for it in (self.out, self.q, self.k, self.v, self.alpha, self.beta)),
            to.weights[self.a],
            to.weights[self.dt],
            self.key_heads,
            self.grouped,
            to.states[self.cache].stop - math.prod(self.shape),
        )


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
        x, dt = on.heads(self.x, head_dim), on.registers[self.dt]
        b, c = on.heads(self.b, state_size), on.heads(self.c, state_size)
        vectors = [on.weights[name] for name in (self.a, self.bias, self.skip)]
        parts = []
        for rows, cache in on.rows():
            state = cache.state(self.cache)[-math.prod(self.shape) :].reshape(self.shape)
            read = on.ops.selective_scan(
                x[rows], b[rows], c[rows], dt[rows], *vectors, out_state=state
            )
            parts.append(read.reshape(-1, self.x.width))
        on.registers[self.out] = np.concatenate(parts)

    def compile(self, to: Graph) -> None:
        to.native.scan(
            *(to[it] for it in (self.out, self.x, self.b, self.c, self.dt)),
            *(to.weights[name] for name in (self.a, self.bias, self.skip)),
            self.groups,
            to.states[self.cache].stop - math.prod(self.shape),
        )

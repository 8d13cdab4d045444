"""The instructions of a mixture of experts: choose experts, multiply by them, add their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np

from bitnet.families.networks import Gating

if TYPE_CHECKING:
    from bitnet.families.networks import Routing
    from bitnet.kernels.program import Register
    from bitnet.kernels.targets import Graph, Pass

__all__ = ["GATINGS", "Combine", "Enumerate", "ExpertLinear", "Route"]

#: Numbers of the gatings in the compiled module.
GATINGS: dict[Gating, int] = {name: number for number, name in enumerate(get_args(Gating))}


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
        found = on.ops.route(logits, bias, self.routing)
        on.registers[self.experts], on.registers[self.weights] = found

    def compile(self, to: Graph) -> None:
        its = self.routing
        to.native.route(
            to[self.experts],
            to[self.weights],
            to[self.logits],
            to.weights[self.bias] if self.bias else None,
            GATINGS[its.gating],
            its.groups,
            its.groups_used,
            its.renormalised,
            its.scale,
        )


@dataclass(frozen=True)
class Enumerate:
    """*experts* are the numbers of all experts, 0 first, for matrices that every token uses."""

    experts: Register

    def run(self, on: Pass) -> None:
        rows, used = sum(1 for _ in on.positions()), self.experts.width
        on.registers[self.experts] = np.tile(np.arange(used, dtype=np.float32), (rows, 1))

    def compile(self, to: Graph) -> None:
        to.native.enumerate(to[self.experts])


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

    def compile(self, to: Graph) -> None:
        to.native.expert_linear(
            to[self.x],
            to[self.experts],
            [to[out] for out in self.outs],
            [to.weights[weight] for weight in self.weights],
            [to.weights[bias] if bias else None for bias in self.biases],
            self.apart,
        )


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

    def compile(self, to: Graph) -> None:
        to.native.combine(to[self.out], to[self.x], to[self.weights])

"""Interpreter of programs: runs each instruction with the operations of a backend."""

from __future__ import annotations

from functools import singledispatchmethod
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.kernels.program import (
    Add,
    Attend,
    Embed,
    Gate,
    Linear,
    Mark,
    Norm,
    Rotate,
    Select,
    Split,
    Temper,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bitnet.kernels.ops import Ops, Prepared
    from bitnet.kernels.program import Array, Program, Rotation, Segment

__all__ = ["Interpreter"]


class Interpreter:
    """Runs a program one operation at a time. This is the definition of what a program means."""

    def __init__(self, program: Program, weights: Mapping[str, Prepared], ops: Ops) -> None:
        self.program = program
        self._weights = weights
        self._ops = ops

    def run(self, segments: Sequence[Segment]) -> Array:
        """The wanted rows of all *segments*, ``(R, width)``; their caches are advanced."""
        run = _Run(self.program, self._weights, self._ops, segments)
        for instruction in self.program.instructions:
            run.execute(instruction)
        return run.finish()

    def trace(self, segments: Sequence[Segment]) -> Iterator[tuple[str, Array]]:
        """As :meth:`run`, with the name and the value of every mark that is passed."""
        run = _Run(self.program, self._weights, self._ops, segments)
        for instruction in self.program.instructions:
            if isinstance(instruction, Mark):
                yield instruction.name, run.registers[instruction.register]
            run.execute(instruction)
        run.finish()


class _Run:
    """One pass: what the registers hold."""

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Prepared],
        ops: Ops,
        segments: Sequence[Segment],
    ) -> None:
        self.program = program
        self.weights = weights
        self.ops = ops
        self.segments = segments
        self.registers: dict[str, Array] = {}
        self._angles: dict[int, tuple[Array, float]] = {}

    def finish(self) -> Array:
        for segment in self.segments:
            segment.cache.advance(len(segment.tokens))
        return self.registers[self.program.result]

    @singledispatchmethod
    def execute(self, instruction: Any) -> None:
        raise AssertionError(f"{instruction!r} is not an instruction")

    @execute.register
    def _(self, it: Embed) -> None:
        tokens = [token for segment in self.segments for token in segment.tokens]
        rows = self.ops.embed(self.weights[it.table], tokens)
        self.registers[it.out] = rows if it.scale == 1.0 else rows * rows.dtype.type(it.scale)

    @execute.register
    def _(self, it: Norm) -> None:
        x, weight = self.registers[it.x], self.weights[it.weight]
        groups = x.reshape(-1, len(weight))
        self.registers[it.out] = self.ops.rms_norm(groups, weight, self.program.eps).reshape(
            x.shape
        )

    @execute.register
    def _(self, it: Linear) -> None:
        x = self.registers[it.x]
        for out, weight, bias in zip(it.outs, it.weights, it.biases, strict=True):
            self.registers[out] = self.ops.linear(
                x, self.weights[weight], self.weights[bias] if bias else None
            )

    @execute.register
    def _(self, it: Split) -> None:
        at = 0
        for out in it.outs:
            width = self.program.widths[out]
            self.registers[out] = self.registers[it.x][:, at : at + width]
            at += width

    @execute.register
    def _(self, it: Rotate) -> None:
        x = self.registers[it.x]
        angles, scale = self._turns(it.rotation)
        heads = x.reshape(len(x), -1, self.program.head_dim)
        turned = self.ops.rope(heads, angles, style=it.rotation.style, scale=scale)
        self.registers[it.x] = turned.reshape(x.shape)

    @execute.register
    def _(self, it: Temper) -> None:
        x = self.registers[it.x]
        factors = [it.factor(position) for position in self._positions()]
        self.registers[it.x] = x * np.array(factors, dtype=x.dtype)[:, None]

    @execute.register
    def _(self, it: Attend) -> None:
        q, k, v = (
            self.registers[name].reshape(len(self.registers[name]), -1, self.program.head_dim)
            for name in (it.q, it.k, it.v)
        )
        mixed, at = [], 0
        for segment in self.segments:
            rows = slice(at, at + len(segment.tokens))
            at = rows.stop
            keys, values = segment.cache.append(it.layer, k[rows], v[rows])  # (KV, S, D)
            mixed.append(
                self.ops.attention(
                    q[rows],
                    keys,
                    values,
                    scale=it.scale,
                    window=it.window,
                    softcap=it.softcap,
                    causal=it.causal,
                )
            )
        self.registers[it.out] = np.concatenate(mixed)

    @execute.register
    def _(self, it: Gate) -> None:
        gate, up = self.registers[it.gate], self.registers[it.up]
        self.registers[it.out] = self.ops.gate(gate, up, it.activation)

    @execute.register
    def _(self, it: Add) -> None:
        self.registers[it.x] = self.registers[it.x] + self.registers[it.y]

    @execute.register
    def _(self, it: Select) -> None:
        rows: list[int] = []
        at = 0
        for segment in self.segments:
            at += len(segment.tokens)
            rows.extend(range(at - segment.rows, at))
        for name in it.registers:
            self.registers[name] = self.registers[name][rows]

    @execute.register
    def _(self, it: Mark) -> None:
        pass

    def _positions(self) -> Iterator[int]:
        """The position of every row."""
        for segment in self.segments:
            start = segment.cache.length
            yield from range(start, start + len(segment.tokens))

    def _turns(self, rotation: Rotation) -> tuple[Array, float]:
        """Angles of every row, ``(T, pairs)``, and the factor; the same array within a pass."""
        known = self._angles.get(id(rotation))
        if known is None:
            parts = []
            for segment in self.segments:
                start, reach = segment.cache.length, segment.cache.reach
                positions = range(start, start + len(segment.tokens))
                by_regime = groupby(positions, lambda at, r=reach: rotation.regime(max(r, at + 1)))  # type: ignore[misc]
                for _, group in by_regime:
                    rows = np.array(list(group), dtype=np.float64)
                    frequencies, scale = rotation.frequencies(max(reach, int(rows[-1]) + 1))
                    parts.append(rows[:, None] * frequencies)
            known = self._angles[id(rotation)] = (np.concatenate(parts), scale)
        return known

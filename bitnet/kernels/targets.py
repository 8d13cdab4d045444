"""Targets of instructions: a pass of any backend, and a graph of the compiled module."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bitnet.kernels.kv_cache import KVCache
    from bitnet.kernels.ops import Ops, Prepared
    from bitnet.kernels.program import Array, Program, Register, Rotation, Segment

__all__ = ["Graph", "Pass"]


class Pass:
    """One run of a program over *segments*.

    Attributes:
        registers: their values, ``(T, width)`` each.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Prepared],
        ops: Ops,
        segments: Sequence[Segment],
    ) -> None:
        """A run whose registers are empty."""
        self.program = program
        self.weights = weights
        self.ops = ops
        self.segments = segments
        self.registers: dict[Register, Array] = {}
        self._angles: dict[int, tuple[Array, float]] = {}
        self._selected = False
        for segment in segments:
            segment.cache.begin()

    def finish(self) -> Array:
        """The result; the caches now hold the segments' tokens."""
        for segment in self.segments:
            segment.cache.advance(len(segment.tokens))
        return self.registers[self.program.result]

    def select(self) -> list[int]:
        """Numbers of the requested rows, which are all rows from now on."""
        requested: list[int] = []
        at = 0
        for segment in self.segments:
            at += len(segment.tokens)
            requested.extend(range(at - segment.rows, at))
        self._selected = True
        self._angles = {}
        return requested

    def positions(self) -> Iterator[int]:
        """The position of every row."""
        for segment in self.segments:
            yield from self._positions(segment)

    def _positions(self, segment: Segment) -> range:
        stop = segment.cache.length + len(segment.tokens)
        return range(stop - self._count(segment), stop)

    def _count(self, segment: Segment) -> int:
        """Number of rows of *segment*."""
        return segment.rows if self._selected else len(segment.tokens)

    def heads(self, register: Register, head_dim: int) -> Array:
        """Value of *register* head by head, ``(T, heads, head_dim)``."""
        x = self.registers[register]
        return x.reshape(len(x), -1, head_dim)

    def rows(self) -> Iterator[tuple[slice, KVCache]]:
        """Rows of each segment, and its cache."""
        end = 0
        for segment in self.segments:
            end += self._count(segment)
            yield slice(end - self._count(segment), end), segment.cache

    def angles(self, rotation: Rotation) -> tuple[Array, float]:
        """Angles of every row, ``(T, pairs)``, and the factor; the same array within a pass."""
        angles = self._angles.get(id(rotation))
        if angles is None:
            parts = [np.empty((0, len(rotation.frequencies(1)[0])))]
            scale = rotation.frequencies(1)[1]
            for segment in self.segments:
                positions, reach = self._positions(segment), segment.cache.reach
                by_regime = groupby(positions, lambda at, r=reach: rotation.regime(max(r, at + 1)))  # type: ignore[misc]
                for _, group in by_regime:
                    rows = np.array(list(group), dtype=np.float64)
                    frequencies, scale = rotation.frequencies(max(reach, int(rows[-1]) + 1))
                    parts.append(rows[:, None] * frequencies)
            angles = self._angles[id(rotation)] = (np.concatenate(parts), scale)
        return angles


@dataclass(frozen=True)
class Graph:
    """A graph of the compiled module that is being built.

    Attributes:
        native: the module's ``Graph``.
        weights: by name, as the module takes them.
        rotations: their numbers.
        places: number of the table of pages of each cache, and its place there.
        states: numbers of each state in that of a sequence.
        numbers: of the registers so far.
        names: numbers of their places in memory.
    """

    native: Any
    weights: Mapping[str, Prepared]
    rotations: Mapping[Rotation, int]
    places: Mapping[int, tuple[int, int]]
    states: Mapping[int, range]
    numbers: dict[Register, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, register: Register) -> int:
        """Number of *register*."""
        if register not in self.numbers:
            place = self.names.setdefault(register.name, len(self.names))
            self.numbers[register] = self.native.add_register(register.width, place)
        return self.numbers[register]

"""A model's forward pass as data: instructions over named registers.

A register holds float rows, one per token of the batch: ``(T, width)``. Weights are named; the
tokens of all segments of a batch follow each other. :class:`Interpreter` says what each instruction
means, with the operations of any backend; a backend may compile the list instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import RopeStyle
    from bitnet.kernels.ops import Activation, Array, Ops, Prepared

__all__ = [
    "Add",
    "Attend",
    "Cache",
    "Embed",
    "Gate",
    "Instruction",
    "Interpreter",
    "Linear",
    "Mark",
    "Norm",
    "Program",
    "Rotate",
    "Rotation",
    "Segment",
    "Select",
    "Split",
]


class Cache(Protocol):
    """Keys and values of the positions seen so far; ``runtime.kv_cache`` has the real one.

    Attributes:
        length: positions stored.
        capacity: positions there is room for.
    """

    length: int
    capacity: int

    def append(self, layer: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Store ``(T, kv_heads, D)`` behind the positions of *layer*; all ``(kv_heads, S, D)``."""

    def pages(self, count: int) -> NDArray[np.uint64] | None:
        """Addresses of its pages, room for *count* more positions made, for the compiled module.

        ``None`` where its numbers are not the float16 of ``kernels/native/kernels.hpp``.
        """

    def advance(self, count: int) -> None:
        """Count *count* positions that every layer has appended."""


class Rotation(Protocol):
    """A rotary position embedding; ``models.rope`` has the real one."""

    @property
    def style(self) -> RopeStyle:
        """Which elements form a pair."""

    def frequencies(self, context: int) -> tuple[NDArray[np.float64], float]:
        """Angle per position of each pair, and the factor on what is rotated."""


@dataclass(frozen=True)
class Segment:
    """What one sequence of a batch runs.

    Attributes:
        tokens: ids that continue what *cache* holds.
        cache: of this sequence; no two segments of a batch share one.
        wanted: after which of *tokens* a result is needed.
    """

    tokens: Sequence[int]
    cache: Cache
    wanted: Literal["none", "last", "all"] = "last"

    @property
    def rows(self) -> int:
        """Results it wants."""
        return {"none": 0, "last": 1, "all": len(self.tokens)}[self.wanted]


@dataclass(frozen=True)
class Embed:
    """``out = table[tokens] * scale``."""

    out: str
    table: str
    scale: float


@dataclass(frozen=True)
class Norm:
    """``out`` = RMS norm of *x* in groups as wide as the *weight*; they may be one register."""

    out: str
    x: str
    weight: str


@dataclass(frozen=True)
class Linear:
    """``outs[i] = x @ weights[i].T + biases[i]``; an empty name is no bias."""

    outs: tuple[str, ...]
    x: str
    weights: tuple[str, ...]
    biases: tuple[str, ...]


@dataclass(frozen=True)
class Split:
    """*outs* are neighbouring columns of *x*."""

    outs: tuple[str, ...]
    x: str


@dataclass(frozen=True)
class Rotate:
    """Each head of *x* is rotated by its position."""

    x: str
    rotation: Rotation


@dataclass(frozen=True)
class Attend:
    """*k* and *v* go into the caches of *layer*; *out* is what the queries *q* see there."""

    out: str
    q: str
    k: str
    v: str
    layer: int
    scale: float
    window: int
    softcap: float


@dataclass(frozen=True)
class Gate:
    """``out = activation(gate) * up``; *out* is neither of them."""

    out: str
    gate: str
    up: str
    activation: Activation


@dataclass(frozen=True)
class Add:
    """``x += y``."""

    x: str
    y: str


@dataclass(frozen=True)
class Select:
    """Of *registers* only the rows that are wanted stay."""

    registers: tuple[str, ...]


@dataclass(frozen=True)
class Mark:
    """*register* holds what a trace calls *name*."""

    name: str
    register: str


Instruction: TypeAlias = (
    Embed | Norm | Linear | Split | Rotate | Attend | Gate | Add | Select | Mark
)


@dataclass(frozen=True)
class Program:
    """A forward pass.

    Attributes:
        instructions: in order.
        widths: of every register.
        head_dim: width of a head.
        eps: of every norm.
        result: the register that holds the result, one row per wanted token.
    """

    instructions: tuple[Instruction, ...]
    widths: Mapping[str, int]
    head_dim: int
    eps: float
    result: str


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
        raise AssertionError(f"{instruction!r} is no instruction")

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

    def _turns(self, rotation: Rotation) -> tuple[Array, float]:
        """Angles of every row, ``(T, pairs)``, and the factor; the same array within a pass."""
        known = self._angles.get(id(rotation))
        if known is None:
            parts = []
            for segment in self.segments:
                frequencies, scale = rotation.frequencies(segment.cache.capacity)
                start = segment.cache.length
                positions = np.arange(start, start + len(segment.tokens), dtype=np.float64)
                parts.append(positions[:, None] * frequencies)
            known = self._angles[id(rotation)] = (np.concatenate(parts), scale)
        return known

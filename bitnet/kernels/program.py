"""A model's forward pass as data, instructions over named registers, and its run on a backend.

A register holds float rows, one per token of the batch: ``(T, width)``. Weights are named; the
tokens of all segments of a batch follow each other. ``instructions.py`` and
``mixer_instructions.py`` define what each instruction means, in NumPy; a backend multiplies
weights, in its own form, and may compile the list instead.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from bitnet.kernels.kv_cache import begin_together

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bitnet.families.blocks import CacheKind
    from bitnet.families.rope import Rope
    from bitnet.kernels.kv_cache import KVCache
    from bitnet.kernels.kv_codes import Array
    from bitnet.quants.weight import Weight


#: Kernel that the compiled module runs for an instruction of one step, by the name of its class;
#: counters use these names. Products and embeddings are calls of the backend instead.
KERNELS = {
    "Attend": "attention",
    "Convolve": "convolve",
    "Cutoff": "gate",
    "DeltaRule": "delta_rule",
    "Gate": "gate",
    "Norm": "rms_norm",
    "MatchMagnitude": "rms_norm",
    "Rotate": "rope",
    "Route": "route",
    "SelectiveScan": "selective_scan",
    "Xielu": "gate",
}

#: Metadata of a field of an instruction that names a weight, or several; ``""`` names none.
NAMES_WEIGHT = {"names_weight": True}

Prepared: TypeAlias = Any  # a weight in the form its backend wants; only that backend looks inside


@dataclass(frozen=True)
class Segment:
    """Tokens of one sequence in a batch."""

    tokens: Sequence[int]  # ids that continue what *cache* holds
    cache: KVCache  # of this sequence; no two segments of a batch share one
    outputs: Literal["none", "last", "all"] = "last"  # the tokens whose hidden states are returned
    # hidden state of the token before each of *tokens*, ``(T, dim)``, for programs with ``Take``
    hidden: Array | None = None
    # position from which on the tokens are those of a second text; ``None``: there is one text
    second: int | None = None

    @property
    def rows(self) -> int:
        """Number of hidden states that are returned."""
        return {"none": 0, "last": 1, "all": len(self.tokens)}[self.outputs]

    def text_of(self, position: int) -> int:
        """Number of the text that the token at *position* is part of: 0 or 1."""
        return int(self.second is not None and position >= self.second)


class Instruction(Protocol):
    """A step of a program, a dataclass of ``instructions.py`` or ``mixer_instructions.py``."""

    def run(self, on: Pass) -> None:
        """Compute it in NumPy, with the products of the pass's backend: this is its definition."""


class Register(NamedTuple):
    """Rows of a pass, one per token."""

    # Registers of one name share memory: only one of them is in use at a time.
    name: str
    width: int  # numbers in a row


def equal_parts(x: Array, count: int) -> Array:
    """*x*, ``(T, width)``, as *count* equal parts of each row, ``(T, count, width / count)``.

    T may be 0, for which NumPy cannot find a size of -1.
    """
    return x.reshape(len(x), count, x.shape[1] // count)


@functools.cache
def weight_fields(instruction: type) -> frozenset[str]:
    """Fields of the class *instruction* that name weights."""
    return frozenset(each.name for each in fields(instruction) if "names_weight" in each.metadata)


def registers_in(instruction: Instruction, *, besides: Collection[str] = ()) -> list[Register]:
    """Different registers in the fields of *instruction*, without those in the fields *besides*."""
    registers: dict[Register, None] = {}
    for name, value in vars(instruction).items():
        if name in besides:
            continue
        if isinstance(value, Register):
            registers[value] = None
        elif type(value) is tuple:
            registers |= dict.fromkeys(part for part in value if isinstance(part, Register))
    return list(registers)


@dataclass(frozen=True)
class Program:
    """A forward pass."""

    instructions: tuple[Instruction, ...]  # in order
    caches: tuple[CacheKind, ...]  # kinds of the caches, which instructions name by their index
    result: Register  # the register that holds the result, one row per token of the outputs


@dataclass(frozen=True)
class Mark:
    """*register* holds what a trace calls *name*."""

    name: str
    register: Register

    def run(self, on: Pass) -> None:
        """Do nothing: only traces stop here."""


class Ops(ABC):
    """A backend: products of weights, in the form that it prefers, and all other instructions."""

    name: str  # what ``--version`` and reports call it

    def expect(self, weights: Collection[Weight]) -> None:  # noqa: B027 - most have nothing to choose
        """Choose how to prepare *weights*, all of a model, before the first one is prepared."""

    @abstractmethod
    def prepare(self, weight: Weight, *, looked_up: bool = False, expert: bool = False) -> Prepared:
        """Prepare *weight* once, in the layout that the other operations expect.

        It is *looked_up* if it is read mostly by single rows, as by :meth:`embed`, and an *expert*
        if it belongs to a mixture, of which a token reads few matrices.
        """

    def reads(self, prepared: Prepared) -> list[NDArray[np.uint8]]:  # noqa: ARG002
        """Arrays of bytes that operations on *prepared* read: parts of mapped files, or copies.

        Decoded numbers, such as floats, are not among them.
        """
        return []

    def compile(
        self, program: Program, weights: Mapping[str, Prepared]
    ) -> Callable[[Sequence[Segment]], Array]:
        """*program* over *weights* as a function from a batch to the rows of its outputs.

        A backend may run it in any way that gives the bits of its own instructions one by one.
        """
        return Interpreter(program, weights, self).run

    @abstractmethod
    def run(self, instruction: Instruction, on: Pass) -> None:
        """Run *instruction*; results are close to those of its own ``run`` in float64."""

    @abstractmethod
    def counters(self) -> Mapping[str, int]:
        """Number of calls of each kernel since the process began, counted in the kernel.

        Names are ``operation/instruction set``, with the encoding in between where there is one.
        """

    @abstractmethod
    def embed(self, table: Prepared, tokens: Sequence[int]) -> Array:
        """Rows *tokens* of the ``(vocabulary, dim)`` *table*: ``(T, dim)``."""

    @abstractmethod
    def linear(self, x: Array, weight: Prepared, bias: Prepared | None = None) -> Array:
        """``x @ weight.T + bias``: ``(T, inputs)`` to ``(T, outputs)``.

        Ternary weights of a BitNet (``rounds_input``) round *x* to int8 per token first (W1.58A8):
        with ``s = 127 / max(|x|, 1e-5)`` and ``q = clip(round_half_even(x * s), -128, 127)`` the
        result is ``sum(code * q) / s * scale``, whichever encoding holds them;
        where blocks of a row have scales of their own, their integer sums are scaled and added in
        float64, first to last, before the division. Backends agree bit for bit.
        """

    @abstractmethod
    def softcap(self, x: Array, cap: float) -> Array:
        """``cap * tanh(x / cap)``."""


class Pass:
    """One run of a program over *segments*, whose registers are empty at first."""

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
        self.registers: dict[Register, Array] = {}  # their values, ``(T, width)`` each
        self.states: list[Array] = begin_together([segment.cache for segment in segments])
        self._angles: dict[int, tuple[Array, float]] = {}
        self._selected = False  # the rows are those of the outputs alone

    def finish(self) -> Array:
        """The result; the caches now hold the segments' tokens."""
        for segment in self.segments:
            segment.cache.advance(len(segment.tokens))
        return self.registers[self.program.result]

    def select(self) -> list[int]:
        """Indices of the requested rows; from now on the pass has only these."""
        requested: list[int] = []
        at = 0
        for segment in self.segments:
            at += len(segment.tokens)
            requested.extend(range(at - segment.rows, at))
        self._selected = True
        self._angles = {}
        return requested

    def positions(self) -> list[range]:
        """The positions of the rows of each segment."""
        stops = [segment.cache.length + len(segment.tokens) for segment in self.segments]
        counts = [
            segment.rows if self._selected else len(segment.tokens) for segment in self.segments
        ]
        return [range(stop - count, stop) for stop, count in zip(stops, counts, strict=True)]

    def heads(self, register: Register, head_dim: int) -> Array:
        """Value of *register* head by head, ``(T, heads, head_dim)``."""
        x = self.registers[register]
        return equal_parts(x, x.shape[1] // head_dim)

    def rows(self) -> Iterator[tuple[slice, KVCache]]:
        """Rows of each segment, and its cache."""
        end = 0
        for segment, positions in zip(self.segments, self.positions(), strict=True):
            end += len(positions)
            yield slice(end - len(positions), end), segment.cache

    def states_of(
        self, number: int, shape: tuple[int, ...], *, first: bool = False
    ) -> Iterator[tuple[slice, Array]]:
        """Rows of each segment, and a view ``(*shape)`` of numbers of its state *number*.

        They are the last numbers of the state, or the *first* ones.
        """
        size = math.prod(shape)
        for rows, cache in self.rows():
            state = cache.state(number)
            yield rows, (state[:size] if first else state[-size:]).reshape(shape)

    def angles(self, rotation: Rope) -> tuple[Array, float]:
        """Angles of every row, ``(T, pairs)``, and the factor on what is rotated.

        The array is computed once per pass and rotation.
        """
        angles = self._angles.get(id(rotation))
        if angles is None:
            parts = [np.empty((0, len(rotation.frequencies(1)[0])))]  # there may be no rows
            scale = rotation.frequencies(1)[1]
            for segment, positions in zip(self.segments, self.positions(), strict=True):
                for part in by_regime(positions, segment.cache.reach, rotation):
                    rows = np.array(part, dtype=np.float64)
                    frequencies, scale = rotation.frequencies(max(segment.cache.reach, part.stop))
                    parts.append(rows[:, None] * frequencies)
            angles = np.concatenate(parts), scale
            self._angles[id(rotation)] = angles
        return angles


def by_regime(positions: range, reach: int, rotation: Rope) -> Iterator[range]:
    """*positions* in parts with the same frequencies of *rotation*.

    *reach* is :attr:`KVCache.reach`, the length of the prompt, which may select the frequencies.
    """
    for _, group in groupby(positions, lambda at: rotation.regime(max(reach, at + 1))):
        part = list(group)
        yield range(part[0], part[-1] + 1)


class Interpreter:
    """Runs a program one operation at a time. This is the definition of what a program means."""

    def __init__(self, program: Program, weights: Mapping[str, Prepared], ops: Ops) -> None:
        self.program = program
        self._weights = weights
        self._ops = ops

    def run(self, segments: Sequence[Segment]) -> Array:
        """Rows of the outputs of all *segments*, ``(R, width)``; their caches are advanced."""
        on = Pass(self.program, self._weights, self._ops, segments)
        for _ in self._steps(on):
            pass
        return on.finish()

    def trace(
        self, segments: Sequence[Segment]
    ) -> Generator[tuple[str, Array], Array | None, Array]:
        """Run as :meth:`run` does, and yield the name and the value of every mark.

        A value that is sent back replaces the marked one.
        """
        on = Pass(self.program, self._weights, self._ops, segments)
        yield from self._steps(on)
        return on.finish()

    def _steps(self, on: Pass) -> Generator[tuple[str, Array], Array | None, None]:
        for instruction in self.program.instructions:
            if not isinstance(instruction, Mark):
                self._ops.run(instruction, on)
                continue
            sent = yield instruction.name, on.registers[instruction.register]
            if sent is not None:
                on.registers[instruction.register] = sent

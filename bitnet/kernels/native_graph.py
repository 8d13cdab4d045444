"""A program compiled for the C++ backend: one call per pass, the GIL released throughout."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.families.rope import Rope
from bitnet.kernels.instructions import Attend, Mark, Rotate
from bitnet.kernels.interpreter import Interpreter
from bitnet.kernels.kv_cache import page_tables, state_ranges
from bitnet.kernels.program import Register

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from numpy.typing import NDArray

    from bitnet.kernels.kv_cache import KVCache
    from bitnet.kernels.kv_codes import Array
    from bitnet.kernels.ops import Ops, Prepared
    from bitnet.kernels.program import Instruction, Program, Segment


_NOTHING = np.empty(0, dtype=np.float32)


def floats(x: Array) -> NDArray[np.float32]:
    """*x* as C++ reads it."""
    return np.ascontiguousarray(x, dtype=np.float32)


class CompiledProgram:
    """A program whose instructions run in C++, by ``native/kernels/graph/graph.hpp``."""

    def __init__(
        self, module: ModuleType, program: Program, weights: Mapping[str, Prepared], ops: Ops
    ) -> None:
        """Compile *program*; NotImplementedError if an instruction is only interpreted.

        *ops* are the operations of *module*, which prepared *weights*; they serve caches of
        floats.
        """
        self._interpreter = Interpreter(program, weights, ops)
        self._graph = module.Graph()
        self._weights = weights
        tables = page_tables(program.caches)
        # by the number of a cache, the operands that say where it is
        self._places: dict[int, dict[str, int]] = {
            number: {"start": its.start, "stop": its.stop}
            for number, its in state_ranges(program.caches).items()
        }
        self._graph.set_state(max((its["stop"] for its in self._places.values()), default=0))
        for table, (kind, numbers) in enumerate(tables.items()):
            q8 = kind.kv_type == "q8"
            self._graph.add_table(len(numbers), kind.kv_heads, kind.head_dim, kind.window, q8)
            for place, number in enumerate(numbers):
                self._places[number] = {"table": table, "place": place}
        self._rotations: dict[Rope, int] = {}
        for it in program.instructions:
            if isinstance(it, Rotate) and it.rotation not in self._rotations:
                pairs = len(it.rotation.frequencies(1)[0])
                half = it.rotation.style != "interleaved"
                self._rotations[it.rotation] = self._graph.add_rotation(pairs, half)
        self._contexts: dict[tuple[int, ...], int] = {}
        self._registers: dict[Register, int] = {}
        self._names: dict[str, int] = {}  # numbers of their places in memory
        for instruction in program.instructions:
            self._add(instruction)
        self._result, self._width = self._operand(program.result), program.result.width

    def _add(self, instruction: Instruction) -> None:
        if isinstance(instruction, Mark):
            return  # it is for traces
        if isinstance(instruction, Attend) and not instruction.causal:
            raise NotImplementedError("compiled attention looks back only")
        values: dict[str, Any] = {
            its.name: getattr(instruction, its.name)
            for its in fields(instruction)  # type: ignore[arg-type]
        }
        if "cache" in values:
            values |= self._places[values["cache"]]
        if "routing" in values:
            values |= vars(values["routing"])
        operands = {name: self._operand(value) for name, value in values.items()}
        self._graph.add(type(instruction).__name__, **operands)

    def _operand(self, value: Any) -> Any:
        """Operand that C++ reads for the *value* of a field."""
        match value:
            case Register():
                if value not in self._registers:
                    place = self._names.setdefault(value.name, len(self._names))
                    self._registers[value] = self._graph.add_register(value.width, place)
                return self._registers[value]
            case tuple():
                return [self._operand(item) for item in value]
            case Rope():
                return self._rotations[value]
            case str():
                return self._weights.get(value, value or None)
        return value

    def run(self, segments: Sequence[Segment]) -> Array:
        """Rows of the outputs of all *segments*, ``(R, width)``; their caches are advanced."""
        tokens: list[int] = []
        parts: list[tuple[int, int, int, int, tuple[NDArray[np.uint64], ...]]] = []
        needed = 0
        for segment in segments:
            cache, count, rows = segment.cache, len(segment.tokens), segment.rows
            pages = cache.pages(count)
            context = self._context(cache, count)
            if pages is None or context is None:
                return self._interpreter.run(segments)
            parts.append((count, cache.length, rows, context, pages))
            tokens += segment.tokens
            needed += rows
        out = np.empty((needed, self._width), dtype=np.float32)
        states = [segment.cache.begin() for segment in segments]
        hidden = [_NOTHING if its.hidden is None else floats(its.hidden) for its in segments]
        running = [(*part, *of) for part, *of in zip(parts, states, hidden, strict=True)]
        self._graph.run(np.array(tokens, dtype=np.int64), running, self._result, out)
        for segment in segments:
            segment.cache.advance(len(segment.tokens))
        return out

    def _context(self, cache: KVCache, count: int) -> int | None:
        """The C++ side's number of the rope frequencies of the next *count* positions of *cache*.

        ``None``: they do not share them.
        """
        first, last = (max(cache.reach, cache.length + at) for at in (1, count))
        regimes = tuple(it.regime(last) for it in self._rotations)
        if first != last and regimes != tuple(it.regime(first) for it in self._rotations):
            return None
        number = self._contexts.get(regimes)
        if number is None:
            number = self._graph.add_context([it.frequencies(last) for it in self._rotations])
            self._contexts[regimes] = number
        return number


def compute(
    module: ModuleType,
    instruction: str,
    rows: Mapping[str, Array],
    widths: Mapping[str, int],
    operands: Mapping[str, Any],
    out_state: Array | None = None,
) -> NDArray[np.float32]:
    """Rows that *instruction* alone computes of *rows*, those of all *widths* side by side."""
    graph = module.Graph()
    graph.add_context([])
    inputs = [floats(x.reshape(len(x), math.prod(x.shape[1:]))) for x in rows.values()]
    state = _NOTHING if out_state is None else floats(out_state)
    graph.set_state(state.size)
    sizes = [*(x.shape[1] for x in inputs), *widths.values()]
    numbers = [graph.add_register(width, place) for place, width in enumerate(sizes)]
    for number in numbers[: len(inputs)]:
        graph.add("Take", out=number)
    registers = dict(zip([*rows, *widths], numbers, strict=True))
    graph.add(instruction, **operands, **registers, start=0, stop=state.size)
    result = graph.add_register(sum(widths.values()), len(sizes))
    graph.add("Join", out=result, parts=numbers[len(inputs) :], groups=1)
    count = len(inputs[0])
    out = np.empty((count, sum(widths.values())), dtype=np.float32)
    segment = (count, 0, count, 0, (), state, np.concatenate(inputs, axis=1))
    graph.run(np.zeros(count, dtype=np.int64), [segment] if count else [], result, out)
    if out_state is not None and state is not out_state:
        out_state[:] = state
    return out

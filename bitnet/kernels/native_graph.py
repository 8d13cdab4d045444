"""A program compiled for the C++ backend: one call per pass, the GIL released throughout."""

from __future__ import annotations

from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.kernels.interpreter import Interpreter
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
    layers_by_window,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from numpy.typing import NDArray

    from bitnet.kernels.ops import Activation, Array, Ops, Prepared
    from bitnet.kernels.program import Cache, Program, Rotation, Segment

__all__ = ["GATES", "CompiledProgram"]

GATES: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1, "relu_squared": 2, "relu": 3}


class CompiledProgram:
    """A program whose instructions run in C++, by ``kernels/native/graph/graph.hpp``."""

    def __init__(
        self, module: ModuleType, program: Program, weights: Mapping[str, Prepared], ops: Ops
    ) -> None:
        """Compile *program*.

        Args:
            module: the compiled module.
            program: what to run.
            weights: as *ops* prepared them.
            ops: the operations of *module*; they serve caches that are not float16.
        """
        self._interpreter = Interpreter(program, weights, ops)
        self._weights = weights
        self._registers = {name: place for place, name in enumerate(program.widths)}
        self._result = self._registers[program.result]
        self._width = program.widths[program.result]
        layers = [it for it in program.instructions if isinstance(it, Attend)]
        kv_heads = program.widths[layers[0].k] // program.head_dim
        windows = {it.layer: it.window for it in layers}
        tables = layers_by_window([windows[layer] for layer in range(len(layers))])
        self._graph = module.Graph(
            list(program.widths.values()),
            [len(of_table) for of_table in tables.values()],
            kv_heads,
            program.head_dim,
            program.eps,
        )
        self._places = {
            layer: (number, place)
            for number, of_table in enumerate(tables.values())
            for place, layer in enumerate(of_table)
        }
        rotations = {it.rotation: None for it in program.instructions if isinstance(it, Rotate)}
        self._rotations: dict[Rotation, int] = {}
        for rotation in rotations:
            pairs = len(rotation.frequencies(1)[0])
            half = rotation.style != "interleaved"
            self._rotations[rotation] = self._graph.add_rotation(pairs, half)
        self._contexts: dict[tuple[int, ...], int] = {}
        for instruction in program.instructions:
            self._add(instruction)

    def run(self, segments: Sequence[Segment]) -> Array:
        """The wanted rows of all *segments*, ``(R, width)``; their caches are advanced."""
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
        self._graph.run(np.array(tokens, dtype=np.int64), parts, self._result, out)
        for segment in segments:
            segment.cache.advance(len(segment.tokens))
        return out

    def _context(self, cache: Cache, count: int) -> int | None:
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

    @singledispatchmethod
    def _add(self, instruction: Any) -> None:
        raise AssertionError(f"{instruction!r} is not an instruction")

    @_add.register
    def _(self, it: Embed) -> None:
        self._graph.embed(self._registers[it.out], self._weights[it.table], it.scale)

    @_add.register
    def _(self, it: Norm) -> None:
        self._graph.norm(self._registers[it.out], self._registers[it.x], self._weights[it.weight])

    @_add.register
    def _(self, it: Linear) -> None:
        self._graph.linear(
            self._registers[it.x],
            [self._registers[out] for out in it.outs],
            [self._weights[weight] for weight in it.weights],
            [self._weights[bias] if bias else None for bias in it.biases],
        )

    @_add.register
    def _(self, it: Split) -> None:
        self._graph.split(self._registers[it.x], [self._registers[out] for out in it.outs])

    @_add.register
    def _(self, it: Rotate) -> None:
        self._graph.rotate(self._registers[it.x], self._rotations[it.rotation])

    @_add.register
    def _(self, it: Temper) -> None:
        self._graph.temper(self._registers[it.x], it.scale, it.length)

    @_add.register
    def _(self, it: Attend) -> None:
        out, q, k, v = (self._registers[name] for name in (it.out, it.q, it.k, it.v))
        table, place = self._places[it.layer]
        self._graph.attend(out, q, k, v, table, place, it.scale, it.window, it.softcap)

    @_add.register
    def _(self, it: Gate) -> None:
        out, gate, up = (self._registers[name] for name in (it.out, it.gate, it.up))
        self._graph.gate(out, gate, up, GATES[it.activation])

    @_add.register
    def _(self, it: Add) -> None:
        self._graph.add(self._registers[it.x], self._registers[it.y])

    @_add.register
    def _(self, it: Select) -> None:
        self._graph.select([self._registers[name] for name in it.registers])

    @_add.register
    def _(self, it: Mark) -> None:
        pass

"""A program compiled for the C++ backend: one call per pass, the GIL released throughout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bitnet.kernels.instructions import Rotate
from bitnet.kernels.interpreter import Interpreter
from bitnet.kernels.kv_cache import page_tables, state_ranges
from bitnet.kernels.ops import Graph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from numpy.typing import NDArray

    from bitnet.kernels.kv_cache import KVCache
    from bitnet.kernels.kv_codes import Array
    from bitnet.kernels.ops import Ops, Prepared
    from bitnet.kernels.program import Program, Rotation, Segment


class CompiledProgram:
    """A program whose instructions run in C++, by ``native/kernels/graph/graph.hpp``."""

    def __init__(
        self, module: ModuleType, program: Program, weights: Mapping[str, Prepared], ops: Ops
    ) -> None:
        """Compile *program*.

        *ops* are the operations of *module*, which prepared *weights*; they serve caches of
        floats.
        """
        self._interpreter = Interpreter(program, weights, ops)
        tables = page_tables(program.caches)
        self._graph = module.Graph()
        for kind, numbers in tables.items():
            q8 = kind.kv_type == "q8"
            self._graph.add_table(len(numbers), kind.kv_heads, kind.head_dim, kind.window, q8)
        places = {
            number: (table, place)
            for table, numbers in enumerate(tables.values())
            for place, number in enumerate(numbers)
        }
        self._rotations: dict[Rotation, int] = {}
        for it in program.instructions:
            if isinstance(it, Rotate) and it.rotation not in self._rotations:
                pairs = len(it.rotation.frequencies(1)[0])
                half = it.rotation.style != "interleaved"
                self._rotations[it.rotation] = self._graph.add_rotation(pairs, half)
        self._contexts: dict[tuple[int, ...], int] = {}
        states = state_ranges(program.caches)
        self._graph.set_state(max((its.stop for its in states.values()), default=0))
        graph = Graph(self._graph, weights, self._rotations, places, states)
        for instruction in program.instructions:
            instruction.compile(graph)
        self._result, self._width = graph[program.result], program.result.width

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
        running = [(*part, state) for part, state in zip(parts, states, strict=True)]
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

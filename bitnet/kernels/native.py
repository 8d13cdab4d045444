"""The backend in C++: the same instructions, on packed weights.

Products round activations to int8, in groups or, for ternary weights, per token;
``native/kernels/isa/kernels.hpp`` states the numerics. A whole program is one call, the GIL
released throughout. Results depend neither on the number of threads nor on the batch.
"""

from __future__ import annotations

import logging
import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base import native, settings
from bitnet.base.errors import Unsupported, UsageError
from bitnet.base.machine import thread_count, usable_cores
from bitnet.families.rope import Rope
from bitnet.kernels.instructions import Join, Rotate, Take
from bitnet.kernels.kv_cache import begin_together, page_tables, state_ranges
from bitnet.kernels.packing import Matrix, experts_stay, multiplies_in_rows, prepare_matrix
from bitnet.kernels.program import (
    KERNELS,
    Interpreter,
    Mark,
    Ops,
    Program,
    Register,
    by_regime,
    weight_fields,
)
from bitnet.kernels.reference import ReferenceOps
from bitnet.quants import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from types import ModuleType

    from numpy.typing import NDArray

    from bitnet.families.blocks import CacheKind
    from bitnet.kernels.kv_codes import Array
    from bitnet.kernels.program import Instruction, Pass, Segment
    from bitnet.quants.weight import Weight

logger = logging.getLogger(__name__)

_NOTHING = np.empty(0, dtype=np.float32)
_LAST = 2**63 - 1  # a position behind every text

# Ternary weights of a model from which on dense packing is faster: they do not fit into any
# processor's cache.
SMALLEST = 256 << 20


def floats(x: Array) -> NDArray[np.float32]:
    """*x* as a contiguous array of float32, as C++ reads it."""
    return np.ascontiguousarray(x, dtype=np.float32)


@cache
def _self_test(module: ModuleType) -> None:
    """Compare the kernels with the scalar ones, once per process.

    If some disagree, the module uses those of a slower instruction set; log which and why.
    """
    level = module.kernel_level()
    if wrong_kernels := module.kernel_self_test():
        logger.warning(
            "kernels for %s give wrong results on this machine, so %s is used (slower): %s",
            level,
            module.kernel_level(),
            ", ".join(wrong_kernels),
        )


def packs_dense(module: ModuleType, weights: int) -> bool:
    """True if *weights* ternary weights of a model should be packed five to a byte."""
    setting = settings.ternary_layout()
    level = module.kernel_level()
    fast = module.has_kernel(module.kernel_types().index("TERNARY_DENSE"))
    if setting == "dense" and not fast:
        logger.warning("BITNET_TERNARY_LAYOUT=dense is slow here: %s has no kernel for it", level)
    if setting != "auto":
        return setting == "dense"
    return fast and module.dense_pays() and weights >= SMALLEST


class NativeOps(Ops):
    """C++ kernels of the best instruction set this processor has."""

    def __init__(self, *, threads: int = 0) -> None:
        """Start *threads* threads, :func:`thread_count` by default, and test the kernels."""
        module = native.module()
        if module is None:
            raise Unsupported(
                "the compiled module is not installed, or is switched off",
                hint="unset BITNET_BACKEND; or install a C++ compiler and reinstall bitnet-xtask",
            )
        _self_test(module)
        chosen = threads or thread_count()
        if chosen > (cores := usable_cores()):
            logger.warning("%d compute threads share %d cores: slower", chosen, cores)
        module.set_threads(chosen)
        self._native = module
        self._kinds = module.kernel_types()
        self._dense = settings.ternary_layout() == "dense"  # until expect() knows the model
        self._map_experts = False
        self.name = f"native ({module.kernel_level()})"  # ``native``, and the instruction set

    @property
    def module(self) -> Any:
        """The compiled module, whose functions this backend calls."""
        return self._native

    def expect(self, weights: Collection[Weight]) -> None:
        """Choose how ternary matrices are packed, and whether experts stay in their files."""
        self._map_experts = experts_stay(weights, self._kinds)
        ternary = (w.shape for w in weights if registry.rounds_activations(w))
        self._dense = packs_dense(self._native, sum(math.prod(shape) for shape in ternary))

    def prepare(self, weight: Weight, *, looked_up: bool = False, expert: bool = False) -> Any:
        if len(weight.shape) != 2:
            return np.ascontiguousarray(registry.dequantize(weight), dtype=np.float32)
        stays = expert and self._map_experts and multiplies_in_rows(weight, self._kinds)
        in_rows = looked_up or stays
        return prepare_matrix(self._native, weight, in_rows=in_rows, dense=self._dense)

    def reads(self, prepared: Any) -> list[NDArray[np.uint8]]:
        return [prepared.data] if isinstance(prepared, Matrix) else []

    def compile(
        self, program: Program, weights: Mapping[str, Any]
    ) -> Callable[[Sequence[Segment]], Array]:
        interpret = Interpreter(program, weights, self).run
        graph = CompiledProgram(self._native, program, weights)

        def run(segments: Sequence[Segment]) -> Array:
            # The graph reads caches of codes, and rotates all positions of a segment by the same
            # frequencies; the interpreter runs all other batches.
            placements = []
            for segment in segments:
                cache = segment.cache
                count = len(segment.tokens)
                pages = cache.pages(count)
                context = graph.context(cache.reach, range(cache.length, cache.length + count))
                if pages is None or context is None:
                    return interpret(segments)
                placements.append((count, cache.length, segment.rows, context, pages))
            # A cache begins its pass only when it is certain that the graph runs it.
            states = begin_together([segment.cache for segment in segments])
            pieces = [
                (
                    *placement,
                    state,
                    _NOTHING if segment.hidden is None else floats(segment.hidden),
                    _LAST if segment.second is None else segment.second,
                )
                for placement, state, segment in zip(placements, states, segments, strict=True)
            ]
            out = graph.run([token for segment in segments for token in segment.tokens], pieces)
            for segment in segments:
                segment.cache.advance(len(segment.tokens))
            return out

        return run

    def run(self, instruction: Instruction, on: Pass) -> None:
        """Compile *instruction* as a program of its own, and run it.

        The program takes the registers that hold a value and returns all of them, joined.
        """
        values = vars(instruction)
        pages: list[tuple[NDArray[np.uint64], ...] | None] = []  # of each segment
        caches: tuple[CacheKind, ...] = ()
        if "cache" in values:
            pages = [segment.cache.pages(len(segment.tokens)) for segment in on.segments]
            caches = on.program.caches
        if None in pages or type(instruction).__name__ not in KERNELS:
            instruction.run(on)
            return

        operands = [value for value in values.values() if isinstance(value, Register)]
        registers = list(dict.fromkeys(operands))
        sources = [register for register in registers if register in on.registers]
        whole = Register("", sum(register.width for register in registers))
        steps = (*map(Take, sources), instruction, Join(whole, tuple(registers)))
        graph = CompiledProgram(self._native, Program(steps, caches, whole), on.weights)

        inputs = floats(np.concatenate([on.registers[register] for register in sources], axis=1))
        rotation = values.get("rotation")
        pieces = []
        at = 0
        for number, (segment, positions) in enumerate(
            zip(on.segments, on.positions(), strict=True)
        ):
            reach = segment.cache.reach
            state = on.states[number] if pages else _NOTHING
            segment_pages = pages[number] if pages else ()
            # Positions of one piece are rotated by the same frequencies.
            parts = by_regime(positions, reach, rotation) if rotation else [positions]
            for part in filter(None, parts):
                count = len(part)
                context = graph.context(reach, part)
                rows = inputs[at : at + count]
                pieces.append((count, part.start, count, context, segment_pages, state, rows))
                at += count
        out = graph.run([0] * at, pieces)
        ends = np.cumsum([register.width for register in registers])
        on.registers.update(zip(registers, np.split(out, ends[:-1], axis=1), strict=True))

    def counters(self) -> Mapping[str, int]:
        counted: dict[str, int] = self._native.kernel_counters()
        return counted

    def embed(self, table: Any, tokens: Sequence[int]) -> Array:
        ids = np.ascontiguousarray(tokens, dtype=np.int64)
        m: Matrix = table
        out = np.empty((len(ids), m.columns), dtype=np.float32)
        self._native.embed(m.kind, m.data, m.rows, m.columns, m.scale, ids, out)
        if m.factors is not None:
            out *= np.broadcast_to(m.factors, m.rows)[ids][:, None]
        return out[:, : m.inputs]

    def linear(self, x: Array, weight: Any, bias: Any | None = None) -> Array:
        m: Matrix = weight
        if m.inputs != m.columns:
            x = np.pad(x, ((0, 0), (0, m.columns - m.inputs)))
        out = np.empty((len(x), m.rows), dtype=np.float32)
        self._native.linear(m.kind, m.data, m.rows, m.columns, m.scale, floats(x), out)
        if m.factors is not None:
            out *= m.factors
        if bias is not None:
            out += bias
        return out

    def softcap(self, x: Array, cap: float) -> Array:
        x = floats(x)
        out = np.empty_like(x)
        self._native.softcap(x, cap, out)
        return out


class CompiledProgram:
    """A program whose instructions run in C++, by ``native/kernels/graph/graph.hpp``."""

    def __init__(self, module: ModuleType, program: Program, weights: Mapping[str, Any]) -> None:
        self._graph = module.Graph()
        self._weights = weights
        tables = page_tables(program.caches)
        # operands that say where a cache is, by its number
        self._places: dict[int, dict[str, int]] = {
            number: {"start": range_.start, "stop": range_.stop}
            for number, range_ in state_ranges(program.caches).items()
        }
        self._graph.set_state(max((place["stop"] for place in self._places.values()), default=0))
        for table, (kind, numbers) in enumerate(tables.items()):
            q8 = kind.kv_type == "q8"
            self._graph.add_table(len(numbers), kind.kv_heads, kind.head_dim, kind.window, q8)
            for row, number in enumerate(numbers):
                self._places[number] = {"table": table, "place": row}
        self._rotations: dict[Rope, int] = {}
        for instruction in program.instructions:
            if isinstance(instruction, Rotate) and instruction.rotation not in self._rotations:
                pairs = len(instruction.rotation.frequencies(1)[0])
                half = instruction.rotation.style != "interleaved"
                self._rotations[instruction.rotation] = self._graph.add_rotation(pairs, half)
        # numbers of the sets of frequencies, by the regime of each rotation
        self._contexts: dict[tuple[int, ...], int] = {}
        self._registers: dict[Register, int] = {}
        self._names: dict[str, int] = {}  # numbers of places in memory, by the name of registers
        for instruction in program.instructions:
            self._add(instruction)
        self._result = self._operand(program.result)
        self._width = program.result.width

    def _add(self, instruction: Instruction) -> None:
        if isinstance(instruction, Mark):
            return  # only traces read it
        values = dict(vars(instruction))
        if "cache" in values:
            values |= self._places[values["cache"]]
        if "routing" in values:
            values |= vars(values["routing"])
        names_weights = weight_fields(type(instruction))
        operands = {
            name: self._weight(value) if name in names_weights else self._operand(value)
            for name, value in values.items()
        }
        self._graph.add(type(instruction).__name__, **operands)

    def _weight(self, name: str | tuple[str, ...]) -> Any:
        """The prepared weight called *name*, or a list of several; None for an empty name."""
        if isinstance(name, tuple):
            return [self._weight(each) for each in name]
        return self._weights[name] if name else None

    def _operand(self, value: Any) -> Any:
        """Operand that C++ reads for the *value* of a field."""
        match value:
            case Register():
                if value not in self._registers:
                    slot = self._names.setdefault(value.name, len(self._names))
                    self._registers[value] = self._graph.add_register(value.width, slot)
                return self._registers[value]
            case tuple():
                return [self._operand(item) for item in value]
            case Rope():
                return self._rotations[value]
            case str():
                return value or None
        return value

    def run(self, tokens: Sequence[int], pieces: Sequence[tuple[Any, ...]]) -> Array:
        """Rows of the outputs of all *pieces* of the tokens, ``(R, width)``.

        A piece has its number of tokens, position, number of outputs, context, pages, state and
        hidden rows, and may have the position from which on tokens are those of a second text.
        """
        out = np.empty((sum(rows for _, _, rows, *_ in pieces), self._width), dtype=np.float32)
        self._graph.run(np.array(tokens, dtype=np.int64), pieces, self._result, out)
        return out

    def context(self, reach: int, positions: range) -> int | None:
        """Number of the set of RoPE frequencies for *positions*; None if they need several sets."""
        first, last = (max(reach, at + 1) for at in (positions[0], positions[-1]))
        regimes = tuple(rotation.regime(last) for rotation in self._rotations)
        if first != last and regimes != tuple(
            rotation.regime(first) for rotation in self._rotations
        ):
            return None
        if regimes not in self._contexts:
            frequencies = [rotation.frequencies(last) for rotation in self._rotations]
            self._contexts[regimes] = self._graph.add_context(frequencies)
        return self._contexts[regimes]


def select(*, threads: int = 0) -> Ops:
    """The backend that ``BITNET_BACKEND`` names, by default the fastest available one.

    The compiled one computes with *threads* threads; 0 means :func:`thread_count`.
    """
    if not 0 <= threads <= settings.MAX_THREADS:
        expected = f"expected 0 to {settings.MAX_THREADS}"
        raise UsageError(f"threads is {threads}, {expected}", field="threads")
    return ReferenceOps() if native.module() is None else NativeOps(threads=threads)

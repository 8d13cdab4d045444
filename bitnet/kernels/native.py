"""The backend in C++: the same operations as ``reference.py``, on packed weights.

Products round activations to int8, in groups or, for ternary weights, per token;
``native/kernels/isa/kernels.hpp`` states the numerics. A whole program is one call
(``native_graph.py``). Results depend neither on the number of threads nor on the batch.
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
from bitnet.kernels.interpreter import Interpreter
from bitnet.kernels.kv_codes import Array, pages_of
from bitnet.kernels.native_graph import CompiledProgram, compute, floats
from bitnet.kernels.ops import Ops
from bitnet.kernels.packing import Matrix, experts_stay, multiplies_in_rows, prepare_matrix
from bitnet.kernels.reference import ReferenceOps
from bitnet.quants import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from types import ModuleType

    from numpy.typing import NDArray

    from bitnet.families.keys import RopeStyle
    from bitnet.families.mixers import Activation, Routing
    from bitnet.kernels.kv_cache import Seen
    from bitnet.kernels.ops import Scores
    from bitnet.kernels.program import Program, Segment
    from bitnet.quants.weight import Weight

logger = logging.getLogger(__name__)


@cache
def _self_test(module: ModuleType) -> None:
    """Replace kernels that disagree with the scalar ones by slower ones, once per process."""
    replaced = module.kernel_self_test()
    if replaced:
        logger.warning(
            "kernels for %s give wrong results on this machine and are not used (slower): %s",
            module.kernel_level(),
            ", ".join(replaced),
        )


SMALLEST = 256 << 20  # ternary weights of a model that no cache holds


def packs_dense(module: ModuleType, weights: int) -> bool:
    """True if *weights* ternary weights of a model should be packed five to a byte."""
    setting, level = settings.ternary_layout(), module.kernel_level()
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
                "the compiled module is not installed or switched off",
                hint="unset BITNET_BACKEND, install a C++ compiler and reinstall bitnet-xtask",
            )
        _self_test(module)
        chosen = threads or thread_count()
        if chosen > (cores := usable_cores()):
            logger.warning("%d compute threads share %d cores: slower", chosen, cores)
        module.set_threads(chosen)
        self._native = module
        self._turns: tuple[Array, float, Array, Array] | None = None
        self._dense = settings.ternary_layout() == "dense"  # until expect() knows the model
        self._map_experts = False
        self.name = f"native ({module.kernel_level()})"  # ``native``, and the instruction set

    @property
    def module(self) -> Any:
        """The compiled module, whose functions this backend calls."""
        return self._native

    def expect(self, weights: Collection[Weight]) -> None:
        """Choose how ternary matrices are packed, and where experts are."""
        self._map_experts = experts_stay(weights)
        ternary = (w.shape for w in weights if registry.rounds_activations(w))
        self._dense = packs_dense(self._native, sum(math.prod(shape) for shape in ternary))

    def prepare(self, weight: Weight, *, looked_up: bool = False, expert: bool = False) -> Any:
        if len(weight.shape) != 2:
            return np.ascontiguousarray(registry.dequantize(weight), dtype=np.float32)
        in_rows = looked_up or (expert and self._map_experts and multiplies_in_rows(weight))
        return prepare_matrix(self._native, weight, in_rows=in_rows, dense=self._dense)

    def reads(self, prepared: Any) -> list[NDArray[np.uint8]]:
        return [prepared.data] if isinstance(prepared, Matrix) else []

    def compile(
        self, program: Program, weights: Mapping[str, Any]
    ) -> Callable[[Sequence[Segment]], Array]:
        try:
            return CompiledProgram(self._native, program, weights, self).run
        except NotImplementedError:  # an instruction has no compiled form
            return Interpreter(program, weights, self).run

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

    def rms_norm(self, x: Array, weight: Any, eps: float) -> Array:
        rows, width = {"x": x.reshape(-1, weight.size)}, {"out": weight.size}
        norm = {"weight": weight, "parts": 1, "eps": eps}
        return compute(self._native, "Norm", rows, width, norm).reshape(x.shape)

    def rope(self, x: Array, angles: Array, *, style: RopeStyle, scale: float = 1.0) -> Array:
        # Every layer passes the same angles for its queries and its keys.
        turns = self._turns
        if turns is None or turns[0] is not angles or turns[1] != scale:
            cos, sin = np.empty((2, *angles.shape), dtype=np.float32)
            self._native.turns(np.ascontiguousarray(angles), scale, cos, sin)
            turns = self._turns = (angles, scale, cos, sin)
        x = floats(x)
        out = np.empty_like(x)
        self._native.rope(x, turns[2], turns[3], style != "interleaved", out)
        return out

    def attention(self, q: Array, seen: Seen, by: Scores) -> Array:
        if not by.causal:
            return ReferenceOps().attention(q, seen, by)
        q = floats(q)
        out = np.empty_like(q)
        pages = pages_of(seen.keys, seen.values) if seen.pages is None else seen.pages
        start = seen.keys.shape[1] - len(q)
        self._native.attention(q, pages, start, by.scale, by.window, by.softcap, out, by.sinks)
        return out.reshape(len(q), -1)

    def convolve(
        self, x: Array, weight: Any, bias: Any | None, *, silu: bool, out_state: Array
    ) -> Array:
        its = {"weight": weight, "bias": bias, "silu": silu}
        return compute(self._native, "Convolve", {"x": x}, {"out": x.shape[1]}, its, out_state)

    def delta_rule(
        self, rows: Sequence[Array], a: Any, dt: Any, *, grouped: bool, out_state: Array
    ) -> Array:
        _, k, v, *_ = rows
        named = dict(zip(("q", "k", "v", "alpha", "beta"), rows, strict=True))
        its = {"a": a, "dt": dt, "key_heads": k.shape[1], "grouped": grouped}
        out = compute(self._native, "DeltaRule", named, {"out": v[0].size}, its, out_state)
        return out.reshape(v.shape)

    def selective_scan(
        self, rows: Sequence[Array], vectors: Sequence[Any], *, out_state: Array
    ) -> Array:
        x, b, *_ = rows
        named = dict(zip(("x", "b", "c", "dt"), rows, strict=True))
        its = dict(zip(("a", "bias", "skip"), vectors, strict=True), groups=b.shape[1])
        out = compute(self._native, "SelectiveScan", named, {"out": x[0].size}, its, out_state)
        return out.reshape(x.shape)

    def route(self, logits: Array, bias: Any | None, routing: Routing) -> tuple[Array, Array]:
        widths = {"experts": routing.used, "weights": routing.used}
        its = {"bias": bias} | vars(routing)
        both = compute(self._native, "Route", {"logits": logits}, widths, its)
        return both[:, : routing.used], both[:, routing.used :]

    def gate(self, gate: Array, up: Array, activation: Activation) -> Array:
        rows, width = {"gate": gate, "up": up}, {"out": gate.shape[1]}
        return compute(self._native, "Gate", rows, width, {"activation": activation})

    def softcap(self, x: Array, cap: float) -> Array:
        x = floats(x)
        out = np.empty_like(x)
        self._native.softcap(x, cap, out)
        return out


def select(*, threads: int = 0) -> Ops:
    """The backend ``BITNET_BACKEND`` asks for; without it the fastest there is.

    It has the compiled module's :func:`thread_count` unless *threads* says how many.
    """
    if not 0 <= threads <= settings.MAX_THREADS:
        expected = f"expected 0 to {settings.MAX_THREADS}"
        raise UsageError(f"threads is {threads}, {expected}", field="threads")
    return ReferenceOps() if native.module() is None else NativeOps(threads=threads)

"""Every operation of an engine, computed again in float64 from the engine's own inputs.

An engine gives the intermediates of a pass. The float64 program computes the first of them, its
value is replaced by the engine's, and so on: no error of one operation reaches the next. What is
left is how that engine rounds one operation, so a norm that is 1 % off, another epsilon or an
attention window that is short by one is thousands of times larger than what is measured for a right
one, while the logits at the end of the pass would hide it.

The engine's keys and values of all positions but the last are taken as they are, and the last
:data:`ROWS` positions are computed again: a long prompt costs as little as a short one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from bitnet.kernels import instructions
from bitnet.runtime.kv_cache import KVCache

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bitnet.crossval.trace import Arithmetic
    from bitnet.families.blocks import KeysValues
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.program import Register
    from bitnet.models.transformer import Model

__all__ = [
    "BOUNDS",
    "GAIN",
    "ROWS",
    "Intermediates",
    "Kind",
    "Operation",
    "Operations",
    "check_operations",
    "our_intermediates",
]

ROWS = 16  # positions whose operations are computed again; ik_llama.cpp computes as many at a time

# What an operation rounds, from the least to the most.
Kind = Literal["sum", "gate", "attention", "product", "half product", "int8 product"]

# Largest accepted error of an operation. Measured on SmolLM2 (Q4_1) and Gemma 3 (Q4_K_M), engines
# llama.cpp, ik_llama.cpp and ours:
BOUNDS: dict[Kind, float] = {
    "sum": 1e-6,  # norms and sums in float32: 1.7e-7
    "gate": 2e-3,  # GELU from a table in float16: 7.1e-4
    "attention": 8e-3,  # keys and values in 16 bits: 2.2e-3
    "product": 1e-4,  # float32 throughout
    "half product": 2e-2,  # weights, and in llama.cpp activations, of 16 bits
    "int8 product": 0.16,  # activations of 8 bits: 0.12, through a norm that follows
}
_HALF = ("F16", "BF16")

# Largest accepted gain of a product: rounding scatters results and does not stretch them. Measured:
# 4.9e-3, through a norm that follows.
GAIN = 1e-2


@dataclass(frozen=True)
class Operation:
    """One operation beside the float64 pass.

    Attributes:
        name: of its result, in llama.cpp's words: ``Qcur-3`` is rotated queries of layer 3.
        kind: what it rounds.
        error: ``|theirs - float64| / |float64|`` of the worst position.
        gain: slope of theirs over float64's values, less 1.
    """

    name: str
    kind: Kind
    error: float
    gain: float

    @property
    def is_near(self) -> bool:
        """True if error and gain are within their bounds; NaN is not."""
        return self.error <= BOUNDS[self.kind] and abs(self.gain) <= GAIN


@dataclass(frozen=True)
class Operations:
    """The operations of one engine.

    Attributes:
        engine: its name.
        positions: of the pass; the last :data:`ROWS` were computed again.
        layers: of the model, each of which has an operation.
        steps: in the order of computation.
        is_compared: the logits of the pass are, bit for bit, those that were compared; true of
            other engines, whose pass we do not see.
    """

    engine: str
    positions: int
    layers: int
    steps: tuple[Operation, ...]
    is_compared: bool = True

    @property
    def first(self) -> Operation | None:
        """The first operation beyond its bound."""
        return next((step for step in self.steps if not step.is_near), None)

    @property
    def is_right(self) -> bool:
        """True if every layer has attention and a sum that were compared, and all are near."""
        compared = {step.name for step in self.steps}
        needed = {f"{name}-{at}" for name in ("Qcur", "l_out") for at in range(self.layers)}
        return self.is_compared and needed <= compared and self.first is None

    def __str__(self) -> str:
        first = self.first
        if first is not None:
            return (
                f"{self.engine} computes another {first.name} than float64 does from the same "
                f"inputs: relative error {first.error:.1e}, at most {BOUNDS[first.kind]:.0e} for "
                f"{first.kind}; gain {first.gain:+.1e}, at most {GAIN:.0e}"
            )
        if not self.is_compared:
            return f"{self.engine} gave other logits with its intermediates than without them"
        if not self.is_right:
            return f"{self.engine} gave {len(self.steps)} intermediates, too few of some layer"
        worst = {step.kind: step.error for step in sorted(self.steps, key=lambda it: it.error)}
        errors = ", ".join(f"{kind} {worst[kind]:.1e}" for kind in get_args(Kind) if kind in worst)
        return (
            f"all {len(self.steps)} of {self.engine} at positions up to {self.positions - 1} "
            f"({errors})"
        )


@dataclass(frozen=True)
class Intermediates:
    """Intermediates of one pass of an engine, by llama.cpp's names.

    Attributes:
        engine: its name.
        arithmetic: of its products.
        tokens: of the pass.
        before: ``Kcur`` and ``Vcur`` of all tokens but the last :data:`ROWS`.
        after: every intermediate of the last ones, a row for each.
    """

    engine: str
    arithmetic: Arithmetic
    tokens: tuple[int, ...]
    before: Mapping[str, NDArray[Any]]
    after: Mapping[str, NDArray[Any]]

    def rows(self, name: str, like: NDArray[Any]) -> NDArray[np.float64] | None:
        """Intermediate *name* in the shape of *like*, None if the engine has no such one."""
        values = self.after.get(name)
        if values is None or values.size != like.size:
            return None
        return np.asarray(values, dtype=np.float64).reshape(like.shape)


def our_intermediates(model: Model, ids: Sequence[int], arithmetic: Arithmetic) -> Intermediates:
    """Intermediates of *model* for *ids*; the last is its ``result_output``, the logits."""
    stop = max(len(ids) - ROWS, 0)
    cache = KVCache(model.config, len(ids))
    before: dict[str, NDArray[Any]] = {}
    if stop:
        before = {
            name: np.array(values)
            for name, values in model.trace(ids[:stop], cache, head=False)
            if name.startswith(("Kcur", "Vcur"))
        }
    after = {name: np.array(values) for name, values in model.trace(ids[stop:], cache)}
    return Intermediates("bitnet", arithmetic, tuple(ids), before, after)


def check_operations(
    exact: Model, checkpoint: Checkpoint, theirs: Intermediates, *, half_cache: bool
) -> Operations:
    """The operations of *theirs*, each beside that of *exact*.

    Args:
        exact: the model in float64.
        checkpoint: the model on disk.
        theirs: what the engine computed.
        half_cache: its keys and values are stored as float16.
    """
    config = exact.config
    stop = max(len(theirs.tokens) - ROWS, 0)
    cache = KVCache(config, len(theirs.tokens), dtype=np.float64)
    cache.reach = len(theirs.tokens)
    layers = config.n_layers
    if stop:
        for layer, number, kind in _caches(exact):
            both = [theirs.before.get(f"{part}cur-{layer}") for part in "KV"]
            if any(values is None for values in both):
                return Operations(theirs.engine, len(theirs.tokens), layers, ())
            shape = (stop, kind.kv_heads, kind.head_dim)
            keys, values = (
                _round_to_cache(it.reshape(shape), half_cache) for it in both if it is not None
            )
            cache.append(number, keys, values)
        cache.advance(stop)
    kinds = _kinds(exact, checkpoint, theirs)
    steps = []
    trace = exact.trace(theirs.tokens[stop:], cache)
    name, value = next(trace)
    while True:
        rows = theirs.rows(name, value)
        if rows is not None:
            steps.append(Operation(name, kinds[name], _error(rows, value), _gain(rows, value)))
            if name.startswith(("Kcur", "Vcur")):
                rows = _round_to_cache(rows, half_cache)
        try:
            name, value = trace.send(rows)
        except StopIteration:
            return Operations(theirs.engine, len(theirs.tokens), layers, tuple(steps))


def _caches(exact: Model) -> Iterator[tuple[str, int, KeysValues]]:
    """Layer, number and kind of every cache, in order."""
    layer = ""
    for step in exact.program.instructions:
        match step:
            case instructions.Mark(name=name) if name.startswith("Kcur-"):
                layer = name.removeprefix("Kcur-")
            case instructions.Attend():
                yield layer, step.cache, step.kind


def _round_to_cache(values: NDArray[Any], half: bool) -> NDArray[np.float64]:
    """*values* as the engine's cache holds them."""
    return (values.astype(np.float16) if half else values).astype(np.float64)


def _error(theirs: NDArray[np.float64], ours: NDArray[Any]) -> float:
    """Relative error of the worst row; NaN if a value is not a number."""
    errors = np.linalg.norm(theirs - ours, axis=1)
    sizes = np.linalg.norm(ours, axis=1)
    relative = np.where(errors == 0, 0.0, errors / np.maximum(sizes, np.finfo(np.float64).tiny))
    return float(relative.max())


def _gain(theirs: NDArray[np.float64], ours: NDArray[Any]) -> float:
    squares = float((ours * ours).sum())
    return float((theirs * ours).sum()) / squares - 1 if squares else 0.0


def _kinds(exact: Model, checkpoint: Checkpoint, theirs: Intermediates) -> dict[str, Kind]:
    """Kind of every marked value, by what was rounded since the values that *theirs* replaces."""
    order = get_args(Kind)
    kinds: dict[Register, Kind] = {}
    mark_kinds: dict[str, Kind] = {}

    def most(names: Iterator[Kind]) -> Kind:
        return max(names, key=order.index)

    def product(weight: str) -> Kind:
        stored = checkpoint.weights.get(weight, checkpoint.weights["token_embd.weight"])
        if stored.quant.name in _HALF:
            return "half product"
        is_rounded = theirs.arithmetic == "int8" and stored.quant.name != "F32"
        return "int8 product" if is_rounded else "product"

    def kind_of(step: Any) -> Kind:
        match step:
            case instructions.Linear():
                return most(map(product, step.weights))
            case instructions.Attend():
                return most(iter(("attention", *(kinds[it] for it in (step.q, step.k, step.v)))))
            case instructions.Gate():
                return most(iter(("gate", kinds[step.gate], kinds[step.up])))
            case instructions.Add():
                return most(iter((kinds[step.x], kinds[step.y])))
            case instructions.Embed():
                return "sum"
            case _:
                return kinds[step.x]

    for step in exact.program.instructions:
        match step:
            case instructions.Mark():
                mark_kinds[step.name] = kinds[step.register]
                if step.name in theirs.after:
                    kinds[step.register] = "sum"
            case instructions.Select():
                pass
            case instructions.Linear() | instructions.Split():
                kinds |= dict.fromkeys(step.outs, kind_of(step))
            case instructions.Rotate() | instructions.Temper() | instructions.Add():
                kinds[step.x] = kind_of(step)
            case _:
                kinds[step.out] = kind_of(step)  # type: ignore[attr-defined]
    return mark_kinds | {"result_output": product("output.weight")}

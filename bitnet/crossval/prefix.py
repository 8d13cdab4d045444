"""Caches of the positions before those whose operations are compared, from an engine's values.

An operation of a late position reads keys, values and states of all earlier ones. An engine gives
the rows that these are made of: rotated keys and values, the input of a convolution, or one product
that is split into several of them. From there on the float64 program fills its caches; whatever
depends on other rows is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.kernels.instructions import (
    Attend,
    Center,
    Clamp,
    Gate,
    Join,
    Norm,
    Rotate,
    Select,
    Split,
    Temper,
)
from bitnet.kernels.mixer_instructions import (
    Convolve,
    DeltaRule,
    Enumerate,
    Route,
    SelectiveScan,
)
from bitnet.kernels.program import Mark, Pass, Register, Segment, registers_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from bitnet.kernels.kv_cache import KVCache
    from bitnet.kernels.program import Instruction, Program
    from bitnet.models.transformer import Model

_WITH_STATE = (Convolve, DeltaRule, SelectiveScan)
# Cheap instructions between a product and a cache: they are computed again.
_REPEATED = (*_WITH_STATE, Center, Clamp, Gate, Join, Norm, Rotate, Split, Temper)


def results(step: Instruction) -> tuple[Register, ...]:
    """Registers that *step* writes."""
    outputs = _output_fields(step)
    return tuple(
        registers_in(step, besides=[field for field in vars(step) if field not in outputs])
    )


def inputs(step: Instruction) -> tuple[Register, ...]:
    """Registers that *step* reads."""
    # Select keeps rows of registers, Mark names one: neither computes.
    if isinstance(step, (Mark, Select)):
        return ()
    return tuple(registers_in(step, besides=_output_fields(step)))


def _output_fields(step: Instruction) -> tuple[str, ...]:
    """Fields of *step* with the registers that it writes."""
    match step:
        case Route():
            return ("experts", "weights")
        case Enumerate():
            return ("experts",)
        case Mark() | Select():
            return ()
    return ("out", "outs")


def list_cached(program: Program, *, last: bool) -> tuple[str, ...]:
    """Names of the intermediates that the caches of *program* are made of, in order.

    They are between a product and a cache: all of them, or with *last* only those directly before a
    cache, which suffice to fill it.
    """
    cached: dict[str, None] = {}
    sources: dict[Register, set[str]] = {}  # names since the last product, by register
    for step in program.instructions:
        if isinstance(step, Mark):
            before = set() if last else sources.get(step.register, set())
            sources[step.register] = before | {step.name}
            continue
        names_read: set[str] = set()
        for register in _cache_inputs(step):
            names_read |= sources.get(register, set())
        if isinstance(step, (Attend, *_WITH_STATE)):
            cached |= dict.fromkeys(sorted(names_read))
        for register in results(step):
            sources[register] = names_read if isinstance(step, _REPEATED) else set()
    return tuple(cached)


def _cache_inputs(step: Instruction) -> tuple[Register, ...]:
    """Registers that *step* writes to a cache; without a cache, all that it reads."""
    if isinstance(step, Attend):
        return tuple(register for register in (step.k, step.v) if register is not None)
    return inputs(step)


def fill_caches(
    exact: Model,
    cache: KVCache,
    ids: Sequence[int],
    theirs: Mapping[str, NDArray[Any]],
    *,
    round_stored: Callable[[NDArray[Any]], NDArray[np.float64]],
) -> bool:
    """Fill *cache* with *ids*, from the rows of an engine; False if it does not give enough.

    Args:
        exact: the float64 model.
        cache: an empty one of that model.
        ids: the earlier positions.
        theirs: intermediates of the engine by name, whose first rows are of *ids*.
        round_stored: rounds keys or values as the engine's cache does.
    """
    segment = Segment(ids, cache, "all")
    current = Pass(exact.program, exact.weights, exact.ops, [segment])
    count = len(ids)
    # A register holds a value only while every row of it follows from the engine's rows.
    for step in exact.program.instructions:
        if isinstance(step, Mark):
            rows = theirs.get(step.name)
            if rows is not None and len(rows) >= count and rows[0].size == step.register.width:
                values = rows[:count].reshape(count, step.register.width)
                current.registers[step.register] = values.astype(np.float64)
        elif isinstance(step, Attend):
            if step.k is not None and step.v is not None:
                if not {step.k, step.v} <= current.registers.keys():
                    return False
                keys = current.heads(step.k, step.kind.head_dim)
                values = current.heads(step.v, step.kind.head_dim)
                cache.append(step.cache, round_stored(keys), round_stored(values))
            current.registers.pop(step.out, None)
        elif isinstance(step, _REPEATED) and current.registers.keys() >= set(inputs(step)):
            exact.ops.run(step, current)
        elif isinstance(step, _WITH_STATE):  # an input is missing, so its state is unknown
            return False
        else:  # a product, or an instruction of which an input is missing
            for register in results(step):
                current.registers.pop(register, None)
    cache.advance(count)
    return True

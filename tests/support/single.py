"""Run a single instruction of a program on a backend."""

from types import SimpleNamespace

import numpy as np

from bitnet.families.blocks import State
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.program import Pass, Program, Register, Segment


def compute(ops, kind, rows, widths, *, states=(), **fields):
    """Run one instruction, and return its output registers in the order of *widths*.

    Args:
        ops: the backend.
        kind: class of the instruction.
        rows: contents of its input registers, by field, ``(T, width)``.
        widths: widths of its output registers, by field.
        states: states of fixed size, as of as many layers; they are updated in place.
        fields: other fields of the instruction; arrays, also in tuples, are its weights.
    """
    weights = {}
    others = {}
    for name, value in fields.items():
        others[name] = value
        if isinstance(value, np.ndarray):
            weights[name] = value
            others[name] = name
        elif isinstance(value, tuple) and all(isinstance(part, np.ndarray) for part in value):
            parts = {f"{name}[{at}]": part for at, part in enumerate(value)}
            weights |= parts
            others[name] = tuple(parts)
    sizes = {name: x.shape[1] for name, x in rows.items()} | widths
    registers = {name: Register(name, size) for name, size in sizes.items()}
    instruction = kind(**registers, **others)
    count = len(next(iter(rows.values())))
    caches = tuple(State(state.size) for state in states)
    cache = KVCache(SimpleNamespace(caches=caches, drafter=None), count)
    if states:
        cache.begin()[:] = np.concatenate([state.ravel() for state in states])
        cache.advance(0)
    segment = Segment(range(count), cache, "all")
    pass_ = Pass(Program((instruction,), caches, None), weights, ops, [segment])
    pass_.registers |= {registers[name]: x for name, x in rows.items()}
    ops.run(instruction, pass_)
    for number, state in enumerate(states):
        state[:] = cache.state(number).reshape(state.shape)
    return [pass_.registers[registers[name]] for name in widths]

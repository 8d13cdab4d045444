"""Positions at which engines choose other experts than the float64 pass, because of their rounding.

A mixture of experts is not continuous: where two experts have nearly the same score, a rounding
decides between them, and everything behind that choice differs by far more than it rounded. Such
positions say nothing about an engine. They are found by its own choices, and only where a small
change of the router's logits explains the first choice that differs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bitnet.kernels.expert_instructions import Route
from bitnet.kernels.kv_cache import KVCache

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bitnet.crossval.compare import Row
    from bitnet.crossval.reference import Question, Reference
    from bitnet.kernels.ops import Array
    from bitnet.models.transformer import Model

    #: Logits of routers by layer, a row for each position.
    Routers = Mapping[str, NDArray[np.floating]]

__all__ = ["find_reroutes", "has_routers", "mark_reroutes", "routers"]

_LOGITS = "ffn_moe_logits-"

# Largest change of a router's logits, as a share of their standard deviation at a position, that
# explains another choice: of 219 of ours in random models of five families, in Q8_0 and Q4_K, one
# needed 0.3 and seven more than 0.1.
TIE = 0.3


def has_routers(model: Model) -> bool:
    """True if *model* chooses experts."""
    return any(True for _ in _routes(model))


def routers(model: Model, ids: Sequence[int], *, dtype: type = np.int16) -> Routers:
    """Logits of every router of *model* for *ids*, with a cache of *dtype*."""
    cache = KVCache(model.config, len(ids), dtype=dtype)
    trace = model.trace(ids, cache, head=False)
    return {
        name.removeprefix(_LOGITS): np.array(values, dtype=np.float64)
        for name, values in trace
        if name.startswith(_LOGITS)
    }


def find_reroutes(exact: Model, right: Routers, engine: Routers) -> NDArray[np.bool_]:
    """True for positions at which *engine* chooses other experts in a near-tie.

    Args:
        exact: the float64 pass, with the rule and the corrections of each router.
        right: its own logits.
        engine: those of an engine for the same ids.
    """
    (count,) = {len(logits) for logits in right.values()}
    is_open = np.ones(count, dtype=bool)  # no choice differs so far
    reroutes = np.zeros(count, dtype=bool)
    for layer, route in _routes(exact):
        exact_logits, logits = right[layer], engine.get(layer)
        if logits is None or logits.shape != exact_logits.shape or not np.isfinite(logits).all():
            return np.zeros(count, dtype=bool)
        chosen = _choose(exact, route, logits)
        differs = is_open & (chosen != _choose(exact, route, exact_logits)).any(axis=1)
        change = TIE * exact_logits.std(axis=1, keepdims=True)
        pushed = np.where(chosen, exact_logits + change, exact_logits - change)
        reroutes |= differs & (_choose(exact, route, pushed) == chosen).all(axis=1)
        is_open &= ~differs
    return reroutes


def mark_reroutes(
    rows: Sequence[Row], question: Question, ours: Model, exact: Model, reference: Reference
) -> tuple[Row, ...]:
    """*rows* with the engines that choose other experts there in a near-tie, where that is known.

    Args:
        rows: of the prompts of *question*.
        question: the prompts.
        ours: the model under test.
        exact: the float64 pass of it.
        reference: the reference, which is asked for the logits of its routers.
    """
    flags: dict[tuple[int, str], NDArray[np.bool_]] = {}
    theirs = reference.routers(question) if reference.independent else None
    for number, prompt in enumerate(question.prompts):
        if not prompt.ids or prompt.error:
            continue
        exact_logits = routers(exact, prompt.ids, dtype=np.float64)
        flags[number, "ours"] = find_reroutes(exact, exact_logits, routers(ours, prompt.ids))
        if theirs is not None:
            flags[number, "theirs"] = find_reroutes(exact, exact_logits, theirs[number])

    def engines(row: Row) -> tuple[str, ...]:
        sides = ("ours", "theirs")
        return tuple(it for it in sides if _at(flags.get((row.prompt, it)), row.position))

    return tuple(replace(row, rerouted=engines(row)) for row in rows)


def _at(its_flags: NDArray[np.bool_] | None, position: int) -> bool:
    return its_flags is not None and position < len(its_flags) and bool(its_flags[position])


def _routes(model: Model) -> Iterator[tuple[str, Route]]:
    """The routers of *model* that choose among experts, by layer, in the order of computation."""
    layer = ""
    for step in model.program.instructions:
        name = getattr(step, "name", "")
        if isinstance(name, str) and name.startswith(_LOGITS):
            layer = name.removeprefix(_LOGITS)
        if isinstance(step, Route) and step.routing.count > 1:
            yield layer, step


def _choose(model: Model, route: Route, logits: Array) -> NDArray[np.bool_]:
    """Experts that *logits* choose, ``(T, experts)``."""
    bias = model.weight(route.bias) if route.bias else None
    experts, _ = model.ops.route(logits, bias, route.routing)
    chosen = np.zeros(logits.shape, dtype=bool)
    np.put_along_axis(chosen, experts.astype(np.intp), values=True, axis=1)
    return chosen

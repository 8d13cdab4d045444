"""Comparison of the intermediates of every layer: our backends, and an engine that dumps them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bitnet.crossval.bisect import BOUNDS, Bisection, bisect
from bitnet.errors import BitnetError
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.runtime.kv_cache import KVCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bitnet.crossval.references import Question, Reference
    from bitnet.crossval.trace import Arithmetic, Trace
    from bitnet.formats.checkpoint import Checkpoint

__all__ = ["intermediates"]


def intermediates(
    reference: Reference, question: Question, mine: Arithmetic, theirs: Trace
) -> tuple[Bisection, ...]:
    """Our native backend against our reference, and against *reference* if it dumps."""
    _, ids = max(question.prompts, key=lambda prompt: len(prompt[1]))
    reference_values = _traced(question.checkpoint, ReferenceOps(), ids)
    found = []
    values = reference_values
    try:
        values = _traced(question.checkpoint, NativeOps(), ids)
    except BitnetError:
        pass  # no native module: there is only one backend
    else:
        names, bound = ("native", "reference"), BOUNDS[mine]
        known = dict(reference_values)
        found.append(bisect(values, known, names=names, bound=bound, least=len(values)))
    tensors = reference.tensors(
        replace(question, prompts=(("", ids),), continued=(), texts=(), greedy=0)
    )
    if tensors is not None:
        arithmetic: Arithmetic = "int8" if "int8" in (mine, theirs.arithmetic) else "float"
        names = ("native" if values is not reference_values else "reference", reference.name)
        least = len({step for name, _ in values if (step := name.rpartition("-")[2]).isdigit()})
        bound = BOUNDS[arithmetic]
        found.append(bisect(values, tensors, names=names, bound=bound, least=least))
    return tuple(found)


def _traced(
    checkpoint: Checkpoint, ops: NativeOps | ReferenceOps, ids: Sequence[int]
) -> list[tuple[str, NDArray[np.floating]]]:
    model = load_model(checkpoint, ops=ops)
    cache = KVCache(model.config, len(ids))
    return [(name, np.array(values)) for name, values in model.traced(ids, cache)]

"""Recorded log-probabilities of a model on our own backends, to check that they still hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet import native
from bitnet.base.errors import InferenceError
from bitnet.base.invocation import word
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.runtime.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.ops import Ops
    from bitnet.tokenizer.tokenizer import Tokenizer

TEXT = (
    "The capital of France is Paris, and the capital of Italy is Rome. "
    "One, two, three, four, five, six, seven, eight, nine, ten."
)
POSITIONS = 12
# Largest difference of a log-probability, in nats: the reference differs by the order of additions
# in a library, the native backend by activations that round to another 8-bit number.
TOLERANCE = {"reference": 1e-3, "native": 0.25}


def ids_for(tokenizer: Tokenizer | None, vocab_size: int, limit: int) -> list[int]:
    """At most *limit* ids of an English text; without a tokenizer the first of the vocabulary."""
    if tokenizer is None:
        return list(range(min(8, vocab_size, limit)))
    return tokenizer.encode(TEXT)[:limit]


def logits_of(
    checkpoint: Checkpoint, prompts: Iterable[Sequence[int]], ops: Ops
) -> list[NDArray[np.floating]]:
    """Logits at each id of each of *prompts*, ``(len(ids), vocab_size)`` per prompt.

    Raises:
        InferenceError: not enough memory.
    """
    try:
        model = load_model(checkpoint, ops=ops)
        return [Scheduler(model, context=len(ids)).logits(ids) for ids in prompts]
    except MemoryError as error:
        raise InferenceError(
            f"not enough memory: {error}", hint=f"bitnet plan {word(checkpoint.path)}"
        ) from error


def log_probabilities(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Natural logarithm of the softmax of each row of *logits*."""
    rows = np.asarray(logits, dtype=np.float64)
    rows = rows - rows.max(axis=1, keepdims=True)
    normalized: NDArray[np.float64] = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return normalized


def record(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Trace of *checkpoint*: ids, and per backend the best token and its log-probability.

    A vocabulary without tensors has none.

    Raises:
        BitnetError: the model cannot be run.
        InferenceError: a result is not finite.
    """
    if not checkpoint.weights:
        return {}
    from bitnet.models.load import config_from

    config = config_from(checkpoint)
    ids = ids_for(tokenizer, config.vocab_size, min(POSITIONS, config.context_length))
    backends: dict[str, Ops] = {"reference": ReferenceOps()}
    if native.module() is not None:
        backends["native"] = NativeOps(threads=0)
    trace: dict[str, Any] = {"ids": ids}
    for name, ops in backends.items():
        rows = log_probabilities(logits_of(checkpoint, [ids], ops)[0])
        if not np.isfinite(rows).all():
            raise InferenceError(
                f"{checkpoint.path.name}: the {name} backend computes NaN or infinite logits",
                hint=f"bitnet verify {word(checkpoint.path)}",
            )
        best = rows.argmax(axis=1)
        trace[name] = [
            [int(id), round(float(row[id]), 6)] for id, row in zip(best, rows, strict=True)
        ]
    return trace


def tokens_outside(trace: Mapping[str, Any], vocab_size: int) -> list[int]:
    """Tokens in *trace* that a vocabulary of that size does not have."""
    best = [id for name, rows in trace.items() if name != "ids" for id, _ in rows]
    return [id for id in (*trace.get("ids", ()), *best) if not 0 <= id < vocab_size]


def worst_difference(
    trace: Mapping[str, Any], backend: str, logits: NDArray[np.floating]
) -> tuple[float, float]:
    """Largest difference of a log-probability from the recorded one, and the tolerance.

    Args:
        trace: from :func:`record`.
        backend: ``reference`` or ``native``; must be in the trace.
        logits: at each of the ids of the trace.

    Returns:
        Infinity if positions are missing or a number is not finite.
    """
    recorded, rows = trace[backend], log_probabilities(logits)
    if not recorded or len(recorded) != len(rows):
        return np.inf, TOLERANCE[backend]
    off = [abs(float(row[id]) - was) for (id, was), row in zip(recorded, rows, strict=True)]
    worst = float(np.max(off))
    return worst if np.isfinite(worst) else np.inf, TOLERANCE[backend]

"""One forward pass over a sentence: checks of its logits, also against a recorded pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bitnet.base import native
from bitnet.base.errors import InferenceError
from bitnet.base.invocation import word
from bitnet.kernels.native import NativeOps, select
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import config_from, load_model
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
    """Logits at each id of each of *prompts*, ``(len(ids), vocab_size)`` per prompt."""
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

    *trace* is from :func:`record` and has *backend*; *logits* are at each of its ids. Infinity if
    positions are missing or a number is not finite.
    """
    recorded, rows = trace[backend], log_probabilities(logits)
    if not recorded or len(recorded) != len(rows):
        return np.inf, TOLERANCE[backend]
    off = [abs(float(row[id]) - was) for (id, was), row in zip(recorded, rows, strict=True)]
    worst = float(np.max(off))
    return worst if np.isfinite(worst) else np.inf, TOLERANCE[backend]


TOKENS = 48
FLATTEST = 1e-3  # spread of the logits of one position; in working models it is 10 and more

Verdict = tuple[Literal["ok", "warning", "failed"], str, str]


def forward_verdict(
    checkpoint: Checkpoint, tokenizer: Tokenizer | None, trace: Mapping[str, Any] | None = None
) -> Verdict:
    """Status, text and hint after running *checkpoint* once.

    Without a tokenizer the first ids of the vocabulary are run, and the predictions are not judged;
    nor are those of an embedding model.
    """
    config = config_from(checkpoint)
    ids = ids_for(tokenizer, config.vocab_size, min(TOKENS, config.context_length))
    backend = "reference" if native.module() is None else "native"
    recorded = trace is not None and backend in trace
    prompts = [ids, trace["ids"]] if trace is not None and recorded else [ids]
    if trace is not None and (outside := tokens_outside(trace, config.vocab_size)):
        problem = f"the recorded pass has the token {outside[0]}, the model {config.vocab_size:,}"
        return "failed", problem, "record it again: bitnet attest ORIGINAL --output FILE"
    logits = logits_of(checkpoint, prompts, select(threads=0))
    judge_text = config.writes and tokenizer is not None
    status, text, hint = judge_logits(logits[0], ids, judge_text=judge_text)
    if status == "failed" or trace is None:
        return status, text, hint
    if not recorded:
        return status, f"{text}; the attestation records no pass of the {backend} backend", hint
    worst, allowed = worst_difference(trace, backend, logits[1])
    if not worst <= allowed:
        problem = f"{worst:.2g} nats from the recorded pass, at most {allowed:g} expected"
        return "failed", f"{text}; {problem}: this machine or this version computes wrong", ""
    return status, f"{text}; {worst:.1g} nats from the recorded pass", hint


def judge_logits(logits: NDArray[np.floating], ids: list[int], *, judge_text: bool) -> Verdict:
    """Verdict on *logits* of shape ``(len(ids), vocab_size)``.

    *judge_text*: *ids* are a sentence in the model's own tokens, so its likelihood is meaningful.
    """
    rows = np.asarray(logits, dtype=np.float64)
    if not rows.size or len(rows) != len(ids):
        return "failed", f"logits of shape {rows.shape} for {len(ids)} positions", ""
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        text = f"{len(bad):,} of {rows.size:,} logits are NaN or infinite, first at position"
        return "failed", f"{text} {bad[0][0]}", ""
    spread = float((rows.max(axis=1) - rows.min(axis=1)).min())
    if not spread >= FLATTEST:
        return "failed", f"the logits are flat: they differ by {spread:.1e} at most", ""
    if len(rows) > 1 and float(np.abs(rows - rows[0]).max()) < FLATTEST:
        return "failed", "the logits are the same whatever the model is given", ""
    text = f"{len(rows)} positions, finite logits"
    if not judge_text:
        return "ok", text, ""
    if len(ids) < 2:
        return "failed", f"the tokenizer makes {len(ids)} tokens of an English sentence", ""
    loss, guess = _loss(rows[:-1], ids[1:]), float(np.log(rows.shape[1]))
    text += f"; loss on an English sentence {loss:.2f}, by guessing {guess:.2f}"
    if not loss < guess:
        return "failed", f"{text}: untrained, not English, damaged, or not its tokenizer", ""
    return "ok", text, ""


def _loss(rows: NDArray[np.float64], targets: list[int]) -> float:
    """Mean negative log-likelihood of *targets* under *rows*, in nats."""
    likelihoods = log_probabilities(rows)[np.arange(len(targets)), targets]
    return -float(likelihoods.mean())

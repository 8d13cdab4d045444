"""One forward pass over a sentence: checks of its logits, and comparison with a recorded pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base import native
from bitnet.base.errors import InferenceError
from bitnet.base.findings import Finding
from bitnet.base.invocation import shell_quote
from bitnet.kernels.native import NativeOps, select
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import config_from, load_model
from bitnet.runtime.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from bitnet.base.findings import Severity
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.program import Ops
    from bitnet.tokenizer.tokenizer import Tokenizer

TEXT = (
    "The capital of France is Paris, and the capital of Italy is Rome. "
    "One, two, three, four, five, six, seven, eight, nine, ten."
)
POSITIONS = 12  # most positions of a recorded pass
# Largest difference of a log-probability, in nats: the reference differs by the order of additions
# in a library, the native backend by activations that round to another 8-bit number.
TOLERANCE = {"reference": 1e-3, "native": 0.25}

TOKENS = 48  # most tokens of the pass that is checked
FLATTEST = 1e-3  # least spread of the logits of one position; working models have 10 and more


def ids_for(tokenizer: Tokenizer | None, vocab_size: int, limit: int) -> list[int]:
    """At most *limit* ids of an English text; without a tokenizer, the first ids that exist."""
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
            f"not enough memory: {error}", hint=f"bitnet plan {shell_quote(checkpoint.path)}"
        ) from error


def log_probabilities(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Natural logarithm of the softmax of each row of *logits*."""
    rows = np.asarray(logits, dtype=np.float64)
    rows = rows - rows.max(axis=1, keepdims=True)
    normalized: NDArray[np.float64] = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return normalized


def record(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Trace of *checkpoint*: ids, and per backend the best token and its log-probability.

    It is empty for a vocabulary without tensors, and if the tokenizer gives no ids for the text.
    """
    if not checkpoint.weights:
        return {}
    config = config_from(checkpoint)
    ids = ids_for(tokenizer, config.vocab_size, min(POSITIONS, config.context_length))
    if not ids:
        return {}
    backends: dict[str, Ops] = {"reference": ReferenceOps()}
    if native.module() is not None:
        backends["native"] = NativeOps(threads=0)
    trace: dict[str, Any] = {"ids": ids}
    for name, ops in backends.items():
        rows = log_probabilities(logits_of(checkpoint, [ids], ops)[0])
        if not np.isfinite(rows).all():
            raise InferenceError(
                f"{checkpoint.path.name}: the {name} backend computes NaN or infinite logits",
                hint=f"bitnet verify {shell_quote(checkpoint.path)}",
            )
        best = rows.argmax(axis=1)
        trace[name] = [
            [int(id), round(float(row[id]), 6)] for id, row in zip(best, rows, strict=True)
        ]
    return trace


def _finding(severity: Severity, text: str, hint: str = "") -> Finding:
    return Finding(severity, "forward pass", text, hint)


def forward_verdict(
    checkpoint: Checkpoint, tokenizer: Tokenizer | None, trace: Mapping[str, Any] | None = None
) -> Finding:
    """The finding about one pass of *checkpoint*, compared with the recorded one in *trace*.

    Without a tokenizer the first ids of the vocabulary are run, and the predictions are not judged;
    nor are those of an embedding model.
    """
    config = config_from(checkpoint)
    ids = ids_for(tokenizer, config.vocab_size, min(TOKENS, config.context_length))
    if not ids:
        return _finding("failed", "the tokenizer makes 0 tokens of an English sentence")
    backend = "reference" if native.module() is None else "native"
    rows_by_backend = {name: rows for name, rows in (trace or {}).items() if name != "ids"}
    recorded = rows_by_backend.get(backend)
    best = [id for rows in rows_by_backend.values() for id, _ in rows]
    inputs = list((trace or {}).get("ids", ()))
    outside = [id for id in (*inputs, *best) if not 0 <= id < config.vocab_size]
    if outside:
        problem = f"the recorded pass has the token {outside[0]}, the model {config.vocab_size:,}"
        return _finding(
            "failed", problem, "record it again: bitnet attest ORIGINAL --output FILE --force"
        )
    prompts = [ids] if recorded is None else [ids, inputs]
    logits = logits_of(checkpoint, prompts, select(threads=0))
    judge_text = config.writes and tokenizer is not None
    finding = judge_logits(logits[0], ids, judge_text=judge_text)
    if finding.failed or trace is None:
        return finding
    text = f"{finding.text}; "
    if recorded is None:
        text += f"the attestation records no pass of the {backend} backend"
        return _finding("ok", text)
    worst = _worst_difference(recorded, logits[1])
    most = TOLERANCE[backend]
    if not worst <= most:
        text += f"{worst:.2g} nats from the recorded pass, at most {most:g} expected"
        return _finding("failed", f"{text}: this machine or this version computes wrong")
    return _finding("ok", f"{text}{worst:.1g} nats from the recorded pass")


def _worst_difference(recorded: Sequence[tuple[int, float]], logits: NDArray[np.floating]) -> float:
    """Largest difference of a log-probability from the *recorded* one at its position.

    Infinity if positions are missing or a number is not finite.
    """
    rows = log_probabilities(logits)
    if not recorded or len(recorded) != len(rows):
        return np.inf
    differences = [abs(float(row[id]) - was) for (id, was), row in zip(recorded, rows, strict=True)]
    worst = float(np.max(differences))
    return worst if np.isfinite(worst) else np.inf


def judge_logits(logits: NDArray[np.floating], ids: list[int], *, judge_text: bool) -> Finding:
    """The finding about *logits* of shape ``(len(ids), vocab_size)``.

    *judge_text*: *ids* are a sentence in the model's own tokens, so its likelihood is meaningful.
    """
    rows = np.asarray(logits, dtype=np.float64)
    if not rows.size or len(rows) != len(ids):
        return _finding("failed", f"logits of shape {rows.shape} for {len(ids)} positions")
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        text = f"{len(bad):,} of {rows.size:,} logits are NaN or infinite, first at position"
        return _finding("failed", f"{text} {bad[0][0]}")
    spread = float((rows.max(axis=1) - rows.min(axis=1)).min())
    if not spread >= FLATTEST:
        return _finding(
            "failed", f"flat logits: at one position they differ by {spread:.1e} at most"
        )
    if len(rows) > 1 and float(np.abs(rows - rows[0]).max()) < FLATTEST:
        return _finding("failed", "the logits are the same whatever the model is given")
    text = f"{len(rows)} positions, finite logits"
    if not judge_text:
        return _finding("ok", text)
    if len(ids) < 2:
        return _finding("failed", f"the tokenizer makes {len(ids)} tokens of an English sentence")
    likelihoods = log_probabilities(rows[:-1])[np.arange(len(ids) - 1), ids[1:]]
    loss = -float(likelihoods.mean())
    guess = float(np.log(rows.shape[1]))
    text += f"; loss on an English sentence {loss:.2f}, by guessing {guess:.2f}"
    if not loss < guess:
        return _finding("failed", f"{text}: untrained, not English, damaged, or not its tokenizer")
    return _finding("ok", text)

"""One pass of the model over a sentence, and what its logits must look like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from bitnet.errors import InferenceError
from bitnet.kernels.select import select
from bitnet.models.load import load_model
from bitnet.runtime.engine import Engine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.tokenizer.tokenizer import Tokenizer

__all__ = ["forward_verdict", "judge_logits"]

TEXT = (
    "The capital of France is Paris, and the capital of Italy is Rome. "
    "One, two, three, four, five, six, seven, eight, nine, ten."
)
TOKENS = 48
FLATTEST = 1e-3  # spread of the logits of one position; a model that works has 10 and more

Verdict = tuple[Literal["ok", "warning", "failed"], str, str]


def forward_verdict(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> Verdict:
    """Status, text and hint after running *checkpoint* once.

    Args:
        checkpoint: a model whose tensors fit its architecture.
        tokenizer: the model's own; without it the first ids of the vocabulary are run, and what
            the model predicts is not judged.

    Raises:
        InferenceError: not enough memory.
    """
    try:
        model = load_model(checkpoint, ops=select(threads=0))
        limit = min(TOKENS, model.config.context_length)
        size = model.config.vocab_size
        ids = list(range(min(8, size))) if tokenizer is None else tokenizer.encode(TEXT)[:limit]
        logits = Engine(model, context=limit).logits(ids)
    except MemoryError as error:
        raise InferenceError(
            f"not enough memory: {error}", hint=f"bitnet plan --model {checkpoint.path}"
        ) from error
    return judge_logits(logits, ids, judge_text=tokenizer is not None)


def judge_logits(logits: NDArray[np.floating], ids: list[int], *, judge_text: bool) -> Verdict:
    """What *logits* of shape ``(len(ids), vocab_size)`` say about the model.

    Args:
        logits: after every one of *ids*.
        ids: what was run.
        judge_text: *ids* are a sentence in the model's own tokens, so its likelihood means
            something.
    """
    fetch = "fetch the model again, or compare it with a reference: bitnet crossval"
    rows = np.asarray(logits, dtype=np.float64)
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        text = f"{len(bad):,} of {rows.size:,} logits are NaN or infinite, first at position"
        return "failed", f"{text} {bad[0][0]}", fetch
    spread = float((rows.max(axis=1) - rows.min(axis=1)).min())
    if spread < FLATTEST:
        return "failed", f"the logits are flat: they differ by {spread:.1e} at most", fetch
    if len(rows) > 1 and float(np.abs(rows - rows[0]).max()) < FLATTEST:
        return "failed", "the logits are the same whatever the model is given", fetch
    text = f"{len(rows)} positions, finite logits"
    if not judge_text or len(ids) < 2:
        return "ok", text, ""
    loss, guess = _loss(rows[:-1], ids[1:]), float(np.log(rows.shape[1]))
    text += f"; loss on an English sentence {loss:.2f}, by guessing {guess:.2f}"
    if loss > guess:
        text += ": untrained, not English, damaged, or not its tokenizer"
        return "warning", text, "compare it with a reference: bitnet crossval"
    return "ok", text, ""


def _loss(rows: NDArray[np.float64], targets: list[int]) -> float:
    """Mean negative log likelihood of *targets* under *rows*, in nats."""
    highest = rows.max(axis=1)
    normalizer = highest + np.log(np.exp(rows - highest[:, None]).sum(axis=1))
    return float((normalizer - rows[np.arange(len(targets)), targets]).mean())

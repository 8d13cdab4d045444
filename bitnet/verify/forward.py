"""One forward pass over a sentence, and checks of its logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from bitnet import native
from bitnet.kernels.select import select
from bitnet.models.load import config_from
from bitnet.verify.trace import (
    ids_for,
    log_probabilities,
    logits_of,
    tokens_outside,
    worst_difference,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.tokenizer.tokenizer import Tokenizer

TOKENS = 48
FLATTEST = 1e-3  # spread of the logits of one position; in working models it is 10 and more

Verdict = tuple[Literal["ok", "warning", "failed"], str, str]


def forward_verdict(
    checkpoint: Checkpoint, tokenizer: Tokenizer | None, trace: Mapping[str, Any] | None = None
) -> Verdict:
    """Status, text and hint after running *checkpoint* once.

    Args:
        checkpoint: a model whose tensors fit its architecture.
        tokenizer: the model's own; without it the first ids of the vocabulary are run, and the
            predictions are not judged; nor are those of an embedding model.
        trace: recorded when the same content was attested.

    Raises:
        InferenceError: not enough memory.
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

    Args:
        logits: at every one of *ids*.
        ids: the ids that were run.
        judge_text: *ids* are a sentence in the model's own tokens, so its likelihood is
            meaningful.
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

"""Cost of a conversion: divergence of the new file's probabilities from its source's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.select import select
from bitnet.models.load import load_model

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.tokenizer import Tokenizer

__all__ = ["Cost", "measure"]

POSITIONS = 128
TEXT = """\
The old lighthouse at the end of the bay had not been lit for thirty years when Anna bought it. She
paid less for it than for her first car, and the mayor, who signed the papers in a kitchen that
smelled of coffee and fish, asked her twice whether she knew about the stairs. There are 214 of
them. In winter the wind comes from the north-west at 60 km/h and more, and water carried up arrives
as half of it. def climb(steps): return sum(1 for step in range(steps) if step % 2 == 0). The first
thing she did was to paint the door green, because a green door means that somebody is at home.
"""


@dataclass(frozen=True)
class Cost:
    """Divergence of two models on a fixed text.

    Attributes:
        positions: number of tokens compared.
        mean_kl: mean Kullback-Leibler divergence from the source's probabilities, in nats.
        top1: share of positions with the same likeliest token.
    """

    positions: int
    mean_kl: float
    top1: float

    def facts(self) -> dict[str, Any]:
        """The metrics as JSON values."""
        return asdict(self)

    def line(self) -> str:
        """The metrics as text."""
        same = round(self.top1 * self.positions)
        return (
            f"cost on {self.positions} tokens of text: mean KL {self.mean_kl:.2g} nats, likeliest "
            f"token the same at {same} ({self.top1:.0%})"
        )


def measure(source: Checkpoint, written: Path, tokenizer: Tokenizer) -> Cost:
    """Divergence of the file *written* from the model *source* it was made from.

    Both run here one after the other, on the best backend available.

    Args:
        source: the converted model.
        written: the new file.
        tokenizer: tokenizer of both.
    """
    ids = tokenizer.encode(TEXT)
    before = _log_probabilities(source, ids)
    after = _log_probabilities(open_checkpoint(written), ids)
    kl = (np.exp(before) * (before - after)).sum(axis=-1, dtype=np.float64)
    same = before.argmax(axis=-1) == after.argmax(axis=-1)
    return Cost(len(kl), max(0.0, float(kl.mean())), float(same.mean()))


def _log_probabilities(checkpoint: Checkpoint, ids: list[int]) -> NDArray[np.float64]:
    """Log-probabilities after each of the first of *ids*, ``(positions, vocabulary)``."""
    model = load_model(checkpoint, ops=select())
    ids = ids[: min(POSITIONS, model.config.context_length)]
    logits = model.forward(ids, KVCache(model.config, len(ids)), all_positions=True)
    rows = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))
    return found

"""The logits of a pass: all of them, or only those that can affect the next token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.kernels.ops import Array
    from bitnet.kernels.screened_head import Candidates, Wanted
    from bitnet.models.transformer import Model, Segment

__all__ = ["Logits", "ScreenedLogits", "run"]

MOST_AT_ONCE = 8  # positions above which computing the whole head costs no more


@dataclass(frozen=True, eq=False)
class ScreenedLogits:
    """Those logits of one position that can affect the next token.

    Attributes:
        candidates: their ids, and bounds of the others.
    """

    candidates: Candidates
    _model: Model
    _hidden: Array

    def full(self) -> Array:
        """All logits, ``(vocab_size,)``, which computes the whole head."""
        if self._model.meter is not None:
            self._model.meter.undecided()
        logits: Array = self._model.head(self._hidden[None])[0]
        return logits


Logits: TypeAlias = "Array | ScreenedLogits"


def run(
    model: Model, segments: Sequence[Segment], wanted: Sequence[Wanted | None]
) -> list[list[Logits]]:
    """Logits of the requested tokens of each segment.

    Args:
        model: the model to run.
        segments: the pass.
        wanted: logits that each segment needs; ``None``: all.

    Raises:
        UsageError: as :meth:`bitnet.models.transformer.Model.hidden`.
        InferenceError: as :meth:`bitnet.models.transformer.Model.hidden`.
    """
    if model.meter is not None and model.meter.is_dear:
        model.give_up_screen()
    if model.screen is None or not any(wanted):
        parts = model.run(segments)
        if model.meter is not None and any(map(len, parts)):
            model.meter.full()
        return [list(rows) for rows in parts]
    parts = model.hidden(segments)
    hidden = np.concatenate(parts)
    each = [one for part, one in zip(parts, wanted, strict=True) for _ in part]
    rows = _rows(model, hidden, each)
    ends = np.cumsum([len(part) for part in parts])
    return [rows[end - len(part) : end] for part, end in zip(parts, ends.tolist(), strict=True)]


def _rows(model: Model, hidden: Array, wanted: Sequence[Wanted | None]) -> list[Logits]:
    found: list[Logits | None] = [None] * len(hidden)
    screened = [at for at, one in enumerate(wanted) if one is not None]
    if model.screen is not None and 0 < len(screened) <= MOST_AT_ONCE:
        asked = [one for one in wanted if one is not None]
        candidates = model.screen.candidates(hidden[screened], asked)
        model.check_files()
        for at, one in zip(screened, candidates, strict=True):
            if one is not None:
                found[at] = ScreenedLogits(one, model, hidden[at])
    left = [at for at, one in enumerate(found) if one is None]
    if model.meter is not None and found:
        done = [one.candidates for one in found if isinstance(one, ScreenedLogits)]
        if done:
            refined, rescored = sum(one.refined for one in done), sum(len(one.ids) for one in done)
            rows = model.config.vocab_size
            model.meter.screened(refined / rows, rescored / rows)
        if left:
            model.meter.undecided() if done else model.meter.full()
    full = iter(model.head(hidden[left]) if left else ())
    return [next(full) if one is None else one for one in found]

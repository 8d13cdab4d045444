"""A vector for a text, from the model's last hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.models.transformer import Segment
from bitnet.runtime.kv_cache import KVCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bitnet.runtime.language_model import LanguageModel

__all__ = ["Embedding"]

_CHUNK = 64  # tokens per pass; answers that are being written wait for one


class Embedding:
    """The mean of the hidden states after some ids, computed part by part.

    Attributes:
        left: ids that have not been run.
    """

    def __init__(self, model: LanguageModel, ids: Sequence[int]) -> None:
        self.left = list(ids)
        self._model = model.engine.model
        self._cache = KVCache(self._model.config, len(ids))
        self._total = np.zeros(self._model.config.dim)

    def step(self) -> None:
        """Run the next ids."""
        chunk, self.left = self.left[:_CHUNK], self.left[_CHUNK:]
        (states,) = self._model.hidden([Segment(chunk, self._cache, "all")])
        self._total += np.sum(states, axis=0, dtype=np.float64)

    def vector(self) -> NDArray[np.floating[Any]]:
        """The mean, scaled to length one, ``(dim,)`` float32."""
        length = float(np.linalg.norm(self._total))
        return (self._total / (length or 1.0)).astype(np.float32)

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

__all__ = ["embed"]

_CHUNK = 256  # tokens per pass


def embed(model: LanguageModel, ids: Sequence[int]) -> NDArray[np.floating[Any]]:
    """The mean of the hidden states after *ids*, scaled to length one, ``(dim,)`` float32."""
    transformer = model.engine.model
    cache = KVCache(transformer.config, len(ids))
    total = np.zeros(transformer.config.dim)
    for start in range(0, len(ids), _CHUNK):
        segment = Segment(ids[start : start + _CHUNK], cache, "all")
        total += np.sum(transformer.hidden([segment])[0], axis=0, dtype=np.float64)
    length = float(np.linalg.norm(total))
    return (total / (length or 1.0)).astype(np.float32)

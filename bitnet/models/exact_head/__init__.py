"""The exact head: the output head without reading all of it, and provably the same tokens.

Only a few logits can decide a token. A copy of the head with five bits a weight gives approximate
logits and a bound on how far each is off; a sixth bit tightens the bounds of the rows that five
bits leave, and the rows that six leave are computed by the head's own kernel, with the bits of the
full product. Where that does not decide the token, or does not save time, the whole head is
computed.
``docs/architecture/exact-head.md`` proves the bounds.

Callers use ``Head.logits``, which takes what a sampler needs (``Needed``) and returns ``Logits``.
The kernels are in ``native/kernels/head``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from bitnet.kernels.kv_codes import Array


@dataclass(frozen=True, eq=False)
class Needed:
    """The logits of one position that are needed."""

    count: int = 1  # how many of the highest, besides those of *ids*
    # also all logits at most this far below the highest, in nats; ``None``: none of these
    margin: float | None = None
    # token ids, rising, whose logits are needed whatever they are
    ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Found:
    """The logits of one position that can be among the needed ones."""

    ids: NDArray[np.int64]  # token ids, rising
    logits: NDArray[np.float32]  # of *ids*, with the same bits as in the full product
    bound: float  # the logits of all other ids are below it; minus infinity if there are none
    # with a margin, the sum of ``exp(logit - bound)`` over the other ids is at most this
    tail: float
    vocab_size: int  # how many ids there are in all
    refined: int = 0  # rows whose sixth bits were read to find these


class Logits:
    """The logits of one position: all of them, or those that can decide the token."""

    def __init__(self, logits: Array | Found, compute: Callable[[], Array] | None = None) -> None:
        """All logits, ``(vocab_size,)``, or the decisive ones and *compute*, which gives all."""
        # the logits that can decide the token; ``None`` once all are computed
        self.found = logits if isinstance(logits, Found) else None
        self._all = None if isinstance(logits, Found) else logits
        self._compute = compute

    def all(self) -> Array:
        """All logits, ``(vocab_size,)``, computed if they are not yet."""
        if self._all is None:
            assert self._compute is not None, "found logits come with a way to compute the others"
            self._all = self._compute()
            self.found = None
        return self._all

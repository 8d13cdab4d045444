"""Bytes that recent passes read of an output head; they tell if its copy saves time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.models.exact_head.copy import HeadCopy
    from bitnet.models.exact_head.logits import Found

__all__ = ["PASSES", "Costs"]

# Cost of a byte relative to reading the interleaved head from memory.
FROM_FILE = 2.0  # the whole head, read from the file
ROWS = 10.0  # single rows of it
SIXTH = 4.0  # sixth bits of single rows
PASSES = 64  # recent passes that decide


class Costs:
    """Costs of recent passes over an output head with a copy; the interleaved head would cost 1.

    They are bytes and not times, so the same passes always lead to the same decision.
    """

    def __init__(self, copy: HeadCopy) -> None:
        """Costs of no passes yet."""
        self._copy = (copy.size_bytes - copy.sixth_bytes) / copy.head_bytes
        self._sixth = copy.sixth_bytes / copy.head_bytes
        self._recent: deque[float] = deque(maxlen=PASSES)

    def add(self, found: Sequence[Found | None]) -> None:
        """Add a pass that found these logits by the copy; ``None``: it read the whole head."""
        by_copy = [one for one in found if one is not None]
        if by_copy:
            rows = by_copy[0].vocab_size
            refined = sum(one.refined for one in by_copy) / rows
            computed = sum(len(one.ids) for one in by_copy) / rows
            self._recent.append(self._copy + SIXTH * self._sixth * refined + ROWS * computed)
            if len(by_copy) < len(found):
                self.add_whole()
        else:
            self._recent.append(FROM_FILE)

    def add_whole(self) -> None:
        """Add to the last pass that it had to read the whole head after all."""
        if self._recent:
            self._recent[-1] += FROM_FILE

    @property
    def too_high(self) -> bool:
        """True if recent passes would have read less with the head interleaved."""
        return len(self._recent) == PASSES and sum(self._recent) > PASSES

"""Pieces of a file for several connections: handed out in order, and taken from slow ones.

When nothing is left to hand out, an idle connection takes the tail of the piece that would take
longest, so that the slowest server or connection does not decide when a file is complete.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["FilePiece", "Pieces"]

STEAL_AFTER_S = 2.0  # a piece with more time to go than this is worth another request
SMALLEST_BYTES = 1 << 16  # smallest tail left to a slow connection


@dataclass
class FilePiece:
    """Bytes *at* to *stop* (exclusive) are still missing; ``None``: to the end of the file.

    Attributes:
        at: offset of the next byte.
        stop: end; reduced when the tail is taken away.
        begun_s: time at which it was handed out.
        begun_at: *at* at that time.
    """

    at: int
    stop: int | None
    begun_s: float = 0.0
    begun_at: int = 0

    @property
    def left(self) -> int:
        """Missing bytes; the end must be known."""
        return max(0, (self.stop or 0) - self.at)


class Pieces:
    """The pieces of one transfer; the caller must hold its lock.

    Args:
        gaps: missing parts of the file.
        length: bytes of a piece.
        clock: monotonic seconds.
    """

    def __init__(
        self, gaps: Iterable[tuple[int, int]], length: int, clock: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._waiting = deque(
            FilePiece(at, min(at + length, stop))
            for start, stop in gaps
            for at in range(start, stop, length)
        )
        self._running: list[FilePiece] = []

    def take(self, rate: float = 0.0) -> FilePiece | None:
        """The next piece, or the tail of a slow one; ``None``: none at the moment.

        Args:
            rate: bytes per second of the asking connection, if known.
        """
        piece = self._waiting.popleft() if self._waiting else self._stolen(rate)
        if piece is not None:
            piece.begun_s, piece.begun_at = self._clock(), piece.at
            self._running.append(piece)
        return piece

    def rate_of(self, piece: FilePiece) -> float:
        """Bytes per second of *piece* since it was handed out; 0 if unknown."""
        passed = self._clock() - piece.begun_s
        return (piece.at - piece.begun_at) / passed if passed > 0 else 0.0

    def end(self, piece: FilePiece) -> None:
        """Take back *piece*; the rest of it is handed out again."""
        self._running = [one for one in self._running if one is not piece]
        if piece.left:
            self._waiting.append(FilePiece(piece.at, piece.stop))

    def _stolen(self, rate: float) -> FilePiece | None:
        """Tail of the piece that would take longest, if that is long enough."""
        now = self._clock()
        slow = [
            (piece.left / speed if (speed := self.rate_of(piece)) else float("inf"), speed, piece)
            for piece in self._running
            if piece.left and now - piece.begun_s >= STEAL_AFTER_S
        ]
        if not slow:
            return None
        lasts, speed, victim = max(slow, key=lambda one: one[0])
        if lasts < STEAL_AFTER_S:
            return None
        stays = victim.left // 2
        if rate or not speed:
            stays = int(victim.left * speed / (speed + rate)) if speed else 0
        if stays < SMALLEST_BYTES:
            stays = 0
        middle = victim.at + stays
        tail = FilePiece(middle, victim.stop)
        victim.stop = middle
        return tail

"""Byte ranges: the parts of a file that exist, and the gaps."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ranges:
    """A set of half-open byte ranges, merged and in order."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._parts)

    def add(self, start: int, stop: int) -> None:
        """Add bytes *start* to *stop* (exclusive)."""
        if start >= stop:
            return
        first = bisect_left(self._parts, start, key=lambda part: part[1])
        last = first
        while last < len(self._parts) and self._parts[last][0] <= stop:
            start = min(start, self._parts[last][0])
            stop = max(stop, self._parts[last][1])
            last += 1
        self._parts[first:last] = [(start, stop)]

    def overlaps(self, start: int, stop: int) -> bool:
        """True if one of the bytes *start* to *stop* (exclusive) is in the set."""
        first = bisect_left(self._parts, start + 1, key=lambda part: part[1])
        return start < stop and first < len(self._parts) and self._parts[first][0] < stop

    @property
    def total(self) -> int:
        """Total bytes of all ranges."""
        return sum(stop - start for start, stop in self._parts)

    @property
    def frontier(self) -> int:
        """Number of bytes from the beginning without a gap."""
        return self._parts[0][1] if self._parts and self._parts[0][0] == 0 else 0

    def missing(self, size: int) -> list[tuple[int, int]]:
        """Gaps in the first *size* bytes."""
        gaps: list[tuple[int, int]] = []
        position = 0
        for start, stop in self._parts:
            if position < min(start, size):
                gaps.append((position, min(start, size)))
            position = stop
        if position < size:
            gaps.append((position, size))
        return gaps

"""Drafts for speculative decoding, looked up in the text so far.

A text that repeats itself (code, summaries, tables) often continues as it did where its last tokens
occurred before. The model checks that continuation in one pass and accepts only the tokens it would
have generated itself, so the answer is the same with and without drafts.
"""

from __future__ import annotations

from collections import defaultdict

__all__ = ["Lookup"]

SHORTEST = 2  # matching tokens before a draft is made
LONGEST = 32  # tokens compared to find the best match
PLACES = 32  # most recent matches compared
FIRST = 4  # tokens of the first draft
LONGEST_PAUSE = 64  # tokens without a draft after many rejected ones


class Lookup:
    """Drafts for one sequence, as long as enough of them are accepted.

    Attributes:
        limit: most tokens in a draft.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._ends: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        self._indexed = SHORTEST - 1  # positions before this one are in _ends
        self._length = min(limit, FIRST)
        self._failures = 0
        self._resume = 0  # length of the text from which to draft again

    def draft(self, ids: list[int], room: int) -> list[int]:
        """Likely continuation of *ids*, the whole text so far: up to *room* tokens, often none."""
        self._index(ids)
        count = min(self._length, room)
        if len(ids) < max(self._resume, SHORTEST) or count < 1:
            return []
        at = self._best(ids)
        if at is None:
            return []
        # A text that repeats itself continues into its own draft.
        text = ids[at:]
        for place in range(count - len(text)):
            text.append(text[place])
        return text[:count]

    def report(self, length: int, *, drafted: int, accepted: int) -> None:
        """Record that *accepted* of *drafted* tokens were accepted in a text of *length* tokens."""
        if accepted == drafted:
            self._length = min(self.limit, 2 * self._length)
        else:
            self._length = min(self.limit, accepted + 1)
        self._failures = 0 if accepted else self._failures + 1
        if self._failures > 1:
            self._resume = length + min(LONGEST_PAUSE, 2**self._failures)

    def _index(self, ids: list[int]) -> None:
        # The last tokens themselves cannot be continued from.
        for end in range(self._indexed, len(ids)):
            if end >= SHORTEST:
                self._ends[tuple(ids[end - SHORTEST : end])].append(end)
        self._indexed = max(self._indexed, len(ids))

    def _best(self, ids: list[int]) -> int | None:
        """End of the longest earlier match of the end of *ids*; the latest of equal ones."""
        best, longest = None, 0
        for end in reversed(self._ends.get(tuple(ids[-SHORTEST:]), [])[-PLACES:]):
            agree = _agreement(ids, end)
            if agree > longest:
                best, longest = end, agree
        return best


def _agreement(ids: list[int], end: int) -> int:
    """Number of tokens before *end* that equal those at the end of *ids*."""
    count = SHORTEST
    while count < min(LONGEST, end) and ids[end - count - 1] == ids[-count - 1]:
        count += 1
    return count

"""Drafts for speculative decoding, from what a text has said before.

A text that quotes itself (code, summaries, tables) often goes on as it did when its last tokens
stood there before. What followed then is checked by the model in one pass; what the model would
have written itself stays, so the answer is the same with and without drafts.
"""

from __future__ import annotations

from collections import defaultdict

__all__ = ["Lookup"]

SHORTEST = 2  # tokens that have to agree before a draft is made
LONGEST = 32  # tokens compared to find the best place
PLACES = 32  # latest places looked at
FIRST = 4  # tokens of the first draft
LONGEST_PAUSE = 64  # tokens without a draft after many that failed


class Lookup:
    """Drafts for one sequence: as long as they have paid lately.

    Attributes:
        limit: tokens of a draft at most.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._ends: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        self._indexed = SHORTEST - 1  # places before this one are in _ends
        self._length = min(limit, FIRST)
        self._failures = 0
        self._resume = 0  # length of the text from which on to draft again

    def draft(self, ids: list[int], room: int) -> list[int]:
        """What may follow *ids*, the whole text so far: *room* tokens at most, often none."""
        self._index(ids)
        wanted = min(self._length, room)
        if len(ids) < max(self._resume, SHORTEST) or wanted < 1:
            return []
        at = self._best(ids)
        if at is None:
            return []
        # A text that repeats itself runs into its own draft.
        text = ids[at:]
        for place in range(wanted - len(text)):
            text.append(text[place])
        return text[:wanted]

    def report(self, length: int, *, drafted: int, accepted: int) -> None:
        """Learn that *accepted* of *drafted* tokens were right; the text is *length* long."""
        if accepted == drafted:
            self._length = min(self.limit, 2 * self._length)
        else:
            self._length = min(self.limit, accepted + 1)
        self._failures = 0 if accepted else self._failures + 1
        if self._failures > 1:
            self._resume = length + min(LONGEST_PAUSE, 2**self._failures)

    def _index(self, ids: list[int]) -> None:
        # The last tokens themselves are no place to continue from.
        for end in range(self._indexed, len(ids)):
            if end >= SHORTEST:
                self._ends[tuple(ids[end - SHORTEST : end])].append(end)
        self._indexed = max(self._indexed, len(ids))

    def _best(self, ids: list[int]) -> int | None:
        """Where the longest end of *ids* stood before, the latest if there are several."""
        best, longest = None, 0
        for end in reversed(self._ends.get(tuple(ids[-SHORTEST:]), [])[-PLACES:]):
            agree = _agreement(ids, end)
            if agree > longest:
                best, longest = end, agree
        return best


def _agreement(ids: list[int], end: int) -> int:
    """How many tokens before *end* are those at the end of *ids*."""
    count = SHORTEST
    while count < min(LONGEST, end) and ids[end - count - 1] == ids[-count - 1]:
        count += 1
    return count

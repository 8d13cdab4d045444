"""Drafts by the block of a model that predicts one more token (multi-token prediction).

The block reads a token and the hidden state of the token before it, so it drafts as soon as that
token is known; behind its first draft it reads its own results. The model checks drafts as it does
those of ``lookup.py``: the answer is the same with and without them. They are made while recent
passes say that they save time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bitnet.kernels.program import Segment
from bitnet.models.exact_head.logits import Needed

if TYPE_CHECKING:
    from bitnet.kernels.ops import Array
    from bitnet.models.exact_head.logits import Logits
    from bitnet.models.transformer import Model
    from bitnet.runtime.kv_cache import KVCache

__all__ = ["Foresight", "Pace", "draft_together"]

MOST = 4  # tokens of a draft
MOST_WAITING = 64  # passes whose states wait to be read, while there are no drafts
TRIAL = 4  # passes of the slower way, to see whether it still is
FIRST_STAY, LONGEST_STAY = 64, 1024  # passes between two trials


@dataclass(eq=False)
class Foresight:
    """The block's view of one sequence.

    Attributes:
        cache: its keys and values.
        position: ids up to this one have been read, or were skipped.
        state: hidden state it expects after the last id, ``(1, dim)``; ``None``: none yet.
        length: tokens of the next draft, as far as the last ones were accepted.
    """

    cache: KVCache
    position: int = 0
    state: Array | None = None
    length: int = 1
    _waiting: list[tuple[list[int], Array]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache.truncate(0)  # of another sequence

    def add(self, ids: list[int], end: int, hidden: Array) -> None:
        """Read *hidden*, ``(T, dim)``, of the positions before *end*, before the next draft.

        *ids* are those of the sequence; rows of rejected drafts, whose next id is not among them,
        are left out, and so are those of passes long ago.
        """
        start = end - len(hidden)
        first, stop = max(start, self.position), min(end, len(ids) - 1)
        if first < stop:
            self._waiting.append((ids[first + 1 : stop + 1], hidden[first - start : stop - start]))
            self.position = stop
            del self._waiting[:-MOST_WAITING]

    def report(self, *, drafted: int, accepted: int) -> None:
        """Record that *accepted* of *drafted* tokens were accepted."""
        self.length = min(MOST, drafted + 1) if accepted == drafted else accepted + 1

    @property
    def is_ready(self) -> bool:
        """True if it has a state to draft from, or will have one."""
        return self.state is not None or bool(self._waiting)

    def segment(self) -> Segment | None:
        """Tokens and states that it has not read yet; ``None``: there are none."""
        if not self._waiting:
            return None
        tokens = [token for some, _ in self._waiting for token in some]
        hidden = np.concatenate([rows for _, rows in self._waiting])
        self._waiting.clear()
        return Segment(tokens, self.cache, "last", hidden)


def draft_together(model: Model, wanted: dict[Foresight, int]) -> dict[Foresight, list[int]]:
    """Drafts of the *wanted* lengths: one pass of the block for each place in them.

    Args:
        model: which has such a block.
        wanted: tokens for each sequence, at least one; each :attr:`Foresight.is_ready`.
    """
    segments = {its: segment for its in wanted if (segment := its.segment())}
    if segments:
        for its, state in zip(segments, model.foresee([*segments.values()]), strict=True):
            its.state = state[None]
    states, lengths = {its: its.state for its in wanted}, {its: its.cache.length for its in wanted}
    drafts: dict[Foresight, list[int]] = {its: [] for its in wanted}
    while True:
        rows = np.concatenate([state for state in states.values() if state is not None])
        logits = model.head.logits(rows, [Needed()] * len(rows))
        for its, of_state in zip(states, logits, strict=True):
            drafts[its].append(_likeliest(of_state))
        states = {its: at for its, at in states.items() if len(drafts[its]) < wanted[its]}
        if not states:
            break
        ahead = [Segment(drafts[its][-1:], its.cache, "last", at) for its, at in states.items()]
        states = {its: row[None] for its, row in zip(states, model.foresee(ahead), strict=True)}
    for its, length in lengths.items():
        its.cache.truncate(length)  # drafts are read again with the model's own hidden states
    return drafts


def _likeliest(logits: Logits) -> int:
    """The id with the highest of *logits*; with the exact head, of those it has found."""
    found = logits.found
    return int(found.ids[found.logits.argmax()] if found else logits.all().argmax())


class Pace:
    """Choice of the faster way to decode, with drafts or without, by the time of recent passes.

    Attributes:
        drafting: the next pass is to have drafts.
    """

    def __init__(self) -> None:
        """A choice that begins with a trial of both ways."""
        self.drafting: bool = True
        self._faster = True
        self._is_trial = True
        self._left, self._stay = TRIAL, FIRST_STAY
        self._rates: dict[bool, float] = {}  # seconds a token took, by way
        self._tokens, self._seconds = 0, 0.0

    def observe(self, tokens: int, passed_s: float) -> None:
        """Record a pass that gave *tokens*, the time of its drafts included."""
        self._tokens += tokens
        self._seconds += passed_s
        self._left -= 1
        if self._left > 0:
            return
        self._rates[self.drafting] = self._seconds / max(1, self._tokens)
        self._tokens, self._seconds = 0, 0.0
        if not self._is_trial or len(self._rates) < 2:
            self.drafting, self._is_trial, self._left = not self.drafting, True, TRIAL
            return
        faster = self._rates[True] < self._rates[False]
        self._stay = min(LONGEST_STAY, 2 * self._stay) if faster == self._faster else FIRST_STAY
        self.drafting = self._faster = faster
        self._is_trial, self._left = False, self._stay

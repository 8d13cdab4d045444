"""Decoders that draft: the model checks the drafts in one pass, which changes no answer.

A :class:`Drafter` is a smaller model, or the model's own block for multi-token prediction. It
drafts while recent passes show that this saves time (:class:`Pace`). The drafter's cache of a
sequence is part of the sequence's cache (``KVCache.drafter``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bitnet.base.errors import Unsupported, VocabMismatch
from bitnet.kernels.program import Segment
from bitnet.models.exact_head import Needed

if TYPE_CHECKING:
    from bitnet.families.blocks import ModelConfig
    from bitnet.kernels.kv_cache import KVCache
    from bitnet.kernels.kv_codes import Array
    from bitnet.models.exact_head import Logits
    from bitnet.models.transformer import Model
    from bitnet.tokenizer import Tokenizer

MOST_OF_BLOCK = 4  # tokens of a draft by the model's own block
MOST_OF_MODEL = 8  # tokens of a draft by a smaller model
MOST_WAITING = 64  # passes whose states wait to be read, while there are no drafts
TRIAL = 4  # passes of a trial of what was slower last: decoding with drafts, or without
FIRST_STAY = 64  # passes between the first two trials
LONGEST_STAY = 1024  # passes between two trials, however often their result was the same
MOST_LOST = 0.02  # share of the time that drafts, or trials of them, may lose


@dataclass(eq=False)
class Foresight:
    """A drafter's view of one sequence."""

    ids: list[int]  # the sequence's own list, which grows
    cache: KVCache  # of the drafter
    most: int  # limit on the tokens of a draft
    length: int = 1  # tokens of the next draft; depends on how many of the last were accepted
    state: Array | None = None  # hidden state after the ids read so far, (1, dim)
    vocab_size: int | None = None  # rows of the drafter's embedding; None: those of the model
    reads_hidden: ClassVar[bool] = False  # True if the drafter reads the model's hidden states

    @property
    def is_ready(self) -> bool:
        """True if it can draft what follows :attr:`ids`."""
        if len(self.ids) + self.length > self.cache.capacity:
            return False
        # A prompt may have ids of padding rows that the model has and its draft model does not.
        unread = self.ids[self.cache.length :]
        return self.vocab_size is None or max(unread, default=0) < self.vocab_size

    @property
    def is_behind(self) -> bool:
        """True if it has to read more ids than one pass of decoding adds."""
        return len(self.ids) - self.cache.length > self.most + 1

    def unread(self, room: int) -> Segment | None:
        """At most *room* ids that it has not read yet; None without any."""
        ids = self.ids[self.cache.length :][:room]
        return Segment(ids, self.cache, "last") if ids else None

    def add(self, end: int, hidden: Array) -> None:
        """Take *hidden*, ``(T, dim)``, the model's states of the T positions before *end*.

        A smaller model does not need them, so nothing is done.
        """

    def report(self, *, drafted: int, accepted: int) -> None:
        """Record that *accepted* of *drafted* tokens were accepted."""
        self.length = min(self.most, drafted + 1) if accepted == drafted else accepted + 1


@dataclass(eq=False)
class BlockForesight(Foresight):
    """The view of the model's own block."""

    position: int = 0  # ids up to this one have been read, or were skipped
    # for each pass, ids to read and the hidden states of the ids before them
    _waiting: list[tuple[list[int], Array]] = field(default_factory=list)
    reads_hidden = True

    def __post_init__(self) -> None:
        self.cache.truncate(0)  # what it holds was computed for another sequence

    def add(self, end: int, hidden: Array) -> None:
        """Keep *hidden*, ``(T, dim)``, to read before the next draft.

        Rows of rejected drafts, whose next id is not among the sequence's, are left out, and so are
        those of passes long ago.
        """
        start = end - len(hidden)
        # The rows to keep: not read before, and with a next id in the sequence.
        first = max(start, self.position)
        stop = min(end, len(self.ids) - 1)
        if first < stop:
            ids = self.ids[first + 1 : stop + 1]
            self._waiting.append((ids, hidden[first - start : stop - start]))
            self.position = stop
            del self._waiting[:-MOST_WAITING]

    @property
    def is_ready(self) -> bool:
        """True if it has a state to draft from, or will have one."""
        return self.state is not None or bool(self._waiting)

    @property
    def is_behind(self) -> bool:
        """False: it needs no earlier positions, so there is never much to read."""
        return False

    def unread(self, room: int) -> Segment | None:  # noqa: ARG002 - few tokens wait
        """Tokens and states that it has not read yet; None without any."""
        if not self._waiting:
            return None
        tokens = [token for tokens_read, _ in self._waiting for token in tokens_read]
        hidden = np.concatenate([rows for _, rows in self._waiting])
        self._waiting.clear()
        return Segment(tokens, self.cache, "last", hidden)


class Drafter:
    """Drafts tokens for sequences of a model: a smaller one, or the model's own block.

    The block (multi-token prediction) reads a token and the hidden state of the token before it, so
    it drafts as soon as that token is known; behind its first draft it reads its own results.
    """

    def __init__(self, model: Model, *, chunk: int, is_block: bool) -> None:
        """Drafts by *model*, or its block; at most *chunk* tokens of prompts are read at once."""
        config = model.config.drafter if is_block else replace(model.config, drafter=None)
        assert config is not None, "the model has a block that drafts"
        self.config: ModelConfig = config  # of its caches
        self._model = model
        self._chunk = chunk
        self._is_block = is_block

    def foresight(self, ids: list[int], cache: KVCache) -> Foresight:
        """A view of the sequence of *ids*, whose own cache is *cache*."""
        if self._is_block:
            return BlockForesight(ids, cache, MOST_OF_BLOCK)
        return Foresight(ids, cache, MOST_OF_MODEL, vocab_size=self.config.vocab_size)

    def draft(self, requested: dict[Foresight, int]) -> dict[Foresight, list[int]]:
        """Drafts of at most the *requested* lengths; every pass adds one token to each of them.

        Each view must be :attr:`Foresight.is_ready`. A view with more to read than fits into one
        pass gets no draft yet, and is not in the result.
        """
        # Read what was added to the sequences since their last drafts.
        room = self._chunk
        segments = dict[Foresight, Segment]()
        for view in requested:
            if segment := view.unread(max(room, 1)):
                segments[view] = segment
                room -= len(segment.tokens)
        for view, state in zip(segments, self._run([*segments.values()]), strict=True):
            # A smaller model drafts only from the end of the text.
            is_last = self._is_block or view.cache.length == len(view.ids)
            view.state = state if is_last else None

        # Decode greedily, each view until its draft has the requested length.
        states = {view: view.state for view in requested if view.state is not None}
        lengths = {view: view.cache.length for view in states}
        drafts: dict[Foresight, list[int]] = {view: [] for view in states}
        for view in states:
            view.cache.mark()
        while states:
            hidden = np.concatenate([*states.values()])
            logits = self._model.head.logits(hidden, [Needed()] * len(states))
            for view, view_logits in zip(states, logits, strict=True):
                drafts[view].append(_likeliest(view_logits))
            states = {
                view: state for view, state in states.items() if len(drafts[view]) < requested[view]
            }
            ahead = [
                Segment([drafts[view][-1]], view.cache, "last", state if self._is_block else None)
                for view, state in states.items()
            ]
            states = dict(zip(states, self._run(ahead), strict=True))

        # Accepted drafts are read again, with what follows them.
        for view, length in lengths.items():
            view.cache.truncate(length)
        return drafts

    def _run(self, segments: list[Segment]) -> list[Array]:
        """Hidden states after each of *segments*, ``(1, dim)``."""
        if not segments:
            return []
        if self._is_block:
            return [row[None] for row in self._model.foresee(segments)]
        return self._model.hidden(segments)


def check_draft_model(
    model: ModelConfig, tokenizer: Tokenizer, draft: ModelConfig, draft_tokenizer: Tokenizer
) -> None:
    """Check that *draft*, with the tokenizer *draft_tokenizer*, can draft for *model*."""
    if not (model.writes and draft.writes):
        raise Unsupported("a draft model needs two models that generate text", hint="leave it out")
    if not (model.looks_back and draft.looks_back):
        raise Unsupported(
            "a draft model needs two models that read a prompt in one direction",
            hint="leave it out",
        )
    size = min(model.vocab_size, draft.vocab_size)
    count = min(len(tokenizer), len(draft_tokenizer))
    differing_ids = [
        token
        for token in range(count)
        if tokenizer.spelling(token) != draft_tokenizer.spelling(token)
    ]
    if differing_ids or len(tokenizer) != len(draft_tokenizer) or len(tokenizer) > size:
        raise VocabMismatch(
            f"the draft model has another vocabulary: {len(draft_tokenizer):,} tokens for "
            f"{len(tokenizer):,}, {len(differing_ids):,} ids of another text",
            hint="choose a draft model of the same family and version",
        )


def _likeliest(logits: Logits) -> int:
    """The id with the highest logit; with the exact head, among the candidates it has found."""
    candidates = logits.found
    if candidates is None:
        return int(logits.all().argmax())
    return int(candidates.ids[candidates.logits.argmax()])


class Pace:
    """Choice of the faster way to decode, with drafts or without, by the time of recent passes.

    Trials of the slower way lose at most about :data:`MOST_LOST` of the time.
    """

    def __init__(self) -> None:
        self.drafting: bool = True  # True if the next pass gets drafts
        self._faster = True  # the last trial found decoding with drafts faster
        self._is_trial = True
        self._left = TRIAL  # passes until the trial or the stay ends
        self._stay = FIRST_STAY  # passes of the next stay with the faster way
        # seconds a token took, with drafts (True) and without (False)
        self._rates: dict[bool, float] = {}
        self._tokens = 0
        self._seconds = 0.0
        self._extra_s = 0.0  # seconds of passes that are not steady, until a trial ends
        self._owed_s = 0.0  # seconds that trials lost and the faster way has not earned yet

    @property
    def gain(self) -> float | None:
        """Speed with drafts over that without; ``None`` until both were tried."""
        return self._rates[False] / self._rates[True] if len(self._rates) == 2 else None

    def observe(self, tokens: int, passed_s: float, *, steady: bool = True) -> None:
        """Record a pass that gave *tokens* in *passed_s* seconds, drafting included.

        It is *steady* if the drafter did not have to read a sequence first. At the end of a trial,
        or of a stay with the faster way, the way of the next passes is chosen.
        """
        if not steady:
            self._extra_s += passed_s
            return
        self._tokens += tokens
        self._seconds += passed_s
        self._left -= 1
        if not self._is_trial:
            self._owed_s -= MOST_LOST * passed_s
        # A stay ends only when the faster way has earned what trials lost.
        if self._left > 0 or (not self._is_trial and self._owed_s > 0):
            return

        # The rate of this way, over the passes since it was chosen.
        tokens = max(1, self._tokens)
        seconds = self._seconds
        self._rates[self.drafting] = seconds / tokens
        self._tokens = 0
        self._seconds = 0.0

        # After a stay, and until both ways were tried: a trial of the other way.
        if not self._is_trial or len(self._rates) < 2:
            self.drafting = not self.drafting
            self._is_trial = True
            self._left = TRIAL
            return

        # After a trial: stay with the faster way, longer if it was the faster one before.
        faster = self._rates[True] < self._rates[False]
        lost_s = 0.0
        if self.drafting != faster:
            lost_s = seconds - tokens * self._rates[faster]
        self._owed_s = max(0.0, self._owed_s) + max(0.0, lost_s) + self._extra_s
        self._extra_s = 0.0
        if faster == self._faster:
            self._stay = min(LONGEST_STAY, 2 * self._stay)
        else:
            self._stay = FIRST_STAY
        self._faster = faster
        self.drafting = faster
        self._is_trial = False
        self._left = self._stay

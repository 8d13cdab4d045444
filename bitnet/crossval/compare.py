"""Compare two traces: pure functions, without engines or files.

*theirs* is the reference, *ours* is under test. KL divergences are in nats and never exceed the
full ones: tokens that were not stored count as one event, and a token that one side did not store
as no more likely than the last one it did.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bitnet.crossval.trace import Position, PromptTrace, Trace

__all__ = [
    "Greedy",
    "Nearness",
    "Row",
    "TokenizerParity",
    "compare",
    "divergence",
    "nearness",
]

_TINY = 1e-12  # smallest remaining probability; anything below is rounding
_ALIKE = 1e-6  # spread of log-probabilities below which no slope is measured
_ROUNDING = 1e-7  # of a remaining probability, from writing down logits


@dataclass(frozen=True)
class Nearness:
    """One engine compared with the float64 pass at one position.

    Attributes:
        kl: KL divergence from the float64 pass to the engine.
        scale: slope of its log-probabilities over those of the float64 pass, 1 without scaling;
            ``None`` if all tokens of the float64 pass are equal.
        noise: remaining differences around that line, as a share of the spread.
    """

    kl: float
    scale: float | None
    noise: float | None


@dataclass(frozen=True)
class Row:
    """One position, teacher-forced: both engines were given the same tokens.

    A field is ``None`` if one of them has no finite logits there, which never passes.

    Attributes:
        prompt: index of the prompt.
        position: index of the last token given.
        ours: our likeliest next token.
        theirs: the reference's.
        gap: logit difference between the reference's best and second token.
        kl: from the reference to ours.
        surprise: upper bound of our ``-log p`` of the actual next token; None at the end.
        theirs_surprise: the reference's.
        exact: likeliest next token of the float64 pass, ``None`` without such a pass.
        exact_surprise: its ``-log p`` of the actual next token.
        exact_ours: ours compared with the float64 pass.
        exact_theirs: the reference compared with it.
        drift: KL from a recorded float64 pass to today's; None without a recorded one.
    """

    prompt: int
    position: int
    ours: int | None
    theirs: int | None
    gap: float | None
    kl: float | None
    surprise: float | None = None
    theirs_surprise: float | None = None
    exact: int | None = None
    exact_surprise: float | None = None
    exact_ours: Nearness | None = None
    exact_theirs: Nearness | None = None
    drift: float | None = None

    @property
    def agrees(self) -> bool:
        """True if both have the same likeliest token."""
        return self.ours is not None and self.ours == self.theirs


@dataclass(frozen=True)
class Greedy:
    """Two greedy continuations of one prompt, each generated independently.

    Attributes:
        prompt: index of the prompt.
        steps: tokens compared.
        agreed: number of equal tokens before the first difference.
        gap: the reference's logit gap at the first difference; ``None`` if there is none.
        exact_agrees: the float64 pass has our token there, ``None`` if it was not asked.
    """

    prompt: int
    steps: int
    agreed: int
    gap: float | None = None
    exact_agrees: bool | None = None


@dataclass(frozen=True)
class TokenizerParity:
    """Two tokenizers compared on the same texts, and on the ids that both gave for them.

    Attributes:
        total: texts that are judged.
        equal: of these, texts with equal ids.
        apart: texts that are compared but not judged; :mod:`bitnet.crossval.tokens` says which.
        apart_equal: of these, texts with equal ids.
        text: the first judged text with different ids, ``None`` if there is none.
        ours: our ids of it.
        theirs: the reference's.
        decoded: lists of ids that were decoded and are judged; 0: the reference decoded none.
        decoded_equal: of these, lists with equal texts.
        ids: the first of them with different texts, empty if there is none.
    """

    total: int
    equal: int
    apart: int = 0
    apart_equal: int = 0
    text: str | None = None
    ours: tuple[int, ...] = ()
    theirs: tuple[int, ...] = ()
    decoded: int = 0
    decoded_equal: int = 0
    ids: tuple[int, ...] = ()


def divergence(p: Position, q: Position) -> float:
    """KL from *p* to *q*, at least 0; the module describes the sum."""
    mine, other = p.log_probabilities(), q.log_probabilities()
    floor = min(other.values())
    common = {token: log_p for token, log_p in mine.items() if token in other}
    return max(_sum(common, other, floor), _sum(mine, other, floor), 0.0)


def _sum(mine: Mapping[int, float], other: Mapping[int, float], floor: float) -> float:
    """The divergence over the tokens of *mine*, with all others as one event.

    A token that *other* lacks is there at most as likely as *floor*.
    """
    total, mass, other_mass = 0.0, 0.0, 0.0
    for token, log_p in mine.items():
        log_q = other.get(token)
        mass += math.exp(log_p)
        other_mass += 0.0 if log_q is None else math.exp(log_q)
        total += math.exp(log_p) * (log_p - (floor if log_q is None else log_q))
    rest, rest_other = max(1 - mass, 0.0), max(1 - other_mass, _TINY)
    if rest > _ROUNDING:
        total += rest * math.log(rest / rest_other)
    return total


def compare(
    ours: Trace, theirs: Trace, *, exact: Trace | None = None, today: Trace | None = None
) -> tuple[tuple[Row, ...], tuple[Greedy, ...]]:
    """*ours* beside *theirs*, position by position and continuation by continuation.

    Prompts are paired by index and only if their tokens are equal; unpaired ones have no row,
    and :mod:`bitnet.crossval.answers` has counted them.

    Args:
        ours: answers to the prompts in the same order.
        theirs: the reference's answers.
        exact: the float64 pass over the same prompts.
        today: another float64 pass, where *exact* was recorded.
    """
    rows: list[Row] = []
    greedy: list[Greedy] = []
    for number, (our_prompt, their_prompt) in enumerate(
        zip(ours.prompts, theirs.prompts, strict=False)
    ):
        if (our_prompt.ids, our_prompt.first) != (their_prompt.ids, their_prompt.first):
            continue
        truth, now = (
            one.prompts[number] if one and number < len(one.prompts) else None
            for one in (exact, today)
        )
        rows += _rows(number, our_prompt, their_prompt, truth, now)
        if our_prompt.greedy and their_prompt.greedy:
            greedy.append(_greedy(number, our_prompt, their_prompt))
    return tuple(rows), tuple(greedy)


def _rows(
    number: int,
    mine: PromptTrace,
    other: PromptTrace,
    truth: PromptTrace | None,
    today: PromptTrace | None,
) -> Iterator[Row]:
    following: list[int | None] = [*mine.ids[mine.first + 1 :], None]
    for at, (p, q) in enumerate(zip(mine.positions, other.positions, strict=False)):
        right = truth.positions[at] if truth and at < len(truth.positions) else None
        row = _row(number, mine.first + at, p, q, following[at])
        if right is not None and right.is_finite:
            row = replace(
                row,
                exact=right.ids[0],
                exact_surprise=_surprise(right, following[at]),
                exact_ours=nearness(right, p),
                exact_theirs=nearness(right, q),
            )
            now = today.positions[at] if today and at < len(today.positions) else None
            if now is not None and now.is_finite:
                row = replace(row, drift=divergence(right, now))
        yield row


def _row(number: int, at: int, mine: Position, other: Position, following: int | None) -> Row:
    if not (mine.is_finite and other.is_finite):
        best = [one.ids[0] if one.is_finite else None for one in (mine, other)]
        return Row(number, at, best[0], best[1], None, None)
    return Row(
        prompt=number,
        position=at,
        ours=mine.ids[0],
        theirs=other.ids[0],
        gap=other.gap,
        kl=divergence(other, mine),
        surprise=_surprise(mine, following),
        theirs_surprise=_surprise(other, following),
    )


def nearness(exact: Position, engine: Position) -> Nearness | None:
    """Compare *engine* with *exact*; ``None`` if its logits are not finite.

    Args:
        exact: the float64 pass.
        engine: the engine to compare.
    """
    if not engine.is_finite:
        return None
    right, found = exact.log_probabilities(), engine.log_probabilities()
    common = [token for token in exact.ids if token in found]
    x = np.array([right[token] for token in common])
    y = np.array([found[token] for token in common])
    scale: float | None = None
    noise: float | None = None
    if len(common) > 2 and (spread := float(np.std(x))) > _ALIKE:
        x, y = x - x.mean(), y - y.mean()
        scale = float(x @ y / (x @ x))
        noise = float(np.std(y - scale * x)) / spread
    return Nearness(divergence(exact, engine), scale, noise)


def _surprise(position: Position, following: int | None) -> float | None:
    """``-log p`` of *following*; a token that is not stored counts as the last stored one."""
    if following is None:
        return None
    known = position.log_probabilities()
    return max(-known.get(following, min(known.values())), 0.0)


def _greedy(number: int, mine: PromptTrace, other: PromptTrace) -> Greedy:
    steps = min(len(mine.greedy), len(other.greedy))
    pairs = zip(mine.greedy, other.greedy, strict=False)
    parts = next((at for at, (one, two) in enumerate(pairs) if one != two), None)
    if parts is None:
        return Greedy(number, steps, steps)
    return Greedy(number, steps, parts, other.top2_gaps[parts])

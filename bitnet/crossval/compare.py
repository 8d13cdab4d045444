"""Two traces side by side: pure functions, no engine, no file.

*theirs* is the reference, *ours* what is judged. KL divergences are in nats and never more than
the full ones: tokens that were not stored count as one event, and a token that one of the two did
not store as no likelier than the last it did.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bitnet.crossval.trace import Position, PromptTrace, Trace

__all__ = [
    "TOP",
    "Comparison",
    "Greedy",
    "Row",
    "TokenizerParity",
    "compare",
    "compare_tokenizers",
    "divergence",
    "tokens_differ",
]

TOP = 10  # tokens whose overlap is counted
_TINY = 1e-12  # the least that can be left over: below, it is rounding
_ROUNDING = 1e-7  # of a probability left over, where logits were written down


@dataclass(frozen=True)
class Row:
    """One position, teacher-forced: both engines were given the same tokens.

    Attributes:
        prompt: which prompt.
        position: which token of it was the last one given.
        ours: our likeliest next token.
        theirs: the reference's.
        gap: by how much the reference prefers its best token to its second, in logits.
        near_tie: the gap is within the noise, so either order is right.
        overlap: share of the reference's ten likeliest tokens that are among our ten.
        kl: from the reference to ours.
        cosine: of the logits of tokens both stored, each centred at its mean.
        max_difference: largest difference of a log-probability among these tokens.
        exact_ours: KL from the float64 pass to ours, ``None`` where there was no such pass.
        exact_theirs: the same to the reference.
        exact_agrees: whether the float64 pass prefers our token.
    """

    prompt: int
    position: int
    ours: int
    theirs: int
    gap: float
    near_tie: bool
    overlap: float
    kl: float
    cosine: float
    max_difference: float
    exact_ours: float | None = None
    exact_theirs: float | None = None
    exact_agrees: bool | None = None

    @property
    def agrees(self) -> bool:
        """Both prefer the same token."""
        return self.ours == self.theirs

    @property
    def wrong(self) -> bool:
        """They differ, the reference was sure, and the float64 pass does not side with us."""
        return not self.agrees and not self.near_tie and self.exact_agrees is not True


@dataclass(frozen=True)
class Greedy:
    """Two greedy continuations of one prompt, each on its own.

    Attributes:
        prompt: which prompt.
        steps: tokens compared.
        agreed: of these, how many were equal before the first difference.
        gap: how sure the reference was where they part, in logits; ``None`` if they never do.
        near_tie: that gap is within the noise.
        exact_agrees: whether the float64 pass takes our token there, ``None`` if it was not asked.
    """

    prompt: int
    steps: int
    agreed: int
    gap: float | None = None
    near_tie: bool = False
    exact_agrees: bool | None = None

    @property
    def wrong(self) -> bool:
        """They part, the reference was sure, and the float64 pass does not side with us."""
        return self.gap is not None and not self.near_tie and self.exact_agrees is not True


@dataclass(frozen=True)
class TokenizerParity:
    """Two tokenizers on the same texts.

    Attributes:
        total: texts that are judged.
        equal: of these, texts with equal ids.
        apart: texts that are compared and not judged; :mod:`bitnet.crossval.tokens` says which.
        apart_equal: of these, texts with equal ids.
        text: the first judged text with other ids, ``None`` when there is none.
        ours: our ids of it.
        theirs: the reference's.
    """

    total: int
    equal: int
    apart: int = 0
    apart_equal: int = 0
    text: str | None = None
    ours: tuple[int, ...] = ()
    theirs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Everything two traces say about each other."""

    rows: tuple[Row, ...]
    greedy: tuple[Greedy, ...]

    def mean(self, value: Callable[[Row], float | None]) -> float | None:
        """Mean of *value* over the positions that have one, ``None`` when none has."""
        found = [number for row in self.rows if (number := value(row)) is not None]
        return float(np.mean(found)) if found else None


def divergence(p: Position, q: Position) -> float:
    """KL from *p* to *q*, at least 0; see the module for what is summed."""
    mine, other = p.log_probabilities(), q.log_probabilities()
    floor = min(other.values())
    common = {token: log_p for token, log_p in mine.items() if token in other}
    return max(_sum(common, other, floor), _sum(mine, other, floor), 0.0)


def _sum(mine: Mapping[int, float], other: Mapping[int, float], floor: float) -> float:
    """The divergence over the tokens of *mine*, with all others as one event.

    A token that *other* lacks is at most as likely as *floor* there.
    """
    total, known, known_other = 0.0, 0.0, 0.0
    for token, log_p in mine.items():
        log_q = other.get(token)
        known += math.exp(log_p)
        known_other += 0.0 if log_q is None else math.exp(log_q)
        total += math.exp(log_p) * (log_p - (floor if log_q is None else log_q))
    rest, rest_other = max(1 - known, 0.0), max(1 - known_other, _TINY)
    if rest > _ROUNDING:
        total += rest * math.log(rest / rest_other)
    return total


def compare(
    ours: Trace, theirs: Trace, *, near_tie: float, exact: Trace | None = None
) -> Comparison:
    """*ours* beside *theirs*, position by position and step by step.

    Args:
        ours: of the prompts in the same order; prompts with other ids are left out.
        theirs: of the reference.
        near_tie: gap in logits below which an order of two tokens means nothing.
        exact: the float64 pass over the same prompts.
    """
    rows: list[Row] = []
    greedy: list[Greedy] = []
    for number, (mine, other) in enumerate(zip(ours.prompts, theirs.prompts, strict=False)):
        if mine.ids[: len(other.ids)] != other.ids[: len(mine.ids)]:
            continue
        truth = exact.prompts[number] if exact and number < len(exact.prompts) else None
        rows += _rows(number, mine, other, truth, near_tie)
        # A continuation begins behind the last position, also where the prompt goes on.
        seen = other.ids[: len(other.positions)]
        if mine.greedy and other.greedy and mine.ids[: len(mine.positions)] == seen:
            greedy.append(_greedy(number, mine, other, near_tie))
    return Comparison(tuple(rows), tuple(greedy))


def _rows(
    number: int, mine: PromptTrace, other: PromptTrace, truth: PromptTrace | None, near_tie: float
) -> list[Row]:
    rows = []
    for at, (p, q) in enumerate(zip(mine.positions, other.positions, strict=False)):
        row = _row(number, at, p, q, near_tie)
        if truth is not None and at < len(truth.positions):
            right = truth.positions[at]
            row = Row(
                **{
                    **vars(row),
                    "exact_ours": divergence(right, p),
                    "exact_theirs": divergence(right, q),
                    "exact_agrees": right.ids[0] == p.ids[0],
                }
            )
        rows.append(row)
    return rows


def _row(number: int, at: int, mine: Position, other: Position, near_tie: float) -> Row:
    ours, theirs = mine.log_probabilities(), other.log_probabilities()
    common = [token for token in other.ids if token in ours]
    p = np.array([theirs[token] for token in common])
    q = np.array([ours[token] for token in common])
    top = min(TOP, len(other.ids), len(mine.ids))
    shared = len(set(mine.ids[:top]) & set(other.ids[:top]))
    return Row(
        prompt=number,
        position=at,
        ours=mine.ids[0],
        theirs=other.ids[0],
        gap=other.gap,
        near_tie=other.gap < near_tie,
        overlap=shared / top,
        kl=divergence(other, mine),
        cosine=_cosine(p, q),
        max_difference=float(np.abs(p - q).max()) if common else math.inf,
    )


def _cosine(p: np.ndarray, q: np.ndarray) -> float:
    if len(p) < 2:
        return 0.0
    p, q = p - p.mean(), q - q.mean()
    size = float(np.linalg.norm(p) * np.linalg.norm(q))
    return float(p @ q) / size if size else 1.0


def _greedy(number: int, mine: PromptTrace, other: PromptTrace, near_tie: float) -> Greedy:
    steps = min(len(mine.greedy), len(other.greedy))
    pairs = zip(mine.greedy, other.greedy, strict=False)
    parts = next((at for at, (one, two) in enumerate(pairs) if one != two), None)
    if parts is None:
        return Greedy(number, steps, steps)
    gap = other.top2_gaps[parts]
    return Greedy(number, steps, parts, gap, gap < near_tie)


def compare_tokenizers(
    texts: Sequence[str],
    ours: Sequence[Sequence[int]],
    theirs: Sequence[Sequence[int]],
    *,
    apart: Sequence[bool] = (),
) -> TokenizerParity:
    """Ids of *texts* by two tokenizers.

    Args:
        texts: what was tokenized.
        ours: our ids, text by text.
        theirs: the reference's.
        apart: text by text, whether it is counted and not judged; none of them when not given.
    """
    pairs = list(zip(texts, ours, theirs, apart or [False] * len(texts), strict=True))
    judged = [pair for pair in pairs if not pair[3]]
    others = [pair for pair in pairs if pair[3]]
    different = [pair for pair in judged if tokens_differ(pair[1], pair[2])]
    found = TokenizerParity(
        total=len(judged),
        equal=len(judged) - len(different),
        apart=len(others),
        apart_equal=sum(not tokens_differ(pair[1], pair[2]) for pair in others),
    )
    if not different:
        return found
    text, mine, other, _ = different[0]
    return replace(found, text=text, ours=tuple(mine), theirs=tuple(other))


def tokens_differ(ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Whether two lists of ids are not the same."""
    return tuple(ours) != tuple(theirs)

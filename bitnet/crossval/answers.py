"""Counts of requested and received answers: missing, extra or invalid ones are found here.

Later comparisons pair the answers of both sides. A missing answer would silently drop out of these
pairs, so answers are counted first, and the verdict depends on the counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bitnet.crossval.trace import PromptTrace, Trace

__all__ = ["Answered", "Count", "answered", "steps_of"]

_LEAST = 10  # tokens stored at a position; fewer than that are not a distribution
_SHOWN = 8  # descriptions of missing answers


@dataclass(frozen=True)
class Count:
    """Counts of one kind of answer.

    Attributes:
        asked: number requested.
        answered: number received complete.
    """

    asked: int
    answered: int

    @property
    def agree(self) -> bool:
        """True if the counts are equal."""
        return self.asked == self.answered

    def __str__(self) -> str:
        return f"{self.answered:,} of {self.asked:,}"


@dataclass(frozen=True)
class Answered:
    """Completeness of one side's answers.

    Attributes:
        side: ``ours``, ``reference`` or ``float64``.
        prompts: texts that are run.
        positions: distributions of the next token, all of them finite.
        steps: tokens of greedy continuations.
        texts: texts that are tokenized.
        missing: descriptions of the first missing or extra answers.
    """

    side: str
    prompts: Count
    positions: Count
    steps: Count
    texts: Count
    missing: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if every request was answered, and nothing else."""
        counts = (self.prompts, self.positions, self.steps, self.texts)
        return not self.missing and all(count.agree for count in counts)


def answered(
    side: str,
    trace: Trace,
    prompts: Sequence[tuple[str, Sequence[int]]],
    *,
    firsts: Sequence[int] = (),
    steps: Sequence[int] = (),
    texts: int = 0,
    vocabulary: int = _LEAST,
) -> Answered:
    """Completeness of *trace* as an answer to the requests.

    Args:
        side: the side that answers.
        trace: its answers.
        prompts: the requested texts with their ids.
        firsts: index of the first id of each with a distribution; 0 when not given.
        steps: requested tokens of each prompt's continuation; 0 when not given.
        texts: number of texts to tokenize; 0 if none were requested.
        vocabulary: tokens of the model; a position holds at least ten of them, or all.
    """
    missing = [f"{len(trace.prompts)} prompts, asked were {len(prompts)}"]
    if len(trace.prompts) == len(prompts):
        missing = []
    whole, positions, continued = 0, 0, 0
    least = min(_LEAST, vocabulary)
    counts = list(steps) or [0] * len(prompts)
    starts = list(firsts) or [0] * len(prompts)
    asked = [
        (tuple(ids), first, count)
        for (_, ids), first, count in zip(prompts, starts, counts, strict=True)
    ]
    for number, (one, (ids, first, count)) in enumerate(zip(trace.prompts, asked, strict=False)):
        found = list(_faults(one, ids, first, count, least))
        missing += [f"prompt {number}: {fault}" for fault in found]
        whole += not found
        positions += sum(_is_whole(at, least) for at in one.positions)
        continued += len(one.greedy)
    tokenized = len(trace.tokenized or ()) if texts else 0
    if tokenized != texts:
        missing.append(f"ids of {tokenized:,} texts, asked were {texts:,}")
    return Answered(
        side,
        Count(len(prompts), whole),
        Count(sum(len(ids) - first for ids, first, _ in asked), positions),
        Count(sum(counts), continued),
        Count(texts, tokenized),
        tuple(missing[:_SHOWN]),
    )


def steps_of(recording: Trace) -> int:
    """Steps of the longest continuation in *recording*."""
    return max((len(one.greedy) for one in recording.prompts), default=0)


def _is_whole(position: object, least: int) -> bool:
    return getattr(position, "is_finite", False) and len(getattr(position, "ids", ())) >= least


def _faults(
    one: PromptTrace, ids: tuple[int, ...], first: int, steps: int, least: int
) -> Iterator[str]:
    """Problems of the answer *one* for *ids*."""
    if one.error:
        yield one.error
    if not ids and not one.error:
        yield "no tokens to run"
    if (one.ids, one.first) != (ids, first):
        yield "the answer is about other tokens"
    if len(one.positions) != len(ids) - first and not one.error:
        yield f"{len(one.positions)} distributions for {len(ids) - first} tokens"
    for at, position in enumerate(one.positions):
        if not position.is_finite:
            yield f"the logits of position {at} are not numbers"
            break
        if len(position.ids) < least:
            yield f"{len(position.ids)} tokens stored at position {at}, expected at least {least}"
            break
    if len(one.greedy) != steps and not one.error:
        yield f"a continuation of {len(one.greedy)} tokens, asked were {steps}"

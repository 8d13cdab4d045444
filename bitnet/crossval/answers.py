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

__all__ = ["KINDS", "Answered", "measure_completeness", "steps_of"]

KINDS = ("prompts", "positions", "steps", "texts")
_LEAST = 10  # tokens stored at a position; fewer than that are not a distribution
_SHOWN = 8  # descriptions of missing answers


@dataclass(frozen=True)
class Answered:
    """Completeness of one side's answers.

    Counted are ``prompts`` that are run, ``positions`` with finite distributions of the next token,
    ``steps`` of greedy continuations, and ``texts`` that are tokenized.

    Attributes:
        side: ``ours``, ``reference`` or ``float64``.
        asked: number of each that was requested.
        answered: number of each that was received complete.
        missing: descriptions of the first missing or extra answers.
    """

    side: str
    asked: dict[str, int]
    answered: dict[str, int]
    missing: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if every request was answered, and nothing else."""
        return not self.missing and self.asked == self.answered and self.asked.keys() == {*KINDS}

    def count(self, kind: str) -> str:
        """Number of answers of *kind* and of requests, in words."""
        return f"{self.answered.get(kind, 0):,} of {self.asked.get(kind, 0):,}"


def measure_completeness(
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
    for number, (prompt, (ids, first, count)) in enumerate(zip(trace.prompts, asked, strict=False)):
        faults = list(_faults(prompt, ids, first, count, least))
        missing += [f"prompt {number}: {fault}" for fault in faults]
        whole += not faults
        positions += sum(_is_whole(at, least) for at in prompt.positions)
        continued += len(prompt.greedy)
    tokenized = len(trace.tokenized or ()) if texts else 0
    if tokenized != texts:
        missing.append(f"ids of {tokenized:,} texts, asked were {texts:,}")
    requested = (len(prompts), sum(len(ids) - first for ids, first, _ in asked), sum(counts), texts)
    received = (whole, positions, continued, tokenized)
    asked_of, received_of = (dict(zip(KINDS, it, strict=True)) for it in (requested, received))
    return Answered(side, asked_of, received_of, tuple(missing[:_SHOWN]))


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

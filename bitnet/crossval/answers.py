"""Asked and answered: an answer that is short, empty, extra or not a number is seen here.

Everything that is compared later pairs what two sides said. What one of them did not say would
drop out of such pairs without a word, so it is counted first, and the verdict goes by the counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bitnet.crossval.trace import PromptTrace, Trace

__all__ = ["Answered", "Count", "answered", "steps_of"]

_LEAST = 10  # tokens stored at a position; fewer than that are not a distribution
_SHOWN = 8  # what is missing, in words


@dataclass(frozen=True)
class Count:
    """Things of one kind.

    Attributes:
        asked: how many were asked for.
        answered: how many came back whole.
    """

    asked: int
    answered: int

    @property
    def agree(self) -> bool:
        """Neither too few nor too many came back."""
        return self.asked == self.answered

    def __str__(self) -> str:
        return f"{self.answered:,} of {self.asked:,}"


@dataclass(frozen=True)
class Answered:
    """How much of what one side was asked it answered.

    Attributes:
        side: ``ours``, ``reference`` or ``float64``.
        prompts: texts that are run.
        positions: distributions of the next token, all of them numbers.
        steps: tokens of greedy continuations.
        texts: texts that are tokenized.
        missing: what did not come back, or came back unasked; the first few.
    """

    side: str
    prompts: Count
    positions: Count
    steps: Count
    texts: Count
    missing: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Everything asked was answered, and nothing else."""
        counts = (self.prompts, self.positions, self.steps, self.texts)
        return not self.missing and all(count.agree for count in counts)


def answered(
    side: str,
    trace: Trace,
    prompts: Sequence[tuple[str, Sequence[int]]],
    *,
    steps: Sequence[int] = (),
    texts: int = 0,
    vocabulary: int = _LEAST,
) -> Answered:
    """How much of what was asked *trace* answers.

    Args:
        side: who answers.
        trace: the answer.
        prompts: the texts with the ids that were asked, one distribution for each.
        steps: tokens of each prompt's continuation that were asked; none of them when not given.
        texts: texts that were to be tokenized; 0 where the side was not asked for any.
        vocabulary: tokens of the model; a position holds ten of them at least, or all.
    """
    missing = [f"{len(trace.prompts)} prompts, asked were {len(prompts)}"]
    if len(trace.prompts) == len(prompts):
        missing = []
    whole, positions, continued = 0, 0, 0
    least = min(_LEAST, vocabulary)
    wanted = list(steps) or [0] * len(prompts)
    asked = [(tuple(ids), count) for (_, ids), count in zip(prompts, wanted, strict=True)]
    for number, (one, (ids, count)) in enumerate(zip(trace.prompts, asked, strict=False)):
        found = list(_faults(one, ids, count, least))
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
        Count(sum(len(ids) for _, ids in prompts), positions),
        Count(sum(wanted), continued),
        Count(texts, tokenized),
        tuple(missing[:_SHOWN]),
    )


def steps_of(recording: Trace) -> int:
    """Steps of the longest continuation in *recording*."""
    return max((len(one.greedy) for one in recording.prompts), default=0)


def _is_whole(position: object, least: int) -> bool:
    return getattr(position, "is_finite", False) and len(getattr(position, "ids", ())) >= least


def _faults(one: PromptTrace, ids: tuple[int, ...], steps: int, least: int) -> Iterator[str]:
    """What is wrong with the answer *one* about *ids*."""
    if one.error:
        yield one.error
    if not ids and not one.error:
        yield "no tokens to run"
    if one.ids != ids:
        yield "the answer is about other tokens"
    if len(one.positions) != len(ids) and not one.error:
        yield f"{len(one.positions)} distributions for {len(ids)} tokens"
    for at, position in enumerate(one.positions):
        if not position.is_finite:
            yield f"the logits of position {at} are not numbers"
            break
        if len(position.ids) < least:
            yield f"{len(position.ids)} tokens stored at position {at}, expected at least {least}"
            break
    if len(one.greedy) != steps and not one.error:
        yield f"a continuation of {len(one.greedy)} tokens, asked were {steps}"

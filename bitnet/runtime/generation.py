"""What to generate, and what comes out: the types that everything in ``runtime`` speaks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from bitnet.errors import UsageError
from bitnet.runtime.options import MAX_LOGPROBS, MAX_LOOKUP, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["FinishReason", "GenerationParams", "Grammar", "Matcher", "Piece"]

FinishReason = Literal["stop", "length", "context", "cancelled", "error"]


class Matcher(Protocol):
    """Where one answer stands in its grammar; ``runtime.structured`` has the real one."""

    @property
    def finished(self) -> bool:
        """Whether the answer is complete and nothing may follow it."""

    def allowed(self) -> NDArray[np.intp]:
        """Ids that may come next, rising; those that end an answer where it may end."""

    def accept(self, token: int) -> None:
        """Count *token*, one of those allowed, as the next one."""

    def valid(self, tokens: Sequence[int]) -> int:
        """How many of *tokens*, from the first on, may follow one another."""


class Grammar(Protocol):
    """What every answer has to look like."""

    def start(self) -> Matcher:
        """The state before the first token of an answer."""


@dataclass(frozen=True)
class GenerationParams:
    """What to generate.

    Attributes:
        max_tokens: tokens at most, at least one.
        stop_ids: token ids that end the answer.
        sampling: how tokens are chosen.
        logprobs: how many alternatives to report with each token; ``None``: no log-probabilities.
        lookup: tokens at most to draft in a pass from what was written before; 0: none. It changes
            the speed and never the answer.
        grammar: what the answer has to look like.
    """

    max_tokens: int = 128
    stop_ids: frozenset[int] = frozenset()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    logprobs: int | None = None
    lookup: int = 0
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        ranges = (
            ("max_tokens", 1, None),
            ("logprobs", 0, MAX_LOGPROBS),
            ("lookup", 0, MAX_LOOKUP),
        )
        for name, low, high in ranges:
            value = getattr(self, name)
            if value is None or (low <= value and (high is None or value <= high)):
                continue
            expected = f"at least {low}" if high is None else f"{low} to {high}"
            raise UsageError(f"--{name.replace('_', '-')} is {value}, expected {expected}")


@dataclass(frozen=True)
class Piece:
    """One generated token.

    Attributes:
        token: its id; ``None`` in a piece that only says how the answer ended.
        logprob: natural logarithm of its probability under the model; ``None`` unless asked for.
        top_logprobs: the likeliest tokens at its place, as ``(id, logprob)``.
        finish_reason: ``None`` but in the last piece. ``stop``: *token* is a stop id and no part of
            the answer, or there is no token and the grammar is complete. ``length``: as many
            tokens as asked for. ``context``: the context is full. ``cancelled`` and ``error`` come
            without a token.
    """

    token: int | None
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None

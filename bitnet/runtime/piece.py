"""One generated token on its way from the scheduler to whoever reads the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from bitnet.runtime.tool_calls import CallDelta

__all__ = ["FinishReason", "Piece", "TokenLogprob"]

FinishReason = Literal["stop", "length", "context", "cancelled", "deadline", "error"]


@dataclass(frozen=True)
class TokenLogprob:
    """A token and how likely the model found it.

    Attributes:
        id: of the token.
        text: what it stands for; U+FFFD where its bytes are only a part of a character.
        bytes: what it stands for, exactly.
        logprob: natural logarithm of its probability, before penalties, bias and filters.
        top: the likeliest tokens at its place, likeliest first; empty within such a list.
    """

    id: int
    text: str
    bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Piece:
    """One generated token, or the end of an answer.

    The scheduler fills in the first four; ``Answer.take`` adds *text*, *described* and *calls*.

    Attributes:
        token: its id; ``None`` in a piece that only says how the answer ended.
        logprob: natural logarithm of its probability under the model; ``None`` unless asked for.
        top_logprobs: the likeliest tokens at its place, as ``(id, logprob)``.
        finish_reason: ``None`` but in the last piece. ``stop``: a stop id, which is no part of the
            answer, a stop text, or a grammar that is complete. ``length``: as many tokens as asked
            for. ``context``: the context is full. ``cancelled``: nobody wants the rest.
            ``deadline``: it took too long. The last two and ``error`` come without a token.
        text: what is certain of the answer's text now, often empty.
        described: the token with its log-probabilities, if it is part of the answer and they were
            asked for.
        calls: what is certain now of the functions that the answer calls.
    """

    token: int | None
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    text: str = ""
    described: TokenLogprob | None = None
    calls: tuple[CallDelta, ...] = ()

"""One generated token on its way from the scheduler to the reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "context", "cancelled", "deadline", "error"]


@dataclass(frozen=True)
class TokenLogprob:
    """A token and its log-probability.

    Attributes:
        id: of the token.
        text: its text; U+FFFD where its bytes are only part of a character.
        bytes: its exact bytes.
        logprob: natural logarithm of its probability, before penalties, bias and filters.
        top: the likeliest tokens at its position, likeliest first; empty for entries of this list.
    """

    id: int  # of the token
    text: str  # U+FFFD where its bytes are only part of a character
    bytes: bytes  # exact
    logprob: float  # natural logarithm of its probability, before penalties, bias and filters
    #: The likeliest tokens at its position, likeliest first; empty for entries of this list.
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class CallDelta:
    """A part of a function call, as it is generated."""

    index: int  # number of the call in the answer
    arguments: str = ""  # next part of its arguments, JSON text
    id: str = ""  # in its first part only, as is the function's name
    name: str = ""


@dataclass(frozen=True)
class Piece:
    """One generated token, or the end of an answer.

    The sampler fills in the first three, the sequence the fourth, ``Answer.take`` the others; it
    replaces the fourth at a stop string.

    A finish reason is ``stop``: a stop id (not part of the answer), a stop string, or a complete
    grammar; ``length``: ``max_tokens`` reached; ``context``: it is full; ``cancelled``: by the
    client; ``deadline``: it took too long. The last two and ``error`` come without a token.
    """

    token: int | None  # None in a piece that only says how the answer ended
    logprob: float | None = None  # its natural logarithm under the model, if asked for
    top_logprobs: tuple[tuple[int, float], ...] = ()  # the likeliest tokens there, (id, logprob)
    finish_reason: FinishReason | None = None  # in the last piece
    text: str = ""  # of the answer, that has become certain
    # the token with its log-probability, if it is part of the answer and this was asked for
    described: TokenLogprob | None = None
    calls: tuple[CallDelta, ...] = ()  # parts of function calls that have become certain
    reasoning: str = ""  # that has become certain, where it is separate from the text

"""One generated token on its way from the scheduler to the reader."""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass
from typing import Literal

_IDS = string.ascii_letters + string.digits

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

    id: int
    text: str
    bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class CallDelta:
    """A part of a call.

    Attributes:
        index: number of the call in the answer.
        arguments: next part of its arguments, JSON text.
        id: of the call, in its first part only.
        name: of the function, in its first part only.
    """

    index: int
    arguments: str = ""
    id: str = ""
    name: str = ""


def new_call_id() -> str:
    """An id of a call: nine letters and digits, as Mistral's templates expect."""
    return "".join(secrets.choice(_IDS) for _ in range(9))


@dataclass(frozen=True)
class Piece:
    """One generated token, or the end of an answer.

    The sampler fills in the first three, the sequence the fourth, ``Answer.take`` the others.

    Attributes:
        token: its id; ``None`` in a piece that only says how the answer ended.
        logprob: natural logarithm of its probability under the model; ``None`` unless asked for.
        top_logprobs: the likeliest tokens at its position, as ``(id, logprob)``.
        finish_reason: ``None`` except in the last piece. ``stop``: a stop id (not part of the
            answer), a stop string, or a complete grammar. ``length``: ``max_tokens`` reached.
            ``context``: the context is full. ``cancelled``: the client cancelled it.
            ``deadline``: it took too long. The last two and ``error`` come without a token.
        text: text of the answer that has become certain, often empty.
        described: the token with its log-probabilities, if it is part of the answer and they were
            requested.
        calls: parts of function calls that have become certain.
        reasoning: reasoning that has become certain, where it is separate from the text.
    """

    token: int | None
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    text: str = ""
    described: TokenLogprob | None = None
    calls: tuple[CallDelta, ...] = ()
    reasoning: str = ""

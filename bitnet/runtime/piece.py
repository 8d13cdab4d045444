"""One generated token on its way from the scheduler to the reader."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

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
class TextDelta:
    """A part of the text of an answer, or of its reasoning."""

    text: str
    is_reasoning: bool = False


#: A part of an answer, as it is generated.
Part: TypeAlias = TextDelta | CallDelta


def join_parts(parts: Iterable[Part]) -> list[Part]:
    """*parts*, in which those that continue each other are one."""
    joined: list[list[Part]] = []
    for part in parts:
        if joined and _continues(joined[-1][0], part):
            joined[-1].append(part)
        else:
            joined.append([part])
    return [_join(group) for group in joined]


def _continues(begin: Part, part: Part) -> bool:
    if isinstance(part, CallDelta):
        return isinstance(begin, CallDelta) and begin.index == part.index
    return isinstance(begin, TextDelta) and begin.is_reasoning == part.is_reasoning


def _join(parts: list[Part]) -> Part:
    begin = parts[0]
    if isinstance(begin, CallDelta):
        arguments = "".join(part.arguments for part in parts if isinstance(part, CallDelta))
        return replace(begin, arguments=arguments)
    text = "".join(part.text for part in parts if isinstance(part, TextDelta))
    return replace(begin, text=text)


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
    # the token with its log-probability, if it is part of the answer and this was asked for
    described: TokenLogprob | None = None
    parts: tuple[Part, ...] = ()  # of the answer, that have become certain, in their order

    @property
    def text(self) -> str:
        """Text of the answer that has become certain."""
        return "".join(
            part.text
            for part in self.parts
            if isinstance(part, TextDelta) and not part.is_reasoning
        )

    @property
    def reasoning(self) -> str:
        """Reasoning that has become certain, where it is separate from the text."""
        return "".join(
            part.text for part in self.parts if isinstance(part, TextDelta) and part.is_reasoning
        )

    @property
    def calls(self) -> tuple[CallDelta, ...]:
        """Parts of function calls that have become certain."""
        return tuple(part for part in self.parts if isinstance(part, CallDelta))

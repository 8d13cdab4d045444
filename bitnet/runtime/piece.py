"""One generated token on its way from the scheduler to the reader, and metrics of an answer."""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass
from typing import Literal

__all__ = ["CallDelta", "FinishReason", "Piece", "Stats", "TokenLogprob", "new_call_id"]

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


@dataclass
class Stats:
    """Metrics of a generation, complete when it has ended.

    Attributes:
        backend: compute backend, with its instruction set.
        load_s: seconds to load tokenizer and model.
        tokenize_s: seconds spent encoding and decoding.
        prefill_s: seconds from the prompt's ids to the first token.
        decode_s: seconds for the tokens after the first.
        prompt_tokens: ids of the prompt.
        reused_tokens: prompt tokens found in the KV cache.
        tokens: ids generated, including the one that ended the answer.
        reasoning_tokens: those of its reasoning part, where the request separates it.
        passes: forward passes of the model.
        drafted: tokens drafted, by lookup or by a drafter.
        accepted: drafted tokens that the model accepted.
        draft_gain: speed with a drafter over that without, of recent passes; ``None``: unknown.
        exact_head_tokens: tokens chosen without computing the whole output head.
        exact_head_rows: share of the head's rows computed for them, on average, 0 to 1.
        exact_head_stopped: the exact head did not save time with this model and was stopped.
        peak_memory_bytes: peak resident memory of the process; 0 if the system does not report it.
        page_faults: times that the process waited for a page of a file meanwhile.
        read_bytes: bytes that were read from disks for it meanwhile.
    """

    backend: str = ""
    load_s: float = 0.0
    tokenize_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    tokens: int = 0
    reasoning_tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_gain: float | None = None
    exact_head_tokens: int = 0
    exact_head_rows: float = 0.0
    exact_head_stopped: bool = False
    peak_memory_bytes: int = 0
    page_faults: int = 0
    read_bytes: int = 0

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens per second; 0 before the first token."""
        run = self.prompt_tokens - self.reused_tokens
        return run / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens per second after the first; 0 while there are none."""
        return (self.tokens - 1) / self.decode_s if self.decode_s and self.tokens > 1 else 0.0

    @property
    def acceptance(self) -> float:
        """Share of the drafted tokens that were accepted, 0 to 1; 0 when there were none."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokenize_share(self) -> float:
        """Share of the time since loading spent encoding and decoding text, 0 to 1."""
        total = self.tokenize_s + self.prefill_s + self.decode_s
        return self.tokenize_s / total if total else 0.0

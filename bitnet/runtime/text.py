"""Text out of a model: pieces as they are written, stop strings, and what it took."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bitnet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from bitnet.runtime.engine import Engine
    from bitnet.runtime.generation import FinishReason, GenerationParams, Piece
    from bitnet.tokenizer import Tokenizer

__all__ = [
    "AnswerText",
    "Generation",
    "Stats",
    "StopStrings",
    "TokenLogprob",
    "check_prompt",
    "peak_memory",
    "token_logprob",
]


@dataclass
class Stats:
    """What a generation took; complete when it has ended.

    Attributes:
        backend: what computed, with its instruction set.
        load_s: seconds to load tokenizer and model.
        tokenize_s: seconds spent between text and ids, both ways.
        prefill_s: seconds from the prompt's ids to the first token.
        decode_s: seconds for the tokens after the first.
        prompt_tokens: ids of the prompt.
        reused_tokens: how many of them the cache still had from the prompt before.
        tokens: ids generated, with the one that ended the answer.
        passes: how often the model was run.
        drafted: tokens drafted by lookup.
        accepted: how many of them the model would have written as well.
        screened: tokens chosen without the whole output head.
        rescored_share: share of its rows computed for them, on average, 0 to 1.
        screen_given_up: screening did not pay for this model, so it was stopped.
        peak_memory_bytes: most memory the process has had so far; 0 if the system does not say.
    """

    backend: str = ""
    load_s: float = 0.0
    tokenize_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    screened: int = 0
    rescored_share: float = 0.0
    screen_given_up: bool = False
    peak_memory_bytes: int = 0

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt ids run per second; 0 before the first token."""
        run = self.prompt_tokens - self.reused_tokens
        return run / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Ids per second after the first; 0 while there are none."""
        return (self.tokens - 1) / self.decode_s if self.decode_s and self.tokens > 1 else 0.0

    @property
    def acceptance(self) -> float:
        """Share of the drafted tokens that were right, 0 to 1; 0 when there were none."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokenize_share(self) -> float:
        """Share of the time since loading that went into text and ids, 0 to 1."""
        total = self.tokenize_s + self.prefill_s + self.decode_s
        return self.tokenize_s / total if total else 0.0


class StopStrings:
    """Ends a text before the first of some strings, however it is cut into pieces.

    What could be the beginning of one is held back until it is not.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Stops at any of *stops*; empty ones are ignored."""
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The part of the text so far that is certain now; nothing once one was found."""
        if self.found:
            return ""
        self._held += text
        ends = [end for stop in self._stops if (end := self._held.find(stop)) >= 0]
        self.found = bool(ends)
        end = min(ends) if ends else len(self._held) - self._undecided()
        certain, self._held = self._held[:end], self._held[end:]
        return certain

    def finish(self) -> str:
        """What was held back and turned out to be text."""
        held, self._held = self._held, ""
        return "" if self.found else held

    def _undecided(self) -> int:
        """Length of the longest end of the text that one of the strings begins with."""
        longest = max((len(stop) for stop in self._stops), default=0)
        for count in range(min(longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-count:]) for stop in self._stops):
                return count
        return 0


class AnswerText:
    """Text of an answer from its tokens: whole characters, up to the first stop string."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int], stop: Sequence[str] = ()
    ) -> None:
        """Text that follows *prompt_ids*: a space that begins the answer is part of it."""
        self._size = tokenizer.vocab_size
        self._stream = tokenizer.stream(skip_special=True)
        self._stream.skip([token for token in prompt_ids if 0 <= token < self._size])
        self._stops = StopStrings(stop)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; nothing comes after it."""
        return self._stops.found

    def push(self, token: int) -> str:
        """The text that *token* makes certain, often empty."""
        return self._stops.push(self._decoded(token))

    def finish(self) -> str:
        """What was held back and turned out to be text."""
        return self._stops.push(self._stream.finish()) + self._stops.finish()

    def _decoded(self, token: int) -> str:
        # Some embeddings are padded with rows that stand for nothing.
        return self._stream.push(token) if 0 <= token < self._size else ""


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


def token_logprob(tokenizer: Tokenizer, piece: Piece) -> TokenLogprob:
    """The log-probabilities of *piece*, a token that was generated with them."""
    assert piece.token is not None
    assert piece.logprob is not None
    top = tuple(_described(tokenizer, *pair) for pair in piece.top_logprobs)
    return replace(_described(tokenizer, piece.token, piece.logprob), top=top)


def _described(tokenizer: Tokenizer, token: int, logprob: float) -> TokenLogprob:
    known = 0 <= token < tokenizer.vocab_size
    raw = tokenizer.token_bytes(token) if known else b""
    return TokenLogprob(token, raw.decode("utf-8", "replace"), raw, logprob)


@dataclass
class Generation:
    """One answer: iterate over it once for its text, piece by piece.

    The attributes grow while it runs, and hold what there is when it is left early.

    Attributes:
        prompt_ids: ids the model continues.
        ids: ids generated, without a stop id; those of a stop string are among them.
        logprobs: of every one of *ids*; empty unless asked for.
        text: everything written so far.
        finish_reason: ``stop``, ``length`` or ``context``; ``None`` while it runs.
        stats: what it took.
    """

    engine: Engine
    tokenizer: Tokenizer
    prompt_ids: Sequence[int]
    params: GenerationParams
    stop: Sequence[str] = ()
    stats: Stats = field(default_factory=Stats)
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    _begun: bool = field(default=False, init=False, repr=False)

    def __iter__(self) -> Iterator[str]:
        """The pieces; they are never empty.

        Raises:
            InferenceError: the prompt does not fit the context, or memory runs out.
            UsageError: the prompt is empty or has ids the model does not know, or the answer has
                been read before.
        """
        if self._begun:
            raise UsageError("the answer has been read before", hint="its text is in .text")
        self._begun = True
        started = time.perf_counter()
        answer = AnswerText(self.tokenizer, self.prompt_ids, self.stop)
        self.stats.tokenize_s += time.perf_counter() - started
        with closing(self._tokens()) as tokens:
            for token in tokens:
                started = time.perf_counter()
                written = answer.push(token)
                self.stats.tokenize_s += time.perf_counter() - started
                yield from self._written(written)
                if answer.stopped:
                    self.finish_reason = "stop"
                    return
        yield from self._written(answer.finish())

    def _written(self, piece: str) -> Iterator[str]:
        if piece:
            self.text += piece
            yield piece

    def _tokens(self) -> Generator[int]:
        """The ids that belong to the answer, timed."""
        stats = self.stats
        sequence = self.engine.start(self.prompt_ids, self.params)
        stats.prompt_tokens = len(self.prompt_ids)
        started = time.perf_counter()
        with closing(self.engine.run(sequence)) as pieces:
            for piece in pieces:
                passed = time.perf_counter() - started
                if stats.tokens:
                    stats.decode_s += passed
                else:
                    stats.prefill_s = passed
                stats.tokens += piece.token is not None
                stats.reused_tokens, stats.passes = sequence.reused, sequence.passes
                stats.drafted, stats.accepted = sequence.drafted, sequence.accepted
                stats.screened = sequence.screened
                stats.rescored_share = sequence.rescored / max(1, sequence.screened)
                stats.screen_given_up = self.engine.model.gave_up_screen
                stats.peak_memory_bytes = peak_memory()
                self.finish_reason = piece.finish_reason
                if piece.token is not None and piece.finish_reason != "stop":
                    self.ids.append(piece.token)
                    if piece.logprob is not None:
                        self.logprobs.append(token_logprob(self.tokenizer, piece))
                    yield piece.token
                started = time.perf_counter()


def check_prompt(text: str) -> None:
    """Accept what a model can continue.

    Raises:
        UsageError: *text* is empty or holds a NUL character.
    """
    if not text:
        raise UsageError("the prompt is empty", hint="pass some text: --prompt 'Once upon a time'")
    if "\0" in text:
        raise UsageError(
            f"the prompt has a NUL character at position {text.index(chr(0)):,}",
            hint="pass text, not a binary file",
        )


def peak_memory() -> int:
    """Most bytes of memory this process has had resident so far; 0 if the system does not say."""
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

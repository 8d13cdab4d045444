"""Text out of a model: pieces as they are written, stop strings, and what it took."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bitnet.errors import InferenceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bitnet.runtime.engine import Engine, FinishReason, GenerationParams
    from bitnet.tokenizer import Tokenizer, TokenStream

__all__ = ["Generation", "Stats", "StopStrings", "check_prompt", "peak_memory"]


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


@dataclass
class Generation:
    """One answer: iterate over it once for its text, piece by piece.

    The attributes grow while it runs, and hold what there is when it is left early.

    Attributes:
        prompt_ids: ids the model continues.
        ids: ids generated, without a stop id; those of a stop string are among them.
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
    text: str = ""
    finish_reason: FinishReason | None = None

    def __iter__(self) -> Iterator[str]:
        """The pieces; they are never empty.

        Raises:
            InferenceError: the prompt does not fit the context, or memory runs out.
            UsageError: the prompt is empty or has ids the model does not know.
        """
        stream, stops = self._stream(), StopStrings(self.stop)
        for token in self._tokens():
            started = time.perf_counter()
            piece = stops.push(stream.push(token) if self._has_text(token) else "")
            self.stats.tokenize_s += time.perf_counter() - started
            yield from self._written(piece)
            if stops.found:
                self.finish_reason = "stop"
                return
        yield from self._written(stops.push(stream.finish()) + stops.finish())

    def _stream(self) -> TokenStream:
        """A decoder that has seen the prompt: a space that begins the answer is part of it."""
        started = time.perf_counter()
        stream = self.tokenizer.stream(skip_special=True)
        for token in filter(self._has_text, self.prompt_ids):
            stream.push(token)
        self.stats.tokenize_s += time.perf_counter() - started
        return stream

    def _has_text(self, token: int) -> bool:
        """Whether the tokenizer knows *token*: not a row that only pads the embedding."""
        return 0 <= token < self.tokenizer.vocab_size

    def _written(self, piece: str) -> Iterator[str]:
        if piece:
            self.text += piece
            yield piece

    def _tokens(self) -> Iterator[int]:
        """The ids that belong to the answer, timed."""
        try:
            yield from self._timed()
        except MemoryError as error:
            positions = len(self.prompt_ids) + len(self.ids)
            raise InferenceError(
                f"not enough memory for {positions:,} positions: {error}",
                hint="shorten the prompt or lower --max-tokens",
            ) from error

    def _timed(self) -> Iterator[int]:
        stats = self.stats
        stats.prompt_tokens = len(self.prompt_ids)
        stats.reused_tokens = self.engine.reusable(self.prompt_ids)
        started = time.perf_counter()
        for piece in self.engine.generate(self.prompt_ids, self.params):
            passed = time.perf_counter() - started
            if stats.tokens:
                stats.decode_s += passed
            else:
                stats.prefill_s = passed
            stats.tokens += 1
            stats.peak_memory_bytes = peak_memory()
            self.finish_reason = piece.finish_reason
            if piece.token is not None and piece.finish_reason != "stop":
                self.ids.append(piece.token)
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

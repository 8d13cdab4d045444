"""An answer while it is written: pieces in; text, log-probabilities, reasons, figures out."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bitnet.errors import UsageError
from bitnet.runtime.piece import Piece, TokenLogprob
from bitnet.runtime.tool_calls import ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from collections.abc import Sequence as Texts

    from bitnet.runtime.piece import FinishReason
    from bitnet.runtime.sequence import Sequence
    from bitnet.runtime.tool_calls import CallDelta
    from bitnet.tokenizer import Tokenizer

__all__ = ["Answer", "Stats", "StopStrings", "peak_memory"]


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

    Attributes:
        found: one ended the text.
        match: the one that did; empty: none.
    """

    def __init__(self, stops: Texts[str]) -> None:
        """Stops at any of *stops*; empty ones are ignored."""
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found = False
        self.match = ""

    def push(self, text: str) -> str:
        """The part of the text so far that is certain now; nothing once one was found."""
        if self.found:
            return ""
        self._held += text
        ends = [(end, stop) for stop in self._stops if (end := self._held.find(stop)) >= 0]
        self.found = bool(ends)
        end, self.match = min(ends) if ends else (len(self._held) - self._undecided(), "")
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


class Answer:
    """One answer: :meth:`take` its pieces, or iterate over it once for its text, piece by piece.

    The attributes grow with it, and hold what there is when it is left early.

    Attributes:
        sequence: what writes it.
        prompt_ids: ids the model continues.
        ids: ids generated, without a stop id; those of a stop text are among them.
        logprobs: of every one of *ids*; empty unless asked for.
        text: everything written so far, but calls of functions.
        calls: functions that it calls, where some were offered.
        finish_reason: why it ended, as a :class:`Piece` says; ``None`` while it runs.
        error: what went wrong if the reason is ``error``.
        stats: what it took.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sequence: Sequence,
        *,
        run: Callable[[Sequence], Generator[Piece]] | None = None,
        stats: Stats | None = None,
    ) -> None:
        """The answer that *sequence* writes.

        Args:
            tokenizer: turns its tokens into text.
            sequence: the prompt and what is wanted.
            run: gives the pieces of *sequence* to whoever iterates.
            stats: what was known before, such as the seconds to load.
        """
        self.sequence = sequence
        self.prompt_ids = tuple(sequence.ids)
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self.stats = stats or Stats()
        self._tokenizer = tokenizer
        self._run = run
        self.calls: list[ToolCall] = []
        self._stops = StopStrings(sequence.request.stop)
        rules = sequence.request.calls
        self._reader = None if rules is None else rules.reader()
        self._shown = {} if rules is None else rules.shown
        self._at = time.perf_counter()
        # A space that begins the answer is part of it.
        self._stream = tokenizer.stream(skip_special=True)
        self._stream.skip([token for token in self.prompt_ids if self._is_known(token)])
        self.stats.tokenize_s += time.perf_counter() - self._at
        self.stats.prompt_tokens = len(self.prompt_ids)

    @property
    def stop_text(self) -> str:
        """The stop text that ended it; empty: none did."""
        return self._stops.match

    def take(self, piece: Piece) -> Piece:
        """*piece* with the text that it makes certain; its reason is set where a stop text ends it.

        Time since the piece before, or since the answer was made, is the time it took.
        """
        self._count(piece)
        started = time.perf_counter()
        text, described = "", None
        if piece.token is not None and piece.finish_reason != "stop":
            self.ids.append(piece.token)
            if piece.logprob is not None:
                described = self._described(piece)
                self.logprobs.append(described)
            text = self._stream.push(piece.token) if self._is_known(piece.token) else ""
            text = self._stops.push(text + self._shown.get(piece.token, ""))
        reason: FinishReason | None = "stop" if self._stops.found else piece.finish_reason
        taken, calls = self._add(text, reason)
        self.stats.tokenize_s += time.perf_counter() - started
        return replace(piece, text=taken, finish_reason=reason, described=described, calls=calls)

    def end(self, reason: FinishReason, error: Exception | None = None) -> Piece:
        """End it from outside; the last piece, with the text that was held back."""
        self.error = error
        piece = Piece(None, finish_reason=reason)
        self._count(piece)
        text, calls = self._add("", reason)
        return replace(piece, text=text, calls=calls)

    def __iter__(self) -> Iterator[str]:
        """The text in pieces; they are never empty.

        Raises:
            InferenceError: the prompt does not fit the context, or memory runs out.
            UsageError: the prompt is empty or has ids the model does not know, or the answer has
                been read before.
        """
        if self._run is None:
            raise UsageError("the answer has been read before", hint="its text is in .text")
        run, self._run = self._run, None
        with closing(run(self.sequence)) as pieces:
            self._at = time.perf_counter()
            for piece in pieces:
                text = self.take(piece).text
                if text:
                    yield text
                if self.finish_reason:
                    return
                self._at = time.perf_counter()  # what the reader does meanwhile is not ours

    def _add(self, text: str, reason: FinishReason | None) -> tuple[str, tuple[CallDelta, ...]]:
        """Text and calls that are certain after *text*, the next part of what was written."""
        if reason and not self._stops.found:
            text += self._stops.push(self._stream.finish()) + self._stops.finish()
        deltas: list[CallDelta] = []
        if self._reader is not None:
            text, deltas = self._reader.push(text)
            if reason:
                text += self._reader.finish()
            self._take_calls(deltas)
        self.text += text
        self.finish_reason = reason
        return text, tuple(deltas)

    def _take_calls(self, deltas: list[CallDelta]) -> None:
        for delta in deltas:
            if delta.id:
                self.calls.append(ToolCall(delta.id, delta.name))
            self.calls[delta.index].arguments += delta.arguments

    def _count(self, piece: Piece) -> None:
        """Add what *piece* took to the figures."""
        stats, sequence, now = self.stats, self.sequence, time.perf_counter()
        passed, self._at = now - self._at, now
        if stats.tokens:
            stats.decode_s += passed
        else:
            stats.prefill_s += passed
        stats.tokens += piece.token is not None
        stats.reused_tokens, stats.passes = sequence.reused, sequence.passes
        stats.drafted, stats.accepted = sequence.drafted, sequence.accepted
        stats.screened, stats.screen_given_up = sequence.screened, sequence.screen_given_up
        stats.rescored_share = sequence.rescored / max(1, sequence.screened)
        stats.peak_memory_bytes = peak_memory()
        self.error = self.error or sequence.error

    def _described(self, piece: Piece) -> TokenLogprob:
        """*piece*, a token that was generated with log-probabilities."""
        assert piece.token is not None
        assert piece.logprob is not None
        top = tuple(self._token(*pair) for pair in piece.top_logprobs)
        return replace(self._token(piece.token, piece.logprob), top=top)

    def _token(self, token: int, logprob: float) -> TokenLogprob:
        raw = self._tokenizer.token_bytes(token) if self._is_known(token) else b""
        return TokenLogprob(token, raw.decode("utf-8", "replace"), raw, logprob)

    def _is_known(self, token: int) -> bool:
        # Some embeddings are padded with rows that stand for nothing.
        return 0 <= token < self._tokenizer.vocab_size


def peak_memory() -> int:
    """Most bytes of memory this process has had resident so far; 0 if the system does not say."""
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

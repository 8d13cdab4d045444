"""An answer while it is generated: takes tokens; gives text, log-probabilities and metrics."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.base.memory import page_reads, peak_memory
from bitnet.runtime.conversation_text import ReasoningReader
from bitnet.runtime.piece import Piece, TokenLogprob
from bitnet.runtime.tool_calls import ToolCall, call_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from collections.abc import Sequence as Texts

    from bitnet.runtime.piece import CallDelta, FinishReason
    from bitnet.runtime.sequence import Sequence
    from bitnet.tokenizer import Tokenizer

__all__ = ["Answer", "Stats", "StopStrings"]


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


class StopStrings:
    """Ends a text before the first of some stop strings, wherever it is split into pieces.

    Text that could be the beginning of a stop string is held back until that is decided.

    Attributes:
        found: a stop string ended the text.
        match: that stop string; empty if there was none.
    """

    def __init__(self, stops: Texts[str]) -> None:
        """Stop at any of *stops*; empty strings are ignored."""
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found = False
        self.match = ""

    def push(self, text: str) -> str:
        """Text that has become certain; empty once a stop string was found."""
        if self.found:
            return ""
        self._held += text
        ends = [(end, stop) for stop in self._stops if (end := self._held.find(stop)) >= 0]
        self.found = bool(ends)
        end, self.match = min(ends) if ends else (len(self._held) - self._pending_length(), "")
        certain, self._held = self._held[:end], self._held[end:]
        return certain

    def finish(self) -> str:
        """Text that was held back and did not become a stop string."""
        held, self._held = self._held, ""
        return "" if self.found else held

    def _pending_length(self) -> int:
        """Length of the longest suffix with which one of the stop strings begins."""
        longest = max((len(stop) for stop in self._stops), default=0)
        for count in range(min(longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-count:]) for stop in self._stops):
                return count
        return 0


class Answer:
    """One answer: :meth:`take` its pieces, or iterate over it once for its text.

    The attributes are updated with each piece and keep their values when iteration stops early.

    Attributes:
        sequence: the sequence that generates it.
        prompt_ids: token ids of the prompt.
        ids: ids generated, without the stop id; those of a stop string are included.
        logprobs: one entry for each of *ids*; empty unless requested.
        text: the text so far, without function calls and separate reasoning.
        reasoning: the reasoning part so far, if the request separates it.
        calls: the functions it calls, if the request offered any.
        finish_reason: why it ended, as in :class:`Piece`; ``None`` while it runs.
        error: what went wrong if the reason is ``error``.
        stats: its metrics.
        begun_at: ``time.perf_counter`` at its creation; its durations start there.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sequence: Sequence,
        *,
        run: Callable[[Sequence], Generator[Piece]] | None = None,
        stats: Stats | None = None,
    ) -> None:
        """The answer that *sequence* generates.

        Args:
            tokenizer: decodes its tokens.
            sequence: the prompt and its request.
            run: yields the pieces of *sequence* to the caller that iterates.
            stats: metrics known before, such as the load time.
        """
        self.sequence = sequence
        self.prompt_ids: tuple[int, ...] = tuple(sequence.ids)
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.text: str = ""
        self.reasoning: str = ""
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self.stats: Stats = stats or Stats()
        self._tokenizer = tokenizer
        self._run = run
        self.calls: list[ToolCall] = []
        self._stops = StopStrings(sequence.request.stop)
        rules = sequence.request.calls
        self._reader = None if rules is None else call_reader(rules)
        self._shown = {} if rules is None else dict(rules.shown)
        thoughts = sequence.request.reasoning
        self._thoughts = None if thoughts is None else ReasoningReader(thoughts)
        self._shown |= {} if thoughts is None else thoughts.shown
        self._reads = self._reads_before = page_reads()
        self.begun_at: float = time.perf_counter()
        self._at = self.begun_at
        # A space at the beginning of the answer is part of it.
        self._stream = tokenizer.stream(skip_special=True)
        self._stream.skip(self._prompt_tokens())
        self.stats.tokenize_s += time.perf_counter() - self._at
        self.stats.prompt_tokens = len(self.prompt_ids)

    @property
    def prompt_text(self) -> str:
        """The prompt without special tokens, and without ids that no token has."""
        return self._tokenizer.decode(self._prompt_tokens(), skip_special=True)

    @property
    def stop_text(self) -> str:
        """The stop string that ended it; empty if none did."""
        return self._stops.match

    def take(self, piece: Piece) -> Piece:
        """*piece* with the text it makes certain, and the finish reason if a stop string ends it.

        The time since the previous piece, or since the answer was created, counts as its time.
        """
        self._count(piece)
        started = time.perf_counter()
        text, described = "", None
        if piece.token is not None and piece.finish_reason != "stop":
            self.ids.append(piece.token)
            if piece.logprob is not None:
                described = self._describe(piece)
                self.logprobs.append(described)
            text = self._stream.push(piece.token) if self._is_known(piece.token) else ""
            text = self._stops.push(text + self._shown.get(piece.token, ""))
        reason: FinishReason | None = "stop" if self._stops.found else piece.finish_reason
        certain = self._add(text, reason)
        self.stats.tokenize_s += time.perf_counter() - started
        return replace(piece, finish_reason=reason, described=described, **certain)

    def end(self, reason: FinishReason, error: Exception | None = None) -> Piece:
        """End the answer from outside; the last piece, with the text that was held back."""
        self.error = error
        piece = Piece(None, finish_reason=reason)
        self._count(piece)
        return replace(piece, **self._add("", reason))

    def __iter__(self) -> Generator[str]:
        """The text in non-empty pieces.

        Raises:
            InferenceError: the prompt does not fit the context, or memory runs out.
            UsageError: the prompt is empty or has ids outside the vocabulary, or the answer has
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

    def __repr__(self) -> str:
        return f"<Answer {self._state()}: {self.text!r}>"

    def _repr_html_(self) -> str:
        """The text and one line about it, for notebooks."""
        from html import escape  # here, since only notebooks need it

        text = f'<pre style="white-space: pre-wrap">{escape(self.text)}</pre>'
        rate = self.stats.decode_tokens_per_s
        speed = f", {rate:.0f} tokens per second" if rate else ""
        return f"{text}<small>{escape(self._state())}{speed}</small>"

    def _state(self) -> str:
        return f"{len(self.ids)} tokens, {self.finish_reason or 'running'}"

    def _add(self, text: str, reason: FinishReason | None) -> dict[str, Any]:
        """Fields of a piece: what is certain after the next part, *text*."""
        if reason and not self._stops.found:
            text += self._stops.push(self._stream.finish()) + self._stops.finish()
        reasoning = ""
        if self._thoughts is not None:
            reasoning, text = self._thoughts.push(text)
            if self._thoughts.is_inside or reasoning:
                self.stats.reasoning_tokens = self.stats.tokens
            if reason:
                last = self._thoughts.finish()
                reasoning, text = reasoning + last[0], text + last[1]
        deltas: list[CallDelta] = []
        if self._reader is not None:
            text, deltas = self._reader.push(text)
            if reason:
                last_text, last_deltas = self._reader.finish()
                text, deltas = text + last_text, deltas + last_deltas
            self._take_calls(deltas)
        self.text += text
        self.reasoning += reasoning
        self.finish_reason = reason
        return {"text": text, "reasoning": reasoning, "calls": tuple(deltas)}

    def _take_calls(self, deltas: list[CallDelta]) -> None:
        for delta in deltas:
            if delta.id:
                self.calls.append(ToolCall(delta.id, delta.name))
            self.calls[delta.index].arguments += delta.arguments

    def _count(self, piece: Piece) -> None:
        """Add *piece* to the metrics."""
        stats, sequence, now = self.stats, self.sequence, time.perf_counter()
        passed, self._at = now - self._at, now
        if stats.tokens:
            stats.decode_s += passed
        else:
            stats.prefill_s += passed
        stats.tokens += piece.token is not None
        stats.reused_tokens, stats.passes = sequence.reused, sequence.passes
        stats.drafted, stats.accepted = sequence.drafted, sequence.accepted
        stats.draft_gain = sequence.draft_gain
        stats.exact_head_tokens = sequence.exact_head_tokens
        stats.exact_head_rows = sequence.exact_head_rows / max(1, sequence.exact_head_tokens)
        stats.exact_head_stopped = sequence.exact_head_stopped
        stats.peak_memory_bytes = peak_memory()
        reads = self._reads = page_reads(self._reads)
        stats.page_faults = reads.faults - self._reads_before.faults
        stats.read_bytes = reads.read_bytes - self._reads_before.read_bytes
        self.error = self.error or sequence.error

    def _describe(self, piece: Piece) -> TokenLogprob:
        """*piece*, a token generated with log-probabilities, with its text and bytes."""
        assert piece.token is not None
        assert piece.logprob is not None
        top = tuple(self._token(*pair) for pair in piece.top_logprobs)
        return replace(self._token(piece.token, piece.logprob), top=top)

    def _token(self, token: int, logprob: float) -> TokenLogprob:
        raw = self._tokenizer.token_bytes(token) if self._is_known(token) else b""
        return TokenLogprob(token, raw.decode("utf-8", "replace"), raw, logprob)

    def _prompt_tokens(self) -> list[int]:
        return [token for token in self.prompt_ids if self._is_known(token)]

    def _is_known(self, token: int) -> bool:
        # Some embeddings are padded with rows that no token uses.
        return 0 <= token < self._tokenizer.vocab_size

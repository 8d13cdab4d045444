"""An answer while it is generated: takes tokens; gives text, log-probabilities and metrics."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.base.machine import page_reads, peak_memory
from bitnet.runtime.conversation import ReasoningReader
from bitnet.runtime.piece import CallDelta, Piece, TextDelta, TokenLogprob, join_parts
from bitnet.runtime.tool_calls import ToolCall, call_reader, overlap

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from collections.abc import Sequence as SequenceOf

    from bitnet.runtime.piece import FinishReason, Part
    from bitnet.runtime.sequence import Sequence
    from bitnet.tokenizer import Tokenizer

_METRICS = (
    *("backend", "load_s", "tokenize_s", "prefill_s", "decode_s", "prompt_tokens"),
    *("tokens", "reasoning_tokens", "peak_memory_bytes", "page_faults", "read_bytes"),
    *("prefill_tokens_per_s", "decode_tokens_per_s", "tokenize_share", "acceptance"),
)
_COUNTS = (
    *("reused_tokens", "passes", "drafted", "accepted", "draft_gain"),
    *("exact_head_tokens", "exact_head_rows", "exact_head_stopped"),
)


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
        stop_text: the stop string that ended it; empty if none did.
        backend: compute backend, with its instruction set.
        load_s: seconds to load tokenizer and model.
        tokenize_s: seconds spent encoding and decoding.
        queue_s: seconds that it waited for a place among the answers that run.
        prefill_s: seconds from then to the first token.
        decode_s: seconds for the tokens after the first.
        tokens: ids generated, including the one that ended the answer.
        reasoning_tokens: those of its reasoning part, where the request separates it.
        peak_memory_bytes: peak resident memory of the process; 0 if the system does not report it.
        page_faults: times that the process waited for a page of a file meanwhile.
        read_bytes: bytes that were read from disks for it meanwhile.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sequence: Sequence,
        *,
        run: Callable[[Sequence], Generator[Piece]] | None = None,
    ) -> None:
        """The answer that *sequence* generates, whose tokens *tokenizer* decodes.

        *run* yields the pieces of *sequence* to the caller that iterates.
        """
        self.sequence = sequence
        self.prompt_ids: tuple[int, ...] = tuple(sequence.ids)
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.text: str = ""
        self.reasoning: str = ""
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self.backend: str = ""
        self.load_s: float = 0.0
        self.tokenize_s: float = 0.0
        self.queue_s: float = 0.0
        self.prefill_s: float = 0.0
        self.decode_s: float = 0.0
        self.tokens: int = 0
        self.reasoning_tokens: int = 0
        self._sorted_tokens = 0  # those of which it is known whether they are reasoning
        self.peak_memory_bytes: int = 0
        self.page_faults: int = 0
        self.read_bytes: int = 0
        self.stop_text: str = ""
        self._tokenizer = tokenizer
        self._run = run
        self.calls: list[ToolCall] = []
        self._parts: list[Part] = []  # as they were generated
        self._stops = [stop for stop in sequence.request.stop if stop]
        self._held = ""  # end of the text, which may begin a stop string
        self._indent: int | None = None  # white space of a line so far; None: the line has text
        self._is_dedented = False  # a line began with too little white space
        rules = sequence.request.calls
        self._call_reader = None if rules is None else call_reader(rules)
        # control tokens that the readers need as text
        self._shown = {} if rules is None else dict(rules.shown)
        reasoning_rules = sequence.request.reasoning
        self._reasoning_reader = (
            None if reasoning_rules is None else ReasoningReader(reasoning_rules)
        )
        self._shown |= {} if reasoning_rules is None else reasoning_rules.shown
        self._reads = page_reads()
        begun_at = time.perf_counter()
        self._last_at = begun_at  # time of the last piece
        # The stream knows the prompt, so that it keeps a space at the beginning of the answer.
        self._stream = tokenizer.stream(skip_special=True)
        self._stream.skip([token for token in self.prompt_ids if self._is_known(token)])
        self.tokenize_s += time.perf_counter() - begun_at

    @property
    def parts(self) -> list[Part]:
        """Reasoning, text and calls so far, in the order in which the model wrote them."""
        return join_parts(self._parts)

    @property
    def prompt_tokens(self) -> int:
        """Number of ids of the prompt."""
        return self.sequence.prompt_tokens

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens per second; 0 before the first token."""
        computed_tokens = self.prompt_tokens - self.sequence.reused_tokens
        return computed_tokens / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens per second after the first; 0 while there are none."""
        return (self.tokens - 1) / self.decode_s if self.decode_s and self.tokens > 1 else 0.0

    @property
    def acceptance(self) -> float:
        """Share of the drafted tokens that were accepted, 0 to 1; 0 when there were none."""
        return self.sequence.accepted / self.sequence.drafted if self.sequence.drafted else 0.0

    @property
    def tokenize_share(self) -> float:
        """Share of the time since loading spent encoding and decoding text, 0 to 1."""
        total = self.tokenize_s + self.queue_s + self.prefill_s + self.decode_s
        return self.tokenize_s / total if total else 0.0

    def metrics(self) -> dict[str, Any]:
        """Its metrics and those of its sequence, by name; complete when it has ended."""
        return {
            name: getattr(record, name)
            for record, names in ((self, _METRICS), (self.sequence, _COUNTS))
            for name in names
        }

    def take(self, piece: Piece) -> Piece:
        """*piece* with the text that is certain by now, and the reason if a stop string ends it.

        The time since the previous piece, or since the answer was created, counts as its time.
        """
        self._count(piece)
        started = time.perf_counter()
        text = ""
        described = None
        if piece.token is not None and piece.finish_reason != "stop":
            self.ids.append(piece.token)
            if piece.logprob is not None:
                described = self._describe(piece.token, piece.logprob, piece.top_logprobs)
                self.logprobs.append(described)
            text = self._stream.push(piece.token) if self._is_known(piece.token) else ""
            text = self._until_limit(text + self._shown.get(piece.token, ""))
        reason: FinishReason | None = piece.finish_reason
        if reason is not None:
            text += self._until_limit(self._stream.finish(), final=True)
        if self._is_dedented and reason != "error":
            reason = "length"  # as llama.cpp reports for n_indent
        elif self.stop_text and reason != "error":
            reason = "stop"
        new_fields = self._add(text, reason)
        self.tokenize_s += time.perf_counter() - started
        return replace(piece, finish_reason=reason, described=described, **new_fields)

    def end(self, reason: FinishReason, error: Exception | None = None) -> Piece:
        """End the answer from outside; the last piece, with the text that was held back."""
        self.error = error
        piece = Piece(None, finish_reason=reason)
        self._count(piece)
        text = self._until_limit(self._stream.finish(), final=True)
        return replace(piece, **self._add(text, reason))

    def __iter__(self) -> Generator[str]:
        """The text in non-empty pieces.

        Raises:
            InferenceError: the prompt does not fit the context, or memory runs out.
            UsageError: the prompt is empty or has ids outside the vocabulary, or the answer has
                been read before.
        """
        if self._run is None:
            raise UsageError("the answer has been read before", hint="its text is in .text")
        run = self._run
        self._run = None
        with closing(run(self.sequence)) as pieces:
            self._last_at = time.perf_counter()
            for piece in pieces:
                text = self.take(piece).text
                if text:
                    yield text
                if self.finish_reason:
                    return
                self._last_at = time.perf_counter()  # the time that the reader takes does not count

    def __repr__(self) -> str:
        return f"<Answer {len(self.ids)} tokens, {self.finish_reason or 'running'}: {self.text!r}>"

    def _repr_html_(self) -> str:
        """The text and one line about it, for notebooks."""
        from html import escape

        rate = self.decode_tokens_per_s
        speed = f", {rate:.0f} tokens per second" if rate else ""
        state = f"{len(self.ids)} tokens, {self.finish_reason or 'running'}{speed}"
        text = f'<pre style="white-space: pre-wrap">{escape(self.text)}</pre>'
        return f"{text}<small>{state}</small>"

    def _add(self, text: str, reason: FinishReason | None) -> dict[str, Any]:
        """Add *text*, the next part; fields of the piece: the parts that are now certain."""
        final = reason is not None
        if final:
            reads = page_reads()
            self.peak_memory_bytes = peak_memory()
            self.page_faults = reads.faults - self._reads.faults
            self.read_bytes = reads.read_bytes - self._reads.read_bytes
        reasoning = ""
        if self._reasoning_reader is not None:
            reasoning, text = self._reasoning_reader.read(text, final=final)
            is_reasoning = self._reasoning_reader.is_inside or bool(reasoning)
            if is_reasoning:
                self.reasoning_tokens += self.tokens - self._sorted_tokens
            if is_reasoning or text:
                self._sorted_tokens = self.tokens
        parts: list[Part] = [TextDelta(reasoning, is_reasoning=True)] if reasoning else []
        if self._call_reader is not None:
            parts += self._call_reader.read_parts(text, final=final)
        elif text:
            parts.append(TextDelta(text))
        for part in parts:
            if isinstance(part, CallDelta):
                if part.id:
                    self.calls.append(ToolCall(part.id, part.name))
                self.calls[part.index].arguments += part.arguments
            elif part.is_reasoning:
                self.reasoning += part.text
            else:
                self.text += part.text
        self._parts += parts
        self.finish_reason = reason
        return {"parts": tuple(parts)}

    def _until_limit(self, text: str, *, final: bool = False) -> str:
        """The held text and *text* up to a stop string or to a line that is indented too little.

        What may begin a stop string is held, unless it is *final*.
        """
        if self.stop_text or self._is_dedented:
            return ""
        text, self._held, self.stop_text = until_stop(self._held + text, self._stops, final=final)
        return self._until_dedent(text)

    def _until_dedent(self, text: str) -> str:
        """*text* before the first character of a line that is indented too little."""
        least = self.sequence.request.min_indent
        if not least:
            return text
        for at, char in enumerate(text):
            if self._indent is not None and char in " \t":
                self._indent += 1
                continue
            if self._indent is not None and self._indent < least:
                self._is_dedented = True
                # Everything behind this character is left out, a stop string as well.
                self._held = ""
                self.stop_text = ""
                return text[:at]
            self._indent = 0 if char == "\n" else None
        return text

    def _count(self, piece: Piece) -> None:
        """Add *piece* to the metrics, and the failure of the sequence, if any, to the answer."""
        now = time.perf_counter()
        if self.tokens:
            self.decode_s += now - self._last_at
        else:
            admitted_at = self.sequence.admitted_at
            # A sequence that was not admitted has waited until now.
            run_from = now if admitted_at is None else max(admitted_at, self._last_at)
            self.queue_s += run_from - self._last_at
            self.prefill_s += now - run_from
        self._last_at = now
        self.tokens += piece.token is not None
        self.error = self.error or self.sequence.error

    def _describe(
        self, token: int, logprob: float, top: SequenceOf[tuple[int, float]] = ()
    ) -> TokenLogprob:
        raw = self._tokenizer.token_bytes(token) if self._is_known(token) else b""
        likeliest = tuple(self._describe(*pair) for pair in top)
        return TokenLogprob(token, raw.decode("utf-8", "replace"), raw, logprob, likeliest)

    def _is_known(self, token: int) -> bool:
        # Some embeddings are padded with rows that no token uses.
        return 0 <= token < self._tokenizer.vocab_size


def until_stop(text: str, stops: SequenceOf[str], *, final: bool = False) -> tuple[str, str, str]:
    """Split *text* into the text before the first of *stops*, a held back end, and that stop.

    Without a stop in *text* the last is empty, and an end of *text* that may begin a stop is held
    back, unless *final*.
    """
    if ends := [(end, stop) for stop in stops if (end := text.find(stop)) >= 0]:
        end, stop = min(ends)
        return text[:end], "", stop
    held = 0 if final else max((overlap(text, stop) for stop in stops), default=0)
    return text[: len(text) - held], text[len(text) - held :], ""

"""Measured times of passes, which decide the size of a prompt chunk and the price of a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitnet.runtime.sequence import Sequence

SMALLEST_CHUNK = 16  # tokens: smaller passes are not faster
HIGHEST_PRICE = 1.5  # limit on the price from one pass; a longer pass has other causes
LONGEST_UNMEASURED = 128  # passes with drafts after which one without is measured again


class PassTimes:
    """Measured times of one scheduler's passes.

    Attributes:
        max_stall_s: seconds that prompts may delay a pass of others.
    """

    def __init__(self, max_stall_s: float) -> None:
        self.max_stall_s = max_stall_s
        self._prefill_token_s = 0.0  # per prompt token, averaged over recent passes; 0: none yet
        # Seconds of the last pass without drafts and prompts, by its number of sequences.
        self._plain_s: dict[int, float] = {}
        self._drafted_passes = 0  # passes with drafts since the last one without
        self._draft_price = 0.0  # average of recent passes with drafts, as observe() returns it

    def prompt_tokens(self, most: int) -> int:
        """Prompt tokens per pass while other sequences decode, at most *most*."""
        if not self._prefill_token_s:
            return min(most, SMALLEST_CHUNK)
        affordable = int(self.max_stall_s / self._prefill_token_s)
        return min(most, max(SMALLEST_CHUNK, affordable))

    def observe(self, batch: list[Sequence], passed_s: float) -> float:
        """Record a pass of *batch* that took *passed_s* seconds; the price of a drafted token.

        The price is the time by which a drafted token prolongs a pass, in tokens decoded without
        drafts. It is 0 after a pass with a prompt, which tells nothing about drafts, and after one
        without drafts. The time per prompt token includes that of decoding tokens in the pass.
        """
        counts = [
            (len(sequence.segment.tokens), len(sequence.proposed))
            for sequence in batch
            if sequence.segment
        ]
        sequences = len(counts)
        prompt_tokens = sum(tokens for tokens, drafted in counts if tokens > 1 + drafted)
        if prompt_tokens >= SMALLEST_CHUNK:
            token_s = passed_s / prompt_tokens
            average_s = self._prefill_token_s or token_s
            self._prefill_token_s = (average_s + token_s) / 2
        if prompt_tokens or not sequences:
            return 0.0
        all_drafted = sum(drafted for _, drafted in counts)
        if not all_drafted:
            self._plain_s[sequences] = passed_s
            self._drafted_passes = 0
            return 0.0
        self._drafted_passes += 1
        if plain_s := self._plain_s.get(sequences):
            price = sequences * (passed_s / plain_s - 1) / all_drafted
            self._draft_price += (min(max(price, 0.0), HIGHEST_PRICE) - self._draft_price) / 4
        return self._draft_price

    def has_undrafted(self, sequences: int) -> bool:
        """True if a pass of this number of *sequences* without drafts was measured recently."""
        return sequences in self._plain_s and self._drafted_passes < LONGEST_UNMEASURED

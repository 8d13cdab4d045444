"""Measured times of passes, and what follows: the share of a prompt, the price of a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitnet.runtime.sequence import Sequence

SMALLEST_CHUNK = 16  # tokens: smaller passes are not faster
HIGHEST_PRICE = 1.5  # of a drafted token, in written ones: what takes longer is not its work
LONGEST_UNMEASURED = 128  # passes with drafts before one without them shows their price again


class PassTimes:
    """Measured times of one scheduler's passes.

    Attributes:
        max_stall_s: seconds that prompts may delay a pass of others.
    """

    def __init__(self, max_stall_s: float) -> None:
        self.max_stall_s = max_stall_s
        self._prefill_token_s = 0.0  # of recent passes with prompts
        self._plain_s: dict[int, float] = {}  # of the last pass without drafts, by its sequences
        self._drafted_passes = 0  # since that
        self._draft_price = 0.0  # of recent passes with drafts

    def prompt_tokens(self, most: int) -> int:
        """Prompt tokens per pass while other sequences decode, at most *most*."""
        if not self._prefill_token_s:
            return min(most, SMALLEST_CHUNK)
        affordable = int(self.max_stall_s / self._prefill_token_s)
        return min(most, max(SMALLEST_CHUNK, affordable))

    def observe(self, batch: list[Sequence], passed_s: float) -> float:
        """Time of a drafted token, in tokens written without drafts, after a pass of *batch*.

        The time per prompt token includes that of decoding tokens in the pass.
        """
        lengths = [
            (len(sequence.segment.tokens), len(sequence.proposed))
            for sequence in batch
            if sequence.segment
        ]
        tokens = sum(length for length, proposed in lengths if length > 1 + proposed)
        if tokens >= SMALLEST_CHUNK:
            earlier = self._prefill_token_s or passed_s / tokens
            self._prefill_token_s = (earlier + passed_s / tokens) / 2
        drafted = sum(proposed for _, proposed in lengths)
        if tokens or not lengths:
            return 0.0
        if not drafted:
            self._plain_s[len(lengths)] = passed_s
            self._drafted_passes = 0
            return 0.0
        self._drafted_passes += 1
        if plain_s := self._plain_s.get(len(lengths)):
            price = len(lengths) * (passed_s / plain_s - 1) / drafted
            self._draft_price += (min(max(price, 0.0), HIGHEST_PRICE) - self._draft_price) / 4
        return self._draft_price

    def know_plain(self, sequences: int) -> bool:
        """True if the time of a pass of so many *sequences* without drafts was measured lately."""
        return sequences in self._plain_s and self._drafted_passes < LONGEST_UNMEASURED

"""Decoders with more than one residual stream: beside each other, or in turns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Streams:
    """Several streams, of which a block computes one (AltUp, arXiv:2301.13310).

    The first are the embeddings, the others products of them that are as long. Before a block all
    are predicted from all, by coefficients that the active one gives; behind it each is corrected
    by a share of what the block changed. Of the last ones, products that are as long as the first
    are averaged.
    """

    count: int  # streams
    active: int  # number of the one that blocks read


@dataclass(frozen=True, eq=False)
class Cycles:
    """Two stacks of blocks that run in turns on two streams (HRM, arXiv:2506.21734).

    A stack reads the sum of both streams, and the norm of its result takes the place of its own
    stream. The low stack runs some times, then the high one once, and so on. The high stream is the
    embeddings at first and the result at last; the low one begins as a row that all tokens share.
    """

    layers: int  # blocks of each stack
    low_turns: int  # of the low stack before one of the high stack

    @property
    def layers_of_cycle(self) -> int:
        """Blocks that run in a cycle, those of the high stack last."""
        return self.layers * (self.low_turns + 1)

    def is_high(self, block: int) -> bool:
        """True if the *block* that runs at this place is one of the high stack."""
        return block % self.layers_of_cycle >= self.layers * self.low_turns

    def numbers(self, cycles: int) -> tuple[int, ...]:
        """Numbers of the tensors of all blocks that run: first the low stack, then the high one."""
        low = tuple(range(self.layers))
        high = tuple(range(self.layers, 2 * self.layers))
        return (low * self.low_turns + high) * cycles

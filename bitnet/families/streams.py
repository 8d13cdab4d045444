"""Decoders with more than one residual stream: in parallel (AltUp), or in turns (HRM)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Streams:
    """Several streams, of which a block computes one (AltUp, arXiv:2301.13310).

    At first, stream 0 holds the embeddings, and each other stream a product with them, scaled to
    their length. Before a block, every stream is predicted from all streams, with coefficients that
    are computed from the active one; behind the block, each is corrected by a share of the change
    that the block made. The result is the mean of stream 0 and of products with the other streams,
    scaled to the length of stream 0.
    """

    count: int  # how many streams there are
    active: int  # number of the stream that blocks read


@dataclass(frozen=True, eq=False)
class Cycles:
    """Two stacks of blocks that run in turns on two streams (HRM, arXiv:2506.21734).

    A stack reads the sum of both streams, and the norm of its result replaces its own stream. In a
    cycle the low stack runs *low_turns* times, then the high one once. The high stream begins as
    the embeddings and ends as the result; the low one begins as a row that all tokens share.
    """

    layers: int  # blocks of each stack
    low_turns: int  # runs of the low stack in a cycle

    @property
    def layers_of_cycle(self) -> int:
        """Number of blocks that run in a cycle, those of the high stack last."""
        return self.layers * (self.low_turns + 1)

    def is_high(self, block: int) -> bool:
        """True if *block*, a number among all blocks that run, belongs to the high stack."""
        return block % self.layers_of_cycle >= self.layers * self.low_turns

    def numbers(self, cycles: int) -> tuple[int, ...]:
        """For each block that runs in so many *cycles*, the number in the names of its tensors.

        Names number the blocks of the low stack first.
        """
        low = tuple(range(self.layers))
        high = tuple(range(self.layers, 2 * self.layers))
        return (low * self.low_turns + high) * cycles

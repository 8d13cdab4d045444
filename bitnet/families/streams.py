"""Decoders with more than one residual stream."""

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
    """Two stacks of blocks, a low and a high one, that work on two streams in turns (HRM).

    The high stream begins as the embeddings, the low one as a vector of the model. The low stack
    makes the low stream of the sum of both, several times, then the high stack the high one
    (arXiv:2506.21734). Every run of a block has a cache of its own.
    """

    layers: int  # blocks of a stack; those of the low one come first
    low: int  # runs of the low stack before each of the high one

    @property
    def runs(self) -> int:
        """Runs of stacks until the high one has run once."""
        return self.low + 1

    def block(self, layer: int) -> int:
        """Number of the block that runs as the *layer*."""
        run, number = divmod(layer, self.layers)
        is_high = run % self.runs == self.low
        return number + self.layers * is_high

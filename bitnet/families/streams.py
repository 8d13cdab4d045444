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

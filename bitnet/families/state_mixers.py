"""Mixers of a block with a state of fixed size: linear attention, convolutions, state spaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class State:
    """A cache of fixed size: the last inputs of a convolution, or a matrix per head."""

    size: int  # numbers for one sequence


@dataclass(frozen=True, eq=False)
class DeltaNet:
    """Linear attention by the gated delta rule (arXiv:2412.06464), behind a short convolution."""

    heads: int  # heads of values, each with a matrix of ``(key_dim, value_dim)`` as its state
    key_heads: int  # heads of queries and keys; each serves ``heads / key_heads`` heads of values
    key_dim: int  # width of a query or key
    value_dim: int  # width of a value
    kernel: int  # positions of the convolution
    # neighbouring heads share a key head, as in transformers' folders; otherwise, as in GGUF, heads
    # with equal numbers modulo *key_heads* do
    grouped: bool
    # strengths (beta) and decays (alpha) are one matrix, ``ssm_ba``, with rows for one key head
    # after another: those of the strengths of its heads, then those of their decays
    joined: bool = False
    # queries, keys and values have separate matrices, each with a convolution of its own
    apart: bool = False
    strength: float = 1.0  # factor on the strengths; above 1, a state may change its sign
    eps: float | None = None  # epsilon of the norm of its result; None: the model's

    @property
    def keys_width(self) -> int:
        """Width of all queries, and of all keys."""
        return self.key_heads * self.key_dim

    @property
    def values_width(self) -> int:
        """Width of all values."""
        return self.heads * self.value_dim

    @property
    def conv_columns(self) -> int:
        """Columns of the convolution: queries, keys and values."""
        return 2 * self.keys_width + self.values_width

    @property
    def cache(self) -> State:
        """The last inputs of the convolution, and the matrices."""
        return State((self.kernel - 1) * self.conv_columns + self.key_dim * self.values_width)


@dataclass(frozen=True, eq=False)
class ShortConvolution:
    """A convolution of gated inputs, gated again: ``out(c * convolution(b * v))``."""

    width: int  # of each of ``b``, ``c`` and ``v``, which are one product of the input
    kernel: int  # positions of the convolution

    @property
    def cache(self) -> State:
        """The last inputs of the convolution."""
        return State((self.kernel - 1) * self.width)


@dataclass(frozen=True, eq=False)
class Mamba2:
    """A state space with one decay per head (arXiv:2405.21060), behind a short convolution."""

    heads: int  # each with a state of *state_size* by *head_dim*
    head_dim: int  # width of a head
    groups: int  # groups of neighbouring heads that share inputs (B) and outputs (C) of states
    state_size: int  # rows of a state
    kernel: int  # positions of the convolution
    norm_groups: int = 1  # equal parts of the result, each with its own norm; 0: it has no norm
    norm_first: bool = False  # the norm is before the gate; otherwise behind it

    @property
    def width(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim

    @property
    def conv_columns(self) -> int:
        """Columns of the convolution: all heads, and the inputs and outputs of their states."""
        return self.width + 2 * self.groups * self.state_size

    @property
    def cache(self) -> State:
        """The last inputs of the convolution, and the states of all heads."""
        return State((self.kernel - 1) * self.conv_columns + self.width * self.state_size)


@dataclass(frozen=True, eq=False)
class Mamba1:
    """A state for each channel, with decays of its own (arXiv:2312.00752), behind a convolution."""

    width: int  # channels
    state_size: int  # numbers of a channel's state
    # width of the vector from which the steps of all channels are computed (``dt_rank``)
    step_rank: int
    kernel: int  # positions of the convolution
    # RMS norms of that vector, and of the inputs (B) and outputs (C) of states; ``bare``: without
    # weights
    norms: Literal["", "weighted", "bare"] = ""
    eps: float = 0.0  # epsilon of these norms

    @property
    def cache(self) -> State:
        """The last inputs of the convolution, and the states of all channels."""
        return State((self.kernel - 1 + self.state_size) * self.width)


@dataclass(frozen=True, eq=False)
class KimiDelta:
    """Linear attention with a decay for each row of a state (KDA, arXiv:2510.26692)."""

    heads: int  # heads of queries, keys and values, each with a square matrix as its state
    head_dim: int  # width of a head
    kernel: int  # positions of the convolutions of queries, keys and values
    # decays and gates are products with two matrices each, ``head_dim`` wide between them;
    # otherwise they are products with one, ``ssm_f_a`` and ``ssm_g_a``
    low_rank: bool = True
    floor: float = 0.0  # lowest logarithm of a decay, below 0; 0: it has no limit

    @property
    def width(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim

    @property
    def cache(self) -> State:
        """The last inputs of the convolutions, and the matrices."""
        return State((3 * (self.kernel - 1) + self.head_dim) * self.width)

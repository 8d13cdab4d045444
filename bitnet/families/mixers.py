"""Feed-forward networks, mixtures of them, and mixers with a state of fixed size, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

Activation = Literal[
    "silu", "gelu_tanh", "relu_squared", "relu", "sigmoid", "silu_clamped", "swiglu_oai", "identity"
]
Gating = Literal["softmax", "softmax_chosen", "sigmoid"]

MOST_EXPERTS = 1 << 16
LONGEST_KERNEL = 64  # positions of a convolution; a damaged file asks for billions
LARGEST_HEAD = 1 << 16


@dataclass(frozen=True, eq=False)
class FeedForward:
    """A feed-forward network."""

    width: int  # of its inner layer
    activation: Activation = "silu"  # on the gate
    gated: bool = True  # it is a GLU; if not, the activation is on ``up`` itself
    fused: bool = False  # gate and up are one matrix, ``ffn_up``
    sub_norm: bool = False  # there is a norm before the output projection

    cache: ClassVar[None] = None  # it needs no other position

    def faults(self) -> Iterator[tuple[bool, str]]:
        """Conditions, and what it means that one is true."""
        yield self.width < 1, "a size below 1 (inside the feed-forward network)"


@dataclass(frozen=True)
class Routing:
    """The choice of a token's experts, from the logits of a router.

    The experts with the best scores are chosen; of equal scores, that of the lower number.
    """

    count: int  # experts
    used: int  # experts of a token
    # scores of experts: a softmax over all, a sigmoid each, or the logits themselves, whose softmax
    # over the chosen ones gives the weights
    gating: Gating = "softmax"
    # ``exp_probs_b`` is added to the scores for the choice, not for the weights
    corrected: bool = False
    # equal parts of the experts, of which only the best are chosen from; the score of a group is
    # the sum of its two best
    groups: int = 1
    groups_used: int = 1  # groups that are chosen from
    renormalised: bool = True  # weights are divided by their sum, at least 2**-14
    scale: float = 1.0  # factor on the weights

    def faults(self) -> Iterator[tuple[bool, str]]:
        """Conditions, and what it means that one is true."""
        groups = f"{self.groups_used} of {self.groups} groups of {self.count} experts"
        yield not 1 <= self.used <= self.count, f"{self.used} of {self.count} experts"
        yield self.count > MOST_EXPERTS, f"{self.count:,} experts"
        yield min(self.groups, self.groups_used) < 1 or self.groups_used > self.groups, groups
        yield self.count % max(self.groups, 1) > 0, f"groups that differ in size ({groups})"
        yield (
            self.used > self.count // max(self.groups, 1) * self.groups_used,
            f"more experts of a token than {groups} have ({self.used})",
        )


@dataclass(frozen=True, eq=False)
class Experts:
    """A mixture of experts: feed-forward networks; a router chooses some of them for each token."""

    routing: Routing  # the choice
    width: int  # inside an expert
    activation: Activation = "silu"  # on the gate
    gated: bool = True  # experts are GLUs
    # gate and up of an expert are one matrix, ``ffn_gate_up_exps``, the gate first
    fused: bool = False
    biased: bool = False  # the router and the experts must have biases
    early: bool = False  # the router reads the input of the block, before its first norm
    # the router reads a norm of the stream, ``ffn_gate_inp.scale``, over the root of its width; the
    # experts read the norm of their branch
    normed: bool = False
    # width of what experts read and give, ``ffn_latent_down`` and ``ffn_latent_up`` lead there and
    # back; 0: they read and give what the mixture does
    latent: int = 0
    shared: int = 0  # width inside a network that every token goes through; 0: there is none
    shared_gated: bool = False  # its result is scaled by a sigmoid, ``ffn_gate_inp_shexp``

    cache: ClassVar[None] = None  # it needs no other position

    def faults(self) -> Iterator[tuple[bool, str]]:
        """Conditions, and what it means that one is true."""
        yield min(self.width, self.latent + 1) < 1, "a size below 1 (inside the experts)"
        yield from self.routing.faults()


@dataclass(frozen=True)
class State:
    """A cache of fixed size: the last inputs of a convolution, or a matrix per head."""

    size: int  # numbers


@dataclass(frozen=True, eq=False)
class DeltaNet:
    """Linear attention by the gated delta rule (arXiv:2412.06464), behind a short convolution."""

    heads: int  # of values, each with a matrix of keys by values
    key_heads: int  # of queries and keys; each serves ``heads / key_heads`` heads
    key_dim: int  # width of a query or key
    value_dim: int  # width of a value
    kernel: int  # positions of the convolution
    # neighbouring heads share a key head, as in transformers' folders; otherwise every key_heads-th
    # head does, as in GGUF
    grouped: bool

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

    def faults(self) -> Iterator[tuple[bool, str]]:
        """Conditions, and what it means that one is true."""
        sizes = (self.heads, self.key_heads, self.key_dim, self.value_dim, self.kernel)
        heads = f"{self.heads} heads of {self.value_dim}, {self.key_heads} key heads"
        yield min(sizes) < 1, f"linear attention without heads ({heads})"
        yield (
            self.heads % max(self.key_heads, 1) > 0,
            f"key heads that do not divide the heads ({heads})",
        )
        yield self.kernel > LONGEST_KERNEL, f"a convolution over more than {LONGEST_KERNEL}"
        yield max(sizes) > LARGEST_HEAD, f"linear attention of {max(sizes):,} heads or dimensions"


@dataclass(frozen=True, eq=False)
class ShortConvolution:
    """A convolution of gated inputs, gated again: ``out(c * convolution(b * v))``."""

    width: int  # of each of ``b``, ``c`` and ``v``, which are one product of the input
    kernel: int  # positions of the convolution

    @property
    def cache(self) -> State:
        """The last inputs of the convolution."""
        return State((self.kernel - 1) * self.width)

    def faults(self) -> Iterator[tuple[bool, str]]:
        """Conditions, and what it means that one is true."""
        yield min(self.width, self.kernel) < 1, "a convolution of nothing"
        yield self.kernel > LONGEST_KERNEL, f"a convolution over more than {LONGEST_KERNEL}"


@dataclass(frozen=True, eq=False)
class Mamba2:
    """A state space with one decay per head (arXiv:2405.21060), behind a short convolution."""

    heads: int  # each with a state of *state_size* by *head_dim*
    head_dim: int  # width of a head
    groups: int  # of inputs and outputs of states; neighbouring heads share one
    state_size: int  # rows of a state
    kernel: int  # positions of the convolution
    norm_groups: int = 1  # parts of the result with a norm of their own; 0: it has no norm
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

    def faults(self) -> Iterator[tuple[bool, str]]:
        """Conditions, and what it means that one is true."""
        sizes = (self.heads, self.head_dim, self.groups, self.state_size, self.kernel)
        heads = f"{self.heads} heads of {self.head_dim}, {self.groups} groups"
        yield min(sizes) < 1, f"a state-space model without heads ({heads})"
        yield self.heads % max(self.groups, 1) > 0, f"groups that do not divide the heads ({heads})"
        yield (
            self.width % max(self.norm_groups, 1) > 0,
            f"norms of {self.norm_groups} parts ({heads})",
        )
        yield self.kernel > LONGEST_KERNEL, f"a convolution over more than {LONGEST_KERNEL}"
        yield max(sizes) > LARGEST_HEAD, f"a state-space model of {max(sizes):,} heads or rows"

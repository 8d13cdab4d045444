"""Mixers of a block that need no other position: feed-forward networks and experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

Activation = Literal[
    "silu",
    "gelu",
    "gelu_quick",
    "softplus",
    "gelu_tanh",
    "relu_squared",
    "relu",
    "sigmoid",
    "silu_clamped",
    "swiglu_oai",
    "identity",
    "tanh",
    "xielu",
]
Gating = Literal["softmax", "softmax_chosen", "sigmoid", "sparse"]

MOST_EXPERTS = 1 << 16


class Stateless:
    """A mixer that needs no other position."""

    cache: ClassVar[None] = None


@dataclass(frozen=True, eq=False)
class FeedForward(Stateless):
    """A feed-forward network."""

    width: int  # of its inner layer
    activation: Activation = "silu"  # on the gate
    gated: bool = True  # it is a GLU; if not, the activation is on ``up`` itself
    fused: bool = False  # gate and up are one matrix, ``ffn_up``
    sub_norm: bool = False  # there is a norm before the output projection
    # standard deviations above the mean of a token's gates by which they are lowered, before the
    # activation; what is then below zero is zero; ``None``: they are not lowered
    cutoff: float | None = None
    # parameters of the activation xIELU, as models store them: the roots of the factors above and
    # below zero behind a softplus, the slope and the epsilon
    xielu: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class BlockInput(Stateless):
    """The stream before its block, which is added once more."""


@dataclass(frozen=True)
class Routing:
    """The choice of a token's experts, from the logits of a router.

    The experts with the best scores are chosen; of equal scores, that of the lower number.
    """

    count: int  # experts
    used: int  # experts of a token
    # scores of experts: a softmax over all, a sigmoid each, or the logits themselves, whose softmax
    # over the chosen ones gives the weights, or, where it is sparse, over an expert and those near
    # it that are not chosen yet
    gating: Gating = "softmax"
    # largest distance of such logits, as a share of the larger of both
    nearness: float = 0.0
    # a tensor is added to the scores for the choice, not for the weights
    corrected: bool = False
    correction: str = "exp_probs_b.bias"  # its name
    # equal parts of the experts, of which only the best are chosen from; the score of a group is
    # the sum of its two best
    groups: int = 1
    groups_used: int = 1  # groups that are chosen from
    renormalised: bool = True  # weights are divided by their sum, at least 2**-14
    scale: float = 1.0  # factor on the weights


@dataclass(frozen=True, eq=False)
class Experts(Stateless):
    """A mixture of experts: feed-forward networks; a router chooses some of them for each token."""

    routing: Routing  # the choice
    width: int  # inside an expert
    activation: Activation = "silu"  # on the gate
    gated: bool = True  # experts are GLUs
    # gate and up of an expert are one matrix, ``ffn_gate_up_exps``, the gate first
    fused: bool = False
    biased: bool = False  # the router and the experts must have biases
    sum_biased: bool = False  # a bias, ``ffn_moe_out``, is added to the weighted sum
    early: bool = False  # the router reads the input of the block, before its first norm
    # the router reads a norm of the stream, ``ffn_gate_inp.scale``, over the root of its width; the
    # experts read the norm of their branch
    normed: bool = False
    # width of what experts read and give, ``ffn_latent_down`` and ``ffn_latent_up`` lead there and
    # back; 0: they read and give what the mixture does
    latent: int = 0
    shared: int = 0  # width inside a network that every token goes through; 0: there is none
    shared_fused: bool = False  # gate and up of that network are one matrix, ``ffn_up_shexp``
    shared_gated: bool = False  # its result is scaled by a sigmoid, ``ffn_gate_inp_shexp``


@dataclass(frozen=True, eq=False)
class LayerInput(Stateless):
    """``proj(activation(inp_gate(x)) * p)``, with the block's part *p* of what each token adds.

    The parts of all blocks are a norm of a projection of the embeddings, plus a row of a table.
    """

    width: int  # of a part
    activation: Activation  # on the gate
    rows: int = 0  # of the table; tokens beyond have the first; 0: one for each token


@dataclass(frozen=True, eq=False)
class LowRank(Stateless):
    """``x + norm(right(left(x)))``, a residual that is learned (LAuReL, arXiv:2411.07501)."""

    rank: int  # width between both matrices

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

MOST_EXPERTS = 1 << 16  # far above published models; a damaged file may state billions


class Stateless:
    """A mixer that needs no other position."""

    cache: ClassVar[None] = None


@dataclass(frozen=True, eq=False)
class FeedForward(Stateless):
    """A feed-forward network."""

    width: int  # of its inner layer
    activation: Activation = "silu"  # on the gate
    gated: bool = True  # it is a GLU; if not, the activation is on ``up`` itself
    fused: bool = False  # gate and up are one matrix, ``ffn_up``, the gate first
    sub_norm: bool = False  # there is a norm before the output projection
    # before the activation, ``gate = max(gate - mean - cutoff * deviation, 0)``, with the mean and
    # the standard deviation of a token's gates (Gemma 3n); ``None``: the gates stay as they are
    cutoff: float | None = None
    # parameters of the activation xIELU, as models store them (arXiv:2411.13010): ``alpha_p`` and
    # ``alpha_n``, each before its softplus, ``beta`` and ``eps``
    xielu: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class BlockInput(Stateless):
    """The stream as it was before the block, which is added once more, like a mixer's result."""


@dataclass(frozen=True)
class Routing:
    """The choice of a token's experts, from the logits of a router.

    The experts with the best scores are chosen; among equal scores, those with lower numbers.
    """

    count: int  # experts
    used: int  # experts chosen for a token
    # scores and weights of experts; ``softmax``: a softmax over all logits; ``sigmoid``: the
    # sigmoid of each; ``softmax_chosen``: the logits, with the softmax over the chosen ones as
    # weights; ``sparse``: the logits, and the weight of an expert is its share in a softmax over
    # itself and the experts near it that are not chosen yet (SparseMixer, arXiv:2409.12136)
    gating: Gating = "softmax"
    # of ``sparse``: a logit is near the best one if their distance, divided by the larger of the
    # best and the logit's absolute value, is at most this
    nearness: float = 0.0
    # a tensor is added to the scores that choose experts, not to those that give their weights
    corrected: bool = False
    correction: str = "exp_probs_b.bias"  # name of that tensor
    # number of groups, equal parts of the experts: experts are chosen only from the groups with the
    # best scores; the score of a group is the sum of its two best experts' scores
    groups: int = 1
    groups_used: int = 1  # groups from which experts are chosen
    renormalised: bool = True  # weights are divided by their sum, or by 2**-14 if that is larger
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
    # the router reads the stream through a norm of its own, ``ffn_gate_inp.scale``, and divided by
    # the root of its width; the experts read the norm of their branch
    normed: bool = False
    # width of the inputs and outputs of experts, if it is not that of the model:
    # ``ffn_latent_down`` is multiplied before them, ``ffn_latent_up`` behind; 0: that of the model
    latent: int = 0
    shared: int = 0  # width inside a network for every token, beside the experts; 0: it has none
    shared_fused: bool = False  # gate and up of that network are one matrix, ``ffn_up_shexp``
    # the result of that network is multiplied by the sigmoid of a product with
    # ``ffn_gate_inp_shexp``
    shared_gated: bool = False


@dataclass(frozen=True, eq=False)
class LayerInput(Stateless):
    """``proj(activation(inp_gate(x)) * p)``, with a vector *p* for each token and block.

    The vectors of all blocks for a token are one row: the norm of a projection of its embedding,
    plus its row in a table, ``per_layer_token_embd``.
    """

    width: int  # of the vector of a block
    activation: Activation  # on the gate
    # rows of the table; tokens with ids beyond them have row 0; 0: the table has all tokens
    rows: int = 0


@dataclass(frozen=True, eq=False)
class LowRank(Stateless):
    """``x + norm(right(left(x)))``, a learned residual (LAuReL, arXiv:2411.07501)."""

    rank: int  # width between the two matrices

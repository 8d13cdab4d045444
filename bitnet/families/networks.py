"""Feed-forward networks as data, and mixtures of them, whose experts a router chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Activation", "Experts", "FeedForward", "Gating", "Routing"]

Activation = Literal[
    "silu",
    "gelu_tanh",
    "relu_squared",
    "relu",
    "sigmoid",
    "silu_clamped",
    "swiglu_oai",
    "identity",
]
Gating = Literal["softmax", "softmax_chosen", "sigmoid"]

MOST_EXPERTS = 1 << 16


@dataclass(frozen=True, eq=False)
class FeedForward:
    """A feed-forward network.

    Attributes:
        width: of its inner layer.
        activation: on the gate.
        gated: it is a GLU; if not, the activation is on ``up`` itself.
        fused: gate and up are one matrix, ``ffn_up``.
        sub_norm: there is a norm before the output projection.
    """

    width: int
    activation: Activation = "silu"
    gated: bool = True
    fused: bool = False
    sub_norm: bool = False

    @property
    def cache(self) -> None:
        """It needs no other position."""
        return

    def faults(self) -> Iterator[tuple[bool, str]]:
        """Conditions, and what it means that one is true."""
        yield self.width < 1, "a size below 1 (inside the feed-forward network)"


@dataclass(frozen=True)
class Routing:
    """The choice of a token's experts, from the logits of a router.

    The experts with the best scores are chosen; of equal scores, that of the lower number.

    Attributes:
        count: experts.
        used: experts of a token.
        gating: scores of experts: a softmax over all, a sigmoid each, or the logits themselves,
            whose softmax over the chosen ones gives the weights.
        corrected: ``exp_probs_b`` is added to the scores for the choice, not for the weights.
        groups: equal parts of the experts, of which only the best are chosen from; the score of a
            group is the sum of its two best.
        groups_used: groups that are chosen from.
        renormalised: weights are divided by their sum, at least 2**-14.
        scale: factor on the weights.
    """

    count: int
    used: int
    gating: Gating = "softmax"
    corrected: bool = False
    groups: int = 1
    groups_used: int = 1
    renormalised: bool = True
    scale: float = 1.0

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
    """A mixture of experts: feed-forward networks, of which a router chooses some for each token.

    Attributes:
        routing: the choice.
        width: inside an expert.
        activation: on the gate.
        gated: experts are GLUs.
        fused: gate and up of an expert are one matrix, ``ffn_gate_up_exps``, the gate first.
        biased: the router and the experts must have biases.
        early: the router reads the input of the block, before its first norm.
        normed: the router reads a norm of the stream, ``ffn_gate_inp.scale``, over the root of its
            width; the experts read the norm of their branch.
        latent: width of what experts read and give, ``ffn_latent_down`` and ``ffn_latent_up`` lead
            there and back; 0: they read and give what the mixture does.
        shared: width inside a network that every token goes through; 0: there is none.
        shared_gated: its result is scaled by a sigmoid, ``ffn_gate_inp_shexp``.
    """

    routing: Routing
    width: int
    activation: Activation = "silu"
    gated: bool = True
    fused: bool = False
    biased: bool = False
    early: bool = False
    normed: bool = False
    latent: int = 0
    shared: int = 0
    shared_gated: bool = False

    @property
    def cache(self) -> None:
        """It needs no other position."""
        return

    def faults(self) -> Iterator[tuple[bool, str]]:
        """Conditions, and what it means that one is true."""
        yield min(self.width, self.latent + 1) < 1, "a size below 1 (inside the experts)"
        yield from self.routing.faults()

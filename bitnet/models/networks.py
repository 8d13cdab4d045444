"""Feed-forward networks and mixtures of experts: what their mixers compute.

In the shapes at the ends of lines T is tokens, F the width inside a network and K the experts of a
token.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bitnet.families.blocks import FeedForward, Routing

if TYPE_CHECKING:
    from bitnet.families.blocks import Experts, LayerInput, LowRank
    from bitnet.kernels.program import Register
    from bitnet.models.builder import Builder

_LINEAR = 20.0  # above which a softplus is its argument, as in torch and llama.cpp


def feed_forward(
    write: Builder, mixer: FeedForward, h: Register, scale: float, suffix: str = ""
) -> Register:
    """``down(activation(gate(h)) * up(h))``; names of tensors end with *suffix*."""
    width = mixer.width
    if mixer.fused:
        both = write.linear(h, f"ffn_up{suffix}", 2 * width)  # (T, 2 F)
        gate, up = write.split(both, width, width)
    elif mixer.gated:
        gate, up = write.linears(h, (f"ffn_gate{suffix}", width), (f"ffn_up{suffix}", width))
    else:
        up = write.linear(h, f"ffn_up{suffix}", width)
    if mixer.gated:
        write.mark("ffn_gate", gate)
    write.mark("ffn_up", up)
    if mixer.gated and mixer.cutoff is not None:
        gate = write.cut_off(gate, mixer.cutoff)
    if mixer.gated:
        act = write.gate(gate, up, mixer.activation)  # (T, F)
    elif mixer.xielu:
        act = _xielu(write, mixer, up)
    else:
        act = write.gate(up, None, mixer.activation)
    write.mark("ffn_act", act)
    if mixer.sub_norm:
        act = write.norm(act, "ffn_sub_norm")
        write.mark(f"ffn_sub_norm{suffix}", act)
    return write.linear(act, f"ffn_down{suffix}", write.decoder.dim, scale=scale)  # (T, dim)


def _xielu(write: Builder, mixer: FeedForward, up: Register) -> Register:
    """The activation xIELU of *up*, with factors that a softplus keeps above zero."""
    above, below, beta, eps = mixer.xielu
    return write.xielu(
        up, above=_softplus(above), below=beta + _softplus(below), beta=beta, eps=eps
    )


def _softplus(x: float) -> float:
    return x if x > _LINEAR else math.log1p(math.exp(x))


def router(write: Builder, mixer: Experts, h: Register) -> Register:
    """Logits of the experts, ``(T, experts)``.

    *h* is what the experts read; for a router that is *normed*, the residual stream, to which it
    applies a norm of its own.
    """
    scale = 1.0
    if mixer.normed:
        h = write.norm(h, "ffn_gate_inp.scale")
        write.mark("ffn_gate_normed", h)
        scale = write.decoder.dim**-0.5
    logits = write.linear(h, "ffn_gate_inp", mixer.routing.count, biased=mixer.biased, scale=scale)
    write.mark("ffn_moe_logits", logits)
    return logits


def experts(
    write: Builder, mixer: Experts, h: Register, logits: Register, scale: float
) -> Register:
    """The weighted sum of each token's experts, plus the network that all tokens share, if any."""
    chosen, weights = _choice(write, mixer, logits)  # (T, K), twice
    expert_input = h
    width = write.decoder.dim
    if mixer.latent:
        width = mixer.latent
        expert_input = write.linear(h, "ffn_latent_down", width)
    act = _inside_experts(write, mixer, expert_input, chosen)  # (T, K F)
    (down,) = write.expert_linears(  # (T, K width)
        act,
        chosen,
        ["ffn_down_exps"],
        width,
        count=mixer.routing.count,
        apart=True,
        biased=mixer.biased,
        scale=scale,
    )
    bias = write.vector("ffn_moe_out.bias", (width,)) if mixer.sum_biased else ""
    mixed = write.combine(down, weights, bias)  # (T, width)
    write.mark("ffn_moe_out", mixed)
    if mixer.latent:
        mixed = write.linear(mixed, "ffn_latent_up", write.decoder.dim)
    if mixer.shared:
        mixed = write.add(_run_shared_expert(write, mixer, h, scale), mixed)
    return mixed


def _choice(write: Builder, mixer: Experts, logits: Register) -> tuple[Register, Register]:
    """Numbers of the experts of each token, and their weights: ``(T, K)``, twice."""
    rule = mixer.routing
    bias = write.vector(rule.correction, (rule.count,)) if rule.corrected else ""
    chosen, weights = write.route(logits, rule, bias)
    write.mark("ffn_moe_topk", chosen)
    # The names say what the weights went through last.
    if rule.scale != 1:
        name = "ffn_moe_weights_scaled"
    elif rule.renormalised:
        name = "ffn_moe_weights_norm"
    elif rule.gating == "softmax_chosen":
        name = "ffn_moe_weights_softmax"
    else:
        name = "ffn_moe_weights"
    write.mark(name, weights)
    return chosen, weights


def _inside_experts(write: Builder, mixer: Experts, x: Register, chosen: Register) -> Register:
    """``activation(gate(x)) * up(x)`` of each chosen expert: ``(T, K F)``."""
    used = mixer.routing.used
    width = mixer.width

    def products(outputs: int, *names: str) -> tuple[Register, ...]:
        return write.expert_linears(
            x, chosen, names, outputs, count=mixer.routing.count, biased=mixer.biased
        )

    if not (mixer.fused or mixer.gated):
        (up,) = products(width, "ffn_up_exps")  # (T, K F)
        return write.gate(up, None, mixer.activation)
    if mixer.fused:
        (both,) = products(2 * width, "ffn_gate_up_exps")  # (T, K 2 F)
        gate, up = write.split(both, used * width, used * width, groups=used)
    else:
        gate, up = products(width, "ffn_gate_exps", "ffn_up_exps")  # (T, K F), twice
    return write.gate(gate, up, mixer.activation)


def _run_shared_expert(write: Builder, mixer: Experts, h: Register, scale: float) -> Register:
    """The network of every token, times the sigmoid of its gate where it has one."""
    network = FeedForward(
        mixer.shared, mixer.activation, gated=mixer.gated, fused=mixer.shared_fused
    )
    if mixer.shared_gated:
        logit = write.linear(h, "ffn_gate_inp_shexp", 1)
        y = feed_forward(write, network, h, scale, suffix="_shexp")
        # One expert of one: its weight is the sigmoid of the logit.
        rule = Routing(1, 1, "sigmoid", renormalised=False)
        _, weight = write.route(logit, rule)
        y = write.combine(y, weight)
    else:
        y = feed_forward(write, network, h, scale, suffix="_shexp")
    write.mark("ffn_shexp", y)
    return y


def layer_inputs(write: Builder, mixer: LayerInput, x: Register) -> tuple[Register, ...]:
    """Every block's part of ``norm(per_layer_model_proj x) + table[token]``, ``(T, P)`` each.

    In the shapes L is blocks and P is the width of a part. The product is divided by the square
    root of the width of *x* before its norm, rows of the table are multiplied by that of P, and
    both summands are divided by that of 2.
    """
    blocks = len(write.decoder.blocks)
    width = blocks * mixer.width
    table = "per_layer_token_embd.weight"
    projection = "per_layer_model_proj"
    factor = (mixer.width / 2) ** 0.5
    rows = write.embed(table, width, factor, rows=mixer.rows)  # (T, L P)
    write.layout.tables.add(table)
    projected = write.linear(x, projection, width, scale=write.decoder.dim**-0.5)  # (T, L P)
    write.mark("per_layer_projection", projected, in_layer=False)
    normed = write.norm(projected, "per_layer_proj_norm", mixer.width)
    write.layout.scales["per_layer_proj_norm.weight"] = 0.5**0.5
    write.mark("per_layer_normed", normed, in_layer=False)
    return write.split(write.add(normed, rows), *([mixer.width] * blocks))


def layer_input(
    write: Builder, mixer: LayerInput, h: Register, part: Register, scale: float
) -> Register:
    """``proj(activation(inp_gate(h)) * part)``."""
    gate = write.linear(h, "inp_gate", mixer.width)  # (T, P)
    act = write.gate(gate, part, mixer.activation)
    return write.linear(act, "proj", write.decoder.dim, scale=scale)  # (T, dim)


def low_rank(write: Builder, mixer: LowRank, h: Register, scale: float) -> Register:
    """``h + norm(right(left(h)))``; the norm cancels *scale*."""
    low = write.linear(h, "laurel_l", mixer.rank)  # (T, rank)
    write.mark("laurel_left", low)
    high = write.linear(low, "laurel_r", write.decoder.dim, scale=scale)  # (T, dim)
    write.mark("laurel_product", high)
    return write.add(h, write.norm(high, "laurel_post_norm"))

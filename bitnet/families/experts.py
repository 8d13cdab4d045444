"""A mixture of experts by its keys, which most families share, and the names of its tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import Unsupported
from bitnet.families.keys import read
from bitnet.families.mixers import Experts, Gating, Routing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys

_GATINGS: dict[int, Gating] = {1: "softmax", 2: "sigmoid"}
_HINT = "the file is damaged, or of a kind that is not known; update bitnet"

#: Names in a folder: experts that are tensors of their own are stacked under these before.
EXPERT_TENSORS = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps.weight",
    "mlp.experts.up_proj": "ffn_up_exps.weight",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}
#: Rules for the keys of ``config.json``.
EXPERT_CONFIG = {
    "moe_intermediate_size": read("width inside an expert"),
    "num_experts": read("experts of a layer"),
    "num_experts_per_tok": read("experts of a token"),
    "num_local_experts": read("name of `num_experts` since transformers 5"),
}
#: The same with a network beside the experts.
SHARED_TENSORS = EXPERT_TENSORS | {
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
#: The same where experts are chosen by groups, behind layers without any.
GROUPED_TENSORS = SHARED_TENSORS | {"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}
GROUPED_CONFIG = EXPERT_CONFIG | {
    "first_k_dense_replace": read("layers without experts, at the beginning"),
    "n_group": read("groups of experts"),
    "n_routed_experts": read("experts of a layer"),
    "n_shared_experts": read("networks beside the experts"),
    "norm_topk_prob": read("weights are divided by their sum"),
    "num_nextn_predict_layers": read("blocks behind the last, which are left out"),
    "routed_scaling_factor": read("factor on the weights of experts"),
    "topk_group": read("groups of a token"),
}
#: Rules for the keys of GGUF files.
EXPERT_KEYS = {
    "expert_count": read("experts of a layer"),
    "expert_used_count": read("experts of a token"),
    "expert_feed_forward_length": read("width inside an expert"),
}
#: The same with a network beside the experts.
SHARED_KEYS = EXPERT_KEYS | {
    "expert_shared_feed_forward_length": read("width of the network beside the experts")
}
#: The same where experts are chosen by groups, behind layers without any.
GROUPED_KEYS = EXPERT_KEYS | {
    "expert_gating_func": read("1: softmax, 2: sigmoid of the router's logits"),
    "expert_group_count": read("groups of experts"),
    "expert_group_used_count": read("groups of a token"),
    "expert_shared_count": read("networks beside the experts, which are one wider network"),
    "expert_weights_norm": read("weights are divided by their sum"),
    "expert_weights_scale": read("factor on the weights"),
    "leading_dense_block_count": read("layers without experts, at the beginning"),
    "nextn_predict_layers": read("blocks at the end, which are left out"),
}


def experts(
    keys: Keys, *, width: int = 0, routing: Mapping[str, Any] | None = None, **more: Any
) -> Experts:
    """The experts of a layer, with more fields of :class:`Routing` and of :class:`Experts`.

    An expert is *width* wide if no key says so.
    """
    count, used = keys.integer("expert_count"), keys.integer("expert_used_count")
    return Experts(
        Routing(count, used, **(routing or {})),
        keys.integer("expert_feed_forward_length", width),
        fused=any(name.endswith(".ffn_gate_up_exps.weight") for name in keys.weights),
        **more,
    )


def group_keys(config: Mapping[str, Any], leading_dense: int) -> dict[str, Any]:
    """GGUF keys of experts by groups from a ``config.json`` with :data:`GROUPED_CONFIG`."""
    groups, used = config["n_group"], config["topk_group"]
    if 1 < groups == used:  # all of them, which llama.cpp does not load
        groups = used = 1
    return expert_keys(config, 128, "moe_intermediate_size") | {
        "expert_gating_func": 2,
        "expert_group_count": groups,
        "expert_group_used_count": used,
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "leading_dense_block_count": leading_dense,
    }


def experts_by_groups(keys: Keys, *, default: Gating = "sigmoid", **routing: Any) -> Experts:
    """Experts that are chosen by groups, and the networks beside them, as one."""
    network = experts(keys, routing=group_routing(keys, default) | routing)
    width = keys.integer("expert_shared_feed_forward_length", 0) or network.width
    return replace(network, shared=width * keys.integer("expert_shared_count"))


def group_routing(keys: Keys, default: Gating = "sigmoid") -> dict[str, Any]:
    """Fields of :class:`Routing` by the keys :data:`GROUPED_KEYS`."""
    groups = keys.integer("expert_group_count", 1) or 1
    return {
        "gating": gating(keys, default),
        "corrected": has_corrections(keys.weights),
        "groups": groups,
        "groups_used": keys.integer("expert_group_used_count", 1) if groups > 1 else 1,
        "renormalised": bool(keys.value("expert_weights_norm", False)),
        "scale": keys.number("expert_weights_scale", 0.0) or 1.0,
    }


def without_drafting_blocks(keys: Keys, model: ModelConfig) -> ModelConfig:
    """*model* without the last blocks of ``nextn_predict_layers``, which only draft tokens."""
    layers = model.n_layers - keys.integer("nextn_predict_layers", 0)
    left_out = tuple(f"blk.{layer}." for layer in range(layers, model.n_layers))
    return replace(model, blocks=model.blocks[:layers], left_out=left_out)


def gating(keys: Keys, default: Gating) -> Gating:
    """Gating by its number in GGUF."""
    number = keys.integer("expert_gating_func", 0)
    if number == 0:
        return default
    if number not in _GATINGS:
        raise Unsupported(
            f"{keys.path.name}: expert_gating_func is {number}, expected 1 or 2", hint=_HINT
        )
    return _GATINGS[number]


def has_corrections(names: Iterable[str]) -> bool:
    """True if there are biases for the choice of experts among tensors of these *names*."""
    return any(name.endswith(".exp_probs_b.bias") for name in names)


def expert_keys(config: Mapping[str, Any], count: int, width: str = "") -> dict[str, Any]:
    """GGUF keys of experts from a ``config.json``, which may have two names for their number.

    There are *count* if no key says so. The key *width* has the width inside an expert; without a
    name it is that of the network.
    """
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    counts = {config[name] for name in names if config.get(name) is not None} or {count}
    if len(counts) > 1:
        raise ValueError(f"several numbers of experts: {sorted(counts)}")
    keys = {"expert_count": counts.pop(), "expert_used_count": config["num_experts_per_tok"]}
    return keys | ({"expert_feed_forward_length": config[width]} if width else {})

"""Mixtures of experts, from keys that most families with experts have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import Unsupported
from bitnet.families.blocks import Experts, Gating, Routing
from bitnet.families.keys import Config, Keys, reads, refusal, wrong_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_GATINGS: dict[int, Gating] = {1: "softmax", 2: "sigmoid"}  # by ``expert_gating_func`` of GGUF
_HINT = "the file is damaged, or of a kind that is not known; update bitnet"

#: Rules for the keys of ``config.json``.
EXPERT_CONFIG = reads("num_experts num_experts_per_tok num_local_experts")
#: The same for experts that are chosen by groups, where the first layers may be dense.
GROUPED_CONFIG = EXPERT_CONFIG | reads(
    "first_k_dense_replace moe_intermediate_size n_group n_routed_experts n_shared_experts "
    "norm_topk_prob num_nextn_predict_layers routed_scaling_factor topk_group"
)
#: Rules for the keys of GGUF files, as :data:`EXPERT_CONFIG`.
EXPERT_KEYS = reads("expert_count expert_used_count expert_feed_forward_length")
#: The same with a network beside the experts.
SHARED_KEYS = EXPERT_KEYS | reads("expert_shared_feed_forward_length")
#: Names of the tensors of Hunyuan's network beside the experts.
SHARED_MLP_TENSORS = {
    f"mlp.shared_mlp.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")
}
#: Rules for the keys of GGUF files, as :data:`GROUPED_CONFIG`.
GROUPED_KEYS = EXPERT_KEYS | reads(
    "expert_gating_func expert_group_count expert_group_used_count expert_shared_count "
    "expert_weights_norm expert_weights_scale leading_dense_block_count nextn_predict_layers"
)


def experts(
    keys: Keys, *, width: int = 0, routing: Mapping[str, Any] | None = None, **overrides: Any
) -> Experts:
    """The experts of a layer.

    *width* is the width inside an expert if no key gives it. *routing* has further fields of
    :class:`Routing`, *overrides* of :class:`Experts`.
    """
    count = keys.integer("expert_count")
    used = keys.integer("expert_used_count")
    return Experts(
        Routing(count, used, **(routing or {})),
        keys.integer("expert_feed_forward_length", width),
        fused=any(name.endswith(".ffn_gate_up_exps.weight") for name in keys.weights),
        **overrides,
    )


def group_keys(config: Config) -> dict[str, Any]:
    """GGUF keys of experts by groups, besides those that :data:`GROUPED_CONFIG` maps directly.

    Scores of experts are sigmoids.
    """
    groups = config["n_group"] or 1
    used = config["topk_group"] or 1
    if 1 < groups == used:  # all groups are used: the same as one group, which llama.cpp loads
        groups = used = 1
    return {"expert_gating_func": 2, "expert_group_count": groups, "expert_group_used_count": used}


def leading_dense_layers(config: Config, usual: int) -> int:
    """Number of layers without experts before the first one that has them.

    *config*, a ``config.json``, may list the kinds of the layers; otherwise the number is *usual*.

    Raises:
        Unsupported: a layer without experts follows one that has them.
    """
    kinds = config.get("mlp_layer_types")
    if kinds is None:
        return usual
    first = next((layer for layer, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    if set(kinds[first:]) - {"sparse"} or len(kinds) != config["num_hidden_layers"]:
        why = "only layers without experts before all others are computed"
        raise refusal("mlp_layer_types", kinds, why)
    return first


def experts_by_groups(keys: Keys, *, default: Gating = "sigmoid", **routing: Any) -> Experts:
    """Experts that are chosen by groups; the shared experts beside them are one wide network.

    *default* is the gating if no key gives it, *routing* has further fields of :class:`Routing`.
    """
    network = experts(keys, routing=group_routing(keys, default) | routing)
    width = keys.integer("expert_shared_feed_forward_length", 0) or network.width
    return replace(network, shared=width * keys.integer("expert_shared_count"))


def group_routing(keys: Keys, default: Gating = "sigmoid") -> dict[str, Any]:
    """Fields of :class:`Routing` from :data:`GROUPED_KEYS`; *default* is as in :func:`gating`."""
    groups = keys.integer("expert_group_count", 1) or 1
    return {
        "gating": gating(keys, default),
        "corrected": has_corrections(keys.weights),
        "groups": groups,
        "groups_used": keys.integer("expert_group_used_count", 1) if groups > 1 else 1,
        "renormalised": keys.flag("expert_weights_norm", False),
        "scale": keys.number("expert_weights_scale", 0.0) or 1.0,
    }


def gating(keys: Keys, default: Gating) -> Gating:
    """Gating of the experts by its number in GGUF, or *default* if no key gives it."""
    number = keys.integer("expert_gating_func", 0)
    if number == 0:
        return default
    if number not in _GATINGS:
        raise Unsupported(
            f"{keys.path.name}: expert_gating_func is {number}, expected 1 or 2", hint=_HINT
        )
    return _GATINGS[number]


def has_corrections(names: Iterable[str]) -> bool:
    """True if *names* of tensors have a bias that corrects scores for the choice of experts."""
    return any(name.endswith(".exp_probs_b.bias") for name in names)


def expert_count(config: Config) -> Any:
    """Number of experts, under any of its names in *config*, a ``config.json``; 0 without one.

    Different numbers under several names are an InvalidFormat.
    """
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    counts = {name: config[name] for name in names if config.get(name) is not None}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise wrong_config(f"several numbers of experts: {listed}")
    return next(iter(counts.values()), 0)

"""Nemotron-H: each layer is Mamba-2, attention without RoPE, a feed-forward network or experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bitnet.families.blocks import Branch, Experts, FeedForward, Mixer
from bitnet.families.dense import ModelConfig, attention, model_of, per_layer, sizes
from bitnet.families.experts import (
    GROUPED_CONFIG,
    GROUPED_KEYS,
    experts,
    group_keys,
    group_routing,
)
from bitnet.families.family import LlamaCppSupport, register
from bitnet.families.keys import Config, Keys, Rule, find_stated, neutral, read, reads, refusal
from bitnet.families.mamba2 import MAMBA2_KEYS, NO_LIMIT, mamba2, mamba2_values

#: Kinds of layers by their letter in ``hybrid_override_pattern``.
_KINDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
#: Kinds of layers by their former names in ``layers_block_type``.
_FORMER_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}


def _nemotron_h(keys: Keys) -> ModelConfig:
    """One mixer a block: by the sizes of its layer, a network, attention or else Mamba-2."""
    model_sizes = sizes(keys, ffn=0)
    kv_heads = per_layer(keys, "attention.head_count_kv", model_sizes.layers)
    widths = per_layer(keys, "feed_forward_length", model_sizes.layers)
    states = mamba2(keys)

    def mixer(layer: int, heads: int, width: int) -> Mixer:
        if width and f"blk.{layer}.ffn_gate_inp.weight" in keys.weights:
            return _mixture(keys, width)
        if width:
            return FeedForward(width, "relu_squared", gated=False)
        if heads:
            return attention(keys, model_sizes.dim, kv_heads=heads, rope=None)
        return states

    blocks = (
        (Branch("attn_norm", (mixer(layer, heads, width),)),)
        for layer, (heads, width) in enumerate(zip(kv_heads, widths, strict=True))
    )
    return model_of(keys, model_sizes, blocks)


def _mixture(keys: Keys, width: int) -> Experts:
    """Experts of a layer, with the network beside them.

    If no key gives the width of an expert, those of a token are together *width* wide.
    """
    routing = group_routing(keys) | {"corrected": True, "gating": "sigmoid"}
    used = max(keys.integer("expert_used_count"), 1)
    network = experts(
        keys, width=width // used, routing=routing, activation="relu_squared", gated=False
    )
    return replace(
        network,
        latent=keys.integer("moe_latent_size", 0),
        shared=keys.integer("expert_shared_feed_forward_length", 0),
    )


def _nemotron_keys(config: Config) -> dict[str, Any]:
    """GGUF keys; the kind of a layer follows from its key heads and its network's width."""
    kinds = find_stated(config, "layers_block_type", "layer_types")
    if kinds is None:
        pattern = config.get("hybrid_override_pattern")
        if pattern is None:
            raise KeyError("layers_block_type")
        if set(pattern) - _KINDS.keys():
            why = f"known are {', '.join(_KINDS)}"
            raise refusal("hybrid_override_pattern", pattern, why, is_ignorable=False)
        kinds = [_KINDS[letter] for letter in pattern]
    kinds = [_FORMER_NAMES.get(kind, kind) for kind in kinds]
    if set(kinds) - set(_KINDS.values()) or {"mlp", "moe"} <= set(kinds):
        why = "layers are linear_attention, full_attention, and either mlp or moe"
        raise refusal("layers_block_type", kinds, why)
    widths = {"mlp": config.get("intermediate_size"), "moe": config.get("moe_intermediate_size")}
    heads = config["num_key_value_heads"]
    has_experts = "moe" in kinds
    return {
        "block_count": len(kinds),
        "attention.head_count_kv": [heads if kind == "full_attention" else 0 for kind in kinds],
        "feed_forward_length": [widths.get(kind, 0) for kind in kinds],
        "attention.layer_norm_epsilon": config["rms_norm_eps"],
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
        **(_expert_keys(config) if has_experts else {"expert_count": 0}),
    }


def _expert_keys(config: Config) -> dict[str, Any]:
    return {
        **group_keys(config),
        "architecture": "nemotron_h_moe",
        "leading_dense_block_count": 0,  # llama.cpp requires it; not read here
        "moe_latent_size": config.get("moe_latent_size") or 0,
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
    }


register(
    title="Nemotron-H",
    architecture="nemotron_h",
    gguf=("nemotron_h_moe",),
    activation="relu2",
    aliases={
        "attention_head_dim": "head_dim",
        "layer_norm_epsilon": "rms_norm_eps",
        "mamba_conv_bias": "use_conv_bias",
        "mamba_d_conv": "conv_kernel",
        "mamba_n_groups": "n_groups",
    },
    config_keys={
        **GROUPED_CONFIG,
        **reads("conv_kernel hybrid_override_pattern layer_types layers_block_type"),
        **reads("mamba_head_dim mamba_num_heads moe_shared_expert_intermediate_size"),
        **reads("n_groups ssm_state_size"),
        "moe_latent_size": read("width of what experts read and give; null: the model's"),
        "mamba_hidden_act": neutral(None, "silu"),
        "mlp_hidden_act": neutral(None, "relu2"),
        "time_step_limit": NO_LIMIT,
        "time_step_min": Rule(
            "not read: no limit, as in llama.cpp; transformers limits prompts only"
        ),
        **dict.fromkeys(
            ("attention_bias", "first_k_dense_replace", "mamba_proj_bias", "sliding_window"),
            Rule("not read: transformers ignores it"),
        ),
    },
    gguf_keys={
        **GROUPED_KEYS,
        **MAMBA2_KEYS,
        **reads("expert_shared_feed_forward_length moe_latent_size"),
        "expert_gating_func": neutral(2, note="a sigmoid of each of the router's logits"),
        "expert_shared_count": Rule(
            "not read: there is one, `expert_shared_feed_forward_length` wide"
        ),
        "leading_dense_block_count": neutral(0),
    },
    tensors={"norm": "attn_norm"},
    values=lambda config: mamba2_values(config["n_groups"]),
    biases={
        "mlp_bias": (
            *("ffn_up", "ffn_down", "ffn_up_shexp", "ffn_down_shexp"),
            *("ffn_latent_down", "ffn_latent_up"),
        ),
        "use_bias": ("ssm_in", "ssm_out"),
        "use_conv_bias": ("ssm_conv1d",),
    },
    llama_cpp=LlamaCppSupport(
        tensors=(
            "output.weight",
            "ssm_dt.bias",
            "ssm_conv1d.bias",
            "ffn_up.bias",
            "ffn_down.bias",
            "exp_probs_b.bias",
        ),
        required=("ssm_conv1d.bias",),
        ignores=(),
        needs=frozenset({"attention", "state"}),
    ),
    partial_rotation=True,  # a folder may give `partial_rotary_factor`; without RoPE it is unused
    translate=_nemotron_keys,
    decoder=_nemotron_h,
)

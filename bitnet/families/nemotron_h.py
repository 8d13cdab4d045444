"""Nemotron-H: each layer is Mamba-2, attention without RoPE, a feed-forward network or experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.families.blocks import Branch, Mixer
from bitnet.families.dense import attention, model_of, per_layer, sizes
from bitnet.families.experts import (
    GROUPED_CONFIG,
    GROUPED_KEYS,
    experts,
    group_keys,
    group_routing,
    without_drafting_blocks,
)
from bitnet.families.family import Family, LlamaCppSupport, register
from bitnet.families.keys import Rule, neutral, read, refusal
from bitnet.families.mamba2 import (
    MAMBA2_KEYS,
    NO_LIMIT,
    mamba2,
    mamba2_keys,
    mamba2_tensors,
    mamba2_values,
)
from bitnet.families.mixers import FeedForward

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys
    from bitnet.families.mixers import Experts

_KINDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_IGNORED = Rule("transformers ignores it")
_FORMER_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}


def _decoder(keys: Keys) -> ModelConfig:
    its = sizes(keys, ffn=0)
    kv_heads = per_layer(keys, "attention.head_count_kv", its.layers)
    widths = per_layer(keys, "feed_forward_length", its.layers)
    states = mamba2(keys)

    def mixer(layer: int, heads: int, width: int) -> Mixer:
        if width and f"blk.{layer}.ffn_gate_inp.weight" in keys.weights:
            return _mixture(keys, width)
        if width:
            return FeedForward(width, "relu", gated=False)  # relu(x) * x
        return attention(keys, its.dim, kv_heads=heads, rope=None) if heads else states

    blocks = (
        (Branch("attn_norm", (mixer(layer, heads, width),)),)
        for layer, (heads, width) in enumerate(zip(kv_heads, widths, strict=True))
    )
    return without_drafting_blocks(keys, model_of(keys, its, blocks))


def _mixture(keys: Keys, width: int) -> Experts:
    """Experts of a layer, of as many numbers together as its *width* if no key says how many."""
    routing = group_routing(keys) | {"corrected": True, "gating": "sigmoid"}
    used = max(keys.integer("expert_used_count"), 1)
    network = experts(keys, width=width // used, routing=routing, activation="relu", gated=False)
    return replace(
        network,
        latent=keys.integer("moe_latent_size", 0),
        shared=keys.integer("expert_shared_feed_forward_length", 0),
    )


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    kinds = config.get("layers_block_type") or config.get("layer_types")
    if kinds is None:
        kinds = [_KINDS[letter] for letter in config["hybrid_override_pattern"]]
    kinds = [_FORMER_NAMES.get(kind, kind) for kind in kinds]
    if set(kinds) - set(_KINDS.values()) or {"mlp", "moe"} <= set(kinds):
        why = "layers are linear_attention, full_attention, and either mlp or moe"
        raise refusal("layers_block_type", kinds, why, kind="Nemotron-H")
    widths = {"mlp": config["intermediate_size"], "moe": config["moe_intermediate_size"]}
    heads, epsilon = config["num_key_value_heads"], config["rms_norm_eps"]
    return {
        "block_count": len(kinds),
        "attention.head_count_kv": [heads if kind == "full_attention" else 0 for kind in kinds],
        "feed_forward_length": [widths.get(kind, 0) for kind in kinds],
        **(_expert_keys(config) if "moe" in kinds else {}),
        "attention.layer_norm_epsilon": epsilon,
        **mamba2_keys(
            heads=config["mamba_num_heads"],
            width=config["mamba_num_heads"] * config["mamba_head_dim"],
            groups=config["n_groups"],
            state_size=config["ssm_state_size"],
            kernel=config["conv_kernel"],
        ),
    }


def _expert_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **group_keys(config, 0),
        "architecture": "nemotron_h_moe",
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "moe_latent_size": config.get("moe_latent_size") or 0,
    }


register(
    Family(
        title="Nemotron-H",
        architecture="nemotron_h",
        gguf=("nemotron_h_moe",),
        model_types=("nemotron_h",),
        activation="relu2",
        aliases={
            "layer_norm_epsilon": "rms_norm_eps",
            "mamba_conv_bias": "use_conv_bias",
            "mamba_d_conv": "conv_kernel",
            "mamba_n_groups": "n_groups",
        },
        defaults={
            "conv_kernel": 4,
            "head_dim": 128,
            "intermediate_size": 21504,
            "layer_norm_epsilon": 1e-5,
            "mamba_head_dim": 64,
            "mamba_num_heads": 128,
            "max_position_embeddings": 4096,
            "moe_intermediate_size": 7688,
            "moe_shared_expert_intermediate_size": 7688,
            "n_group": 1,
            "n_groups": 8,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_experts_per_tok": 2,
            "num_key_value_heads": 8,
            "routed_scaling_factor": 1.0,
            "ssm_state_size": 128,
            "topk_group": 1,
            "use_conv_bias": True,
        },
        config_keys={
            **GROUPED_CONFIG,
            "attention_bias": _IGNORED,
            "conv_kernel": read("positions of a convolution"),
            "hybrid_override_pattern": read("a letter for each layer, without `layers_block_type`"),
            "layer_norm_epsilon": read("epsilon of every norm"),
            "layer_types": read("other name of `layers_block_type`"),
            "layers_block_type": read(
                "what each layer is: a state-space model, attention, a network"
            ),
            "mamba_conv_bias": read("other name of `use_conv_bias`"),
            "mamba_d_conv": read("other name of `conv_kernel`"),
            "mamba_head_dim": read("width of a head of a state-space model"),
            "mamba_hidden_act": neutral(None, "silu"),
            "mamba_n_groups": read("other name of `n_groups`"),
            "mamba_num_heads": read("heads of a state-space model"),
            "mamba_proj_bias": _IGNORED,
            "mlp_hidden_act": neutral(None, "relu2"),
            "moe_latent_size": read("width of what experts read and give; null: the model's"),
            "moe_shared_expert_intermediate_size": read("width of the network beside the experts"),
            "n_groups": read("groups of heads that share inputs and outputs of states"),
            "n_shared_experts": _IGNORED,
            "sliding_window": _IGNORED,
            "ssm_state_size": read("rows of a state"),
            "time_step_limit": NO_LIMIT,
            "time_step_min": Rule("no limit, as in llama.cpp; transformers limits prompts only"),
        },
        gguf_keys={
            **GROUPED_KEYS,
            **MAMBA2_KEYS,
            "attention.head_count_kv": read("key and value heads; 0: a layer without attention"),
            "attention.layer_norm_epsilon": read("as `attention.layer_norm_rms_epsilon`"),
            "expert_gating_func": neutral(2, note="a sigmoid of each of the router's logits"),
            "expert_shared_count": Rule("there is one, of the width below"),
            "expert_shared_feed_forward_length": read("width of the network beside the experts"),
            "feed_forward_length": read("width inside a network; 0: a layer without one"),
            "leading_dense_block_count": neutral(0),
            "moe_latent_size": read("width of what experts read and give; 0: the model's"),
        },
        tensors={
            "embeddings": "token_embd",
            "norm_f": "output_norm",
            "norm": "attn_norm",
            "mixer.q_proj": "attn_q",
            "mixer.k_proj": "attn_k",
            "mixer.v_proj": "attn_v",
            "mixer.o_proj": "attn_output",
            "mixer.up_proj": "ffn_up",
            "mixer.down_proj": "ffn_down",
            "mixer.gate": "ffn_gate_inp",
            "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
            "mixer.experts.up_proj": "ffn_up_exps.weight",
            "mixer.experts.down_proj": "ffn_down_exps.weight",
            "mixer.shared_experts.up_proj": "ffn_up_shexp",
            "mixer.shared_experts.down_proj": "ffn_down_shexp",
            "mixer.fc1_latent_proj": "ffn_latent_down",
            "mixer.fc2_latent_proj": "ffn_latent_up",
            **mamba2_tensors("mixer"),
        },
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
        partial_rotation=True,
        translate=_translate,
        decoder=_decoder,
    )
)

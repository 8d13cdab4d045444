"""Granite 4.0 with states: Mamba-2, with attention in some layers, and Granite's scales."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.families.blocks import Branch
from bitnet.families.dense import attention, model_of, per_layer, sizes
from bitnet.families.experts import EXPERT_CONFIG, EXPERT_KEYS, expert_keys
from bitnet.families.family import ATTENTION, BIASES, Family, LlamaCppSupport, register
from bitnet.families.granite import (
    EXPERT_NAMES,
    SCALES_CONFIG,
    SCALES_DEFAULTS,
    SCALES_KEYS,
    granite_experts,
    model_scales,
    scale_keys,
)
from bitnet.families.mamba2 import (
    MAMBA2_KEYS,
    NO_LIMIT,
    mamba2,
    mamba2_keys,
    mamba2_tensors,
    mamba2_values,
)
from bitnet.families.networks import FeedForward
from bitnet.families.rules import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys

_KINDS = {
    "attention": True,
    "full_attention": True,
    "linear_attention": False,
    "mamba": False,
}


def _decoder(keys: Keys) -> ModelConfig:
    its, residual = sizes(keys), keys.number("residual_scale", 1.0) or 1.0
    kv_heads = per_layer(keys, "attention.head_count_kv", its.layers)
    own: dict[str, Any] = {} if keys.value("rope.scaling.finetuned", True) else {"rope": None}
    if scale := keys.number("attention.scale", 0.0):
        own["scale"] = scale
    has_experts = keys.integer("expert_count", 0)
    network = granite_experts(keys) if has_experts else FeedForward(its.ffn)
    states = mamba2(keys)
    blocks = (
        (
            Branch(
                "attn_norm",
                (attention(keys, its.dim, kv_heads=heads, **own) if heads else states,),
                scale=residual,
            ),
            Branch("ffn_norm", (network,), scale=residual),
        )
        for heads in kv_heads
    )
    return model_of(keys, its, blocks, **model_scales(keys))


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    kinds = config.get("layers_block_type") or config.get("layer_types")
    has_attention = [_KINDS[kind] for kind in kinds or ["mamba"] * layers]
    if len(has_attention) != layers:
        raise ValueError("layer_types for another number of layers")
    heads, width = config["mamba_n_heads"], config["mamba_expand"] * config["hidden_size"]
    if config["mamba_d_head"] not in ("auto", width // heads):
        raise ValueError(f"{heads} heads of {config['mamba_d_head']}, which are not {width} wide")
    kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    return {
        **scale_keys(config),
        "attention.head_count_kv": [kv_heads if its else 0 for its in has_attention],
        "rope.scaling.finetuned": config["position_embedding_type"] == "rope",
        **_network(config),
        **mamba2_keys(
            heads=heads,
            width=width,
            groups=config["mamba_n_groups"],
            state_size=config["mamba_d_state"],
            kernel=config["mamba_d_conv"],
        ),
    }


def _network(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the experts and the network beside them, or of that network alone."""
    shared = config["shared_intermediate_size"]
    if config["num_local_experts"] == 0:
        return {"feed_forward_length": shared}
    return expert_keys(config, 8) | {"expert_shared_feed_forward_length": shared}


register(
    Family(
        title="Granite 4.0 with states",
        architecture="granitehybrid",
        model_types=("granitemoehybrid",),
        activation="silu",
        gguf_rope_style="interleaved",
        defaults={
            **SCALES_DEFAULTS,
            "mamba_conv_bias": True,
            "mamba_d_conv": 4,
            "mamba_d_head": "auto",
            "mamba_d_state": 256,
            "mamba_expand": 2,
            "mamba_n_groups": 1,
            "mamba_n_heads": 128,
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
            "position_embedding_type": None,
            "shared_intermediate_size": 1024,
        },
        config_keys={
            **SCALES_CONFIG,
            **EXPERT_CONFIG,
            "layer_types": read("which layers have attention, which a state"),
            "layers_block_type": read("other name of `layer_types`"),
            "mamba_conv_bias": read("biases of convolutions"),
            "mamba_d_conv": read("positions of a convolution"),
            "mamba_d_head": read("must be the width of a head"),
            "mamba_d_state": read("rows of a state"),
            "mamba_expand": read("width of all heads over `hidden_size`"),
            "mamba_n_groups": read("groups of heads that share inputs and outputs of states"),
            "mamba_n_heads": read("heads of the state-space model"),
            "mamba_proj_bias": read("biases of its projections"),
            "position_embedding_type": read("`rope`: attention rotates queries and keys"),
            "shared_intermediate_size": read("width of the network, also beside the experts"),
            "time_step_limit": NO_LIMIT,
        },
        gguf_keys={
            **SCALES_KEYS,
            **EXPERT_KEYS,
            **MAMBA2_KEYS,
            "attention.head_count_kv": read("key and value heads; 0: a layer with a state"),
            "expert_shared_feed_forward_length": read("width of the network beside the experts"),
            "rope.scaling.finetuned": read("attention rotates queries and keys"),
        },
        tensors={**EXPERT_NAMES, **mamba2_tensors("mamba")},
        values=lambda config: mamba2_values(config["mamba_n_groups"]),
        biases={
            "attention_bias": ATTENTION,
            "mamba_conv_bias": ("ssm_conv1d",),
            "mamba_proj_bias": ("ssm_in", "ssm_out"),
        },
        llama_cpp=LlamaCppSupport(
            tensors=(
                "output.weight",
                "rope_freqs.weight",
                "attn_output.bias",
                "ssm_conv1d.bias",
                "ssm_dt.bias",
                *BIASES,
            ),
            required=("ssm_conv1d.bias",),
            ignores=(),
            wide_states=True,
            needs=frozenset({"attention", "state"}),
        ),
        partial_rotation=True,
        translate=_translate,
        decoder=_decoder,
    )
)

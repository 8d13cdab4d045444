"""Granite and MiniCPM: Llama with scales on embeddings, scores, residuals and logits.

Granite also has experts; Granite 4.0 has Mamba-2, with attention in some layers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.families.blocks import Branch
from bitnet.families.dense import attention, dense, layer_kinds, model_of, per_layer, sizes
from bitnet.families.experts import EXPERT_CONFIG, SHARED_KEYS, expert_keys, experts
from bitnet.families.family import (
    ATTENTION,
    BIASES,
    MLP,
    Family,
    LlamaCppSupport,
    register,
    register_variant,
)
from bitnet.families.keys import neutral, read, refusal
from bitnet.families.mamba2 import (
    MAMBA2_CONFIG,
    MAMBA2_KEYS,
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


def _scale_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF keys of the scales in a ``config.json``."""
    for key in ("attention_multiplier", "embedding_multiplier", "residual_multiplier"):
        if config[key] == 0:
            raise refusal(key, 0, "in GGUF, zero means that there is none", kind="Granite")
    return {
        "attention.scale": float(config["attention_multiplier"]),
        "embedding_scale": float(config["embedding_multiplier"]),
        "residual_scale": float(config["residual_multiplier"]),
        "logit_scale": float(config["logits_scaling"]),
    }


def _with_scales(keys: Keys) -> ModelConfig:
    """ModelConfig of the usual blocks with scales by keys, of which 0 means that there is none."""
    scale = keys.number("attention.scale", 0.0)
    model = dense(
        keys,
        mixture=_granite_experts(keys) if keys.architecture == "granitemoe" else None,
        residual_scale=keys.number("residual_scale", 1.0) or 1.0,
        each=lambda _layer, usual: replace(usual, scale=scale or usual.scale),
    )
    return replace(model, **_model_scales(keys))


def _model_scales(keys: Keys) -> dict[str, Any]:
    """Fields of :class:`ModelConfig`: factors on embeddings and logits."""
    return {
        "embedding_scale": keys.number("embedding_scale", 1.0) or 1.0,
        "logit_scale": 1 / (keys.number("logit_scale", 1.0) or 1.0),
    }


def _granite_experts(keys: Keys) -> Experts:
    """The experts of a layer, and the network beside them."""
    return experts(
        keys,
        width=sizes(keys).ffn,
        routing={"gating": "softmax_chosen", "renormalised": False},
        shared=keys.integer("expert_shared_feed_forward_length", 0),
    )


def _moe_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    shared = config.get("shared_intermediate_size") or 0
    own = {"expert_shared_feed_forward_length": shared} if shared else {}
    return _scale_keys(config) | expert_keys(config, 8) | own


_GRANITE = Family(
    title="Granite",
    architecture="granite",
    model_types=("granite",),
    gguf_rope_style="interleaved",
    defaults={
        "attention_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
    },
    config_keys={
        "attention_multiplier": read("factor on attention scores"),
        "embedding_multiplier": read("factor on embeddings"),
        "residual_multiplier": read("factor on the outputs of attention and feed-forward"),
        "logits_scaling": read("logits are divided by it"),
    },
    gguf_keys={
        "attention.sliding_window": neutral(0),
        "attention.scale": read("on scores"),
        "embedding_scale": read("on embeddings"),
        "residual_scale": read("on the outputs of attention and feed-forward"),
        "logit_scale": read("logits are divided by it"),
    },
    biases={"attention_bias": ATTENTION},
    llama_cpp=LlamaCppSupport(tensors=("output.weight", ".bias", "rope_freqs.weight")),
    translate=_scale_keys,
    decoder=_with_scales,
)
register_variant(_GRANITE, title="Granite, dense", biases={"mlp_bias": MLP})
_MOE = register_variant(
    _GRANITE,
    title="Granite with experts",
    architecture="granitemoe",
    model_types=("granitemoe", "granitemoeshared"),
    defaults={"num_experts_per_tok": 2, "shared_intermediate_size": 0},
    config_keys={
        **EXPERT_CONFIG,
        "shared_intermediate_size": read("width of the network beside the experts"),
    },
    gguf_keys=SHARED_KEYS,
    tensors={
        "block_sparse_moe.router.layer": "ffn_gate_inp",
        "block_sparse_moe.input_linear": "ffn_gate_up_exps",
        "block_sparse_moe.output_linear": "ffn_down_exps",
        "shared_mlp.input_linear": "ffn_gate_up_shexp",
        "shared_mlp.output_linear": "ffn_down_shexp",
    },
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", ".bias", "rope_freqs.weight"), nonzero=("logit_scale",)
    ),
    translate=_moe_keys,
)


_HAS_ATTENTION = {
    "attention": True,
    "full_attention": True,
    "linear_attention": False,
    "mamba": False,
}


def _hybrid(keys: Keys) -> ModelConfig:
    its, residual = sizes(keys), keys.number("residual_scale", 1.0) or 1.0
    kv_heads = per_layer(keys, "attention.head_count_kv", its.layers)
    own: dict[str, Any] = {} if keys.value("rope.scaling.finetuned", True) else {"rope": None}
    if scale := keys.number("attention.scale", 0.0):
        own["scale"] = scale
    has_experts = keys.integer("expert_count", 0)
    network = _granite_experts(keys) if has_experts else FeedForward(its.ffn)
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
    return model_of(keys, its, blocks, **_model_scales(keys))


def _hybrid_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    kinds = config.get("layers_block_type") or config.get("layer_types") or ["mamba"] * layers
    has_attention = layer_kinds(config, kinds, _HAS_ATTENTION) or []
    heads, width = config["mamba_n_heads"], config["mamba_expand"] * config["hidden_size"]
    if config["mamba_d_head"] not in ("auto", width // heads):
        raise ValueError(f"{heads} heads of {config['mamba_d_head']}, which are not {width} wide")
    kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    return {
        **_scale_keys(config),
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


register_variant(
    _MOE,
    title="Granite 4.0 with states",
    architecture="granitehybrid",
    model_types=("granitemoehybrid",),
    defaults={
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": "auto",
        "mamba_d_state": 256,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 128,
        "num_local_experts": 8,
        "position_embedding_type": None,
        "shared_intermediate_size": 1024,
    },
    config_keys={
        **MAMBA2_CONFIG,
        "layer_types": read("which layers have attention, which a state"),
        "layers_block_type": read("other name of `layer_types`"),
        "mamba_expand": read("width of all heads over `hidden_size`"),
        "position_embedding_type": read("`rope`: attention rotates queries and keys"),
        "shared_intermediate_size": read("width of the network, also beside the experts"),
    },
    gguf_keys={
        **MAMBA2_KEYS,
        "attention.head_count_kv": read("key and value heads; 0: a layer with a state"),
        "rope.scaling.finetuned": read("attention rotates queries and keys"),
    },
    tensors=mamba2_tensors("mamba"),
    values=lambda config: mamba2_values(config["mamba_n_groups"]),
    biases={"mamba_conv_bias": ("ssm_conv1d",), "mamba_proj_bias": ("ssm_in", "ssm_out")},
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
    translate=_hybrid_keys,
    decoder=_hybrid,
)

_FACTORS = ("freqs", "factors_long", "factors_short")
_SCALES = ("embedding_scale", "residual_scale", "logit_scale")


def _minicpm(keys: Keys) -> ModelConfig:
    for key in _SCALES:  # before 2025 files had none, and llama.cpp assumes those of one size
        if keys.number(key) <= 0:
            value, label = keys.number(key), keys.path.name
            raise refusal(key, value, "it is above 0", model=label, kind="MiniCPM")
    return _with_scales(keys)


def _minicpm_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "embedding_scale": float(config["scale_emb"]),
        "residual_scale": config["scale_depth"] / math.sqrt(config["num_hidden_layers"]),
        "logit_scale": config["hidden_size"] / config["dim_model_base"],
    }


# Granite's scales under names of their own.
register(
    Family(
        title="MiniCPM and BitCPM",
        architecture="minicpm",
        model_types=("minicpm",),
        gguf_rope_style="interleaved",
        defaults={
            "scale_emb": 1,
            "scale_depth": 1,
            "dim_model_base": 1,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 2048,
        },
        config_keys={
            "dim_model_base": read("logits are divided by the width over it"),
            "scale_depth": read(
                "on the outputs of attention and feed-forward, over the root of the layers"
            ),
            "scale_emb": read("factor on embeddings"),
            "sparse_config": neutral(None, note="of sparse attention"),
        },
        gguf_keys={
            "attention.sliding_window": neutral(0),
            "embedding_scale": read("on embeddings"),
            "residual_scale": read("on the outputs of attention and feed-forward"),
            "logit_scale": read("logits are divided by it"),
        },
        llama_cpp=LlamaCppSupport(
            tensors=("output.weight", ".bias", *(f"rope_{it}.weight" for it in _FACTORS))
        ),
        translate=_minicpm_keys,
        decoder=_minicpm,
    )
)

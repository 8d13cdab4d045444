"""Granite and MiniCPM: Llama with scales on embeddings, scores, residuals and logits.

Granite also has experts; Granite 4.0 has Mamba-2, with attention in some layers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from bitnet.families.blocks import Attention, Experts, FeedForward
from bitnet.families.dense import (
    WINDOW_CONFIG,
    ModelConfig,
    alternating,
    attention,
    dense,
    is_fused,
    layer_count,
    layer_kinds,
    model_of,
    per_layer,
    sizes,
    usual_block,
)
from bitnet.families.experts import EXPERT_CONFIG, SHARED_KEYS, experts
from bitnet.families.family import (
    ATTENTION,
    BIASES,
    MLP,
    ROPE_FACTORS,
    Family,
    LlamaCppSupport,
    register,
    register_variant,
)
from bitnet.families.keys import (
    HARMLESS,
    Config,
    Keys,
    contradiction,
    find_stated,
    neutral,
    reads,
    refusal,
    value_refusal,
    wrong_config,
)
from bitnet.families.mamba2 import MAMBA2_CONFIG, MAMBA2_KEYS, mamba2, mamba2_values
from bitnet.families.rope import rope_parameters

_SUPPORT = LlamaCppSupport(tensors=("output.weight", ".bias", "rope_freqs.weight"))
_SCALES = ("embedding_scale", "residual_scale", "logit_scale")


def _check_scales(config: Config) -> dict[str, Any]:
    """Refuse scales of zero in a ``config.json``.

    The result is empty: it is for ``Family.translate``, and the scales are mapped by their rules.
    """
    for key in ("attention_multiplier", "embedding_multiplier", "residual_multiplier"):
        if config[key] == 0:
            raise refusal(key, 0, "in GGUF, zero means that there is none")
    return {}


def _granite(keys: Keys) -> ModelConfig:
    """Llama's blocks, with a factor on scores and the other scales."""
    return _with_scales(keys, scale=keys.number("attention.scale", 0.0))


def _with_scales(keys: Keys, *, scale: float = 0.0) -> ModelConfig:
    """ModelConfig of the usual blocks, with the scales in the keys; a scale of 0 counts as missing.

    *scale* is the factor on scores, by default the usual one.
    """
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
    """The experts of a layer, with the network beside them if a key gives its width."""
    return experts(
        keys,
        width=sizes(keys).ffn,
        routing={"gating": "softmax_chosen", "renormalised": False},
        shared=keys.integer("expert_shared_feed_forward_length", 0),
    )


# What all families of Granite have in common; it is not registered itself. A variant cannot remove
# an entry of a table, so `mlp_bias`, which not all of them have, is not here.
_GRANITE = Family(
    title="Granite",
    architecture="granite",
    gguf_rope_style="interleaved",
    config_keys=reads(
        "attention_multiplier embedding_multiplier residual_multiplier logits_scaling"
    ),
    gguf_keys=reads("attention.scale embedding_scale residual_scale logit_scale")
    | {"rope.scaling.finetuned": neutral(True)},  # in llama.cpp false switches rotation off
    biases={"attention_bias": ATTENTION},
    llama_cpp=replace(_SUPPORT, broken_by_zero=("logit_scale",)),
    translate=_check_scales,
    decoder=_granite,
)
register_variant(_GRANITE, title="Granite, dense", biases={"mlp_bias": MLP})
_MOE = register_variant(
    _GRANITE,
    title="Granite with experts",
    architecture="granitemoe",
    model_types=("granitemoe", "granitemoeshared"),
    config_keys={
        **EXPERT_CONFIG,
        **reads("shared_intermediate_size"),
        # transformers 4 follows it, transformers 5 always rotates.
        "position_embedding_type": neutral("rope"),
    },
    gguf_keys=SHARED_KEYS,
)


_HAS_ATTENTION = {
    "attention": True,
    "full_attention": True,
    "linear_attention": False,
    "mamba": False,
}


def _hybrid(keys: Keys) -> ModelConfig:
    """Mamba-2 in layers without key heads, attention in the others."""
    model_sizes = sizes(keys)
    residual = keys.number("residual_scale", 1.0) or 1.0
    kv_heads = per_layer(keys, "attention.head_count_kv", model_sizes.layers)
    # in llama.cpp's Granite, false means that attention does not rotate
    overrides: dict[str, Any] = {} if keys.flag("rope.scaling.finetuned", True) else {"rope": None}
    if scale := keys.number("attention.scale", 0.0):
        overrides["scale"] = scale
    has_experts = keys.integer("expert_count", 0)
    network = _granite_experts(keys) if has_experts else FeedForward(model_sizes.ffn)
    states = mamba2(keys)
    mixers = (
        attention(keys, model_sizes.dim, kv_heads=layer_heads, **overrides)
        if layer_heads
        else states
        for layer_heads in kv_heads
    )
    blocks = (usual_block(mixer, network, scale=residual) for mixer in mixers)
    return model_of(keys, model_sizes, blocks, **_model_scales(keys))


def _hybrid_keys(config: Config) -> dict[str, Any]:
    """GGUF keys of scales and of Mamba-2; layers without key heads have Mamba-2."""
    layers = config["num_hidden_layers"]
    kinds = find_stated(config, "layers_block_type", "layer_types")
    if kinds is None:
        kinds = ["mamba"] * layers
    has_attention = layer_kinds(config, kinds, _HAS_ATTENTION) or []
    heads = config["mamba_n_heads"]
    width = config["mamba_expand"] * config["hidden_size"]
    if config["mamba_d_head"] not in ("auto", width // heads):
        raise wrong_config(
            f"mamba_n_heads {heads} of mamba_d_head {config['mamba_d_head']} do not have "
            f"mamba_expand times hidden_size, {width}"
        )
    kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    keys = _check_scales(config) | {
        "attention.head_count_kv": [kv_heads if attends else 0 for attends in has_attention],
        "rope.scaling.finetuned": config["position_embedding_type"] == "rope",
        "ssm.inner_size": width,
    }
    if config["num_local_experts"] == 0:  # only the shared network is left
        keys["feed_forward_length"] = config["shared_intermediate_size"]
    return keys


register_variant(
    _MOE,
    title="Granite 4.0 with states",
    architecture="granitehybrid",
    model_types=("granitemoehybrid",),
    config_keys={
        **MAMBA2_CONFIG,
        **reads("layer_types layers_block_type mamba_expand position_embedding_type"),
    },
    gguf_keys=MAMBA2_KEYS | reads("rope.scaling.finetuned"),
    values=lambda config: mamba2_values(config["mamba_n_groups"]),
    biases={"mamba_conv_bias": ("ssm_conv1d",), "mamba_proj_bias": ("ssm_in", "ssm_out")},
    llama_cpp=LlamaCppSupport(
        tensors=(
            *("output.weight", "rope_freqs.weight", "attn_output.bias", "ssm_conv1d.bias"),
            *("ssm_dt.bias", *BIASES),
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


def _granite_windows(keys: Keys) -> ModelConfig:
    """Attention with sinks, with a window or without RoPE in some layers."""
    layers = layer_count(keys)
    key = "attention.rope_pattern"
    rotates = keys.value(key, [True] * layers)
    if not isinstance(rotates, list) or len(rotates) != layers:
        raise contradiction(keys, f"{keys.own_name(key)} does not have {layers:,} entries")
    scale = keys.number("attention.scale", 0.0)

    def attention_of(layer: int, usual: Attention) -> Attention:
        rope = usual.rope if rotates[layer] else None
        return replace(usual, scale=scale or usual.scale, rope=rope)

    model = dense(
        keys,
        fused=is_fused(keys),
        sinks=True,
        mixture=_experts_of_windows(keys) if keys.integer("expert_count", 0) else None,
        residual_scale=keys.number("residual_scale", 1.0) or 1.0,
        each=attention_of,
    )
    return replace(model, **_model_scales(keys))


def _experts_of_windows(keys: Keys) -> Experts:
    """Experts and the network beside them, whose gate and up may be one matrix in a file."""
    mixture = _granite_experts(keys)
    is_one_matrix = "blk.0.ffn_gate_shexp.weight" not in keys.weights
    return replace(mixture, shared_fused=is_one_matrix and keys.config is None)


def _window_keys(config: Config) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = [f"{'sliding' if layer % 4 else 'full'}_attention" for layer in range(layers)]
    bases = config.get("layer_rope_theta")
    if bases is not None and len(bases) != layers:
        problem = f"has {len(bases):,} entries, expected one for each of {layers:,} layers"
        raise wrong_config(f"layer_rope_theta {problem}")
    base = rope_parameters(config).get("rope_theta", config.get("rope_theta"))
    if bases is not None and {*bases} - {base, 0, None}:
        why = "only layers that do not rotate, or with the base of all, are computed"
        raise refusal("layer_rope_theta", bases, why)
    # the layer_types are complete, so the period has no effect
    keys = _check_scales(config) | alternating(4)({**config, "layer_types": kinds})
    if bases is not None:
        # a base of 0 means that the layer does not rotate
        keys["attention.rope_pattern"] = [bool(base_of_layer) for base_of_layer in bases]
    return keys


_WINDOWED = register_variant(
    _GRANITE,
    title="Granite with windows",
    architecture="granite_swa",
    model_types=("granite_swa",),
    config_keys={**WINDOW_CONFIG, **reads("layer_rope_theta")},
    gguf_keys=SHARED_KEYS | {**reads("attention.rope_pattern"), "deepstack_mapping": HARMLESS},
    biases={"mlp_bias": MLP},
    llama_cpp=replace(
        _SUPPORT,
        tensors=(*_SUPPORT.tensors, "attn_sinks.weight"),
        lacks=("ffn_gate_shexp.weight",),
        ignores=(),
        needs=frozenset({"window"}),
        broken_by_zero=("logit_scale", "attention.sliding_window"),
    ),
    translate=_window_keys,
    decoder=_granite_windows,
)
register_variant(
    _WINDOWED,
    title="Granite with windows and experts",
    in_gguf=False,
    model_types=("granitemoe_swa",),
    tensors={"block_sparse_moe.router": "ffn_gate_inp"},
    config_keys={
        **EXPERT_CONFIG,
        **reads("shared_intermediate_size"),
        "position_embedding_type": neutral("rope"),
    },
)


def _minicpm(keys: Keys) -> ModelConfig:
    # Files of before 2025 do not have these keys; llama.cpp then assumes the scales of one size of
    # the model. Here they are required.
    for key in _SCALES:
        if keys.number(key) <= 0:
            why = "only a factor above 0 is computed"
            raise value_refusal(keys, key, keys.number(key), why, is_ignorable=False)
    return _with_scales(keys)


def _minicpm_keys(config: Config) -> dict[str, Any]:
    return {
        "embedding_scale": float(config["scale_emb"]),
        "residual_scale": config["scale_depth"] / math.sqrt(config["num_hidden_layers"]),
        "logit_scale": config["hidden_size"] / config["dim_model_base"],
    }


# MiniCPM has Granite's scales, under other names.
register(
    title="MiniCPM and BitCPM",
    architecture="minicpm",
    gguf_rope_style="interleaved",
    defaults={"tie_word_embeddings": True},
    config_keys={
        **reads("dim_model_base scale_depth scale_emb"),
        "sparse_config": neutral(None, note="of sparse attention"),
    },
    gguf_keys=reads("embedding_scale residual_scale logit_scale"),
    llama_cpp=LlamaCppSupport(tensors=("output.weight", ".bias", *ROPE_FACTORS)),
    translate=_minicpm_keys,
    decoder=_minicpm,
)

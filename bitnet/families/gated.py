"""Families whose attention has a gate of its own: Trinity (AFM with experts) and LFM3."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from bitnet.families.blocks import FeedForward, ShortConvolution
from bitnet.families.dense import (
    AROUND,
    BEFORE,
    WINDOW_CONFIG,
    ModelConfig,
    alternating,
    attention,
    check_window,
    dense,
    is_fused,
    layer_kinds,
    local_base,
    model_of,
    per_layer,
    read_windows,
    rotate_but_last,
    rotate_windows,
    sizes,
    usual_block,
)
from bitnet.families.experts import EXPERT_CONFIG, GROUPED_KEYS, experts_by_groups
from bitnet.families.family import ATTENTION, BIASES, LlamaCppSupport, Values, register
from bitnet.families.keys import HARMLESS, Config, Keys, neutral, reads, refusal
from bitnet.families.lfm2 import CONVOLUTION_BIASES, CONVOLUTION_KEYS, squeeze_convolution

# By default, kinds of layers repeat after this many; Trinity's last has full attention and no RoPE.
_PERIOD = 4


def _afmoe(keys: Keys) -> ModelConfig:
    rotate = rotate_but_last(_PERIOD)
    rotate_local = rotate_windows(local_base(keys), scaled=True)
    model = dense(
        keys,
        norms=AROUND,
        period=_PERIOD,
        qk_norm="head",
        fused=is_fused(keys),
        own_gate="numbers",
        each=lambda layer, usual: rotate_local(layer, rotate(layer, usual)),
        mixture=experts_by_groups(keys, corrected=True),
    )
    return replace(model, embedding_scale=math.sqrt(model.dim))


def _afmoe_keys(config: Config) -> dict[str, Any]:
    if not config["mup_enabled"]:
        why = "in GGUF, embeddings are always multiplied by the root of their width"
        raise refusal("mup_enabled", False, why)
    keys = alternating(_PERIOD, "global_attn_every_n_layers")(config)
    layers = range(config["num_hidden_layers"])
    pattern = [(layer + 1) % _PERIOD != 0 for layer in layers]
    if keys["attention.sliding_window_pattern"] != pattern:
        stated = config.get("layer_types") is not None
        key = "layer_types" if stated else "global_attn_every_n_layers"
        raise refusal(key, config[key], "in GGUF, every fourth layer has no window")
    return keys | {
        "expert_gating_func": 2,
        "expert_shared_count": config["num_shared_experts"],
        "expert_weights_norm": True,
        "expert_weights_scale": float(config["route_scale"]),
    }


# Embeddings are multiplied by the root of their width; every fourth layer has no RoPE.
register(
    title="Trinity (AFM with experts)",
    architecture="afmoe",
    config_keys={
        **EXPERT_CONFIG,
        **WINDOW_CONFIG,
        **reads("global_attn_every_n_layers moe_intermediate_size mup_enabled num_dense_layers"),
        **reads("num_shared_experts route_scale"),
        "route_norm": neutral(None, True),
        "score_func": neutral(None, "sigmoid"),
    },
    gguf_keys=GROUPED_KEYS | reads("rope.freq_base_swa"),
    tensors={
        "mlp.expert_bias": "exp_probs_b.bias",
        "mlp.router.gate": "ffn_gate_inp",
        "post_attention_layernorm": "post_attention_norm",
        "pre_mlp_layernorm": "ffn_norm",
        "self_attn.gate_proj": "attn_gate",
    },
    biases={"attention_bias": ATTENTION},
    llama_cpp=LlamaCppSupport(tensors=("output.weight", "exp_probs_b.bias", *BIASES), ignores=()),
    translate=_afmoe_keys,
    decoder=_afmoe,
)

# True: the layer has a window
_LFM3_KINDS = {"full_attention": False, "sliding_attention": True, "conv": False}


def _lfm3(keys: Keys) -> ModelConfig:
    """Short convolutions in layers without key heads, attention in the others."""
    model_sizes = sizes(keys)
    is_gated = any(name.endswith(".attn_gate.weight") for name in keys.weights)
    own_gate = "numbers" if is_gated else ""
    has_norms = "blk.0.post_attention_norm.weight" in keys.weights
    norms = AROUND if has_norms else BEFORE
    convolution = ShortConvolution(model_sizes.dim, keys.integer("shortconv.l_cache"))
    windows = read_windows(
        keys, model_sizes.layers, period=0, window=keys.integer("attention.sliding_window")
    )
    rotate = rotate_windows(keys.number("rope.freq_base_swa", 10000.0))
    kv_heads = per_layer(keys, "attention.head_count_kv", model_sizes.layers)
    network = FeedForward(model_sizes.ffn)
    blocks = []
    for layer, (count, window) in enumerate(zip(kv_heads, windows, strict=True)):
        if not count:
            blocks.append(usual_block(convolution, network, norms=norms))
            continue
        usual = attention(keys, model_sizes.dim, kv_heads=count, qk_norm="head", own_gate=own_gate)
        mixer = rotate(layer, replace(usual, window=window))
        blocks.append(usual_block(mixer, network, norms=norms))
    return model_of(keys, model_sizes, blocks, final_norm="token_embd_norm")


def _lfm3_kinds(layers: int) -> list[str]:
    """Kind of each layer by default: by its number modulo 4, but for layer 0."""
    by_place = {0: "sliding_attention", 2: "full_attention"}
    return [by_place.get(layer % _PERIOD, "conv") if layer else "conv" for layer in range(layers)]


def _lfm3_keys(config: Config) -> dict[str, Any]:
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = _lfm3_kinds(config["num_hidden_layers"])
    window = config["sliding_window"] or 0
    pattern = layer_kinds(config, kinds, _LFM3_KINDS)
    check_window(pattern, window)
    heads = dict.fromkeys(("full_attention", "sliding_attention"), config["num_key_value_heads"])
    return {
        "attention.head_count_kv": layer_kinds(config, kinds, {**heads, "conv": 0}),
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": pattern,
    }


def _gate_every_number(config: Config) -> Values:
    """A function that repeats the row of each head's gate for every number of the head."""
    width = config["head_dim"]
    return {"attn_gate.weight": lambda rows: np.repeat(rows, width, axis=0)}


# LFM2 with second norms, windows, and a gate for each head.
register(
    title="LFM3",
    architecture="lfm3",
    aliases={"norm_eps": "rms_norm_eps"},
    defaults={"tie_word_embeddings": True},
    config_keys={
        **WINDOW_CONFIG,
        **reads("conv_L_cache"),
        "use_attention_gate": HARMLESS,  # the tensors say it
        "use_sandwich_norm": HARMLESS,
    },
    gguf_keys={
        **CONVOLUTION_KEYS,
        **reads("rope.freq_base_swa"),
    },
    tensors={
        "post_ffn_norm": "post_ffw_norm",
        "post_operator_norm": "post_attention_norm",
        "self_attn.g_proj": "attn_gate",
        "self_attn.gate_proj": "attn_gate",
    },
    values=squeeze_convolution,
    orders=_gate_every_number,
    biases={
        "attention_bias": ATTENTION,
        **CONVOLUTION_BIASES,
    },
    layered_rope=True,
    llama_cpp=None,
    translate=_lfm3_keys,
    decoder=_lfm3,
)

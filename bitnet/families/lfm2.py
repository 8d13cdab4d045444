"""LFM2: attention in some layers, gated short convolutions in the others."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bitnet.families.blocks import Experts, FeedForward, ShortConvolution
from bitnet.families.dense import (
    ModelConfig,
    attention,
    layer_kinds,
    model_of,
    per_layer,
    sizes,
    usual_block,
)
from bitnet.families.experts import EXPERT_CONFIG, EXPERT_KEYS, experts
from bitnet.families.family import Family, LlamaCppSupport, Values, register_variant
from bitnet.families.keys import Config, Keys, neutral, reads

#: Rules for the keys of short convolutions in GGUF.
CONVOLUTION_KEYS = {
    **reads("shortconv.l_cache"),
    "attention.causal": neutral(True, note="convolutions look back only"),
}
#: Matrices of short convolutions with biases, as in ``Family.biases``.
CONVOLUTION_BIASES = {"conv_bias": ("shortconv.in_proj", "shortconv.conv", "shortconv.out_proj")}
_LFM2_SUPPORT = LlamaCppSupport(
    tensors=("output.weight",),
    ignores=(),
    only_whole_width=True,
    needs=frozenset({"attention", "state"}),
)


def _lfm2(keys: Keys) -> ModelConfig:
    """Short convolutions in layers without key heads, attention in the others."""
    model_sizes = sizes(keys)
    convolution = ShortConvolution(model_sizes.dim, keys.integer("shortconv.l_cache"))
    networks: list[FeedForward | Experts] = [FeedForward(model_sizes.ffn)] * model_sizes.layers
    if keys.architecture == "lfm2moe":
        first = keys.integer("leading_dense_block_count", 0)
        routing = {"gating": "sigmoid", "corrected": True}
        networks[first:] = [experts(keys, routing=routing)] * len(networks[first:])
    kv_heads = per_layer(keys, "attention.head_count_kv", model_sizes.layers)
    mixers = (
        attention(keys, model_sizes.dim, kv_heads=heads, qk_norm="head") if heads else convolution
        for heads in kv_heads
    )
    return model_of(
        keys, model_sizes, map(usual_block, mixers, networks), final_norm="token_embd_norm"
    )


def _lfm2_keys(config: Config) -> dict[str, Any]:
    """The GGUF key that tells layers with attention from those with convolutions: key heads."""
    layers = config["num_hidden_layers"]
    kinds = config.get("layer_types")
    if kinds is None:
        full = config.get("full_attn_idxs")
        full = range(layers) if full is None else full
        kinds = ["full_attention" if layer in full else "conv" for layer in range(layers)]
    heads = {"full_attention": config["num_key_value_heads"], "conv": 0}
    return {"attention.head_count_kv": layer_kinds(config, kinds, heads)}


def _lfm2_width(config: Config) -> int:
    """Width inside the feed-forward network, computed as in transformers."""
    width = config["intermediate_size"]
    factor = config["block_ffn_dim_multiplier"]
    if not config["block_auto_adjust_ff_dim"]:
        return int(width)
    width = int(2 * width / 3)  # a GLU has three matrices where a plain network has two
    if factor is None:
        return width
    multiple = config["block_multiple_of"]
    return int(-(-int(factor * width) // multiple) * multiple)


def squeeze_convolution(_config: Config) -> Values:
    """A function that removes the axis of length 1 from the kernels of short convolutions."""
    return {"shortconv.conv.weight": partial(np.squeeze, axis=1)}


# What the dense models and those with experts have in common.
_LFM2 = Family(
    title="LFM2 and LFM2.5",
    architecture="lfm2",
    model_types=(),
    aliases={"norm_eps": "rms_norm_eps", "tie_embedding": "tie_word_embeddings"},
    defaults={"tie_word_embeddings": True},
    config_keys=reads("conv_L_cache layer_types"),
    gguf_keys={
        **CONVOLUTION_KEYS,
        "attention.sliding_window": neutral(0),
    },
    values=squeeze_convolution,
    biases=CONVOLUTION_BIASES,
    llama_cpp=_LFM2_SUPPORT,
    decoder=_lfm2,
)
register_variant(
    _LFM2,
    title="LFM2 and LFM2.5, dense",
    model_types=("lfm2",),
    aliases={"block_ff_dim": "intermediate_size"},
    config_keys={
        **reads("block_auto_adjust_ff_dim block_ffn_dim_multiplier block_multiple_of"),
        **reads("full_attn_idxs"),
    },
    translate=lambda config: _lfm2_keys(config) | {"feed_forward_length": _lfm2_width(config)},
)
register_variant(
    _LFM2,
    title="LFM2 and LFM2.5 with experts",
    architecture="lfm2moe",
    model_types=("lfm2_moe",),
    config_keys={
        **EXPERT_CONFIG,
        **reads("moe_intermediate_size num_dense_layers"),
        "norm_topk_prob": neutral(None, True, note="weights are divided by their sum"),
        "routed_scaling_factor": neutral(None, 1.0),
        "use_expert_bias": neutral(None, True, note="the choice has corrections"),
    },
    gguf_keys={
        **EXPERT_KEYS,
        **reads("leading_dense_block_count"),
        "expert_gating_func": neutral(2, note="a sigmoid of each of the router's logits"),
    },
    llama_cpp=replace(_LFM2_SUPPORT, tensors=("output.weight", "exp_probs_b.bias")),
    translate=lambda config: _lfm2_keys(config) | {"expert_gating_func": 2},
)

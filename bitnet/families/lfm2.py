"""LFM2 and LFM2.5: gated short convolutions, with attention in some layers; also with experts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.families.blocks import Branch
from bitnet.families.dense import attention, layer_kinds, model_of, per_layer, sizes
from bitnet.families.experts import EXPERT_CONFIG, EXPERT_KEYS, expert_keys, experts
from bitnet.families.family import Family, LlamaCppSupport, register_variant
from bitnet.families.keys import neutral, read
from bitnet.families.mixers import FeedForward, ShortConvolution

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import Mixer, ModelConfig
    from bitnet.families.keys import Keys


def _decoder(keys: Keys) -> ModelConfig:
    its = sizes(keys)
    convolution = ShortConvolution(its.dim, keys.integer("shortconv.l_cache"))
    networks: list[Mixer] = [FeedForward(its.ffn)] * its.layers
    if keys.architecture == "lfm2moe":
        first = keys.integer("leading_dense_block_count", 0)
        routing = {"gating": "sigmoid", "corrected": True}
        networks[first:] = [experts(keys, routing=routing)] * len(networks[first:])
    kv_heads = per_layer(keys, "attention.head_count_kv", its.layers)
    mixers = (
        attention(keys, its.dim, kv_heads=heads, qk_norm="head") if heads else convolution
        for heads in kv_heads
    )
    blocks = (
        (Branch("attn_norm", (mixer,)), Branch("ffn_norm", (network,)))
        for mixer, network in zip(mixers, networks, strict=True)
    )
    return model_of(keys, its, blocks, final_norm="token_embd_norm")


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    return _layers(config) | {"feed_forward_length": _width(config)}


def _translate_experts(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_layers(config),
        **expert_keys(config, 32, "moe_intermediate_size"),
        "expert_gating_func": 2,
        "leading_dense_block_count": config["num_dense_layers"],
    }


def _layers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of convolutions and attention."""
    layers, kinds = config["num_hidden_layers"], config.get("layer_types")
    if kinds is None:
        full = config.get("full_attn_idxs")
        full = range(layers) if full is None else full
        kinds = ["full_attention" if layer in full else "conv" for layer in range(layers)]
    heads = {"full_attention": config["num_key_value_heads"], "conv": 0}
    return {
        "attention.head_count_kv": layer_kinds(config, kinds, heads),
        "shortconv.l_cache": config["conv_L_cache"],
    }


def _width(config: Mapping[str, Any]) -> int:
    """Width inside the feed-forward network, which transformers rounds to a multiple."""
    width, factor = config["intermediate_size"], config["block_ffn_dim_multiplier"]
    if not config["block_auto_adjust_ff_dim"]:
        return int(width)
    width = int(2 * width / 3)
    if factor is None:
        return width
    multiple = config["block_multiple_of"]
    return int(-(-int(factor * width) // multiple) * multiple)


_SUPPORT = LlamaCppSupport(
    tensors=("output.weight",),
    ignores=(),
    whole_width=True,
    needs=frozenset({"attention", "state"}),
)
# The tables of both; the networks differ.
_LFM2 = Family(
    title="LFM2 and LFM2.5",
    architecture="lfm2",
    model_types=(),
    aliases={"norm_eps": "rms_norm_eps", "tie_embedding": "tie_word_embeddings"},
    defaults={
        "conv_L_cache": 3,
        "max_position_embeddings": 128000,
        "norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
    config_keys={
        "conv_L_cache": read("positions of a convolution"),
        "layer_types": read("which layers have attention, which a convolution"),
        "norm_eps": read("epsilon of every norm"),
        "tie_embedding": read("other name of `tie_word_embeddings`"),
    },
    gguf_keys={
        "attention.causal": neutral(True, note="convolutions look back only"),
        "attention.head_count_kv": read("key and value heads; 0: a layer with a convolution"),
        "attention.sliding_window": neutral(0),
        "shortconv.l_cache": read("positions of a convolution"),
    },
    tensors={
        "embedding_norm": "token_embd_norm",
        "operator_norm": "attn_norm",
        "ffn_norm": "ffn_norm",
        "self_attn.out_proj": "attn_output",
        "self_attn.q_layernorm": "attn_q_norm",
        "self_attn.k_layernorm": "attn_k_norm",
        "conv.in_proj": "shortconv.in_proj",
        "conv.conv": "shortconv.conv",
        "conv.out_proj": "shortconv.out_proj",
        "feed_forward.w1": "ffn_gate",
        "feed_forward.w2": "ffn_down",
        "feed_forward.w3": "ffn_up",
    },
    values=lambda _config: {"shortconv.conv.weight": partial(np.squeeze, axis=1)},
    biases={"conv_bias": ("shortconv.in_proj", "shortconv.conv", "shortconv.out_proj")},
    llama_cpp=_SUPPORT,
    decoder=_decoder,
)
register_variant(
    _LFM2,
    title="LFM2 and LFM2.5, dense",
    model_types=("lfm2",),
    aliases={"block_ff_dim": "intermediate_size"},
    defaults={
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
    },
    config_keys={
        "block_auto_adjust_ff_dim": read("two thirds of `intermediate_size`, rounded, count"),
        "block_ff_dim": read("other name of `intermediate_size`"),
        "block_ffn_dim_multiplier": read("factor on these two thirds"),
        "block_multiple_of": read("what they are rounded up to a multiple of"),
        "full_attn_idxs": read("which layers have attention, without `layer_types`"),
    },
    translate=_translate,
)
register_variant(
    _LFM2,
    title="LFM2 and LFM2.5 with experts",
    architecture="lfm2moe",
    model_types=("lfm2_moe",),
    defaults={"moe_intermediate_size": 1792, "num_dense_layers": 2, "num_experts_per_tok": 4},
    config_keys={
        **EXPERT_CONFIG,
        "norm_topk_prob": neutral(None, True, note="weights are divided by their sum"),
        "num_dense_layers": read("layers without experts, at the beginning"),
        "routed_scaling_factor": neutral(None, 1.0),
        "use_expert_bias": neutral(None, True, note="the choice has corrections"),
    },
    gguf_keys={
        **EXPERT_KEYS,
        "expert_gating_func": neutral(2, note="a sigmoid of each of the router's logits"),
        "leading_dense_block_count": read("layers without experts, at the beginning"),
    },
    tensors={
        "feed_forward.gate": "ffn_gate_inp",
        "feed_forward.expert_bias": "exp_probs_b.bias",
        "feed_forward.experts.w1": "ffn_gate_exps.weight",
        "feed_forward.experts.w2": "ffn_down_exps.weight",
        "feed_forward.experts.w3": "ffn_up_exps.weight",
        "feed_forward.experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "feed_forward.experts.down_proj": "ffn_down_exps.weight",
    },
    llama_cpp=replace(_SUPPORT, tensors=("output.weight", "exp_probs_b.bias")),
    translate=_translate_experts,
)

"""Falcon and MPT: LayerNorm, a network of GELU without a gate, and positions by RoPE or ALiBi.

Falcon has parallel attention and network, behind one norm (7B) or one each (40B and 180B). In its
first models they run one after the other, with ALiBi.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bitnet.families.blocks import Block, Branch, FeedForward
from bitnet.families.config_values import is_finite
from bitnet.families.dense import (
    ModelConfig,
    attention,
    check_parts,
    model_of,
    sizes,
    usual_block,
)
from bitnet.families.family import LlamaCppSupport, Values, register
from bitnet.families.fused_rows import order_queries_first
from bitnet.families.gpt import (
    FUSED_PRODUCTS,
    MEGATRON_TENSORS,
    equal_heads,
    layer_norm_fields,
    layer_norms,
    refuse_bidirectional_alibi,
)
from bitnet.families.keys import Config, Keys, check, neutral, read, reads, wrong_config

_NETWORK: dict[str, Any] = {"activation": "gelu", "gated": False}


def _falcon(keys: Keys) -> ModelConfig:
    """Blocks of one of three forms, by the norms among the tensors, which a folder's keys imply."""
    _check_norms(keys)
    model_sizes = sizes(keys)
    mixer = attention(keys, model_sizes.dim, fused=True)
    alibi = keys.factor("attention.max_alibi_bias", 0.0)
    if alibi:
        # Falcon adds ALiBi before scores are scaled
        mixer = replace(mixer, rope=None, alibi=alibi, alibi_scale=mixer.scale)
    network = FeedForward(model_sizes.ffn, **_NETWORK)
    block: Block
    if "blk.0.attn_norm_2.weight" in keys.weights:  # parallel, behind one norm each
        block = (
            Branch("attn_norm_2", (mixer,)),
            Branch("attn_norm", (network,), parallel=True),
        )
    elif "blk.0.ffn_norm.weight" in keys.weights:  # one after the other
        block = usual_block(mixer, network)
    else:  # parallel, behind one norm
        block = (Branch("attn_norm", (mixer, network)),)
    return model_of(
        keys,
        model_sizes,
        [block] * model_sizes.layers,
        **layer_norm_fields(keys),
        biases=FUSED_PRODUCTS if "blk.0.attn_qkv.bias" in keys.weights else (),
    )


def _check_norms(keys: Keys) -> None:
    """Refuse a folder with other norms than its ``config.json`` says."""
    config = keys.text_config
    key = "parallel_attn"
    check_parts(keys, "ffn_norm", key=key, is_expected=not config.get(key, True))
    key = "num_ln_in_parallel_attn"
    norms = config.get(key)
    has_two = bool(config.get("new_decoder_architecture")) and norms in (None, 2)
    check_parts(keys, "attn_norm_2", key=key, is_expected=has_two)


def _falcon_kv_heads(config: Config) -> int:
    """Number of key heads, by the keys that count in this generation of the architecture."""
    heads: int = config["num_attention_heads"]
    kv_heads = config.get("num_kv_heads")
    if config.get("new_decoder_architecture"):
        return kv_heads or heads
    if config.get("multi_query", True):
        return 1
    if kv_heads not in (None, heads):
        raise wrong_config(f"{kv_heads} key heads (num_kv_heads) beside multi_query = false")
    return heads


def _falcon_keys(config: Config) -> dict[str, Any]:
    is_new = bool(config.get("new_decoder_architecture"))
    norms = config.get("num_ln_in_parallel_attn")
    if norms not in ((None, 1, 2) if is_new else (None, 1)):
        raise wrong_config(
            f"{norms} norms before the branches of a block (num_ln_in_parallel_attn)"
        )
    if is_new and not config.get("parallel_attn", True):
        raise wrong_config("new_decoder_architecture beside parallel_attn = false")
    if config.get("alibi"):
        refuse_bidirectional_alibi(config)
    width = config["hidden_size"]
    return {
        "attention.head_count_kv": _falcon_kv_heads(config),
        "attention.key_length": width // config["num_attention_heads"],
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "feed_forward_length": config.get("ffn_hidden_size") or 4 * width,
        **({"attention.max_alibi_bias": 8.0} if config.get("alibi") else {}),
    }


def _queries_first(config: Config) -> Values:
    """As :func:`order_queries_first`, for rows that are grouped by key head."""
    groups = _falcon_kv_heads(config)
    return order_queries_first(groups, config["num_attention_heads"] // groups)


register(
    title="Falcon",
    architecture="falcon",
    activation="gelu",
    aliases={
        "activation": "hidden_act",
        "n_embed": "hidden_size",
    },
    # Its first files do not state a context length; this is the length of training.
    defaults={"layer_norm_epsilon": 1e-5, "max_position_embeddings": 2048}
    | {"tie_word_embeddings": True},
    config_keys={
        **reads("alibi ffn_hidden_size layer_norm_epsilon multi_query new_decoder_architecture"),
        **reads("num_kv_heads num_ln_in_parallel_attn parallel_attn"),
        "bias": read("biases of every product"),
    },
    gguf_keys=reads("attention.layer_norm_epsilon attention.max_alibi_bias")
    | {"tensor_data_layout": neutral("jploski")},
    tensors={
        "ln_attn": "attn_norm_2",
        "ln_mlp": "attn_norm",
        **MEGATRON_TENSORS,
        "self_attention.dense": "attn_output",
        "self_attention.query_key_value": "attn_qkv",
    },
    orders=_queries_first,
    biases={"bias": FUSED_PRODUCTS},
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "norm.bias", "norm_2.bias"),
        only_whole_width=True,
        gelu_tanh=True,
        alibi=False,
        lacks=("ffn_norm.weight",),
    ),
    translate=_falcon_keys,
    decoder=_falcon,
)


# Rules for the keys of ``attn_config``; transformers reads ``clip_qkv`` only.
_MPT_ATTENTION = {
    **reads("clip_qkv"),
    "alibi": neutral(None, True),
    "alibi_bias_max": neutral(None, 8),
    "attn_type": neutral(None, "multihead_attention"),
    "prefix_lm": neutral(None, False),
    "qk_ln": neutral(None, False),
    "softmax_scale": neutral(None),
}


def _mpt(keys: Keys) -> ModelConfig:
    clamp = keys.factor("attention.clamp_kqv", 0.0)
    return layer_norms(
        keys,
        rope=None,
        fused=True,
        alibi=keys.factor("attention.max_alibi_bias", 0.0),
        clamp=clamp,
        ffn=_NETWORK,
        model={
            "norm_biases": "blk.0.attn_norm.bias" in keys.weights,
            "positions": "position_embd.weight" in keys.weights,
        },
    )


def _mpt_keys(config: Config) -> dict[str, Any]:
    refuse_bidirectional_alibi(config)
    settings = config["attn_config"] or {}
    own = {key: value for key, value in settings.items() if key in _MPT_ATTENTION}
    check(own, _MPT_ATTENTION, below="attn_config.")
    width = config["hidden_size"]
    clamp = own.get("clip_qkv") or 0
    if not is_finite(clamp) or clamp < 0:
        raise wrong_config(f"attn_config.clip_qkv is {clamp!r}")
    return equal_heads(config) | {
        "attention.layer_norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
        "attention.max_alibi_bias": 8.0,
        "feed_forward_length": 4 * width,
        **({"attention.clamp_kqv": float(clamp)} if clamp else {}),
    }


# As in transformers, whose class always has ALiBi and never biases.
register(
    title="MPT",
    architecture="mpt",
    activation="gelu",
    aliases={
        "d_model": "hidden_size",
        "max_seq_len": "max_position_embeddings",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
    },
    defaults={"tie_word_embeddings": True},
    stated="attn_config",
    config_keys={
        **reads("attn_config layer_norm_epsilon"),
        "expansion_ratio": neutral(None, 4),
        "logit_scale": neutral(None),
        "no_bias": neutral(None, True),
        "norm_type": neutral(None, "low_precision_layernorm", "layernorm"),
    },
    gguf_keys=reads("attention.layer_norm_epsilon attention.max_alibi_bias attention.clamp_kqv"),
    tensors={
        "attn.Wqkv": "attn_qkv",
        "attn.out_proj": "attn_output",
        "ffn.down_proj": "ffn_down",
        "ffn.up_proj": "ffn_up",
        "norm_1": "attn_norm",
        "norm_2": "ffn_norm",
    },
    rotates=False,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", ".bias"), only_whole_width=True, gelu_tanh=True
    ),
    translate=_mpt_keys,
    decoder=_mpt,
)

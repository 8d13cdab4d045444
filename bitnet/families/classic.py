"""Decoders of 2021 to 2024 with LayerNorm: GPT-NeoX, BLOOM, OPT, StableLM, OLMo 1 and others."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from bitnet.families.blocks import Branch, FeedForward
from bitnet.families.dense import ModelConfig, attention, check_parts, model_of, sizes
from bitnet.families.family import (
    ATTENTION,
    BIASES,
    OWN_HEAD,
    QKV,
    LlamaCppSupport,
    Values,
    register,
)
from bitnet.families.fused_rows import order_by_head
from bitnet.families.gpt import (
    FUSED_PRODUCTS,
    LAYER_NORM_EPS,
    MEGATRON_TENSORS,
    SPLIT_PRODUCTS,
    WITH_BIASES,
    beside_attention,
    equal_heads,
    layer_norm_fields,
    layer_norms,
    refuse_bidirectional_alibi,
)
from bitnet.families.keys import HARMLESS, Config, Keys, neutral, reads, wrong_config
from bitnet.families.rope import refuse_unread

#: Names of tensors in OPT and BioGPT.
FAIRSEQ_TENSORS = {
    "fc1": "ffn_up",
    "fc2": "ffn_down",
    "final_layer_norm": "ffn_norm",
    "self_attn_layer_norm": "attn_norm",
}


def _gptneox(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys)
    mixer = attention(keys, model_sizes.dim, fused=True)
    network = FeedForward(model_sizes.ffn, "gelu", gated=False)
    is_parallel = keys.flag("use_parallel_residual", True)
    block = (
        Branch("attn_norm", (mixer,)),
        Branch("ffn_norm", (network,), parallel=is_parallel),
    )
    return model_of(
        keys,
        model_sizes,
        [block] * model_sizes.layers,
        **layer_norm_fields(keys),
        biases=FUSED_PRODUCTS,
    )


def _gptneox_keys(config: Config) -> dict[str, Any]:
    refuse_unread(config, "rope_theta", "rotary_emb_base")
    refuse_unread(config, "partial_rotary_factor", "rotary_pct")
    return {
        "attention.head_count_kv": config["num_attention_heads"],
        "use_parallel_residual": config["use_parallel_residual"],
    }


register(
    title="GPT-NeoX and Pythia",
    architecture="gptneox",
    model_types=("gpt_neox",),
    activation="gelu",
    aliases={"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"},
    defaults={"partial_rotary_factor": 0.25, "use_parallel_residual": True},
    config_keys={
        **reads("layer_norm_eps partial_rotary_factor use_parallel_residual"),
        "attention_bias": neutral(None, True),
    },
    partial_rotation=True,
    gguf_keys=LAYER_NORM_EPS | reads("use_parallel_residual"),
    tensors={
        **MEGATRON_TENSORS,
        "attention.dense": "attn_output",
        "attention.query_key_value": "attn_qkv",
    },
    orders=order_by_head,
    biases={"": FUSED_PRODUCTS},
    llama_cpp=replace(WITH_BIASES, gelu_tanh=True, **OWN_HEAD),
    translate=_gptneox_keys,
    decoder=_gptneox,
)


def _bloom(keys: Keys) -> ModelConfig:
    return layer_norms(
        keys,
        rope=None,
        alibi=8.0,
        fused=True,
        ffn={"gated": False, "activation": "gelu_tanh"},
        model={"biases": FUSED_PRODUCTS, "embedding_norm": "token_embd_norm"},
    )


def _bloom_keys(config: Config) -> dict[str, Any]:
    refuse_bidirectional_alibi(config)
    return equal_heads(config) | {
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "feed_forward_length": 4 * config["hidden_size"],
    }


register(
    title="BLOOM",
    architecture="bloom",
    activation="gelu",
    aliases={
        "n_embed": "hidden_size",
        "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers",
        "seq_length": "max_position_embeddings",
    },
    # ALiBi does not bound positions; this is the length that the models were trained for.
    defaults={"max_position_embeddings": 2048, "tie_word_embeddings": True},
    config_keys={
        **reads("layer_norm_epsilon"),
        "apply_residual_connection_post_layernorm": neutral(None, False),
        "hidden_act": HARMLESS,  # its class always computes the tanh form of GELU
        "slow_but_exact": HARMLESS,
    },
    gguf_keys=LAYER_NORM_EPS,
    tensors={
        **MEGATRON_TENSORS,
        "self_attention.dense": "attn_output",
        "self_attention.query_key_value": "attn_qkv",
    },
    orders=order_by_head,
    biases={"": FUSED_PRODUCTS},
    rotates=False,
    llama_cpp=WITH_BIASES,
    translate=_bloom_keys,
    decoder=_bloom,
)


def _opt(keys: Keys) -> ModelConfig:
    network = {"gated": False, "activation": "relu"}
    fields = {"biases": SPLIT_PRODUCTS, "positions": True}
    return layer_norms(keys, rope=None, ffn=network, model=fields)


def _opt_keys(config: Config) -> dict[str, Any]:
    if config.get("word_embed_proj_dim") not in (None, config["hidden_size"]):
        raise wrong_config("embeddings of another width than the blocks (word_embed_proj_dim)")
    return equal_heads(config) | {"attention.layer_norm_epsilon": 1e-5}  # of its class


def leave_padding_out(_config: Config) -> Values:
    """A function that removes the first two rows of OPT's and BioGPT's positions, for padding."""
    return {"position_embd.weight": lambda rows: rows[2:]}


register(
    title="OPT",
    architecture="opt",
    activation="relu",
    aliases={"activation_function": "hidden_act", "ffn_dim": "intermediate_size"},
    defaults={"tie_word_embeddings": True},
    config_keys={
        "_remove_final_layer_norm": neutral(None, False),
        "do_layer_norm_before": neutral(None, True),
        "enable_bias": neutral(None, True),
        "layer_norm_elementwise_affine": neutral(None, True),
        **reads("word_embed_proj_dim"),
    },
    gguf_keys=LAYER_NORM_EPS,
    tensors=FAIRSEQ_TENSORS,
    orders=leave_padding_out,
    biases={"": SPLIT_PRODUCTS},
    rotates=False,
    llama_cpp=None,
    translate=_opt_keys,
    decoder=_opt,
)


def _stablelm(keys: Keys) -> ModelConfig:
    norms = _norms_of_heads(keys, "qk_layernorm")
    key = "use_parallel_residual"
    check_parts(keys, "ffn_norm", key=key, is_expected=not keys.text_config.get(key))
    if "blk.0.ffn_norm.weight" in keys.weights:
        return layer_norms(keys, **norms)
    return beside_attention(keys, FeedForward(sizes(keys).ffn), attention=norms)


def _norms_of_heads(keys: Keys, key: str) -> dict[str, Any]:
    """Field of :class:`Attention`: norms of queries and keys, if the model has them.

    A folder has them by the *key* of its ``config.json``; tensors against it are an InvalidFormat.
    """
    check_parts(keys, "attn_q_norm", "attn_k_norm", key=key)
    return {"qk_norm": "each" if "blk.0.attn_q_norm.weight" in keys.weights else ""}


# The larger models of StableLM 2 have one norm a block, and norms of queries and keys.
register(
    title="StableLM",
    architecture="stablelm",
    defaults={"partial_rotary_factor": 0.25},
    config_keys={
        **reads("layer_norm_eps partial_rotary_factor use_qkv_bias"),
        **reads("qk_layernorm use_parallel_residual"),
    },
    partial_rotation=True,
    # The tensors of a file decide: those of 2023 have the key as true in models whose blocks have
    # two norms.
    gguf_keys=LAYER_NORM_EPS | {"use_parallel_residual": HARMLESS},
    biases={"use_qkv_bias": QKV},
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "norm.bias", *BIASES), only_whole_width=True, **OWN_HEAD
    ),
    decoder=_stablelm,
)


def _nemotron_keys(config: Config) -> dict[str, Any]:
    return {"attention.layer_norm_epsilon": config["norm_eps"]}


register(
    title="Nemotron 4 and Minitron",
    architecture="nemotron",
    activation="relu2",
    defaults={"partial_rotary_factor": 0.5},
    stated="num_key_value_heads",
    config_keys=reads("norm_eps partial_rotary_factor"),
    partial_rotation=True,
    norms_from_zero=True,
    gguf_keys=LAYER_NORM_EPS,
    biases={"attention_bias": ATTENTION, "mlp_bias": ("ffn_up", "ffn_down")},
    llama_cpp=replace(WITH_BIASES, **OWN_HEAD),
    translate=_nemotron_keys,
    decoder=partial(layer_norms, ffn={"gated": False, "activation": "relu_squared"}),
)


def _command_r(keys: Keys) -> ModelConfig:
    return beside_attention(
        keys,
        FeedForward(sizes(keys).ffn),
        norm_biases=False,
        logit_scale=keys.number("logit_scale"),
        attention=_norms_of_heads(keys, "use_qk_norm"),
    )


register(
    title="Command-R and Command-R+",
    architecture="command-r",
    model_types=("cohere",),
    rope_style="interleaved",
    gguf_rope_style="interleaved",
    defaults={"tie_word_embeddings": True},
    stated="rope_theta",
    config_keys=reads("layer_norm_eps logit_scale use_qk_norm"),
    gguf_keys=LAYER_NORM_EPS | reads("logit_scale"),
    biases={"attention_bias": ATTENTION},
    llama_cpp=LlamaCppSupport(
        tensors=tuple(f"{part}.bias" for part in QKV),
        only_whole_width=True,
        head_norm_layers=64,
        broken_by_zero=("logit_scale",),
    ),
    decoder=_command_r,
)


def _olmo_keys(_config: Config) -> dict[str, Any]:
    return {"attention.layer_norm_epsilon": 1e-5}  # of its class


register(
    title="OLMo 1",
    architecture="olmo",
    gguf_rope_style="interleaved",
    config_keys={"clip_qkv": neutral(None)},
    gguf_keys=LAYER_NORM_EPS,
    biases={"attention_bias": ATTENTION},
    llama_cpp=LlamaCppSupport(only_whole_width=True),
    translate=_olmo_keys,
    decoder=partial(layer_norms, model={"norm_biases": False, "norm_weights": False}),
)

"""Llama's relatives under other names: InternLM 2, Baichuan, Qwen 1, ChatGLM, Orion and others.

Most are published with code of their own, which transformers downloads and runs. That code is not
run here: the equations are those of llama.cpp's graphs and of the published code.

The keywords of ``register`` are described at ``family.Family`` and ``family.LlamaCppSupport``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.families.blocks import FeedForward
from bitnet.families.dense import (
    ModelConfig,
    attention,
    dense_as_stored,
    is_fused,
    model_of,
    sizes,
    usual_block,
)
from bitnet.families.family import (
    ATTENTION,
    BIASES,
    MLP,
    OWN_HEAD,
    QKV,
    LlamaCppSupport,
    Values,
    register,
)
from bitnet.families.fused_rows import equal_parts, split_projections
from bitnet.families.gpt import (
    LAYER_NORM_EPS,
    equal_heads,
    layer_norms,
)
from bitnet.families.keys import HARMLESS, Config, Keys, neutral, reads, value_refusal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bitnet.families.family import Parts

_LAYOUT = {"tensor_data_layout": neutral("Meta AI original pth")}


def _internlm2_parts(config: Config) -> Parts:
    groups = config.get("num_key_value_heads") or config["num_attention_heads"]
    return split_projections(groups, config["num_attention_heads"] // groups)


register(
    title="InternLM 2",
    architecture="internlm2",
    gguf_rope_style="interleaved",
    stated="num_key_value_heads",
    config_keys=reads("bias"),
    tensors={
        "attention.wo": "attn_output",
        "attention.wqkv": "attn_qkv",
        "attention_norm": "attn_norm",
    },
    parts=_internlm2_parts,
    biases={"bias": ATTENTION},
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", *BIASES), only_whole_width=True, **OWN_HEAD
    ),
    decoder=dense_as_stored,
)

_BAICHUAN_2 = 125696  # size of the vocabulary by which Baichuan 2 is recognised
_ALIBI_LAYERS = 40  # number of layers of the 13B models, which have ALiBi; those of 7B have RoPE


def _baichuan(keys: Keys) -> ModelConfig:
    usual = 8.0 if keys.integer("block_count") == _ALIBI_LAYERS else 0.0
    key = "attention.max_alibi_bias"
    if (alibi := keys.number(key, usual)) != usual:
        why = f"only that of models with so many layers, {usual:g}, is computed"
        raise value_refusal(keys, key, alibi, why)
    return dense_as_stored(keys, rope=None, alibi=usual) if usual else dense_as_stored(keys)


def _baichuan_keys(config: Config) -> dict[str, Any]:
    is_large = config["num_hidden_layers"] == _ALIBI_LAYERS
    return equal_heads(config) | {"attention.max_alibi_bias": 8.0 if is_large else 0.0}


def _thirds(_config: Config) -> Parts:
    """Functions that split a matrix into queries, keys and values, equal numbers of rows."""
    return equal_parts("attn_qkv", QKV)


def _unit_rows(config: Config) -> Values:
    """A function that divides each row of Baichuan 2's head by its length; none for Baichuan."""

    def divide(head: NDArray[Any]) -> NDArray[Any]:
        lengths = np.linalg.norm(head.astype(np.float64), axis=1, keepdims=True)
        # the least length is that of torch's ``normalize``
        rows: NDArray[Any] = head / np.maximum(lengths, 1e-12)
        return rows.astype(np.float32)

    return {"output.weight": divide} if config.get("vocab_size") == _BAICHUAN_2 else {}


register(
    title="Baichuan and Baichuan 2",
    architecture="baichuan",
    aliases={"model_max_length": "max_position_embeddings"},
    gguf_rope_style="interleaved",
    gguf_keys=reads("attention.max_alibi_bias"),
    tensors={"self_attn.W_pack": "attn_qkv"},
    parts=_thirds,
    values=_unit_rows,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", *BIASES), only_whole_width=True, only_layers=(32, 40), **OWN_HEAD
    ),
    translate=_baichuan_keys,
    decoder=_baichuan,
)


def _orion(keys: Keys) -> ModelConfig:
    return layer_norms(keys, fused=is_fused(keys))


def _orion_keys(config: Config) -> dict[str, Any]:
    return {"attention.layer_norm_epsilon": config["rms_norm_eps"]}


# Its epsilon of LayerNorm has the key of RMS norms.
register(
    title="Orion",
    architecture="orion",
    aliases={"max_sequence_length": "max_position_embeddings"},
    stated="rms_norm_eps",
    gguf_keys=LAYER_NORM_EPS | _LAYOUT,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "norm.bias", *BIASES), only_whole_width=True, **OWN_HEAD
    ),
    translate=_orion_keys,
    decoder=_orion,
)
register(
    title="XVERSE",
    architecture="xverse",
    gguf_rope_style="interleaved",
    gguf_keys=_LAYOUT,
    llama_cpp=LlamaCppSupport(only_whole_width=True, **OWN_HEAD),
    decoder=dense_as_stored,
)


def _qwen1(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys)
    mixer = attention(keys, model_sizes.dim, fused=True, biased=True)
    network = FeedForward(model_sizes.ffn // 2)  # the key counts gate and up
    return model_of(keys, model_sizes, [usual_block(mixer, network)] * model_sizes.layers)


def _qwen1_keys(config: Config) -> dict[str, Any]:
    return {
        "attention.head_count_kv": config["num_attention_heads"],
        "attention.key_length": config["hidden_size"] // config["num_attention_heads"],
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
    }


# Beyond the length of training its code stretches frequencies and scales queries. That is not
# computed: the context ends at that length.
register(
    title="Qwen 1",
    architecture="qwen",
    aliases={"rotary_emb_base": "rope_theta", "seq_length": "max_position_embeddings"},
    stated="intermediate_size layer_norm_epsilon seq_length",
    config_keys={
        **reads("layer_norm_epsilon"),
        "kv_channels": HARMLESS,
        "no_bias": neutral(None, True),
        "rotary_pct": neutral(None, 1.0),
        "scale_attn_weights": neutral(None, True),
        "use_dynamic_ntk": HARMLESS,
        "use_logn_attn": HARMLESS,
    },
    tensors={
        "attn.c_attn": "attn_qkv",
        "attn.c_proj": "attn_output",
        "ln_1": "attn_norm",
        "ln_2": "ffn_norm",
        "mlp.c_proj": "ffn_down",
        "mlp.w1": "ffn_up",
        "mlp.w2": "ffn_gate",
    },
    biases={"": ("attn_qkv",)},
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "attn_qkv.bias"),
        only_whole_width=True,
        only_whole_keys=True,
        **OWN_HEAD,
    ),
    translate=_qwen1_keys,
    decoder=_qwen1,
)


def _codeshell(keys: Keys) -> ModelConfig:
    biases = ("attn_qkv", *ATTENTION, "ffn_up", "ffn_down")
    return layer_norms(
        keys,
        fused=is_fused(keys),
        ffn={"gated": False, "activation": "gelu_tanh"},
        model={"biases": biases},
    )


def _codeshell_keys(config: Config) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    width = config["hidden_size"]
    return {
        "attention.head_count_kv": config["num_query_groups"],
        "attention.key_length": width // heads,
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "feed_forward_length": config.get("n_inner") or 4 * width,
    }


register(
    title="CodeShell",
    architecture="codeshell",
    activation="gelu_pytorch_tanh",
    aliases={
        "activation_function": "hidden_act",
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers",
        "n_positions": "max_position_embeddings",
    },
    defaults={"tie_word_embeddings": True},
    stated="layer_norm_epsilon num_query_groups",
    config_keys={
        **reads("layer_norm_epsilon n_inner num_query_groups"),
        "group_query_attention": neutral(True),
        "position_embedding_type": neutral("rope"),
        "scale_attn_weights": neutral(None, True),
    },
    gguf_keys=LAYER_NORM_EPS,
    tensors={
        "attn.c_attn": "attn_qkv",
        "attn.c_proj": "attn_output",
        "ln_1": "attn_norm",
        "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
    },
    biases={"": ("attn_qkv", "attn_output", "ffn_up", "ffn_down")},
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", ".bias"), only_whole_width=True, **OWN_HEAD
    ),
    translate=_codeshell_keys,
    decoder=_codeshell,
)
register(
    title="Exaone 3 and 3.5",
    architecture="exaone",
    aliases={
        "activation_function": "hidden_act",
        "layer_norm_epsilon": "rms_norm_eps",
        "num_layers": "num_hidden_layers",
    },
    tensors={
        **{f"attn.attention.{part[-1]}_proj": part for part in QKV},
        "attn.attention.out_proj": "attn_output",
        "ln_1": "attn_norm",
        "ln_2": "ffn_norm",
        "mlp.c_fc_0": "ffn_gate",
        "mlp.c_fc_1": "ffn_up",
        "mlp.c_proj": "ffn_down",
    },
    biases={"attention_bias": ATTENTION, "mlp_bias": MLP},
    llama_cpp=LlamaCppSupport(tensors=("output.weight", "rope_freqs.weight", *BIASES)),
    decoder=dense_as_stored,
)


def _chatglm_keys(config: Config) -> dict[str, Any]:
    groups = config.get("multi_query_group_num") if config.get("multi_query_attention") else None
    width = config["kv_channels"]
    base = 10000.0 * config.get("rope_ratio", 1)
    return {
        "attention.head_count_kv": groups or config["num_attention_heads"],
        "attention.key_length": width,
        "rope.dimension_count": width // 2,
        "rope.freq_base": base,
    }


# Half of a head rotates.
register(
    title="ChatGLM 3 and GLM-4, in their own format",
    architecture="chatglm",
    rope_style="interleaved",
    gguf_rope_style="interleaved",
    aliases={
        "ffn_hidden_size": "intermediate_size",
        "layernorm_epsilon": "rms_norm_eps",
        "num_layers": "num_hidden_layers",
        "padded_vocab_size": "vocab_size",
        "seq_length": "max_position_embeddings",
    },
    stated="ffn_hidden_size kv_channels layernorm_epsilon seq_length",
    config_keys={
        **reads("kv_channels multi_query_attention multi_query_group_num rope_ratio"),
        **reads("add_qkv_bias add_bias_linear"),
        "apply_residual_connection_post_layernorm": neutral(None, False),
        "original_rope": neutral(None, True),
        "post_layer_norm": neutral(None, True),
        "rmsnorm": neutral(None, True),
        "pre_seq_len": neutral(None),
    },
    tensors={
        "mlp.dense_4h_to_h": "ffn_down",
        "mlp.dense_h_to_4h": "ffn_up",
        "self_attention.dense": "attn_output",
        "self_attention.query_key_value": "attn_qkv",
    },
    biases={
        "add_bias_linear": ("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
        "add_qkv_bias": ("attn_qkv",),
    },
    llama_cpp=LlamaCppSupport(tensors=("output.weight", *BIASES), only_whole_width=True),
    translate=_chatglm_keys,
    decoder=partial(dense_as_stored, ffn={"fused": True}),
)
register(
    title="GLM-4, 2024",
    architecture="chatglm",
    in_gguf=False,
    model_types=("glm",),
    rope_style="interleaved",
    gguf_rope_style="interleaved",
    config_keys=reads("partial_rotary_factor"),
    biases={"attention_bias": QKV},
    partial_rotation=True,
    llama_cpp=LlamaCppSupport(tensors=("output.weight", *BIASES), only_whole_width=True),
    decoder=partial(dense_as_stored, ffn={"fused": True}),
)

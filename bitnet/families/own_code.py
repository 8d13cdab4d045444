"""Families that run by the code in their folders: DeepSeek 1, Jais 1, OpenELM, PLaMo 1, Refact.

transformers has no class for them. The equations are those of the published code and, except for
Refact, of llama.cpp's graphs. ``tests/models/test_published_code.py`` compares with a second
implementation of them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from bitnet.families.blocks import Attention, Branch, FeedForward
from bitnet.families.dense import (
    ModelConfig,
    attention,
    dense,
    dense_as_stored,
    is_fused,
    layer_count,
    model_of,
    per_layer,
    sizes,
    usual_block,
)
from bitnet.families.experts import EXPERT_CONFIG, GROUPED_KEYS, experts_by_groups
from bitnet.families.family import BIASES, LlamaCppSupport, register
from bitnet.families.fused_rows import equal_parts
from bitnet.families.gpt import (
    GPT_SIZES,
    GPT_TENSORS,
    LAYER_NORM_EPS,
    equal_heads,
    layer_norms,
    transpose_matrices,
)
from bitnet.families.keys import Config, Keys, Rule, neutral, read, reads, refusal, wrong_config
from bitnet.families.rope import rope_from

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bitnet.families.family import Parts, Values


def _deepseek1(keys: Keys) -> ModelConfig:
    return dense_as_stored(
        keys, mixture=experts_by_groups(keys, default="softmax", renormalised=False)
    )


register(
    title="DeepSeek 1 with experts",
    architecture="deepseek",
    gguf_rope_style="interleaved",
    stated="first_k_dense_replace n_shared_experts norm_topk_prob num_key_value_heads rms_norm_eps",
    config_keys={
        **EXPERT_CONFIG,
        **reads("first_k_dense_replace moe_intermediate_size n_routed_experts n_shared_experts"),
        "moe_layer_freq": neutral(None, 1),
        "norm_topk_prob": neutral(False),
        "routed_scaling_factor": neutral(None, 1.0),
        "scoring_func": neutral(None, "softmax"),
    },
    gguf_keys={
        **GROUPED_KEYS,
        "expert_gating_func": neutral(1, 0, note="a softmax over all experts"),
        "expert_weights_norm": Rule("ignored; the weights of experts are not divided"),
    },
    llama_cpp=LlamaCppSupport(only_whole_width=True),
    translate=lambda _config: {"expert_gating_func": 1, "expert_weights_scale": 1.0},
    decoder=_deepseek1,
)


_JAIS_PRODUCTS = ("attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def _jais(keys: Keys) -> ModelConfig:
    heads = keys.integer("attention.head_count")
    width = sizes(keys).dim // max(heads, 1)
    return layer_norms(
        keys,
        rope=None,
        alibi=keys.factor("attention.max_alibi_bias", 0.0),
        fused=True,
        scale=1 / max(width, 1),
        model={"biases": _JAIS_PRODUCTS},
    )


def _jais_keys(config: Config) -> dict[str, Any]:
    return equal_heads(config) | {
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "attention.max_alibi_bias": 8.0,
        "feed_forward_length": config.get("n_inner") or 4 * config["hidden_size"],
    }


def _jais_factors(config: Config) -> dict[str, float]:
    """Factors on embeddings and logits, which GGUF has in the weights."""
    factor = config.get("width_scale")
    if "mup_output_alpha" in config or "mup_width_scale" in config:
        product = config["mup_output_alpha"] * config["mup_width_scale"]
        if factor not in (None, product):
            raise wrong_config(f"width_scale {factor} is not that of mup_output_alpha, {product}")
        factor = product
    if factor is None:
        raise KeyError("mup_output_alpha")
    return {"token_embd.weight": config["mup_embeddings_scale"], "output.weight": factor}


def _jais_orders(_config: Config) -> Values:
    """Functions that transpose the matrices of a block, which folders store by input."""
    return transpose_matrices(_JAIS_PRODUCTS)


# Scores are divided by the width of a head, not by the root of the width.
register(
    title="Jais 1",
    architecture="jais",
    activation="swiglu",
    aliases={
        **GPT_SIZES,
        "activation_function": "hidden_act",
        "embeddings_scale": "mup_embeddings_scale",
        "scale_qk_dot_by_d": "mup_scale_qk_dot_by_d",
    },
    defaults={"tie_word_embeddings": True},
    stated="hidden_act layer_norm_epsilon mup_embeddings_scale mup_scale_qk_dot_by_d "
    "position_embedding_type",
    config_keys={
        **reads("layer_norm_epsilon n_inner"),
        **dict.fromkeys(("mup_output_alpha", "mup_width_scale"), read("factors on logits")),
        "alibi_scaling": neutral(None),
        "mup_embeddings_scale": read("factor on embeddings"),
        "mup_scale_qk_dot_by_d": neutral(True),
        "position_embedding_type": neutral("alibi"),
        "reorder_and_upcast_attn": neutral(None, False),
        "scale_attn_by_inverse_layer_idx": neutral(None, False),
        "scale_attn_weights": neutral(None, True),
        "width_scale": read("factor on logits"),
    },
    gguf_keys=LAYER_NORM_EPS | reads("attention.max_alibi_bias"),
    tensors={**GPT_TENSORS, "mlp.c_fc2": "ffn_gate"},
    orders=_jais_orders,
    factors=_jais_factors,
    biases={"": _JAIS_PRODUCTS},
    unread=("relative_pe.",),
    rotates=False,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", ".bias"),
        required=("output.weight",),
        tied=False,
        only_whole_width=True,
    ),
    translate=_jais_keys,
    decoder=_jais,
)


def _openelm(keys: Keys) -> ModelConfig:
    layers = layer_count(keys)
    widths = per_layer(keys, "feed_forward_length", layers)
    model_sizes = sizes(keys, ffn=max(widths, default=0))
    heads = per_layer(keys, "attention.head_count", layers)
    kv_heads = per_layer(keys, "attention.head_count_kv", layers)
    head_dim = keys.integer("attention.key_length")
    rope = rope_from(keys, head_dim)
    scale = max(head_dim, 1) ** -0.5
    blocks = (
        usual_block(
            Attention(n_heads, n_kv_heads, head_dim, rope, scale, qk_norm="head", fused=True),
            FeedForward(width),
        )
        for n_heads, n_kv_heads, width in zip(heads, kv_heads, widths, strict=True)
    )
    return model_of(keys, model_sizes, blocks)


def _nearest_multiple(number: float, divisor: int) -> int:
    """The nearest multiple of *divisor*, but not 0, and not less than 90 % of *number*.

    It is ``make_divisible`` of OpenELM's published code.
    """
    multiple = max(divisor, int(number + divisor / 2) // divisor * divisor)
    return multiple + divisor if multiple < 0.9 * number else multiple


def _openelm_keys(config: Config) -> dict[str, Any]:
    width = config["hidden_size"]
    heads = config["num_query_heads"]
    kv_heads = config["num_kv_heads"]
    factors = config["ffn_multipliers"]
    layers = config["num_hidden_layers"]
    for name in ("num_query_heads", "num_kv_heads", "ffn_multipliers"):
        if not isinstance(config[name], list) or len(config[name]) != layers:
            raise refusal(name, config[name], "only a list with a number for each layer is read")
    divisor = config["ffn_dim_divisor"]
    return {
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "feed_forward_length": [_nearest_multiple(factor * width, divisor) for factor in factors],
    }


# Layers differ in their heads and in the width of their networks.
register(
    title="OpenELM",
    architecture="openelm",
    activation="swish",
    aliases={
        "activation_fn_name": "hidden_act",
        "max_context_length": "max_position_embeddings",
        "model_dim": "hidden_size",
        "num_transformer_layers": "num_hidden_layers",
        "rope_freq_constant": "rope_theta",
        "share_input_output_layers": "tie_word_embeddings",
    },
    defaults={"num_attention_heads": 1, "rms_norm_eps": 1e-6},
    stated="ffn_dim_divisor ffn_multipliers head_dim normalize_qk_projections num_kv_heads "
    "num_query_heads rope_theta",
    config_keys={
        "ffn_dim_divisor": read("widths of networks are multiples of it"),
        "ffn_multipliers": read("widths of networks, by that of the model"),
        "ffn_with_glu": neutral(True),
        "normalization_layer_name": neutral("rms_norm"),
        "normalize_qk_projections": neutral(True),
        "num_kv_heads": read("key heads of each layer"),
        "num_query_heads": read("heads of each layer"),
    },
    tensors={
        "attn.k_norm": "attn_k_norm",
        "attn.out_proj": "attn_output",
        "attn.q_norm": "attn_q_norm",
        "attn.qkv_proj": "attn_qkv",
        "attn_norm": "attn_norm",
        "ffn.proj_1": "gate_and_up",
        "ffn.proj_2": "ffn_down",
    },
    parts=lambda _config: equal_parts("gate_and_up", ("ffn_gate", "ffn_up")),
    llama_cpp=LlamaCppSupport(tensors=()),
    translate=_openelm_keys,
    decoder=_openelm,
)


def _plamo(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys)
    mixer = attention(keys, model_sizes.dim, fused=is_fused(keys))
    network = FeedForward(model_sizes.ffn)
    return model_of(
        keys, model_sizes, [(Branch("attn_norm", (mixer, network)),)] * model_sizes.layers
    )


def _plamo_keys(config: Config) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    shared = config["n_shared_head"]
    if heads % shared:
        raise refusal("n_shared_head", shared, f"it must divide the {heads} heads")
    return equal_heads(config) | {"attention.head_count_kv": heads // shared}


def _plamo_orders(config: Config) -> Values:
    """Functions that put the heads that share a key head next to each other, as in GGUF.

    In a folder, heads whose numbers differ by a multiple of ``kv_heads`` share a key head.
    """
    shared = config["n_shared_head"]
    kv_heads = config["num_attention_heads"] // shared

    def rows(matrix: NDArray[Any]) -> NDArray[Any]:
        heads = matrix.reshape(shared, kv_heads, -1, matrix.shape[1])
        return heads.swapaxes(0, 1).reshape(matrix.shape)

    def columns(matrix: NDArray[Any]) -> NDArray[Any]:
        heads = matrix.reshape(matrix.shape[0], shared, kv_heads, -1)
        return heads.swapaxes(1, 2).reshape(matrix.shape)

    return {"attn_q.weight": rows, "attn_output.weight": columns}


# Attention and network are parallel, behind one RMS norm.
register(
    title="PLaMo 1",
    architecture="plamo",
    stated="n_shared_head rms_norm_eps",
    config_keys={"n_shared_head": read("heads that share a key head")},
    tensors={"norm": "attn_norm"},
    orders=_plamo_orders,
    llama_cpp=LlamaCppSupport(only_whole_width=True, required=("output.weight",), tied=False),
    translate=_plamo_keys,
    decoder=_plamo,
)

register(
    title="Refact",
    architecture="refact",
    model_types=(),
    rotates=False,
    gguf_keys={"attention.max_alibi_bias": neutral(8.0)},
    llama_cpp=LlamaCppSupport(tensors=("output.weight", *BIASES)),
    decoder=partial(dense_as_stored, rope=None, alibi=8.0),
)

_MULTIPLE = 256  # widths of the networks of Refact are multiples of it


def _refact(keys: Keys) -> ModelConfig:
    eps = keys.number("attention.layer_norm_epsilon")
    return dense(keys, rope=None, alibi=8.0, model={"norm_eps": eps, "centered_norms": True})


def _refact_keys(config: Config) -> dict[str, Any]:
    inner = config.get("n_inner") or 4 * config["hidden_size"]
    width = int(2 * inner / 3)  # a GLU has three matrices where a plain network has two
    return equal_heads(config) | {
        "attention.head_count_kv": 1,
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "feed_forward_length": -(-width // _MULTIPLE) * _MULTIPLE,
    }


def _refact_parts(_config: Config) -> Parts:
    return {
        **equal_parts("gate_and_up", ("ffn_gate", "ffn_up")),
        **equal_parts("keys_and_values", ("attn_k", "attn_v")),
    }


# The norms of the published code subtract the mean, and llama.cpp's do not. So these folders have
# an architecture of their own, other than that of llama.cpp's files.
register(
    title="Refact, as published",
    architecture="gpt_refact",
    aliases=GPT_SIZES,
    stated="layer_norm_epsilon",
    config_keys={
        **reads("layer_norm_epsilon n_inner"),
        "do_sample": neutral(None, True, False),
        "multi_query": neutral(None, True),
    },
    gguf_keys=LAYER_NORM_EPS,
    tensors={
        "attn.c_proj": "attn_output",
        "attn.kv": "keys_and_values",
        "attn.q": "attn_q",
        "ln_1": "attn_norm",
        "ln_2": "ffn_norm",
        "mlp.c_proj": "ffn_down",
        "mlp.gate_up_proj": "gate_and_up",
    },
    parts=_refact_parts,
    rotates=False,
    llama_cpp=None,
    translate=_refact_keys,
    decoder=_refact,
)

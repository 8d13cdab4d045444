"""Families of transformers that llama.cpp does not know, built of parts that others have, too.

Only bitnet reads GGUF files of them; :mod:`bitnet.convert` says so.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.families.blocks import Branch, FeedForward
from bitnet.families.classic import (
    FAIRSEQ_TENSORS,
    leave_padding_out,
)
from bitnet.families.dense import (
    AFTER,
    AROUND,
    WINDOW_CONFIG,
    ModelConfig,
    attention,
    check_parts,
    dense,
    model_of,
    read_windows,
    rotate_windows_only,
    sizes,
    usual_block,
    window_pattern,
)
from bitnet.families.experts import EXPERT_CONFIG, EXPERT_KEYS, SHARED_KEYS, experts
from bitnet.families.family import ATTENTION, MLP, QKV, Values, register
from bitnet.families.fused_rows import order_by_head
from bitnet.families.gpt import (
    FUSED_PRODUCTS,
    GPT_SIZES,
    GPT_TENSORS,
    LAYER_NORM_EPS,
    MEGATRON_TENSORS,
    SPLIT_PRODUCTS,
    equal_heads,
    layer_norm_fields,
    layer_norms,
    transpose_products,
)
from bitnet.families.keys import HARMLESS, Config, Keys, neutral, reads, refusal, wrong_config

if TYPE_CHECKING:
    from numpy.typing import NDArray


def _windows_of(kinds: list[str], config: Config) -> dict[str, Any]:
    """GGUF keys of windows, by ``layer_types`` or, without it, by *kinds* of layers."""
    window = config["sliding_window"] or 0
    if config.get("layer_types") is None:
        config = {**config, "layer_types": kinds}
    is_local = window_pattern(config, window)
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": is_local}


def _flex_olmo(keys: Keys) -> ModelConfig:
    routing = {"renormalised": keys.flag("expert_weights_norm", False)}
    mixture = experts(keys, width=sizes(keys).ffn, routing=routing)
    return dense(keys, norms=AFTER, qk_norm="whole", mixture=mixture)


register(
    title="FlexOlmo",
    architecture="flex_olmo",
    config_keys={**EXPERT_CONFIG, **reads("norm_topk_prob")},
    gguf_keys=EXPERT_KEYS | reads("expert_weights_norm"),
    tensors={"post_attention_layernorm": "post_attention_norm"},
    biases={"attention_bias": ATTENTION},
    llama_cpp=None,
    decoder=_flex_olmo,
)


def _hyperclova(keys: Keys) -> ModelConfig:
    scale = keys.number("attention.scale", 0.0)
    has_norms = "blk.0.post_attention_norm.weight" in keys.weights
    check_parts(keys, "post_attention_norm", key="use_post_norm")
    residual = keys.number("residual_scale", 1.0)
    overrides = {"norms": AROUND} if has_norms else {"residual_scale": residual}
    model = dense(
        keys, each=lambda _layer, mixer: replace(mixer, scale=scale or mixer.scale), **overrides
    )
    return replace(
        model,
        embedding_scale=keys.number("embedding_scale", 1.0),
        logit_scale=keys.number("logit_scale", 1.0),
    )


def _hyperclova_factors(config: Config) -> dict[str, float]:
    """The factor on residuals as a factor on the weights of the second norms, which it follows."""
    factor = float(config["residual_multiplier"])
    return {"post_attention_norm.weight": factor, "post_ffw_norm.weight": factor}


def _hyperclova_keys(config: Config) -> dict[str, Any]:
    """A residual scale of 1 with second norms, whose weights then have the factor."""
    if not config["use_post_norm"]:
        return {}
    return {"residual_scale": 1.0}


# Granite with second norms; logits are multiplied by what Granite divides them by.
register(
    title="HyperCLOVA X",
    architecture="hyperclovax",
    config_keys=reads(
        "attention_multiplier embedding_multiplier residual_multiplier logits_scaling use_post_norm"
    ),
    gguf_keys=reads("attention.scale embedding_scale residual_scale logit_scale"),
    tensors={"post_norm1": "post_attention_norm", "post_norm2": "post_ffw_norm"},
    factors=_hyperclova_factors,
    biases={"attention_bias": ATTENTION, "mlp_bias": MLP},
    llama_cpp=None,
    translate=_hyperclova_keys,
    decoder=_hyperclova,
)


def _nanochat(keys: Keys) -> ModelConfig:
    return dense(
        keys,
        qk_norm="rotated",
        ffn={"gated": False, "activation": "relu_squared"},
        model={
            "embedding_norm": "token_embd_norm",
            "norm_weights": False,
            "final_softcap": keys.number("final_logit_softcapping", 0.0),
        },
    )


def _exchange_halves(config: Config) -> Values:
    """Functions that exchange the halves of each head in rows of queries and keys.

    nanochat rotates in the opposite direction to other models; with halves exchanged, that is the
    usual rotation.
    """
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads

    def exchange(count: int) -> Any:
        def rows_of(rows: NDArray[Any]) -> NDArray[Any]:
            halves = rows.reshape(count, 2, -1, *rows.shape[1:])
            return halves[:, ::-1].reshape(rows.shape)

        return rows_of

    parts = {"attn_q": exchange(heads), "attn_k": exchange(kv_heads)}
    return {f"{part}.{kind}": rows for part, rows in parts.items() for kind in ("weight", "bias")}


# Norms have no weights; those of queries and keys are behind the rotation.
register(
    title="nanochat",
    architecture="nanochat",
    activation="relu2",
    config_keys=reads("final_logit_softcapping"),
    gguf_keys=reads("final_logit_softcapping"),
    tensors={"mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
    orders=_exchange_halves,
    biases={"attention_bias": ATTENTION},
    llama_cpp=None,
    decoder=_nanochat,
)


def _flint(keys: Keys) -> ModelConfig:
    """Attention with sinks, then experts in layers with a router."""
    model_sizes = sizes(keys)
    width = keys.integer("expert_shared_feed_forward_length")
    routing = {
        "gating": "sigmoid",
        "renormalised": keys.flag("expert_weights_norm", False),
    }
    mixture = experts(keys, routing=routing, shared=width)
    usual = attention(keys, model_sizes.dim, qk_norm="head", sinks=True)
    network = FeedForward(model_sizes.ffn)
    window = keys.integer("attention.sliding_window")
    blocks = []
    for layer, local in enumerate(read_windows(keys, model_sizes.layers, period=0, window=window)):
        mixer = rotate_windows_only(layer, replace(usual, window=local))
        has_router = f"blk.{layer}.ffn_gate_inp.weight" in keys.weights
        blocks.append(usual_block(mixer, mixture if has_router else network))
    return model_of(keys, model_sizes, blocks)


def _flint_keys(config: Config) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    is_full = [
        layer < 2 or layer % 4 == 1 or layer == layers - 1  # default of transformers' class
        for layer in range(layers)
    ]
    kinds = ["full_attention" if full else "sliding_attention" for full in is_full]
    return _windows_of(kinds, config)


# Only layers with a window have RoPE; a layer has experts if it has a router.
register(
    title="Flint",
    architecture="flint",
    config_keys={
        **EXPERT_CONFIG,
        **WINDOW_CONFIG,
        **reads("moe_intermediate_size norm_topk_prob shared_expert_intermediate_size"),
        "decoder_sparse_step": neutral(None, 1),
        "mlp_only_layers": HARMLESS,  # a layer without a router is one of them
    },
    gguf_keys=SHARED_KEYS | reads("expert_weights_norm"),
    tensors={"self_attn.softmax_offset": "attn_sinks.weight"},
    biases={"attention_bias": ATTENTION},
    llama_cpp=None,
    translate=_flint_keys,
    decoder=_flint,
)


def _persimmon(keys: Keys) -> ModelConfig:
    has_norms = "blk.0.attn_q_norm.weight" in keys.weights
    check_parts(keys, "attn_q_norm", "attn_k_norm", key="qk_layernorm")
    return layer_norms(
        keys,
        fused=True,
        qk_norm="head" if has_norms else "",
        ffn={"gated": False, "activation": "relu_squared"},
        model={"biases": FUSED_PRODUCTS},
    )


register(
    title="Persimmon",
    architecture="persimmon",
    activation="relu2",
    config_keys=reads("layer_norm_eps partial_rotary_factor qk_layernorm"),
    gguf_keys=LAYER_NORM_EPS,
    tensors={
        **MEGATRON_TENSORS,
        "self_attn.dense": "attn_output",
        "self_attn.query_key_value": "attn_qkv",
    },
    orders=order_by_head,
    biases={"": FUSED_PRODUCTS},
    partial_rotation=True,
    llama_cpp=None,
    translate=equal_heads,
    decoder=_persimmon,
)


def _openai_gpt(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys)
    mixer = attention(keys, model_sizes.dim, rope=None, fused=True)
    network = FeedForward(model_sizes.ffn, "gelu_tanh", gated=False)
    block = (
        Branch("", (mixer,), stream_norm="attn_norm"),
        Branch("", (network,), stream_norm="ffn_norm"),
    )
    return model_of(
        keys,
        model_sizes,
        [block] * model_sizes.layers,
        **layer_norm_fields(keys),
        biases=FUSED_PRODUCTS,
        positions=True,
        final_norm="",
    )


def _openai_gpt_keys(config: Config) -> dict[str, Any]:
    if config.get("is_causal") is False:
        raise refusal("is_causal", False, "transformers has no bidirectional attention in GPT-1")
    return equal_heads(config) | {
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "feed_forward_length": 4 * config["hidden_size"],
    }


# Norms are behind the sums of stream and branch, so the last block needs no further norm behind it.
register(
    title="GPT-1",
    architecture="openai-gpt",
    model_types=("openai-gpt",),
    aliases={"afn": "hidden_act", **GPT_SIZES},
    defaults={"tie_word_embeddings": True},
    config_keys={
        **reads("layer_norm_epsilon"),
        "hidden_act": neutral("gelu", note="which its class computes by the hyperbolic tangent"),
    },
    gguf_keys=LAYER_NORM_EPS,
    tensors=GPT_TENSORS,
    orders=transpose_products,
    biases={"": FUSED_PRODUCTS},
    rotates=False,
    llama_cpp=None,
    translate=_openai_gpt_keys,
    decoder=_openai_gpt,
)

_NEO_BIASES = ("attn_output", "ffn_up", "ffn_down")


def _gpt_neo(keys: Keys) -> ModelConfig:
    network = {"gated": False, "activation": "gelu_tanh"}
    fields = {"biases": _NEO_BIASES, "positions": True}
    return layer_norms(keys, rope=None, scale=1.0, ffn=network, model=fields)


def _gpt_neo_keys(config: Config) -> dict[str, Any]:
    # by default 12 times the two kinds, as in transformers' class
    kinds = config.get("attention_types")
    if kinds is None:
        kinds = [[["global", "local"], 12]]
    by_layer = [kind for names, count in kinds for _ in range(count) for kind in names]
    if len(by_layer) != config["num_hidden_layers"] or {*by_layer} - {"global", "local"}:
        raise wrong_config(f"attention_types is {kinds!r:.80}, not global or local for each layer")
    return equal_heads(config) | {
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "attention.sliding_window": config["window_size"],
        "attention.sliding_window_pattern": [kind == "local" for kind in by_layer],
        "attention.scale": 1.0,
        "feed_forward_length": config.get("intermediate_size") or 4 * config["hidden_size"],
    }


# Scores are not scaled; by default, every second layer has a window.
register(
    title="GPT-Neo",
    architecture="gpt_neo",
    activation="gelu_new",
    aliases={
        "activation_function": "hidden_act",
        "num_heads": "num_attention_heads",
        "num_layers": "num_hidden_layers",
    },
    defaults={"tie_word_embeddings": True},
    config_keys={
        **reads("attention_types layer_norm_epsilon window_size"),
        "attention_layers": HARMLESS,  # from attention_types
    },
    gguf_keys=LAYER_NORM_EPS,
    tensors={
        **{f"attn.attention.{part[-1]}_proj": part for part in QKV},
        "attn.attention.out_proj": "attn_output",
        **{name: part for name, part in GPT_TENSORS.items() if not name.startswith("attn.")},
    },
    biases={"": _NEO_BIASES},
    rotates=False,
    llama_cpp=None,
    translate=_gpt_neo_keys,
    decoder=_gpt_neo,
)


def _biogpt(keys: Keys) -> ModelConfig:
    model = layer_norms(
        keys,
        rope=None,
        ffn={"gated": False, "activation": "gelu"},
        model={"biases": SPLIT_PRODUCTS, "positions": True},
    )
    return replace(model, embedding_scale=keys.number("embedding_scale", 1.0))


def _biogpt_keys(config: Config) -> dict[str, Any]:
    width = config["hidden_size"]
    return equal_heads(config) | {
        "attention.layer_norm_epsilon": 1e-5,  # of its class
        "embedding_scale": math.sqrt(width) if config["scale_embedding"] else 1.0,
    }


register(
    title="BioGPT",
    architecture="biogpt",
    activation="gelu",
    defaults={"tie_word_embeddings": True},
    config_keys=reads("scale_embedding"),
    gguf_keys=LAYER_NORM_EPS | reads("embedding_scale"),
    tensors=FAIRSEQ_TENSORS,
    orders=leave_padding_out,
    biases={"": SPLIT_PRODUCTS},
    rotates=False,
    llama_cpp=None,
    translate=_biogpt_keys,
    decoder=_biogpt,
)


def _aria_parts(config: Config) -> Any:
    """Functions that turn the transposed matrices of experts, and split gate and up.

    ``aria_fc1`` has the columns of the gate, then those of up; ``aria_fc2`` is down.
    """
    width = config["intermediate_size"]

    def rows_of(part: slice) -> Any:
        return lambda matrices: matrices[:, :, part].swapaxes(1, 2)

    gate_and_up = {
        "ffn_gate_exps.weight": rows_of(slice(width)),
        "ffn_up_exps.weight": rows_of(slice(width, None)),
    }
    return {
        "aria_fc1.weight": gate_and_up,
        "aria_fc2.weight": {"ffn_down_exps.weight": rows_of(slice(None))},
    }


def _aria(keys: Keys) -> ModelConfig:
    routing = {"gating": "softmax_chosen", "renormalised": False}
    width = sizes(keys).ffn
    shared = keys.integer("expert_shared_feed_forward_length")
    return dense(keys, mixture=experts(keys, width=width, routing=routing, shared=shared))


def _aria_keys(config: Config) -> dict[str, Any]:
    width = config["intermediate_size"]
    return {
        "expert_count": config["moe_num_experts"],
        "expert_used_count": config["moe_topk"],
        "expert_feed_forward_length": width,
        "expert_shared_feed_forward_length": width * config["moe_num_shared_experts"],
    }


register(
    title="Aria, its text",
    architecture="aria_text",
    config_keys={
        **reads("moe_num_experts moe_num_shared_experts moe_topk"),
        "num_experts_per_tok": HARMLESS,  # `moe_topk` counts
    },
    gguf_keys={**SHARED_KEYS, "expert_shared_count": HARMLESS},
    tensors={
        "mlp.experts.fc1": "aria_fc1",
        "mlp.experts.fc2": "aria_fc2",
        "mlp.router": "ffn_gate_inp",
    },
    parts=_aria_parts,
    biases={"attention_bias": ATTENTION},
    llama_cpp=None,
    translate=_aria_keys,
    decoder=_aria,
)

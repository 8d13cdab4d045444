"""Llama, and the families that differ from it in names, defaults and a few options.

Llama 3 stores frequency factors as a tensor. The GGUF files of Mistral and Mixtral are Llama's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.families.dense import (
    MAX_LAYERS,
    RENAMED,
    ModelConfig,
    alternating,
    dense,
    dense_as_stored,
    everywhere,
    sizes,
)
from bitnet.families.experts import (
    EXPERT_CONFIG,
    EXPERT_KEYS,
    SHARED_KEYS,
    experts,
    has_corrections,
)
from bitnet.families.family import (
    ATTENTION,
    BIASES,
    MLP,
    QKV,
    WINDOWS,
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
    neutral,
    read,
    reads,
    refusal,
    wrong_config,
)
from bitnet.families.rope import rope_parameters, rope_table

if TYPE_CHECKING:
    from collections.abc import Callable

_ANY_BIAS = LlamaCppSupport(tensors=("output.weight", ".bias", "rope_freqs.weight"))


def _llama(keys: Keys) -> ModelConfig:
    has_experts = keys.integer("expert_count", 0)
    return dense(keys, mixture=experts(keys, width=sizes(keys).ffn) if has_experts else None)


_LLAMA = register(
    title="Llama 2, 3 and SmolLM2",
    architecture="llama",
    gguf_rope_style="interleaved",
    gguf_keys=EXPERT_KEYS,  # Mixtral's files are of this architecture
    biases={"attention_bias": ATTENTION, "mlp_bias": MLP},
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", ".bias", "rope_freqs.weight"),
        ignores=(*WINDOWS, "expert_feed_forward_length"),
    ),
    decoder=_llama,
)


def _llama_embed(keys: Keys) -> ModelConfig:
    """Llama with bidirectional attention if a key says so, as in llama.cpp b11434.

    Without the key, llama.cpp computes causal attention, and the authors' code bidirectional
    attention: such a file is refused.
    """
    keys.value("attention.causal")  # an InvalidFormat if it is missing
    return dense(keys)


register(
    title="Llama that embeds",
    architecture="llama-embed",
    model_types=(),
    gguf_rope_style="interleaved",
    headless=True,
    llama_cpp=replace(_ANY_BIAS, both_ways=True),
    decoder=_llama_embed,
)
_MISTRAL = register(
    title="Mistral",
    architecture="llama",
    in_gguf=False,
    model_types=("mistral",),
    config_keys=reads("sliding_window"),
    translate=everywhere,
)


def _keys_by_layer(full: Callable[[int], bool]) -> Callable[[Config], dict[str, Any]]:
    """A function that makes the GGUF keys of windows from a ``config.json``.

    Layers have windows by ``layer_types``. Without it, all have one but those with a number for
    which *full* is true.
    """

    def keys(config: Config) -> dict[str, Any]:
        window = config["sliding_window"]
        layers = range(config["num_hidden_layers"])
        kinds = config.get("layer_types")
        if kinds is None:
            has_window = [bool(window) and not full(layer) for layer in layers]
            kinds = [f"{'sliding' if local else 'full'}_attention" for local in has_window]
        # the layer_types are complete, so the period has no effect
        return alternating(1)({**config, "layer_types": kinds})

    return keys


register_variant(
    _MISTRAL,
    title="Ministral of 2024",
    model_types=("ministral",),
    config_keys=reads("layer_types"),
    translate=_keys_by_layer(lambda _layer: False),
)
register_variant(
    _MISTRAL,
    title="Code World Model",
    model_types=("cwm",),
    config_keys=reads("layer_types"),
    biases={"mlp_bias": MLP},
    translate=_keys_by_layer(lambda layer: layer % 4 == 0),
)
register_variant(
    _LLAMA,
    title="InternLM 3",
    in_gguf=False,
    model_types=("internlm3",),
    # transformers' class (Llama's) has one setting for all four matrices of the attention, and
    # refuses two different ones.
    aliases={"bias": "mlp_bias", "qkv_bias": "attention_bias"},
)
register_variant(_LLAMA, title="IQuest-Coder", in_gguf=False, model_types=("iquestcoder",))
register_variant(
    _MISTRAL,
    title="Mixtral",
    model_types=("mixtral",),
    config_keys=EXPERT_CONFIG,
)
register(
    title="Arcee (AFM)",
    architecture="arcee",
    activation="relu2",
    gguf_rope_style="interleaved",
    biases={"attention_bias": ATTENTION, "mlp_bias": ("ffn_up", "ffn_down")},
    llama_cpp=LlamaCppSupport(tensors=("output.weight", *BIASES, "rope_freqs.weight")),
    decoder=partial(dense, ffn={"gated": False, "activation": "relu_squared"}),
)
register(
    title="Helium",
    architecture="helium",
    rope_style="interleaved",
    gguf_rope_style="interleaved",
    gguf_keys={"attention.sliding_window": neutral(0)},
    llama_cpp=None,
    biases={"attention_bias": QKV, "mlp_bias": MLP},
)
register(
    title="Seed-OSS",
    architecture="seed_oss",
    tensors={"post_attention_layernorm": "post_attention_norm"},
    biases={"attention_bias": QKV, "attention_out_bias": ("attn_output",), "mlp_bias": MLP},
    decoder=partial(dense, norms=RENAMED),
)
# Query, key and value are one matrix, gate and up another; long contexts have a second list of
# frequency factors.
register(
    title="Phi-3, 3.5 and 4-mini",
    architecture="phi3",
    # The class's own value counts before that of the table, in every version of transformers.
    defaults={"original_max_position_embeddings": 4096},
    config_keys=reads("sliding_window original_max_position_embeddings partial_rotary_factor"),
    partial_rotation=True,
    llama_cpp=LlamaCppSupport(
        tensors=(
            *("output.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
            *BIASES,
        ),
        only_whole_width=True,
    ),
    translate=everywhere,
    decoder=partial(dense, fused=True, ffn={"fused": True}),
)
#: Keys of ``rope_parameters`` in Hunyuan's models, as in ``Family.rope_parameters``.
HUNYUAN_ROPE = {
    "alpha": "of `dynamic`: the base grows once, by alpha ^ (dims / (dims - 2))",
    **dict.fromkeys(("beta_fast", "beta_slow", "mscale", "mscale_all_dim"), "of `yarn`"),
}
register(
    title="Hunyuan, dense",
    architecture="hunyuan-dense",
    model_types=("hunyuan_v1_dense",),
    config_keys={
        "attention_head_dim": read("former name of `head_dim`; only `head_dim` counts"),
        "use_qk_norm": neutral(None, True),
        "cla_share_factor": neutral(None, 1, 2, note="for layers that share keys: none does"),
    },
    rope_parameters=HUNYUAN_ROPE,
    biases={"attention_bias": ATTENTION},
    decoder=partial(dense, qk_norm="rotated"),
)


def _ministral_keys(config: Config) -> dict[str, Any]:
    rope = rope_parameters(config)
    if (rope.get("rope_type") or rope.get("type")) == "dynamic":
        why = "GGUF has one key for the original context and for the steps of the query scale"
        raise refusal(f"{rope_table(config)}.rope_type", "dynamic", why)
    original = rope["original_max_position_embeddings"]
    return everywhere(config) | {
        "attention.temperature_scale": float(rope["llama_4_scaling_beta"]),
        "rope.scaling.original_context_length": int(original),
    }


def _ministral(keys: Keys) -> ModelConfig:
    context = keys.integer("context_length")
    return dense(
        keys,
        growth=keys.number("attention.temperature_scale", 0.0),
        growth_length=keys.integer("rope.scaling.original_context_length", context),
    )


# Llama with YaRN, whose query scale grows once per original context length.
register(
    title="Ministral 3",
    architecture="mistral3",
    model_types=("ministral3",),
    gguf_rope_style="interleaved",
    config_keys=reads("sliding_window"),
    rope_parameters={
        "llama_4_scaling_beta": "growth of the query scale",
        "original_max_position_embeddings": "positions between two steps of that growth",
        "max_position_embeddings": "not followed",
    },
    gguf_keys=reads("attention.temperature_scale rope.scaling.yarn_log_multiplier"),
    llama_cpp=_ANY_BIAS,
    translate=_ministral_keys,
    decoder=_ministral,
)

# BitNet has norms before the output projections, and a GLU with squared ReLU since 2B-4T.
register(
    title="BitNet b1.58 2B-4T",
    architecture="bitnet-b1.58",
    gguf=("bitnet-25",),
    model_types=("bitnet",),
    activation="relu2",
    gguf_keys={"attention.sliding_window": neutral(0)},
    llama_cpp=None,
    biases={"attention_bias": ATTENTION},
    rounds_inputs=True,
    decoder=partial(dense, sub_norm=True, ffn={"sub_norm": True, "activation": "relu_squared"}),
)
register(
    title="BitNet b1.58 before 2B-4T",
    architecture="bitnet",
    model_types=(),
    classes=("BitnetForCausalLM",),  # 1bitLLM's models, whose model_type is llama
    quantization={
        "quant_method": "bitnet",
        "linear_class": "autobitlinear",
        "quantization_mode": "online",
    },
    config_keys={"input_bits": neutral(8), "weight_bits": neutral(1)},
    llama_cpp=LlamaCppSupport(tensors=(), only_whole_width=True),
    rounds_inputs=True,
    decoder=partial(dense, sub_norm=True, ffn={"sub_norm": True}),
)


def _ernie(keys: Keys) -> ModelConfig:
    shared = keys.integer("expert_shared_feed_forward_length", 0)
    routing = {"corrected": has_corrections(keys.weights)}
    return dense(keys, mixture=experts(keys, routing=routing, shared=shared))


def _ernie_keys(config: Config) -> dict[str, Any]:
    if config["moe_layer_end_index"] not in (-1, config["num_hidden_layers"] - 1):
        raise wrong_config("layers without experts at the end (moe_layer_end_index)")
    shared = config["moe_num_shared_experts"] * config["moe_intermediate_size"]
    return {
        "expert_shared_feed_forward_length": shared,
        "interleave_moe_layer_step": config["moe_layer_interval"],
    }


# Ernie rotates adjacent pairs, in both containers.
_ERNIE = Family(
    title="Ernie 4.5",
    architecture="ernie4_5",
    model_types=(),
    rope_style="interleaved",
    gguf_rope_style="interleaved",
    defaults={"tie_word_embeddings": True},
)
register_variant(
    _ERNIE,
    title="Ernie 4.5, dense",
    model_types=("ernie4_5",),
    biases={"use_bias": (*ATTENTION, *MLP)},
)
register_variant(
    _ERNIE,
    title="Ernie 4.5 with experts",
    architecture="ernie4_5-moe",
    model_types=("ernie4_5_moe",),
    config_keys={
        **reads("moe_intermediate_size moe_k moe_layer_end_index moe_layer_start_index"),
        **reads("moe_num_experts moe_num_shared_experts num_experts num_experts_per_tok"),
        **reads("num_local_experts"),
        "moe_layer_interval": neutral(1),
        "moe_norm_min": neutral(None, 1e-12),
        "use_bias": neutral(None, False),
    },
    gguf_keys={
        **SHARED_KEYS,
        **reads("leading_dense_block_count"),
        "expert_shared_count": HARMLESS,
        "interleave_moe_layer_step": neutral(1),
    },
    values=lambda _config: {"exp_probs_b.bias": np.ravel},
    llama_cpp=LlamaCppSupport(tensors=("output.weight", *BIASES, "exp_probs_b.bias")),
    translate=_ernie_keys,
    decoder=_ernie,
)


def _nanbeige(keys: Keys) -> ModelConfig:
    model = dense_as_stored(keys)
    runs = keys.integer("num_loops", 1)
    if not 1 <= runs * model.n_layers <= MAX_LAYERS:
        raise contradiction(keys, f"{runs:,} turns of {model.n_layers:,} layers")
    (head_dim,) = {attention.head_dim for attention in model.attentions}
    if keys.integer("attention.head_dim", head_dim) != head_dim:
        stated = keys.integer("attention.head_dim")
        raise contradiction(keys, f"heads of {head_dim} and, elsewhere, of {stated}")
    has_norms = not keys.flag("skip_loop_final_norm", False)
    return replace(
        model,
        blocks=model.blocks * runs,
        block_numbers=tuple(range(model.n_layers)) * runs,
        loop_norm="output_norm" if has_norms else "",
    )


def _nanbeige_keys(config: Config) -> dict[str, Any]:
    if config.get("rope_scaling"):
        raise refusal(
            "rope_scaling", config["rope_scaling"], "only RoPE without scaling is computed"
        )
    if config.get("kv_channels", config["head_dim"]) != config["head_dim"]:
        raise wrong_config(
            f"head_dim is {config['head_dim']}, and kv_channels {config['kv_channels']}"
        )
    return {
        "num_loops": config["num_loops"],
        "skip_loop_final_norm": bool(config["skip_loop_final_norm"]),
    }


# All blocks run several times, and each run has its own caches. The published code can do more
# (a number of runs for each layer, several streams, attention to earlier layers, embeddings of
# several tokens), which published models do not use.
register(
    title="Nanbeige 4.2",
    architecture="nanbeige",
    gguf_rope_style="interleaved",
    stated="head_dim hidden_act num_hidden_layers num_key_value_heads num_loops rms_norm_eps "
    "rope_theta skip_loop_final_norm tie_word_embeddings",
    config_keys={
        **reads("kv_channels"),
        "num_loops": read("runs of all blocks"),
        "skip_loop_final_norm": read("leaves out the norm between two runs"),
        **dict.fromkeys(
            (
                *("emb_neighbor_num", "enable_depth_attention", "enable_double_loop_split"),
                *("enable_h_res_identity", "enable_hyper_connection", "enable_mhc"),
                *("insert_ngram_layer_idx", "loop_loss_weights", "loop_middle_layers"),
                *("loop_share_kv", "ngram_insert_all_layers"),
            ),
            neutral(None, False, note="not computed"),
        ),
    },
    gguf_keys={
        **reads("num_loops skip_loop_final_norm"),
        "attention.head_dim": read("must be the width of a head"),
    },
    translate=_nanbeige_keys,
    llama_cpp=LlamaCppSupport(tensors=("output.weight", "rope_freqs.weight", *BIASES)),
    decoder=_nanbeige,
)

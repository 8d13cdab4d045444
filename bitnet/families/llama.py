"""Llama, and the families that differ from it in names, defaults and a few options.

Llama 3 stores frequency factors as a tensor. The GGUF files of Mistral and Mixtral are Llama's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from bitnet.families.dense import WINDOW_CONFIG, dense, everywhere, sizes
from bitnet.families.experts import EXPERT_CONFIG, EXPERT_KEYS, expert_keys, experts
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
from bitnet.families.keys import neutral, read, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys

_WINDOW = {"sliding_window": WINDOW_CONFIG["sliding_window"]}


def _llama(keys: Keys) -> ModelConfig:
    has_experts = keys.integer("expert_count", 0)
    return dense(keys, mixture=experts(keys, width=sizes(keys).ffn) if has_experts else None)


_LLAMA = register(
    Family(
        title="Llama 2, 3 and SmolLM2",
        architecture="llama",
        model_types=("llama",),
        gguf_rope_style="interleaved",
        defaults={"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
        gguf_keys=EXPERT_KEYS,  # Mixtral's files are of this architecture
        biases={"attention_bias": ATTENTION, "mlp_bias": MLP},
        llama_cpp=LlamaCppSupport(
            tensors=("output.weight", ".bias", "rope_freqs.weight"),
            ignores=(*WINDOWS, "expert_feed_forward_length"),
        ),
        decoder=_llama,
    )
)
_MISTRAL = register(
    Family(
        title="Mistral",
        architecture="llama",
        in_gguf=False,
        model_types=("mistral",),
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
            "rms_norm_eps": 1e-6,
        },
        config_keys=_WINDOW,
        translate=everywhere,
    )
)
register_variant(
    _MISTRAL,
    title="Mixtral",
    model_types=("mixtral",),
    defaults={"num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "sliding_window": None},
    config_keys=EXPERT_CONFIG,
    tensors={
        "block_sparse_moe.gate": "ffn_gate_inp",
        "block_sparse_moe.experts.w1": "ffn_gate_exps.weight",
        "block_sparse_moe.experts.w2": "ffn_down_exps.weight",
        "block_sparse_moe.experts.w3": "ffn_up_exps.weight",
    },
    translate=lambda config: everywhere(config) | expert_keys(config, 8),
)
register(
    Family(
        title="Arcee (AFM)",
        architecture="arcee",
        model_types=("arcee",),
        activation="relu2",
        gguf_rope_style="interleaved",
        defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
        gguf_keys={"attention.sliding_window": neutral(0)},
        biases={"attention_bias": ATTENTION, "mlp_bias": ("ffn_up", "ffn_down")},
        llama_cpp=LlamaCppSupport(tensors=("output.weight", *BIASES, "rope_freqs.weight")),
        # relu(up) * up equals the square of relu(up).
        decoder=partial(dense, ffn={"gated": False, "activation": "relu"}),
    )
)
register(
    Family(
        title="Helium",
        architecture="helium",
        model_types=("helium",),
        rope_style="interleaved",
        gguf_rope_style="interleaved",
        defaults={
            "head_dim": 128,
            "num_key_value_heads": 20,
            "rope_theta": 100000.0,
            "rms_norm_eps": 1e-8,
            "max_position_embeddings": 4096,
        },
        gguf_keys={"attention.sliding_window": neutral(0)},
        llama_cpp=None,
        biases={"attention_bias": QKV, "mlp_bias": MLP},
    )
)
register(
    Family(
        title="Seed-OSS",
        architecture="seed_oss",
        model_types=("seed_oss",),
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 524288,
            "attention_bias": True,
        },
        gguf_keys={"attention.sliding_window": neutral(0)},
        tensors={"post_attention_layernorm": "post_attention_norm"},
        biases={"attention_bias": QKV, "attention_out_bias": ("attn_output",), "mlp_bias": MLP},
        # Its name of the norm before feed-forward; there is none after attention.
        decoder=partial(dense, norms=(("attn_norm", ""), ("post_attention_norm", ""))),
    )
)
# Query, key and value are one matrix, gate and up another; long contexts have a second list of
# frequency factors.
register(
    Family(
        title="Phi-3, 3.5 and 4-mini",
        architecture="phi3",
        model_types=("phi3",),
        defaults={
            "original_max_position_embeddings": 4096,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
        config_keys={
            **_WINDOW,
            "original_max_position_embeddings": read("context length before extension"),
            "partial_rotary_factor": read("rotary share of a head"),
        },
        partial_rotation=True,
        llama_cpp=LlamaCppSupport(
            tensors=(
                "output.weight",
                *BIASES,
                "rope_factors_long.weight",
                "rope_factors_short.weight",
            ),
            whole_width=True,
        ),
        translate=everywhere,
        decoder=partial(dense, fused=True, ffn={"fused": True}),
    )
)
register(
    Family(
        title="Hunyuan, dense",
        architecture="hunyuan-dense",
        model_types=("hunyuan_v1_dense",),
        defaults={"attention_bias": False, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
        config_keys={
            "attention_head_dim": read("former name of `head_dim`, which counts"),
            "use_qk_norm": neutral(None, True),
            "cla_share_factor": neutral(None, 1, 2, note="for layers that share keys: none does"),
        },
        rope_parameters={
            "alpha": "of `dynamic`: the base grows once, by alpha ^ (dims / (dims - 2))",
            **dict.fromkeys(("beta_fast", "beta_slow", "mscale", "mscale_all_dim"), "of `yarn`"),
        },
        gguf_keys={"attention.sliding_window": neutral(0)},
        tensors={
            "self_attn.query_layernorm": "attn_q_norm",
            "self_attn.key_layernorm": "attn_k_norm",
        },
        biases={"attention_bias": ATTENTION},
        decoder=partial(dense, qk_norm="rotated"),
    )
)


def _ministral_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = config.get("rope_scaling") or config["rope_parameters"]
    if (rope.get("rope_type") or rope.get("type")) == "dynamic":
        why = "GGUF has one key for both the original context and the period of that growth"
        raise refusal("rope_parameters.rope_type", "dynamic", why, kind="Ministral 3")
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
    Family(
        title="Ministral 3",
        architecture="mistral3",
        model_types=("ministral3",),
        gguf_rope_style="interleaved",
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 262144,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 16.0,
                "original_max_position_embeddings": 16384,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        config_keys=_WINDOW,
        rope_parameters={
            "llama_4_scaling_beta": "growth of the query scale",
            "original_max_position_embeddings": "positions between two steps of that growth",
            "max_position_embeddings": "not followed",
        },
        gguf_keys={
            "attention.temperature_scale": read("growth of the query scale"),
            "rope.scaling.yarn_log_multiplier": read("`mscale_all_dim` of `yarn`"),
        },
        llama_cpp=LlamaCppSupport(tensors=("output.weight", ".bias", "rope_freqs.weight")),
        translate=_ministral_keys,
        decoder=_ministral,
    )
)

"""Ernie 4.5: Llama with RoPE on adjacent pairs, in both containers; also with experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.families.dense import dense
from bitnet.families.experts import (
    EXPERT_CONFIG,
    SHARED_KEYS,
    SHARED_TENSORS,
    expert_keys,
    experts,
    has_corrections,
)
from bitnet.families.family import (
    ATTENTION,
    BIASES,
    MLP,
    Family,
    LlamaCppSupport,
    register_variant,
)
from bitnet.families.keys import HARMLESS, neutral, read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys


def _decoder(keys: Keys) -> ModelConfig:
    shared = keys.integer("expert_shared_feed_forward_length", 0)
    routing = {"corrected": has_corrections(keys.weights)}
    return dense(keys, mixture=experts(keys, routing=routing, shared=shared))


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    if config["moe_layer_end_index"] not in (-1, config["num_hidden_layers"] - 1):
        raise ValueError("layers without experts at the end (moe_layer_end_index)")
    used = {"num_experts_per_tok": config["moe_k"]}
    shared = config["moe_num_shared_experts"]
    return expert_keys({**config, **used}, 64, "moe_intermediate_size") | {
        "expert_shared_count": shared,
        "expert_shared_feed_forward_length": shared * config["moe_intermediate_size"],
        "interleave_moe_layer_step": config["moe_layer_interval"],
        "leading_dense_block_count": config["moe_layer_start_index"],
    }


_ERNIE = Family(
    title="Ernie 4.5",
    architecture="ernie4_5",
    model_types=(),
    rope_style="interleaved",
    gguf_rope_style="interleaved",
    defaults={
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
    gguf_keys={"attention.sliding_window": neutral(0)},
)
register_variant(
    _ERNIE,
    title="Ernie 4.5, dense",
    model_types=("ernie4_5",),
    defaults={"head_dim": 128, "num_key_value_heads": 2},
    biases={"use_bias": (*ATTENTION, *MLP)},
)
register_variant(
    _ERNIE,
    title="Ernie 4.5 with experts",
    architecture="ernie4_5-moe",
    model_types=("ernie4_5_moe",),
    defaults={
        "num_key_value_heads": 4,
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
    },
    config_keys={
        **EXPERT_CONFIG,
        "moe_k": read("experts of a token"),
        "moe_layer_end_index": read("the last layer with experts; must be the last of all"),
        "moe_layer_interval": neutral(1),
        "moe_layer_start_index": read("the first layer with experts"),
        "moe_norm_min": neutral(None, 1e-12),
        "moe_num_experts": read("experts of a layer"),
        "moe_num_shared_experts": read("networks beside the experts"),
        "use_bias": neutral(None, False),
    },
    gguf_keys={
        **SHARED_KEYS,
        "expert_shared_count": HARMLESS,
        "interleave_moe_layer_step": neutral(1),
        "leading_dense_block_count": read("layers without experts, at the beginning"),
    },
    tensors={
        **SHARED_TENSORS,
        "mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
        "mlp.gate.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
    },
    values=lambda _config: {"exp_probs_b.bias": np.ravel},
    llama_cpp=LlamaCppSupport(tensors=("output.weight", *BIASES, "exp_probs_b.bias")),
    translate=_translate,
    decoder=_decoder,
)

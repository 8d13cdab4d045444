"""Qwen 3 with experts in every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.families.dense import dense, sizes
from bitnet.families.experts import (
    EXPERT_CONFIG,
    EXPERT_KEYS,
    EXPERT_TENSORS,
    expert_keys,
    experts,
    in_layers,
)
from bitnet.families.family import ATTENTION, Family, register
from bitnet.families.rules import HARMLESS, neutral, read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys


def _decoder(keys: Keys) -> ModelConfig:
    width = sizes(keys).ffn // max(keys.integer("expert_used_count"), 1)
    network = in_layers(experts(keys, width=width, routing={}))
    return dense(keys, qk_norm="head", network=network)


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    return expert_keys(config, 128, "moe_intermediate_size")


register(
    Family(
        title="Qwen 3 with experts",
        architecture="qwen3moe",
        model_types=("qwen3_moe",),
        activation="silu",
        defaults={
            "head_dim": 128,
            "num_key_value_heads": 4,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "norm_topk_prob": False,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768,
        },
        config_keys={
            **EXPERT_CONFIG,
            "attention_bias": read("biases around attention"),
            "decoder_sparse_step": neutral(None, 1),
            "mlp_only_layers": neutral(None),
            "norm_topk_prob": neutral(True),
            "sliding_window": HARMLESS,  # use_sliding_window must be false
        },
        gguf_keys=EXPERT_KEYS,
        tensors=EXPERT_TENSORS,
        biases={"attention_bias": ATTENTION},
        translate=_translate,
        decoder=_decoder,
    )
)

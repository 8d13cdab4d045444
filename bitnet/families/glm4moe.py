"""GLM 4.5 to 4.7: experts chosen by sigmoids and a correction, behind a dense layer or some."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet.families.dense import dense
from bitnet.families.experts import (
    EXPERT_CONFIG,
    EXPERT_KEYS,
    GROUPED_CONFIG,
    GROUPED_KEYS,
    GROUPED_TENSORS,
    experts,
    group_keys,
    group_routing,
    in_layers,
    without_drafting_blocks,
)
from bitnet.families.family import BIASES, QKV, Family, LlamaCppSupport, register
from bitnet.families.rules import neutral, read

if TYPE_CHECKING:
    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys


def _decoder(keys: Keys) -> ModelConfig:
    routing = group_routing(keys, renormalised=False) | {"corrected": True}
    network = experts(keys, width=0, routing=routing)
    network = replace(network, shared=network.width * keys.integer("expert_shared_count"))
    first = keys.integer("leading_dense_block_count", 0)
    has_norms = any(name.endswith(".attn_q_norm.weight") for name in keys.weights)
    model = dense(
        keys,
        norms=(("attn_norm", ""), ("post_attention_norm", "")),
        qk_norm="head" if has_norms else "",
        network=in_layers(network, first=first),
    )
    return without_drafting_blocks(keys, model)


register(
    Family(
        title="GLM 4.5 to 4.7 with experts",
        architecture="glm4moe",
        model_types=("glm4_moe",),
        activation="silu",
        defaults={
            "head_dim": None,
            "num_key_value_heads": 8,
            "partial_rotary_factor": 0.5,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "n_shared_experts": 1,
            "routed_scaling_factor": 1.0,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
        },
        config_keys={
            **EXPERT_CONFIG,
            **GROUPED_CONFIG,
            "attention_bias": read("biases on query, key and value"),
            "partial_rotary_factor": read("rotary share of a head"),
            "use_qk_norm": read("norms on query and key heads"),
        },
        gguf_keys={**EXPERT_KEYS, **GROUPED_KEYS, "attention.sliding_window": neutral(0)},
        tensors={
            **GROUPED_TENSORS,
            "post_attention_layernorm": "post_attention_norm",
        },
        biases={"attention_bias": QKV},
        partial_rotation=True,
        more_blocks=True,
        llama_cpp=LlamaCppSupport(tensors=("output.weight", *BIASES, "exp_probs_b.bias")),
        translate=lambda config: group_keys(config, config["first_k_dense_replace"]),
        decoder=_decoder,
    )
)

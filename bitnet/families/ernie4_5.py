"""Ernie 4.5: Llama with RoPE on adjacent pairs, in both containers; also with experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.families.dense import dense
from bitnet.families.experts import (
    EXPERT_CONFIG,
    EXPERT_KEYS,
    EXPERT_TENSORS,
    expert_keys,
    experts,
    has_corrections,
    in_layers,
)
from bitnet.families.family import ATTENTION, BIASES, MLP, Family, LlamaCppSupport, register
from bitnet.families.rules import HARMLESS, neutral, read

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys


def _decoder(keys: Keys) -> ModelConfig:
    network = experts(
        keys,
        width=0,
        routing={"corrected": has_corrections(keys.weights)},
        shared=keys.integer("expert_shared_feed_forward_length", 0),
    )
    first = keys.integer("leading_dense_block_count", 0)
    return dense(keys, network=in_layers(network, first=first))


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


def _as_row(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values.reshape(-1)


register(
    Family(
        title="Ernie 4.5, dense",
        architecture="ernie4_5",
        model_types=("ernie4_5",),
        activation="silu",
        rope_style="interleaved",
        gguf_rope_style="interleaved",
        defaults={
            "head_dim": 128,
            "num_key_value_heads": 2,
            "rope_theta": 500000.0,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
        config_keys={"use_bias": read("biases of all linear layers")},
        gguf_keys={"attention.sliding_window": neutral(0)},
        biases={"use_bias": (*ATTENTION, *MLP)},
    )
)
register(
    Family(
        title="Ernie 4.5 with experts",
        architecture="ernie4_5-moe",
        model_types=("ernie4_5_moe",),
        activation="silu",
        rope_style="interleaved",
        gguf_rope_style="interleaved",
        defaults={
            "num_key_value_heads": 4,
            "rope_theta": 500000.0,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
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
            **EXPERT_KEYS,
            "attention.sliding_window": neutral(0),
            "expert_shared_count": HARMLESS,
            "expert_shared_feed_forward_length": read("width of the network beside the experts"),
            "interleave_moe_layer_step": neutral(1),
            "leading_dense_block_count": read("layers without experts, at the beginning"),
        },
        tensors={
            **EXPERT_TENSORS,
            "mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
            "mlp.gate.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
            "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
            "mlp.shared_experts.up_proj": "ffn_up_shexp",
            "mlp.shared_experts.down_proj": "ffn_down_shexp",
        },
        values=lambda _config: {"exp_probs_b.bias": _as_row},
        llama_cpp=LlamaCppSupport(tensors=("output.weight", *BIASES, "exp_probs_b.bias")),
        translate=_translate,
        decoder=_decoder,
    )
)

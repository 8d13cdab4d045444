"""OLMoE: whole queries and keys normed, and experts whose weights are those of all experts."""

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
from bitnet.families.family import ATTENTION, WINDOWS, Family, LlamaCppSupport, register
from bitnet.families.rules import neutral, read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys


def _decoder(keys: Keys) -> ModelConfig:
    network = experts(keys, width=sizes(keys).ffn, routing={"renormalised": False})
    return dense(keys, qk_norm="whole", network=in_layers(network))


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    return expert_keys(config, 64)


register(
    Family(
        title="OLMoE",
        architecture="olmoe",
        model_types=("olmoe",),
        activation="silu",
        defaults={
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
        },
        config_keys={
            **EXPERT_CONFIG,
            "attention_bias": read("biases around attention"),
            "norm_topk_prob": neutral(False),
        },
        gguf_keys=EXPERT_KEYS,
        tensors=EXPERT_TENSORS,
        biases={"attention_bias": ATTENTION},
        llama_cpp=LlamaCppSupport(
            ignores=(*WINDOWS, "expert_feed_forward_length"),
            tied=False,
            whole_width=True,
            whole_keys=True,
        ),
        translate=_translate,
        decoder=_decoder,
    )
)

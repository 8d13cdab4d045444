"""Ministral 3: Llama with YaRN, whose query scale grows once per original context length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.families.dense import dense
from bitnet.families.family import Family, LlamaCppSupport, register
from bitnet.families.rules import read, refusal
from bitnet.families.windows import everywhere

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = config.get("rope_scaling") or config["rope_parameters"]
    if (rope.get("rope_type") or rope.get("type")) == "dynamic":
        raise refusal(
            "rope_parameters.rope_type",
            "dynamic",
            model="config.json",
            kind="Ministral 3",
            why="GGUF has one key for both the original context and the period of that growth",
        )
    original = rope["original_max_position_embeddings"]
    return everywhere(config) | {
        "attention.temperature_scale": float(rope["llama_4_scaling_beta"]),
        "rope.scaling.original_context_length": int(original),
    }


def _decoder(keys: Keys) -> ModelConfig:
    return dense(
        keys,
        growth=keys.number("attention.temperature_scale", 0.0),
        growth_length=keys.integer(
            "rope.scaling.original_context_length", keys.integer("context_length")
        ),
    )


register(
    Family(
        title="Ministral 3",
        architecture="mistral3",
        model_types=("ministral3",),
        activation="silu",
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
        config_keys={"sliding_window": read("positions a query attends to")},
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
        translate=_translate,
        decoder=_decoder,
    )
)

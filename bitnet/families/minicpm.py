"""MiniCPM and BitCPM: Llama with Granite's scales, under names of their own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bitnet.families.family import Family, LlamaCppSupport, register
from bitnet.families.granite import build_with_scales
from bitnet.families.rules import neutral, read, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys

_FACTORS = ("freqs", "factors_long", "factors_short")
_SCALES = ("embedding_scale", "residual_scale", "logit_scale")


def _decoder(keys: Keys) -> ModelConfig:
    for key in _SCALES:  # before 2025 files had none, and llama.cpp assumes those of one size
        if keys.number(key) <= 0:
            raise refusal(
                key, keys.number(key), model=keys.path.name, kind="MiniCPM", why="it is above 0"
            )
    return build_with_scales(keys)


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "embedding_scale": float(config["scale_emb"]),
        "residual_scale": config["scale_depth"] / math.sqrt(config["num_hidden_layers"]),
        "logit_scale": config["hidden_size"] / config["dim_model_base"],
    }


register(
    Family(
        title="MiniCPM and BitCPM",
        architecture="minicpm",
        model_types=("minicpm",),
        activation="silu",
        gguf_rope_style="interleaved",
        defaults={
            "scale_emb": 1,
            "scale_depth": 1,
            "dim_model_base": 1,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 2048,
        },
        config_keys={
            "dim_model_base": read("logits are divided by the width over it"),
            "scale_depth": read(
                "on the outputs of attention and feed-forward, over the root of the layers"
            ),
            "scale_emb": read("factor on embeddings"),
            "sparse_config": neutral(None, note="of sparse attention"),
        },
        gguf_keys={
            "attention.sliding_window": neutral(0),
            "embedding_scale": read("on embeddings"),
            "residual_scale": read("on the outputs of attention and feed-forward"),
            "logit_scale": read("logits are divided by it"),
        },
        llama_cpp=LlamaCppSupport(
            tensors=("output.weight", ".bias", *(f"rope_{it}.weight" for it in _FACTORS))
        ),
        translate=_translate,
        decoder=_decoder,
    )
)

"""Gemma 1: GeGLU and scaled embeddings; norms before attention and feed-forward only."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet.families.dense import dense
from bitnet.families.family import ATTENTION, BIASES, Family, LlamaCppSupport, register
from bitnet.families.rules import HARMLESS, neutral, read

if TYPE_CHECKING:
    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys


def _decoder(keys: Keys) -> ModelConfig:
    model = dense(keys, ffn={"activation": "gelu_tanh"})
    return replace(model, embedding_scale=math.sqrt(model.dim))


register(
    Family(
        title="Gemma 1",
        architecture="gemma",
        model_types=("gemma",),
        activation="gelu_pytorch_tanh",
        defaults={
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 256,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
        config_keys={
            "attention_bias": read("biases around attention"),
            # In the file of 2B, and never meant.
            "hidden_act": neutral(None, "gelu_pytorch_tanh", "gelu", note="tanh form either way"),
            "hidden_activation": HARMLESS,
        },
        gguf_keys={"attention.sliding_window": neutral(0)},
        biases={"attention_bias": ATTENTION},
        llama_cpp=LlamaCppSupport(tensors=BIASES),
        norms_from_zero=True,
        decoder=_decoder,
    )
)

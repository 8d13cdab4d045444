"""Gemma 2: norms on both sides, GeGLU, scaled embeddings, soft caps, every other layer windowed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.families.dense import AROUND, attention, dense, sizes
from bitnet.families.family import ATTENTION, BIASES, Family, LlamaCppSupport, register
from bitnet.families.rules import HARMLESS, neutral, read
from bitnet.families.windows import alternating

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys

__all__ = ["DEFAULTS", "IGNORED_SCALE", "NORMS", "caps", "score_scale"]

#: Defaults of Gemma 2 and 3; published files of config.json give little more than sizes.
DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
IGNORED_SCALE = read("on scores, from `query_pre_attn_scalar` of a folder; ignored in a GGUF file")
NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def caps(config: Mapping[str, Any]) -> dict[str, Any]:
    """Soft caps and attention scale of a ``config.json``."""
    keys = {
        name: float(config.get(name) or 0.0)
        for name in ("attn_logit_softcapping", "final_logit_softcapping")
    }
    return keys | {"attention.scale": config["query_pre_attn_scalar"] ** -0.5}


def score_scale(keys: Keys, layers_of_27b: int) -> float:
    """Factor on attention scores; the 27B models use the residual width, and no key says so."""
    found = sizes(keys)
    usual = attention(keys, found.dim)
    is_27b = found.layers == layers_of_27b and usual.heads
    scale = (found.dim / usual.heads) ** -0.5 if is_27b else usual.scale
    return keys.number("attention.scale", scale)


def _decoder(keys: Keys) -> ModelConfig:
    model = dense(
        keys,
        norms=AROUND,
        window=4096,
        period=2,
        scale=score_scale(keys, layers_of_27b=46),
        softcap=keys.number("attn_logit_softcapping", 50.0),
        ffn={"activation": "gelu_tanh"},
    )
    return replace(
        model,
        embedding_scale=math.sqrt(model.dim),
        final_softcap=keys.number("final_logit_softcapping", 30.0),
    )


register(
    Family(
        title="Gemma 2",
        architecture="gemma2",
        model_types=("gemma2",),
        activation="gelu_pytorch_tanh",
        defaults=DEFAULTS
        | {
            "max_position_embeddings": 8192,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        config_keys={
            "attention_bias": read("biases around attention"),
            "hidden_act": HARMLESS,  # hidden_activation counts
            "attn_logit_softcapping": read("soft cap on attention scores"),
            "final_logit_softcapping": read("soft cap on logits"),
            "layer_types": read("which layers have a window"),
            "query_pre_attn_scalar": read("attention scores are divided by its root"),
            "sliding_window": read("positions a query attends to"),
            "sliding_window_pattern": neutral(None, 2),
        },
        gguf_keys={
            "attention.scale": IGNORED_SCALE,
            "attn_logit_softcapping": read("soft cap on attention scores, 50 when absent, never 0"),
            "final_logit_softcapping": read("soft cap on logits, 30 when absent, never 0"),
        },
        tensors=NORMS,
        biases={"attention_bias": ATTENTION},
        llama_cpp=LlamaCppSupport(
            tensors=BIASES,
            ignores=("attention.scale",),
            wide_scale_layers=46,
            nonzero=("attn_logit_softcapping", "final_logit_softcapping"),
        ),
        norms_from_zero=True,
        translate=lambda config: alternating(2)(config) | caps(config),
        decoder=_decoder,
    )
)

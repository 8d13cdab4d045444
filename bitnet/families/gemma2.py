"""Gemma 2: norms on both sides, GeGLU, scaled embeddings, soft caps, every other layer windowed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bitnet.families.family import ATTENTION, LLAMA_CPP, Family, register
from bitnet.families.rules import HARMLESS, neutral, read
from bitnet.families.windows import alternating

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.keys import Keys

__all__ = ["DEFAULTS", "NORMS", "caps", "score_scale"]

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


def score_scale(keys: Keys, fields: Mapping[str, Any], layers_of_27b: int) -> float:
    """Factor on attention scores; the 27B models use the residual width, and no key says so."""
    scale: float = fields["attention_scale"]
    if fields["n_layers"] == layers_of_27b:
        scale = (fields["dim"] / fields["n_heads"]) ** -0.5
    return keys.number("attention.scale", scale)


def _configure(keys: Keys, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "embedding_scale": math.sqrt(fields["dim"]),
        "attention_scale": score_scale(keys, fields, layers_of_27b=46),
        "attention_softcap": keys.number("attn_logit_softcapping", 50.0),
        "final_softcap": keys.number("final_logit_softcapping", 30.0),
    }


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
            "attention.scale": read("on scores"),
            "attn_logit_softcapping": read("soft cap on attention scores, 50 when absent"),
            "final_logit_softcapping": read("soft cap on logits, 30 when absent"),
        },
        tensors=NORMS,
        biases={"attention_bias": ATTENTION},
        llama_cpp=tuple(name for name in LLAMA_CPP if name != "output.weight"),
        norms_from_zero=True,
        translate=lambda config: alternating(2)(config) | caps(config),
        block={"activation": "gelu_tanh", "post_norms": True, "window": 4096, "period": 2},
        configure=_configure,
    )
)

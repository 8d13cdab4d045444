"""Gemma 1 to 3: GeGLU and scaled embeddings.

Gemma 1 has norms before attention and feed-forward only. Gemma 2 and 3 have them on both sides, and
windows: Gemma 2 in every other layer, beside soft caps; Gemma 3 in five of six layers, which rotate
by other frequencies.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.families.dense import AROUND, WINDOW_CONFIG, alternating, attention, dense, sizes
from bitnet.families.family import (
    ATTENTION,
    BIASES,
    Family,
    LlamaCppSupport,
    register,
)
from bitnet.families.keys import HARMLESS, neutral, read
from bitnet.families.rope import rope_from

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys

#: Of Gemma 2 and 3; published files of config.json give little more than sizes.
_DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_CONFIG = WINDOW_CONFIG | {
    "final_logit_softcapping": read("soft cap on logits"),
    "hidden_act": HARMLESS,  # hidden_activation counts
    "query_pre_attn_scalar": read("attention scores are divided by its root"),
}
_SCALE = read("on scores, from `query_pre_attn_scalar` of a folder; ignored in a GGUF file")
NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def _gemma(keys: Keys, **more: Any) -> ModelConfig:
    model = dense(keys, ffn={"activation": "gelu_tanh"}, **more)
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
            # In the file of 2B, and never meant.
            "hidden_act": neutral(None, "gelu_pytorch_tanh", "gelu", note="tanh form either way"),
            "hidden_activation": HARMLESS,
        },
        gguf_keys={"attention.sliding_window": neutral(0)},
        biases={"attention_bias": ATTENTION},
        llama_cpp=LlamaCppSupport(tensors=BIASES),
        norms_from_zero=True,
        decoder=_gemma,
    )
)


def _caps(config: Mapping[str, Any]) -> dict[str, Any]:
    """Soft caps and attention scale of a ``config.json``."""
    keys = {
        name: float(config.get(name) or 0.0)
        for name in ("attn_logit_softcapping", "final_logit_softcapping")
    }
    return keys | {"attention.scale": config["query_pre_attn_scalar"] ** -0.5}


def _score_scale(keys: Keys, layers_of_27b: int) -> float:
    """Factor on attention scores; the 27B models use the residual width, and no key says so."""
    its = sizes(keys)
    usual = attention(keys, its.dim)
    is_27b = its.layers == layers_of_27b and usual.heads
    scale = (its.dim / usual.heads) ** -0.5 if is_27b else usual.scale
    return keys.number("attention.scale", scale)


def _gemma2(keys: Keys) -> ModelConfig:
    model = _gemma(
        keys,
        norms=AROUND,
        window=4096,
        period=2,
        scale=_score_scale(keys, layers_of_27b=46),
        softcap=keys.number("attn_logit_softcapping", 50.0),
    )
    return replace(model, final_softcap=keys.number("final_logit_softcapping", 30.0))


register(
    Family(
        title="Gemma 2",
        architecture="gemma2",
        model_types=("gemma2",),
        activation="gelu_pytorch_tanh",
        defaults=_DEFAULTS
        | {
            "max_position_embeddings": 8192,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        config_keys=_CONFIG
        | {
            "attn_logit_softcapping": read("soft cap on attention scores"),
            "sliding_window_pattern": neutral(None, 2),
        },
        gguf_keys={
            "attention.scale": _SCALE,
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
        translate=lambda config: alternating(2)(config) | _caps(config),
        decoder=_gemma2,
    )
)


def _gemma3(keys: Keys) -> ModelConfig:
    # Layers with a window keep Gemma 2's frequencies, without scaling.
    local = replace(
        rope_from(keys, attention(keys, sizes(keys).dim).head_dim),
        theta=keys.number("rope.freq_base_swa", 10000.0),
        scaling="none",
        attention_factor=1.0,
        freq_factors=None,
    )
    model = _gemma(
        keys,
        norms=AROUND,
        period=6,
        qk_norm="head",
        scale=_score_scale(keys, layers_of_27b=62),
        each=lambda _layer, usual: replace(usual, rope=local) if usual.window else usual,
    )
    return replace(model, final_softcap=keys.number("final_logit_softcapping", 0.0))


def _gemma3_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    both_ways = {"attention.causal": False} if config.get("use_bidirectional_attention") else {}
    return alternating(6, "sliding_window_pattern")(config) | _caps(config) | both_ways


register(
    Family(
        title="Gemma 3",
        architecture="gemma3",
        model_types=("gemma3", "gemma3_text"),
        activation="gelu_pytorch_tanh",
        defaults=_DEFAULTS | {"rope_theta": 1e6, "max_position_embeddings": 131072},
        config_keys=_CONFIG
        | {
            "use_bidirectional_attention": read("positions also attend to later ones"),
            "rope_local_base_freq": read("RoPE base of layers with a window"),
            "sliding_window_pattern": read("one layer in this many has full attention"),
        },
        gguf_keys={
            "attention.scale": _SCALE,
            "final_logit_softcapping": read("soft cap on logits"),
            "rope.freq_base_swa": read("RoPE base of layers with a window"),
        },
        tensors=NORMS,
        biases={"attention_bias": ATTENTION},
        llama_cpp=LlamaCppSupport(ignores=("attention.scale",), wide_scale_layers=62),
        norms_from_zero=True,
        layered_rope=True,
        translate=_gemma3_keys,
        decoder=_gemma3,
    )
)

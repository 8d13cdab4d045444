"""Gemma 3: as Gemma 2, with norms on query and key heads and a separate RoPE in windows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.families.dense import AROUND, attention, dense, sizes
from bitnet.families.family import ATTENTION, Family, LlamaCppSupport, register
from bitnet.families.gemma2 import DEFAULTS, IGNORED_SCALE, NORMS, caps, score_scale
from bitnet.families.rope import rope_from
from bitnet.families.rules import HARMLESS, read
from bitnet.families.windows import alternating

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys


def _decoder(keys: Keys) -> ModelConfig:
    # Layers with a window keep Gemma 2's frequencies, without scaling.
    local = replace(
        rope_from(keys, attention(keys, sizes(keys).dim).head_dim),
        theta=keys.number("rope.freq_base_swa", 10000.0),
        scaling="none",
        attention_factor=1.0,
        freq_factors=None,
    )
    model = dense(
        keys,
        norms=AROUND,
        period=6,
        qk_norm="head",
        scale=score_scale(keys, layers_of_27b=62),
        each=lambda _layer, usual: replace(usual, rope=local) if usual.window else usual,
        ffn={"activation": "gelu_tanh"},
    )
    return replace(
        model,
        embedding_scale=math.sqrt(model.dim),
        final_softcap=keys.number("final_logit_softcapping", 0.0),
    )


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    both_ways = {"attention.causal": False} if config.get("use_bidirectional_attention") else {}
    return alternating(6, "sliding_window_pattern")(config) | caps(config) | both_ways


register(
    Family(
        title="Gemma 3",
        architecture="gemma3",
        model_types=("gemma3", "gemma3_text"),
        activation="gelu_pytorch_tanh",
        defaults=DEFAULTS | {"rope_theta": 1e6, "max_position_embeddings": 131072},
        config_keys={
            "attention_bias": read("biases around attention"),
            "hidden_act": HARMLESS,  # hidden_activation counts
            "final_logit_softcapping": read("soft cap on logits"),
            "use_bidirectional_attention": read("positions also attend to later ones"),
            "layer_types": read("which layers have a window"),
            "query_pre_attn_scalar": read("attention scores are divided by its root"),
            "rope_local_base_freq": read("RoPE base of layers with a window"),
            "sliding_window": read("positions a query attends to"),
            "sliding_window_pattern": read("one layer in this many has full attention"),
        },
        gguf_keys={
            "attention.scale": IGNORED_SCALE,
            "final_logit_softcapping": read("soft cap on logits"),
            "rope.freq_base_swa": read("RoPE base of layers with a window"),
        },
        tensors=NORMS,
        biases={"attention_bias": ATTENTION},
        llama_cpp=LlamaCppSupport(ignores=("attention.scale",), wide_scale_layers=62),
        norms_from_zero=True,
        layered_rope=True,
        translate=_translate,
        decoder=_decoder,
    )
)

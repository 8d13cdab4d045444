"""Maple: ternary experts, and windows in three of four layers, the only ones that rotate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet.families.dense import dense
from bitnet.families.experts import EXPERT_KEYS, experts, in_layers
from bitnet.families.family import Family, LlamaCppSupport, register
from bitnet.families.rules import read, refusal

if TYPE_CHECKING:
    from bitnet.families.blocks import Attention, ModelConfig
    from bitnet.families.keys import Keys


_LIMIT = 7.0


def _decoder(keys: Keys) -> ModelConfig:
    limits = keys.value("swiglu_clamp_exp")
    if set(limits if isinstance(limits, list) else [limits]) != {_LIMIT}:
        raise refusal(
            "swiglu_clamp_exp",
            limits,
            model=keys.path.name,
            kind="Maple",
            why=f"only {_LIMIT:g} in every layer is computed",
        )
    network = experts(keys, width=0, routing={}, activation="silu_clamped")

    def attention_of(_layer: int, usual: Attention) -> Attention:
        if not usual.window or usual.rope is None:
            return replace(usual, rope=None)
        theta = keys.number("rope.freq_base_swa", usual.rope.theta)
        return replace(usual, rope=replace(usual.rope, theta=theta))

    return dense(keys, qk_norm="head", network=in_layers(network), each=attention_of)


register(
    Family(
        title="Maple",
        architecture="maple",
        model_types=(),
        activation="silu",
        gguf_keys={
            **EXPERT_KEYS,
            "attention.sliding_window": read("of layers that rotate"),
            "attention.sliding_window_pattern": read("which layers have a window, and rotate"),
            "rope.freq_base_swa": read("of layers with a window"),
            "swiglu_clamp_exp": read("limit of gate and up inside experts; must be 7"),
        },
        llama_cpp=LlamaCppSupport(ignores=(), tied=False),
        decoder=_decoder,
    )
)

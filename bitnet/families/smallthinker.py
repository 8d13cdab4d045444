"""SmallThinker: experts chosen before attention; every fourth layer without window and rotation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet.families.dense import dense
from bitnet.families.experts import EXPERT_KEYS, experts, gating, in_layers
from bitnet.families.family import BIASES, Family, LlamaCppSupport, register
from bitnet.families.rules import read

if TYPE_CHECKING:
    from bitnet.families.blocks import Attention, ModelConfig
    from bitnet.families.keys import Keys

_WINDOW, _STEP = 4096, 4  # llama.cpp's, whatever the keys say


def _decoder(keys: Keys) -> ModelConfig:
    network = experts(
        keys,
        width=0,
        routing={"gating": gating(keys, "softmax")},
        activation="relu",
        early=True,
    )
    has_windows = keys.integer("attention.sliding_window", 0) > 0

    def attention_of(layer: int, usual: Attention) -> Attention:
        if not has_windows:
            return usual
        if layer % _STEP == 0:
            return replace(usual, rope=None, window=0)
        return replace(usual, window=_WINDOW)

    return dense(keys, network=in_layers(network), each=attention_of)


register(
    Family(
        title="SmallThinker",
        architecture="smallthinker",
        model_types=(),
        activation="relu",
        gguf_keys={
            **EXPERT_KEYS,
            "attention.sliding_window": read("above 0: windows of 4,096 in three of four layers"),
            "expert_gating_func": read("1: softmax, 2: sigmoid of the router's logits"),
        },
        llama_cpp=LlamaCppSupport(
            tensors=("output.weight", *BIASES), ignores=("attention.sliding_window_pattern",)
        ),
        decoder=_decoder,
    )
)

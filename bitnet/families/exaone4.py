"""Exaone 4: norms after attention and feed-forward, none before; no RoPE with full attention.

Without ``sliding_window`` all layers use RoPE.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.families.dense import AFTER, dense
from bitnet.families.family import BIASES, Family, LlamaCppSupport, register
from bitnet.families.rules import read
from bitnet.families.windows import alternating

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys

_WINDOW = 4096
_LAYERS_OF_32B = 64  # in a GGUF file, only these models have windows, and without a key this one


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("sliding_window") is None:
        kinds = config.get("layer_types")
        if kinds is not None and "sliding_attention" in kinds:
            raise ValueError("layers with a window in layer_types, and no sliding_window")
        return {"attention.sliding_window": 0}
    return alternating(4, "sliding_window_pattern")(config)


def _decoder(keys: Keys) -> ModelConfig:
    usual_window = _WINDOW if keys.integer("block_count") == _LAYERS_OF_32B else 0
    everywhere = not keys.integer("attention.sliding_window", usual_window)
    return dense(
        keys,
        norms=AFTER,
        window=usual_window,
        period=4,
        qk_norm="head",
        each=lambda _layer, usual: (
            usual if everywhere or usual.window else replace(usual, rope=None)
        ),
    )


register(
    Family(
        title="Exaone 4",
        architecture="exaone4",
        model_types=("exaone4",),
        activation="silu",
        defaults={
            "num_key_value_heads": 32,
            "sliding_window": _WINDOW,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 2048,
        },
        config_keys={
            "layer_types": read("which layers have a window"),
            "sliding_window": read("positions a query attends to"),
            "sliding_window_pattern": read("one layer in this many has full attention"),
        },
        tensors={
            "post_attention_layernorm": "post_attention_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
        llama_cpp=LlamaCppSupport(
            tensors=("output.weight", *BIASES, "rope_freqs.weight"),
            ignores=(),
            whole_width=True,
            window_layers=_LAYERS_OF_32B,
            nonzero=("attention.sliding_window",),
        ),
        translate=_translate,
        decoder=_decoder,
    )
)

"""SmolLM3: Llama without RoPE in every fourth layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.families.dense import dense
from bitnet.families.family import ATTENTION, MLP, Family, register
from bitnet.families.rules import neutral, read, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys

_STEP = 4


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    usual = tuple(map(_is_rotated, range(layers)))
    flags = config.get("no_rope_layers")
    if flags is None:
        step = config["no_rope_layer_interval"]
        flags = [(layer + 1) % step != 0 for layer in range(layers)]
    if tuple(map(bool, flags)) != usual:
        raise refusal(
            "no_rope_layers",
            list(flags),
            model="config.json",
            kind="SmolLM3",
            why="in GGUF, every fourth layer is without RoPE",
        )
    return {}


def _is_rotated(layer: int) -> bool:
    return (layer + 1) % _STEP != 0


def _decoder(keys: Keys) -> ModelConfig:
    return dense(
        keys,
        each=lambda layer, usual: usual if _is_rotated(layer) else replace(usual, rope=None),
    )


register(
    Family(
        title="SmolLM3",
        architecture="smollm3",
        model_types=("smollm3",),
        activation="silu",
        gguf_rope_style="interleaved",
        defaults={
            "num_key_value_heads": 4,
            "rope_theta": 2e6,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768,
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
        },
        config_keys={
            "attention_bias": read("biases around attention"),
            "mlp_bias": read("biases in the feed-forward network"),
            "no_rope_layers": read("must be every fourth layer"),
            "no_rope_layer_interval": read("must be 4, unless `no_rope_layers` says so"),
            "use_sliding_window": neutral(None, False),
        },
        gguf_keys={"attention.sliding_window": neutral(0)},
        biases={"attention_bias": ATTENTION, "mlp_bias": MLP},
        translate=_translate,
        decoder=_decoder,
    )
)

"""Qwen 3: norms on query and key heads."""

from __future__ import annotations

from functools import partial

from bitnet.families.dense import dense
from bitnet.families.family import ATTENTION, Family, register
from bitnet.families.rules import read
from bitnet.families.windows import from_first

register(
    Family(
        title="Qwen 3",
        architecture="qwen3",
        model_types=("qwen3",),
        activation="silu",
        defaults={
            "head_dim": 128,
            "num_key_value_heads": 32,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "max_window_layers": 28,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768,
        },
        config_keys={
            "attention_bias": read("biases around attention"),
            "sliding_window": read("positions a query attends to"),
            "use_sliding_window": read("enables windows"),
            "max_window_layers": read("the first layer with a window"),
            "layer_types": read("which layers have a window"),
        },
        biases={"attention_bias": ATTENTION},
        translate=from_first,
        decoder=partial(dense, qk_norm="head"),
    )
)

"""Qwen 2 and 2.5: biases on query, key and value."""

from __future__ import annotations

from functools import partial

from bitnet.families.dense import dense
from bitnet.families.family import QKV, Family, LlamaCppSupport, register
from bitnet.families.rules import HARMLESS, read
from bitnet.families.windows import from_first

register(
    Family(
        title="Qwen 2 and 2.5",
        architecture="qwen2",
        model_types=("qwen2",),
        activation="silu",
        defaults={
            "num_key_value_heads": 32,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "max_window_layers": 28,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768,
        },
        config_keys={
            "sliding_window": read("positions a query attends to"),
            "use_sliding_window": read("enables windows"),
            "max_window_layers": read("the first layer with a window"),
            "layer_types": read("which layers have a window"),
            "attention_bias": HARMLESS,  # its biases are always there
        },
        biases={"": QKV},
        translate=from_first,
        llama_cpp=LlamaCppSupport(whole_width=True),
        decoder=partial(dense, biased=True),
    )
)

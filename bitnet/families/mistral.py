"""Mistral: Llama with a window; its GGUF files are Llama's."""

from __future__ import annotations

from bitnet.families.family import Family, register
from bitnet.families.rules import read
from bitnet.families.windows import everywhere

register(
    Family(
        title="Mistral",
        architecture="llama",
        in_gguf=False,
        model_types=("mistral",),
        activation="silu",
        defaults={
            "num_key_value_heads": 8,
            "sliding_window": 4096,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 131072,
        },
        config_keys={"sliding_window": read("positions a query attends to")},
        translate=everywhere,
    )
)

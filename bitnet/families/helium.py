"""Helium: Llama with RoPE on adjacent pairs; llama.cpp does not support it."""

from __future__ import annotations

from bitnet.families.family import MLP, QKV, Family, register
from bitnet.families.rules import neutral, read

register(
    Family(
        title="Helium",
        architecture="helium",
        model_types=("helium",),
        activation="silu",
        rope_style="interleaved",
        gguf_rope_style="interleaved",
        defaults={
            "head_dim": 128,
            "num_key_value_heads": 20,
            "rope_theta": 100000.0,
            "rms_norm_eps": 1e-8,
            "max_position_embeddings": 4096,
        },
        config_keys={
            "attention_bias": read("biases on query, key and value"),
            "mlp_bias": read("biases in the feed-forward network"),
        },
        gguf_keys={"attention.sliding_window": neutral(0)},
        llama_cpp=None,
        biases={"attention_bias": QKV, "mlp_bias": MLP},
    )
)

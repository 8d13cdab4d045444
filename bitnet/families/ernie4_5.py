"""Ernie 4.5, the dense models: Llama with RoPE on adjacent pairs, in both containers."""

from __future__ import annotations

from bitnet.families.family import ATTENTION, MLP, Family, register
from bitnet.families.rules import neutral, read

register(
    Family(
        title="Ernie 4.5, dense",
        architecture="ernie4_5",
        model_types=("ernie4_5",),
        activation="silu",
        rope_style="interleaved",
        gguf_rope_style="interleaved",
        defaults={
            "head_dim": 128,
            "num_key_value_heads": 2,
            "rope_theta": 500000.0,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
        config_keys={"use_bias": read("biases of all linear layers")},
        gguf_keys={"attention.sliding_window": neutral(0)},
        biases={"use_bias": (*ATTENTION, *MLP)},
    )
)

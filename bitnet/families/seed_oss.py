"""Seed-OSS: Llama with biases on query, key and value, and optionally on the output."""

from __future__ import annotations

from functools import partial

from bitnet.families.dense import dense
from bitnet.families.family import MLP, QKV, Family, register
from bitnet.families.rules import neutral, read

register(
    Family(
        title="Seed-OSS",
        architecture="seed_oss",
        model_types=("seed_oss",),
        activation="silu",
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 524288,
            "attention_bias": True,
        },
        config_keys={
            "attention_bias": read("biases on query, key and value"),
            "attention_out_bias": read("bias of the output projection"),
            "mlp_bias": read("biases in the feed-forward network"),
        },
        gguf_keys={"attention.sliding_window": neutral(0)},
        tensors={"post_attention_layernorm": "post_attention_norm"},
        biases={"attention_bias": QKV, "attention_out_bias": ("attn_output",), "mlp_bias": MLP},
        # Its name of the norm before feed-forward; there is none after attention.
        decoder=partial(dense, norms=(("attn_norm", ""), ("post_attention_norm", ""))),
    )
)

"""GLM-4, dense: norms on both sides, gate and up in one matrix, half of each head rotated."""

from __future__ import annotations

from functools import partial

from bitnet.families.dense import AROUND, dense
from bitnet.families.family import QKV, Family, register
from bitnet.families.rules import neutral, read

register(
    Family(
        title="GLM-4, dense",
        architecture="glm4",
        model_types=("glm4",),
        activation="silu",
        rope_style="interleaved",
        gguf_rope_style="interleaved",
        defaults={
            "head_dim": 128,
            "num_key_value_heads": 2,
            "partial_rotary_factor": 0.5,
            "attention_bias": True,
            "rms_norm_eps": 1.5625e-7,
            "max_position_embeddings": 131072,
        },
        config_keys={
            "attention_bias": read("biases on query, key and value"),
            "partial_rotary_factor": read("rotary share of a head"),
        },
        gguf_keys={"attention.sliding_window": neutral(0)},
        tensors={
            "post_self_attn_layernorm": "post_attention_norm",
            "post_attention_layernorm": "ffn_norm",
            "post_mlp_layernorm": "post_ffw_norm",
        },
        biases={"attention_bias": QKV},
        partial_rotation=True,
        decoder=partial(dense, norms=AROUND, ffn={"fused": True}),
    )
)

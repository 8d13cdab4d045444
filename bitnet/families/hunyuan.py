"""Hunyuan, dense: norms of queries and keys behind the rotation, whose base may be stretched."""

from __future__ import annotations

from functools import partial

from bitnet.families.dense import dense
from bitnet.families.family import ATTENTION, Family, LlamaCppSupport, register
from bitnet.families.rules import neutral, read

register(
    Family(
        title="Hunyuan, dense",
        architecture="hunyuan-dense",
        model_types=("hunyuan_v1_dense",),
        activation="silu",
        defaults={"attention_bias": False, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
        config_keys={
            "attention_bias": read("biases around attention"),
            "attention_head_dim": read("former name of `head_dim`, which counts"),
            "use_qk_norm": neutral(None, True),
            "cla_share_factor": neutral(None, 1, 2, note="for layers that share keys: none does"),
        },
        rope_parameters={
            "alpha": "of `dynamic`: the base grows once, by alpha ^ (dims / (dims - 2))",
            **dict.fromkeys(("beta_fast", "beta_slow", "mscale", "mscale_all_dim"), "of `yarn`"),
        },
        gguf_keys={"attention.sliding_window": neutral(0)},
        tensors={
            "self_attn.query_layernorm": "attn_q_norm",
            "self_attn.key_layernorm": "attn_k_norm",
        },
        biases={"attention_bias": ATTENTION},
        llama_cpp=LlamaCppSupport(),
        decoder=partial(dense, qk_norm="rotated"),
    )
)

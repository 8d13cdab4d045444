"""GLM 4: norms on both sides and one matrix of gate and up, or experts; half of a head rotates."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bitnet.families.dense import AROUND, dense
from bitnet.families.experts import (
    GROUPED_CONFIG,
    GROUPED_KEYS,
    GROUPED_TENSORS,
    experts_by_groups,
    group_keys,
    without_drafting_blocks,
)
from bitnet.families.family import BIASES, QKV, Family, LlamaCppSupport, register
from bitnet.families.keys import neutral, read

if TYPE_CHECKING:
    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys

_SHARE = {"partial_rotary_factor": read("rotary share of a head")}

register(
    Family(
        title="GLM-4, dense",
        architecture="glm4",
        model_types=("glm4",),
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
        config_keys=_SHARE,
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


def _with_experts(keys: Keys) -> ModelConfig:
    has_norms = any(name.endswith(".attn_q_norm.weight") for name in keys.weights)
    model = dense(
        keys,
        norms=(("attn_norm", ""), ("post_attention_norm", "")),
        qk_norm="head" if has_norms else "",
        mixture=experts_by_groups(keys, corrected=True),
    )
    return without_drafting_blocks(keys, model)


# Experts are chosen by sigmoids and a correction, behind a dense layer or some.
register(
    Family(
        title="GLM 4.5 to 4.7 with experts",
        architecture="glm4moe",
        model_types=("glm4_moe",),
        defaults={
            "head_dim": None,
            "num_key_value_heads": 8,
            "partial_rotary_factor": 0.5,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "n_shared_experts": 1,
            "routed_scaling_factor": 1.0,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
        },
        config_keys=GROUPED_CONFIG | _SHARE | {"use_qk_norm": read("norms on query and key heads")},
        gguf_keys={**GROUPED_KEYS, "attention.sliding_window": neutral(0)},
        tensors={**GROUPED_TENSORS, "post_attention_layernorm": "post_attention_norm"},
        biases={"attention_bias": QKV},
        partial_rotation=True,
        more_blocks=True,
        llama_cpp=LlamaCppSupport(tensors=("output.weight", *BIASES, "exp_probs_b.bias")),
        translate=lambda config: group_keys(config, config["first_k_dense_replace"]),
        decoder=_with_experts,
    )
)

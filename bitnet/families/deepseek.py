"""DeepSeek 2 and 3, GLM 4 and Ling 2: latent attention, and experts chosen by groups."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from bitnet.base.errors import Unsupported
from bitnet.families.blocks import Experts, FeedForward, Gating, LatentAttention
from bitnet.families.dense import AROUND, RENAMED, ModelConfig, dense, model_of, sizes, usual_block
from bitnet.families.experts import GROUPED_CONFIG, GROUPED_KEYS, experts_by_groups, group_keys
from bitnet.families.family import BIASES, QKV, Family, LlamaCppSupport, register, register_variant
from bitnet.families.keys import Config, Keys, Rule, neutral, reads, refusal
from bitnet.families.rope import magnitude, rope_from

_LATENT_EPSILON = 1e-6  # of norms of latents in transformers, whatever the other norms have
_GLM_TOKENS = 154880
_GLM_LAYERS = (47, 48)  # of files without `expert_gating_func`
_LITE_LAYERS = (26, 27)  # for which llama.cpp does not read `attention.q_lora_rank`


def _decoder(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys)
    usual = FeedForward(model_sizes.ffn)
    first = keys.integer("leading_dense_block_count", 0)
    network: FeedForward | Experts = usual
    if first < model_sizes.layers:
        is_glm = model_sizes.vocab_size == _GLM_TOKENS and model_sizes.layers in _GLM_LAYERS
        default: Gating = "sigmoid" if is_glm else "softmax"
        network = experts_by_groups(keys, default=default)
    mixer = _attention(keys, model_sizes.layers)
    networks = (usual if layer < first else network for layer in range(model_sizes.layers))
    return model_of(
        keys, model_sizes, (usual_block(mixer, layer_network) for layer_network in networks)
    )


def _attention(keys: Keys, layers: int) -> LatentAttention:
    if keys.value("attention.key_length_mla", None) is None:
        raise Unsupported(
            f"{keys.path.name}: attn_kv_b is one matrix of keys and values, and there is no "
            "attention.key_length_mla: a file of before May 2025",
            hint="choose a later conversion",
        )
    width, turning = (
        keys.integer(key) for key in ("attention.key_length_mla", "rope.dimension_count")
    )
    rope = rope_from(keys, turning)
    scale = max(width, 1) ** -0.5
    if rope.scaling == "linear":
        raise _scaling_refusal(keys, "linear", "llama.cpp scales scores with it as for `yarn`")
    if rope.scaling == "yarn":
        divided_by = keys.number("rope.scaling.yarn_log_multiplier", 0.0) * 10
        if not divided_by or keys.number("rope.scaling.attn_factor", 1.0) != 1:
            why = "`yarn` is computed with `mscale_all_dim` and the same `mscale` only"
            raise _scaling_refusal(keys, "yarn", why)
        rope = replace(rope, attention_factor=1.0)
        scale *= magnitude(rope.factor, divided_by) ** 2
    return LatentAttention(
        heads=keys.integer("attention.head_count"),
        latent=keys.integer("attention.kv_lora_rank"),
        key_dim=width - turning,
        value_dim=keys.integer("attention.value_length_mla"),
        rope=rope,
        scale=scale,
        query_rank=0 if layers in _LITE_LAYERS else keys.integer("attention.q_lora_rank", 0),
        eps=keys.number("attention.layer_norm_rms_epsilon")
        if keys.config is None
        else _LATENT_EPSILON,
    )


def _scaling_refusal(keys: Keys, scaling: str, why: str) -> Unsupported:
    return refusal("rope.scaling.type", scaling, why, model=keys.path.name)


def _translate(config: Config) -> dict[str, Any]:
    if config.get("num_key_value_heads") not in (None, config["num_attention_heads"]):
        raise ValueError("num_key_value_heads is not num_attention_heads")
    latent = config["kv_lora_rank"]
    turning = config["qk_rope_head_dim"]
    keys = group_keys(config) | {
        "attention.head_count_kv": 1,
        "attention.key_length": latent + turning,
        "attention.value_length": latent,
        "attention.q_lora_rank": config["q_lora_rank"] or 0,
        "attention.key_length_mla": config["qk_nope_head_dim"] + turning,
    }
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if (rope.get("rope_type") or rope.get("type")) == "yarn":
        keys |= _yarn(rope)
    return keys


def _translate_glm(config: Config) -> dict[str, Any]:
    """The same with a list of layers without experts, all of which are at the beginning."""
    kinds = config.get("mlp_layer_types")
    if kinds is None:
        return _translate(config) | {"leading_dense_block_count": 1}
    first = next((at for at, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    if set(kinds[first:]) - {"sparse"} or len(kinds) != config["num_hidden_layers"]:
        why = "only layers without experts before all others are computed"
        raise refusal("mlp_layer_types", kinds, why)
    return _translate(config) | {"leading_dense_block_count": first}


def _yarn(rope: Config) -> dict[str, Any]:
    """Keys of ``yarn``, whose factor on scores replaces that on rotated queries and keys."""
    everywhere = rope.get("mscale_all_dim")
    bounds = rope.get("beta_fast") or 32, rope.get("beta_slow") or 1, rope.get("truncate", True)
    is_plain = bounds == (32, 1, True) and rope.get("attention_factor") is None
    if not everywhere or rope.get("mscale") != everywhere or not is_plain:
        why = (
            "`yarn` is computed with equal `mscale` and `mscale_all_dim`, `beta_fast` 32 and "
            "`beta_slow` 1 only"
        )
        raise refusal("rope_parameters", dict(rope), why)
    return {
        "rope.scaling.attn_factor": 1.0,
        "rope.scaling.yarn_log_multiplier": 0.1 * float(everywhere),
    }


_LATENT = Family(
    title="DeepSeek",
    architecture="deepseek2",
    model_types=(),
    config_keys={
        **GROUPED_CONFIG,
        **reads("kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"),
        "qk_head_dim": Rule("the sum of both widths"),
        "rope_interleave": neutral(True),
    },
    gguf_keys={
        **GROUPED_KEYS,
        **reads("attention.key_length_mla attention.kv_lora_rank attention.q_lora_rank"),
        **reads("attention.value_length_mla rope.scaling.yarn_log_multiplier"),
        "attention.key_length": Rule("width of a latent with its rotary dimensions"),
        "attention.value_length": Rule("width of a latent"),
        "attention.scale": neutral(0),
    },
    biases={"attention_bias": ("attn_q_a", "attn_kv_a_mqa", "attn_output")},
    more_blocks=True,
    rope_style="interleaved",
    gguf_rope_style="interleaved",
    llama_cpp=LlamaCppSupport(tensors=("output.weight", "exp_probs_b.bias")),
    translate=_translate,
    decoder=_decoder,
)
register_variant(
    _LATENT,
    title="DeepSeek 2 and 3",
    model_types=("deepseek_v3",),
)
register_variant(
    _LATENT,
    title="GLM 4.7 Flash",
    in_gguf=False,
    model_types=("glm4_moe_lite",),
    config_keys={
        "first_k_dense_replace": Rule("transformers ignores it"),
        **reads("mlp_layer_types"),
    },
    translate=_translate_glm,
)


def _ling(keys: Keys) -> ModelConfig:
    return dense(keys, qk_norm="head", fused=True, mixture=experts_by_groups(keys))


register(
    title="Ling and Ring 2",
    architecture="bailingmoe2",
    model_types=(),
    gguf_keys=GROUPED_KEYS | reads("expert_shared_feed_forward_length"),
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "exp_probs_b.bias"), tied=False, whole_width=True
    ),
    decoder=_ling,
)


# GLM 4 has norms on both sides and one matrix of gate and up, or experts; half of a head rotates.
register(
    title="GLM-4, dense",
    architecture="glm4",
    rope_style="interleaved",
    gguf_rope_style="interleaved",
    config_keys=reads("partial_rotary_factor"),
    biases={"attention_bias": QKV},
    partial_rotation=True,
    decoder=partial(dense, norms=AROUND, ffn={"fused": True}),
)


def _glm_experts(keys: Keys) -> ModelConfig:
    has_norms = any(name.endswith(".attn_q_norm.weight") for name in keys.weights)
    return dense(
        keys,
        norms=RENAMED,
        qk_norm="head" if has_norms else "",
        mixture=experts_by_groups(keys, corrected=True),
    )


# Experts are chosen by sigmoids and a correction, behind a dense layer or some.
register(
    title="GLM 4.5 to 4.7 with experts",
    architecture="glm4moe",
    model_types=("glm4_moe",),
    config_keys=GROUPED_CONFIG | reads("partial_rotary_factor use_qk_norm"),
    gguf_keys=GROUPED_KEYS,
    tensors={"post_attention_layernorm": "post_attention_norm"},
    biases={"attention_bias": QKV},
    partial_rotation=True,
    more_blocks=True,
    llama_cpp=LlamaCppSupport(tensors=("output.weight", *BIASES, "exp_probs_b.bias")),
    translate=group_keys,
    decoder=_glm_experts,
)

"""DeepSeek 2 and 3 and GLM 4: latent attention, and experts chosen by groups."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import Unsupported
from bitnet.families.blocks import Experts, FeedForward, Gating, LatentAttention, ModelConfig
from bitnet.families.dense import AROUND, RENAMED, check_parts, dense, model_of, sizes, usual_block
from bitnet.families.experts import (
    GROUPED_CONFIG,
    GROUPED_KEYS,
    experts_by_groups,
    group_keys,
    leading_dense_layers,
)
from bitnet.families.family import (
    BIASES,
    QKV,
    Family,
    LlamaCppSupport,
    of_gguf,
    register,
    register_variant,
)
from bitnet.families.keys import (
    Config,
    Keys,
    Rule,
    neutral,
    reads,
    refusal,
    value_refusal,
    wrong_config,
)
from bitnet.families.rope import magnitude, rope_from, rope_parameters, rope_table

if TYPE_CHECKING:
    from bitnet.families.family import Parts

_LATENT_EPSILON = 1e-6  # of norms of latents in transformers, whatever the other norms have
# Vocabulary and layers by which llama.cpp recognises GLM in files without `expert_gating_func`.
_GLM_TOKENS = 154880
_GLM_LAYERS = (47, 48)
# Numbers of layers by which llama.cpp recognises models without a latent of queries: DeepSeek 2
# Lite and, if the vocabulary fits as well, Kanana 2.
_LITE_LAYERS = (26, 27)
_KANANA_LAYERS = 48
_KANANA_TOKENS = 128256


def _decoder(keys: Keys) -> ModelConfig:
    """Attention over latents, with a dense network in the first layers and experts in others."""
    model_sizes = sizes(keys)
    plain = FeedForward(model_sizes.ffn)
    first = keys.integer("leading_dense_block_count", 0)
    network: FeedForward | Experts = plain
    if first < model_sizes.layers:
        is_glm = model_sizes.vocab_size == _GLM_TOKENS and model_sizes.layers in _GLM_LAYERS
        default: Gating = "sigmoid" if is_glm else "softmax"
        network = experts_by_groups(keys, default=default)
    layers = model_sizes.layers - keys.integer("nextn_predict_layers", 0)
    is_kanana = layers == _KANANA_LAYERS and model_sizes.vocab_size == _KANANA_TOKENS
    mixer = latent_attention(keys, is_lite=layers in _LITE_LAYERS or is_kanana)
    networks = (plain if layer < first else network for layer in range(model_sizes.layers))
    return model_of(
        keys, model_sizes, (usual_block(mixer, layer_network) for layer_network in networks)
    )


def latent_attention(keys: Keys, *, is_lite: bool = False) -> LatentAttention:
    """Attention over latents, from the keys that all families with it have.

    *is_lite* is true for models that llama.cpp takes for models without a latent of queries,
    whatever their files say.
    """
    if keys.value("attention.key_length_mla", None) is None:
        raise Unsupported(
            f"{keys.path.name}: attn_kv_b is one matrix of keys and values, and there is no "
            "attention.key_length_mla: a file of before May 2025",
            hint="choose a later conversion",
        )
    width = keys.integer("attention.key_length_mla")
    rotary_dims = keys.integer("rope.dimension_count")
    rope = rope_from(keys, rotary_dims)
    scale = max(width, 1) ** -0.5
    if rope.scaling == "linear":
        raise _scaling_refusal(keys, "linear", "llama.cpp scales scores with it as for `yarn`")
    if rope.scaling != "yarn":
        _check_score_factor(keys)
    else:
        mscale_all = keys.number("rope.scaling.yarn_log_multiplier", 0.0) * 10  # stored times 0.1
        if not mscale_all or keys.number("rope.scaling.attn_factor", 1.0) != 1:
            why = "`yarn` is computed with `mscale_all_dim` and the same `mscale` only"
            raise _scaling_refusal(keys, "yarn", why)
        if keys.config is None and keys.architecture == "mistral4" and mscale_all != 1:
            why = "llama.cpp takes 1 for `mscale`, so only a `mscale_all_dim` of 1 is computed"
            raise _scaling_refusal(keys, "yarn", why)
        rope = replace(rope, attention_factor=1.0)
        # YaRN's factor on rotated queries and keys counts for whole scores, so it is squared
        scale *= magnitude(rope.factor, mscale_all) ** 2
    growth = keys.number("attention.temperature_scale", 0.0)
    # A folder means the rank that it states; a GGUF file means what llama.cpp computes.
    has_rank = keys.config is not None or not is_lite
    return LatentAttention(
        heads=keys.integer("attention.head_count"),
        latent=keys.integer("attention.kv_lora_rank"),
        key_dim=width - rotary_dims,
        value_dim=keys.integer("attention.value_length_mla"),
        rope=rope,
        scale=scale,
        query_rank=keys.integer("attention.q_lora_rank", 0) if has_rank else 0,
        eps=_latent_epsilon(keys),
        growth=growth,
        growth_length=_growth_length(keys) if growth else 1,
    )


def _latent_epsilon(keys: Keys) -> float:
    """Epsilon of the norms of latents, for which GGUF has no key.

    A file that llama.cpp loads means what llama.cpp computes: the epsilon of all norms. Folders,
    and files that only bitnet reads, mean transformers' own.
    """
    family = of_gguf(keys.architecture)
    if keys.config is None and family is not None and family.llama_cpp is not None:
        return keys.number("attention.layer_norm_rms_epsilon")
    return _LATENT_EPSILON


def _check_score_factor(keys: Keys) -> None:
    """Refuse a GGUF file whose factor on rotated queries and keys llama.cpp applies twice.

    It multiplies the whole scores by the factor, too.
    """
    key = "rope.scaling.attn_factor"
    factor = keys.number(key, 1.0)
    if keys.config is None and keys.architecture in ("deepseek2", "mistral4") and factor != 1:
        why = "llama.cpp multiplies whole scores by it, too"
        raise value_refusal(keys, key, factor, why)


def _growth_length(keys: Keys) -> int:
    """Positions between two steps of the growth of queries, at least 1; llama.cpp aborts at 0."""
    key = "attention.temperature_length"
    length = keys.integer(key)
    if not length:
        raise value_refusal(keys, key, 0, "only a length above 0 is computed", is_ignorable=False)
    return length


def _scaling_refusal(keys: Keys, scaling: str, why: str) -> Unsupported:
    """Error for the kind of RoPE *scaling*."""
    return value_refusal(keys, "rope.scaling.type", scaling, why)


def latent_keys(config: Config) -> dict[str, Any]:
    """GGUF keys of attention over latents, and of experts that are chosen by groups."""
    if config.get("num_key_value_heads") not in (None, config["num_attention_heads"]):
        raise wrong_config("num_key_value_heads is not num_attention_heads")
    latent = config["kv_lora_rank"]
    rotary_dims = config["qk_rope_head_dim"]
    keys = group_keys(config) | {
        "attention.head_count_kv": 1,
        "attention.key_length": latent + rotary_dims,
        "attention.value_length": latent,
        "attention.q_lora_rank": config["q_lora_rank"] or 0,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotary_dims,
    }
    rope = rope_parameters(config)
    if (rope.get("rope_type") or rope.get("type")) == "yarn":
        keys |= _yarn(rope, rope_table(config))
    return keys


def _translate_glm(config: Config) -> dict[str, Any]:
    """As :func:`latent_keys`; ``mlp_layer_types`` has the dense layers, by default the first."""
    first = leading_dense_layers(config, 1)
    return latent_keys(config) | {"leading_dense_block_count": first}


def _yarn(rope: Config, table: str) -> dict[str, Any]:
    """GGUF keys of ``yarn``, whose factor on scores replaces that on rotated queries and keys.

    *rope* has the parameters of *table*, the name of a table in a ``config.json``.
    """
    mscale = rope.get("mscale_all_dim")
    bounds = rope.get("beta_fast") or 32, rope.get("beta_slow") or 1, rope.get("truncate", True)
    is_plain = bounds == (32, 1, True) and rope.get("attention_factor") is None
    if not mscale or rope.get("mscale") != mscale or not is_plain:
        why = (
            "`yarn` is computed with equal `mscale` and `mscale_all_dim`, `beta_fast` 32 and "
            "`beta_slow` 1 only"
        )
        raise refusal(table, dict(rope), why)
    return {
        "rope.scaling.attn_factor": 1.0,
        "rope.scaling.yarn_log_multiplier": 0.1 * float(mscale),
    }


# Rules for keys of attention over latents in GGUF files.
_LATENT_KEYS = {
    **reads("attention.key_length_mla attention.kv_lora_rank attention.q_lora_rank"),
    **reads("attention.value_length_mla rope.scaling.yarn_log_multiplier"),
    **reads("attention.temperature_length attention.temperature_scale"),
    "attention.key_length": Rule("width of a latent with its rotary dimensions"),
    "attention.value_length": Rule("width of a latent"),
    "attention.scale": neutral(0),
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
    gguf_keys=GROUPED_KEYS | _LATENT_KEYS,
    biases={"attention_bias": ("attn_q_a", "attn_kv_a_mqa", "attn_output")},
    more_blocks=True,
    rope_style="interleaved",
    gguf_rope_style="interleaved",
    llama_cpp=LlamaCppSupport(tensors=("output.weight", "exp_probs_b.bias")),
    translate=latent_keys,
    decoder=_decoder,
)
register_variant(
    _LATENT,
    title="DeepSeek 2 and 3",
    model_types=("deepseek_v3",),
)
# The scale of queries grows with the position.
register_variant(
    _LATENT,
    title="Mistral 4",
    architecture="mistral4",
    model_types=(),
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


def _translate_v2(config: Config) -> dict[str, Any]:
    """GGUF keys of DeepSeek 2: a softmax over all experts, whose weights are not renormalised."""
    if config["topk_method"] not in (None, "greedy") and (config["n_group"] or 1) > 1:
        why = "groups are chosen by the sum of their two best experts only"
        raise refusal("topk_method", config["topk_method"], why)
    return latent_keys({**config, "n_group": 1, "topk_group": 1}) | {
        "expert_gating_func": 1,
        "expert_weights_norm": False,
    }


register_variant(
    _LATENT,
    title="DeepSeek 2",
    in_gguf=False,
    model_types=("deepseek_v2",),
    config_keys={
        **reads("topk_method"),
        "mlp_bias": neutral(None, False),
        "norm_topk_prob": Rule("transformers ignores it"),
    },
    translate=_translate_v2,
)
register_variant(
    _LATENT,
    title="Sarvam with latent attention",
    in_gguf=False,
    model_types=("sarvam_mla",),
    aliases={"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
)


def _dense_latents(keys: Keys) -> ModelConfig:
    """Attention over latents, then a dense network in every layer."""
    model_sizes = sizes(keys)
    mixer = latent_attention(keys)
    return model_of(
        keys, model_sizes, [usual_block(mixer, FeedForward(model_sizes.ffn))] * model_sizes.layers
    )


def _translate_dense(config: Config) -> dict[str, Any]:
    """As :func:`latent_keys`, without those of experts."""
    keys = latent_keys({**config, "n_group": 1, "topk_group": 1})
    return {key: value for key, value in keys.items() if not key.startswith("expert_")}


_DENSE_CONFIG = {
    **reads("kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"),
    "qk_head_dim": Rule("the sum of both widths"),
    "rope_interleave": neutral(True),
}
_YOUTU = register(
    title="Youtu",
    architecture="youtu",
    config_keys=_DENSE_CONFIG,
    gguf_keys=_LATENT_KEYS,
    biases=_LATENT.biases,
    rope_style="interleaved",
    gguf_rope_style="interleaved",
    llama_cpp=None,
    translate=_translate_dense,
    decoder=_dense_latents,
)


def _minicpm3(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys)
    mixer = latent_attention(keys)
    residual = keys.number("residual_scale")
    logit_scale = keys.number("logit_scale")
    if not logit_scale:
        why = "logits are divided by it"
        raise value_refusal(keys, "logit_scale", 0, why, is_ignorable=False)
    block = usual_block(mixer, FeedForward(model_sizes.ffn), scale=residual)
    return model_of(
        keys,
        model_sizes,
        [block] * model_sizes.layers,
        embedding_scale=keys.number("embedding_scale"),
        logit_scale=1 / logit_scale,
    )


def _translate_minicpm3(config: Config) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    width = config["hidden_size"]
    depth = config["scale_depth"]
    base = config["dim_model_base"]
    keys = {
        "embedding_scale": float(config["scale_emb"]),
        "residual_scale": 1.0 if depth is None else depth / layers**0.5,
        "logit_scale": 1.0 if base is None else width / base,
    }
    if config.get("v_head_dim") is None:
        keys["attention.value_length_mla"] = width // config["num_attention_heads"]
    return _translate_dense(config) | keys


# Granite's scales. GGUF files of other programs have one matrix of keys and values, and are refused
# as those of DeepSeek before May 2025 are.
register_variant(
    _YOUTU,
    title="MiniCPM 3",
    architecture="minicpm3",
    model_types=("minicpm3",),
    nullable=("v_head_dim",),
    rope_style="half",
    gguf_rope_style="half",
    config_keys={
        **reads("dim_model_base scale_depth scale_emb"),
        "rope_interleave": neutral(None),
    },
    gguf_keys=reads("embedding_scale residual_scale logit_scale"),
    translate=_translate_minicpm3,
    decoder=_minicpm3,
)


def _axk1(keys: Keys) -> ModelConfig:
    model = _decoder(keys)
    blocks = [
        (attention, replace(network, post_norm="post_ffw_norm"))
        if isinstance(network.mixers[0], Experts)
        else (attention, network)
        for attention, network in model.blocks
    ]
    return replace(model, blocks=tuple(blocks))


# DeepSeek with a norm behind the experts.
register_variant(
    _LATENT,
    title="A.X K1",
    architecture="axk1",
    model_types=("axk1",),
    config_keys={
        "first_k_dense_replace": Rule("`mlp_layer_types` counts"),
        **reads("mlp_layer_types"),
    },
    tensors={"mlp.post_mlp_layernorm": "post_ffw_norm"},
    more_blocks=False,
    llama_cpp=None,
    translate=_translate_glm,
    decoder=_axk1,
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
    check_parts(keys, "attn_q_norm", "attn_k_norm", key="use_qk_norm")
    return dense(
        keys,
        norms=RENAMED,
        qk_norm="head" if has_norms else "",
        mixture=experts_by_groups(keys, corrected=True),
    )


# Experts are chosen by sigmoids and a correction; one or more dense layers are before them.
_GLM_EXPERTS = register(
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


def _sarvam_parts(config: Config) -> Parts:
    """Functions that split a matrix with rows of all queries, then all keys, then all values."""
    width = config["head_dim"]
    first_key = config["num_attention_heads"] * width  # number of the first row of keys
    first_value = first_key + config["num_key_value_heads"] * width
    places = {
        "attn_q": slice(first_key),
        "attn_k": slice(first_key, first_value),
        "attn_v": slice(first_value, None),
    }

    def rows_of(part: slice) -> Any:
        return lambda rows: rows[part]

    return {
        f"attn_qkv.{kind}": {f"{name}.{kind}": rows_of(part) for name, part in places.items()}
        for kind in ("weight", "bias")
    }


register_variant(
    _GLM_EXPERTS,
    title="Sarvam with experts",
    in_gguf=False,
    model_types=("sarvam_moe",),
    tensors={
        "attention.dense": "attn_output",
        "attention.key_layernorm": "attn_k_norm",
        "attention.query_key_value": "attn_qkv",
        "attention.query_layernorm": "attn_q_norm",
        "mlp.gate.expert_bias": "exp_probs_b.bias",
    },
    parts=_sarvam_parts,
    aliases={
        "num_experts": "n_routed_experts",
        "num_shared_experts": "n_shared_experts",
        "use_qkv_bias": "attention_bias",
    },
)
register_variant(
    _GLM_EXPERTS,
    title="Solar Open",
    in_gguf=False,
    model_types=("solar_open",),
    config_keys={"first_k_dense_replace": neutral(None, 0)},
    translate=lambda config: group_keys(config) | {"leading_dense_block_count": 0},
)

"""Families whose blocks are those of other families, with other keys, norms or experts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from bitnet.families.blocks import FeedForward
from bitnet.families.config_values import is_finite
from bitnet.families.dense import (
    AROUND,
    WINDOW_CONFIG,
    ModelConfig,
    alternating,
    check_attention_factor,
    check_local_base,
    dense,
    dense_as_stored,
    layer_count,
    rotate_windows,
    sizes,
)
from bitnet.families.experts import (
    EXPERT_CONFIG,
    EXPERT_KEYS,
    GROUPED_CONFIG,
    GROUPED_KEYS,
    SHARED_KEYS,
    SHARED_MLP_TENSORS,
    experts,
    experts_by_groups,
    gating,
    group_keys,
    has_corrections,
    leading_dense_layers,
)
from bitnet.families.family import ATTENTION, BIASES, ROPE_FACTORS, LlamaCppSupport, register
from bitnet.families.gpt import (
    LAYER_NORM_EPS,
    layer_norms,
)
from bitnet.families.keys import HARMLESS, Config, Keys, contradiction, neutral, reads, refusal
from bitnet.families.llama import HUNYUAN_ROPE
from bitnet.families.rope import rope_parameters

register(
    title="openPangu Embedded",
    architecture="pangu-embedded",
    model_types=(),
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "attn_output.bias", *BIASES), required=("attn_output.bias",)
    ),
    decoder=partial(dense_as_stored, model={"biases": ("attn_output",)}),
)


# Norms of PLaMo 3 whose tensors have just these names, without ``.weight``.
_BARE = ("post_attention_norm", "post_ffw_norm")


def _plamo3(keys: Keys) -> ModelConfig:
    check_attention_factor(keys)
    return dense(
        keys,
        norms=AROUND,
        period=8,
        qk_norm="head",
        fused=True,
        ffn={"fused": True},
        each=rotate_windows(keys.number("rope.freq_base_swa", 10000.0)),
        model={"unsuffixed_norms": _BARE},
    )


# Query, key and value are one matrix, gate and up another; seven of eight layers have windows.
register(
    title="PLaMo 3",
    architecture="plamo3",
    model_types=(),
    gguf_keys=reads("rope.freq_base_swa"),
    llama_cpp=LlamaCppSupport(ignores=(), names_logits=False),
    decoder=_plamo3,
)


_JAIS2_BIASES = (*ATTENTION, "ffn_up", "ffn_down")
register(
    title="Jais 2",
    architecture="jais2",
    activation="relu2",
    config_keys={
        **reads("layer_norm_eps"),
        "attention_bias": neutral(True),
        "mlp_bias": neutral(True),
    },
    biases={"": _JAIS2_BIASES},
    gguf_keys=LAYER_NORM_EPS,
    llama_cpp=LlamaCppSupport(tensors=("output.weight", ".bias")),
    decoder=partial(
        layer_norms,
        ffn={"gated": False, "activation": "relu_squared"},
        model={"biases": _JAIS2_BIASES},
    ),
)


def _ling1(keys: Keys) -> ModelConfig:
    return dense_as_stored(keys, mixture=experts_by_groups(keys, default="softmax"))


register(
    title="Ling 1",
    architecture="bailingmoe",
    model_types=(),
    gguf_rope_style="interleaved",
    gguf_keys=GROUPED_KEYS
    | {"expert_gating_func": neutral(1, 0, note="a softmax over all experts")},
    llama_cpp=LlamaCppSupport(required=("output.weight",), tied=False),
    decoder=_ling1,
)


def _dots1(keys: Keys) -> ModelConfig:
    return dense_as_stored(keys, qk_norm="head", mixture=experts_by_groups(keys))


def _dots1_keys(config: Config) -> dict[str, Any]:
    why = "in GGUF, no layer has a window"
    kinds = config.get("layer_types")
    if kinds is not None and "sliding_attention" in kinds:
        raise refusal("layer_types", kinds, why)
    has_windows = config["num_hidden_layers"] > config["max_window_layers"]
    if kinds is None and config["sliding_window"] and has_windows:
        raise refusal("sliding_window", config["sliding_window"], why)
    return group_keys(config)


register(
    title="dots.llm1",
    architecture="dots1",
    config_keys=GROUPED_CONFIG | reads("layer_types max_window_layers sliding_window"),
    biases={"attention_bias": ATTENTION},
    translate=_dots1_keys,
    gguf_keys=GROUPED_KEYS,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "exp_probs_b.bias", *BIASES),
        required=("output.weight",),
        tied=False,
        only_whole_keys=True,
    ),
    decoder=_dots1,
)


def _hunyuan_experts(keys: Keys) -> ModelConfig:
    shared = keys.integer("expert_shared_feed_forward_length", 0)
    return dense_as_stored(keys, qk_norm="rotated", mixture=experts(keys, shared=shared))


def _hunyuan_keys(config: Config) -> dict[str, Any]:
    width = config["intermediate_size"]
    return {"expert_feed_forward_length": width, "expert_shared_feed_forward_length": width}


register(
    title="Hunyuan with experts",
    architecture="hunyuan-moe",
    model_types=("hunyuan_v1_moe",),
    aliases={"attention_head_dim": "head_dim", "moe_topk": "num_experts_per_tok"},
    config_keys={
        **EXPERT_CONFIG,
        # layers of these models never share keys, whatever the factor
        "cla_share_factor": neutral(None, 1, 2, note="for layers that share keys: none does"),
        "use_qk_norm": neutral(None, True),
    },
    rope_parameters=HUNYUAN_ROPE,
    tensors={
        "mlp.gate.wg": "ffn_gate_inp",
        **SHARED_MLP_TENSORS,
    },
    biases={"attention_bias": ATTENTION},
    translate=_hunyuan_keys,
    gguf_keys=SHARED_KEYS,
    decoder=_hunyuan_experts,
)


register(
    title="Maincoder",
    architecture="maincoder",
    model_types=(),
    gguf_rope_style="interleaved",
    decoder=partial(dense_as_stored, qk_norm="rotated"),
)


def _minimax_m2(keys: Keys) -> ModelConfig:
    routing = {"gating": gating(keys, "sigmoid"), "corrected": has_corrections(keys.weights)}
    mixture = experts(keys, width=sizes(keys).ffn, routing=routing)
    return dense_as_stored(keys, qk_norm="whole", mixture=mixture)


def _minimax_m2_keys(config: Config) -> dict[str, Any]:
    rope = rope_parameters(config)
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    rotary_dim = config.get("rotary_dim")
    own = {"rope.dimension_count": rotary_dim} if rotary_dim and share is None else {}
    return {
        "expert_gating_func": 2,
        "expert_feed_forward_length": config["intermediate_size"],
    } | own


register(
    title="MiniMax M2",
    architecture="minimax-m2",
    config_keys={
        **EXPERT_CONFIG,
        **reads("partial_rotary_factor rotary_dim"),
        "router_jitter_noise": HARMLESS,  # of training
        "use_qk_norm": neutral(None, True),
    },
    tensors={
        f"{module}.e_score_correction_bias": "exp_probs_b.bias"
        for module in ("mlp", "block_sparse_moe")
    },
    partial_rotation=True,
    translate=_minimax_m2_keys,
    gguf_keys=EXPERT_KEYS | reads("expert_gating_func"),
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "exp_probs_b.bias", *BIASES),
        required=("output.weight", "exp_probs_b.bias"),
        tied=False,
    ),
    decoder=_minimax_m2,
)


def _mellum(keys: Keys) -> ModelConfig:
    base = keys.number("rope.freq_base", 10000.0)
    check_local_base(keys, base)  # llama.cpp reads another base, and does not use it
    return dense_as_stored(
        keys,
        qk_norm="head",
        period=4,
        each=rotate_windows(),
        mixture=experts(keys, width=sizes(keys).ffn),
    )


def _mellum_keys(config: Config) -> dict[str, Any]:
    if leading_dense_layers(config, 0):
        kinds = config["mlp_layer_types"]
        raise refusal("mlp_layer_types", kinds, "in GGUF, every layer has experts")
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = ["full_attention"] * config["num_hidden_layers"]
    # the layer_types are complete, so the period has no effect
    return alternating(4)({**config, "layer_types": kinds})


# Layers with a window rotate without the scaling of the others.
register(
    title="Mellum 2",
    architecture="mellum",
    config_keys={
        **EXPERT_CONFIG,
        **WINDOW_CONFIG,
        **reads("mlp_layer_types moe_intermediate_size"),
        "norm_topk_prob": neutral(True),
        "num_nextn_predict_layers": HARMLESS,  # of blocks that are left out
    },
    biases={"attention_bias": ATTENTION},
    layered_rope=True,
    more_blocks=True,
    translate=_mellum_keys,
    gguf_keys=EXPERT_KEYS | reads("rope.freq_base_swa"),
    llama_cpp=LlamaCppSupport(ignores=(), required=("output.weight",), tied=False),
    decoder=_mellum,
)


def _dbrx(keys: Keys) -> ModelConfig:
    return dense(
        keys,
        fused=True,
        clamp=keys.factor("attention.clamp_kqv"),
        norms=(("attn_norm", ""), ("attn_output_norm", "")),
        mixture=experts(keys, width=sizes(keys).ffn),
        model={
            "centered_norms": True,
            "norm_eps": keys.number("attention.layer_norm_epsilon"),
        },
    )


register(
    title="DBRX",
    architecture="dbrx",
    model_types=(),
    gguf_keys=LAYER_NORM_EPS | EXPERT_KEYS | reads("attention.clamp_kqv"),
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight",), required=("output.weight",), tied=False, only_whole_width=True
    ),
    decoder=_dbrx,
)


def _apertus(keys: Keys) -> ModelConfig:
    layers = layer_count(keys)
    names = ("alpha_p", "alpha_n", "beta", "eps")
    parameters = [_numbers_per_layer(keys, f"xielu.{name}", layers) for name in names]
    model = dense_as_stored(keys, qk_norm="head", ffn={"gated": False, "activation": "xielu"})
    blocks = []
    # each block has two branches, attention and network
    for (first, second), own in zip(model.blocks, zip(*parameters, strict=True), strict=True):
        (network,) = second.every()
        assert isinstance(network, FeedForward), "the usual block has a network"
        blocks.append((first, replace(second, mixers=(replace(network, xielu=own),))))
    return replace(model, blocks=tuple(blocks))


def _numbers_per_layer(keys: Keys, key: str, layers: int) -> list[float]:
    """A number for each of *layers*, from *key*, which has one for each or one for all.

    The name of *key* does not begin with the architecture.
    """
    value = keys.metadata.get(key)
    numbers = [value] * layers if isinstance(value, int | float) else list(value or ())
    if len(numbers) != layers or not all(map(is_finite, numbers)):
        raise contradiction(keys, f"{key} does not have a number for each of {layers:,} layers")
    return [float(number) for number in numbers]


register(
    title="Apertus",
    architecture="apertus",
    model_types=("apertus", "apertus1p5_text"),
    activation="xielu",
    config_keys={"output_vocab_size": neutral(None)},
    tensors={
        "attention_layernorm": "attn_norm",
        "feedforward_layernorm": "ffn_norm",
        **{f"mlp.act_fn.{name}": f"xielu.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")},
    },
    numbers=("xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"),
    biases={"attention_bias": ATTENTION},
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "attn_output.bias", *ROPE_FACTORS, *BIASES),
        required=("output.weight",),
        tied=False,
    ),
    decoder=_apertus,
)

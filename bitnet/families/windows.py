"""Families with layers that have windows or no RoPE: gpt-oss, OLMo, Command-R7B and others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bitnet.families.blocks import Attention, Branch, FeedForward
from bitnet.families.dense import (
    AFTER,
    RENAMED,
    WINDOW_CONFIG,
    ModelConfig,
    alternating,
    attention,
    check_local_base,
    check_window,
    dense,
    local_base,
    model_of,
    read_windows,
    rotate_but_last,
    rotate_windows,
    rotate_windows_only,
    sizes,
)
from bitnet.families.experts import EXPERT_CONFIG, EXPERT_KEYS, experts, gating
from bitnet.families.family import (
    ATTENTION,
    BIASES,
    MLP,
    QKV,
    WINDOWS,
    LlamaCppSupport,
    register,
    register_variant,
)
from bitnet.families.keys import (
    Config,
    Keys,
    neutral,
    read,
    reads,
    refusal,
    value_refusal,
    wrong_config,
)

_PERIOD = 4  # one layer in this many has full attention or lacks RoPE


def _cohere2(keys: Keys) -> ModelConfig:
    """Attention and network in parallel, with RoPE in layers with a window only."""
    model_sizes = sizes(keys)
    usual = attention(keys, model_sizes.dim)
    network = FeedForward(model_sizes.ffn)
    check_local_base(keys, usual.rope.theta if usual.rope else 0.0)
    windows = read_windows(
        keys, model_sizes.layers, period=_PERIOD, window=keys.integer("attention.sliding_window")
    )
    mixers = (
        rotate_windows_only(layer, replace(usual, window=window))
        for layer, window in enumerate(windows)
    )
    blocks = ((Branch("attn_norm", (mixer, network)),) for mixer in mixers)
    return model_of(
        keys,
        model_sizes,
        blocks,
        norm_eps=keys.number("attention.layer_norm_epsilon"),
        centered_norms=True,
        logit_scale=keys.number("logit_scale"),
    )


def _cohere2_keys(config: Config) -> dict[str, Any]:
    if not config.get("sliding_window"):
        raise wrong_config("sliding_window is missing, which says which layers rotate")
    return alternating(_PERIOD, "sliding_window_pattern")(config)


# Attention and network are parallel, behind one LayerNorm. Layers with a window have RoPE; every
# fourth layer has full attention and no RoPE.
register(
    title="Command-R7B",
    architecture="cohere2",
    rope_style="interleaved",
    gguf_rope_style="interleaved",
    defaults={"tie_word_embeddings": True},
    config_keys={
        **WINDOW_CONFIG,
        **reads("sliding_window_pattern layer_norm_eps logit_scale"),
        "rotary_pct": neutral(None, 1.0),
    },
    gguf_keys=reads("attention.layer_norm_epsilon logit_scale rope.freq_base_swa"),
    biases={"attention_bias": ATTENTION},
    llama_cpp=LlamaCppSupport(
        tensors=tuple(f"{part}.bias" for part in QKV),
        ignores=(),
        only_whole_width=True,
        needs=frozenset({"window"}),
        broken_by_zero=("attention.sliding_window", "logit_scale"),
    ),
    translate=_cohere2_keys,
    decoder=_cohere2,
)

# Default window of GGUF files, and the number of layers of the models that have it.
_EXAONE_WINDOW = 4096
_LAYERS_OF_32B = 64


def _exaone4_keys(config: Config) -> dict[str, Any]:
    if config["sliding_window"] is None:
        kinds = config.get("layer_types") or ()
        check_window([kind == "sliding_attention" for kind in kinds], 0)
        return {"attention.sliding_window": 0}
    return alternating(_PERIOD, "sliding_window_pattern")(config)


def _exaone4(keys: Keys) -> ModelConfig:
    usual_window = _EXAONE_WINDOW if keys.integer("block_count") == _LAYERS_OF_32B else 0
    is_full = not keys.integer("attention.sliding_window", usual_window)
    rotation: dict[str, Any] = {} if is_full else {"each": rotate_windows_only}
    return dense(
        keys,
        norms=AFTER,
        window=usual_window,
        period=_PERIOD,
        qk_norm="head",
        **rotation,
    )


# Norms are behind attention and network, none before. Layers with full attention have no RoPE,
# unless all layers have full attention.
register(
    title="Exaone 4",
    architecture="exaone4",
    config_keys=WINDOW_CONFIG | reads("sliding_window_pattern"),
    tensors={"post_attention_layernorm": "post_attention_norm"},
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", *BIASES, "rope_freqs.weight"),
        ignores=(),
        only_whole_width=True,
        window_layers=_LAYERS_OF_32B,
        broken_by_zero=("attention.sliding_window",),
    ),
    translate=_exaone4_keys,
    decoder=_exaone4,
)


def _smollm3_keys(config: Config) -> dict[str, Any]:
    layers = range(config["num_hidden_layers"])
    key = "no_rope_layers"
    flags = config.get(key)
    if flags is None:
        key = "no_rope_layer_interval"
        flags = [(layer + 1) % config[key] != 0 for layer in layers]
    if list(map(bool, flags)) != list(map(_is_rotated, layers)):
        why = "in GGUF, every fourth layer is without RoPE"
        raise refusal(key, config[key], why)
    return {}


def _is_rotated(layer: int) -> bool:
    """True if *layer* of a GGUF file has RoPE."""
    return (layer + 1) % _PERIOD != 0


def _smollm3(keys: Keys) -> ModelConfig:
    return dense(keys, each=rotate_but_last(_PERIOD))


register(
    title="SmolLM3",
    architecture="smollm3",
    gguf_rope_style="interleaved",
    defaults={"tie_word_embeddings": True},
    config_keys={
        **reads("no_rope_layers no_rope_layer_interval"),
        "use_sliding_window": neutral(None, False),
    },
    biases={"attention_bias": ATTENTION, "mlp_bias": MLP},
    translate=_smollm3_keys,
    decoder=_smollm3,
)

_LIMIT = 7.0  # at which gate and up are clamped inside Maple's experts


def _maple(keys: Keys) -> ModelConfig:
    limits = keys.value("swiglu_clamp_exp")
    if any(limit != _LIMIT for limit in (limits if isinstance(limits, list) else [limits])):
        why = f"only {_LIMIT:g} in every layer is computed"
        raise value_refusal(keys, "swiglu_clamp_exp", limits, why, is_ignorable=False)

    rotate_local = rotate_windows(local_base(keys), scaled=True)
    mixture = experts(keys, activation="silu_clamped")
    return dense(
        keys,
        qk_norm="head",
        mixture=mixture,
        each=lambda layer, usual: rotate_local(layer, rotate_windows_only(layer, usual)),
    )


# Ternary experts, and windows in three of four layers, the only ones with RoPE.
register(
    title="Maple",
    architecture="maple",
    model_types=(),
    gguf_keys=EXPERT_KEYS | reads("rope.freq_base_swa swiglu_clamp_exp"),
    llama_cpp=LlamaCppSupport(ignores=(), tied=False, broken_by_zero=("attention.sliding_window",)),
    decoder=_maple,
)


def _smallthinker(keys: Keys) -> ModelConfig:
    routing = {"gating": gating(keys, "softmax")}
    mixture = experts(keys, routing=routing, activation="relu", early=True)
    has_windows = keys.integer("attention.sliding_window", 0) > 0

    def attention_of(layer: int, usual: Attention) -> Attention:
        if not has_windows:
            return usual
        if layer % _PERIOD == 0:
            return replace(usual, rope=None, window=0)
        return replace(usual, window=4096)  # llama.cpp's, whatever the key says

    return dense(keys, mixture=mixture, each=attention_of)


# The router reads the input of the block, before attention.
register(
    title="SmallThinker",
    architecture="smallthinker",
    model_types=(),
    activation="relu",
    gguf_keys={
        **EXPERT_KEYS,
        "attention.sliding_window": read("above 0: windows of 4,096 in three of four layers"),
        **reads("expert_gating_func"),
    },
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", *BIASES), ignores=("attention.sliding_window_pattern",)
    ),
    decoder=_smallthinker,
)


def _olmo2(keys: Keys) -> ModelConfig:
    check_local_base(keys, keys.number("rope.freq_base", 10000.0))
    return dense(keys, norms=AFTER, period=4, qk_norm="whole", each=rotate_windows())


# Norms of whole queries and keys; the norms of the stream are behind attention and network. OLMo 3,
# which has windows in three of four layers, has OLMo 2's architecture in GGUF.
_OLMO2 = register(
    title="OLMo 2",
    architecture="olmo2",
    gguf_keys=reads("rope.freq_base_swa"),
    tensors={"post_attention_layernorm": "post_attention_norm"},
    biases={"attention_bias": ATTENTION},
    llama_cpp=LlamaCppSupport(ignores=(), tied=False, only_whole_width=True),
    decoder=_olmo2,
)
register_variant(
    _OLMO2,
    title="OLMo 3",
    in_gguf=False,
    model_types=("olmo3",),
    config_keys={**WINDOW_CONFIG, "rope_local_base_freq": neutral(None, 500000.0)},
    layered_rope=True,
    layered_scaling=True,
    translate=alternating(4),
)


def _olmoe(keys: Keys) -> ModelConfig:
    network = experts(keys, width=sizes(keys).ffn, routing={"renormalised": False})
    return dense(keys, qk_norm="whole", mixture=network)


register(
    title="OLMoE",
    architecture="olmoe",
    config_keys={**EXPERT_CONFIG, "norm_topk_prob": neutral(False)},
    gguf_keys=EXPERT_KEYS,
    biases={"attention_bias": ATTENTION},
    llama_cpp=LlamaCppSupport(
        ignores=(*WINDOWS, "expert_feed_forward_length"),
        tied=False,
        only_whole_width=True,
        only_whole_keys=True,
    ),
    decoder=_olmoe,
)


_BIASED = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


def _gpt_oss(keys: Keys) -> ModelConfig:
    network = experts(
        keys,
        width=sizes(keys).ffn,
        routing={"gating": "softmax_chosen", "renormalised": False},
        activation="swiglu_oai",
        biased=True,
    )
    return dense(keys, norms=RENAMED, period=2, sinks=True, mixture=network)


def _gpt_oss_keys(config: Config) -> dict[str, Any]:
    """GGUF keys of windows and of the width of experts."""
    width = {"expert_feed_forward_length": config["intermediate_size"]}
    return width | alternating(2)(config)


# Experts with clamped gates, biases in all matrices, sinks. A folder stores the matrices of experts
# transposed, with rows of gate and up alternating, or as blocks of MXFP4.
register(
    title="gpt-oss",
    architecture="gpt-oss",
    stated="rope_type",
    config_keys={
        **EXPERT_CONFIG,
        **WINDOW_CONFIG,
        "swiglu_alpha": neutral(None, 1.702),
        "swiglu_limit": neutral(None, 7.0),
    },
    gguf_keys=EXPERT_KEYS,
    tensors={"post_attention_layernorm": "post_attention_norm"},
    biases={"attention_bias": ATTENTION, "": _BIASED},
    transposed_experts=True,
    llama_cpp=LlamaCppSupport(
        tensors=(
            "output.weight",
            *BIASES,
            "attn_output.bias",
            *(f"{part}.bias" for part in _BIASED),
        ),
        required=("attn_output.bias",),
        ignores=(),
        tied=False,
        broken_by_zero=("attention.sliding_window",),
    ),
    translate=_gpt_oss_keys,
    decoder=_gpt_oss,
)

"""Families that differ from others in their experts: EXAONE MoE, HY V3, Cohere2 MoE and others.

Their attention, norms and windows are those of other families.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bitnet.base.errors import Unsupported
from bitnet.families.blocks import Branch, Experts, FeedForward
from bitnet.families.dense import (
    WINDOW_CONFIG,
    ModelConfig,
    alternating,
    attention,
    check_local_base,
    dense_as_stored,
    is_fused,
    model_of,
    read_windows,
    rotate_windows_only,
    sizes,
    usual_block,
)
from bitnet.families.experts import (
    EXPERT_CONFIG,
    EXPERT_KEYS,
    GROUPED_CONFIG,
    GROUPED_KEYS,
    SHARED_MLP_TENSORS,
    experts,
    experts_by_groups,
    group_keys,
    group_routing,
    leading_dense_layers,
)
from bitnet.families.family import (
    ATTENTION,
    BIASES,
    OWN_HEAD,
    WINDOWS,
    LlamaCppSupport,
    register,
)
from bitnet.families.keys import (
    HARMLESS,
    Config,
    Keys,
    contradiction,
    neutral,
    reads,
    refusal,
    value_refusal,
    wrong_config,
)

_PERIOD = 4  # by default, one layer in this many has full attention
# Constants of Grok 1, for files without keys for them: factors on embeddings, logits and scores,
# and the soft cap of scores.
_GROK_EMBEDDING = 78.38367176906169
_GROK_OUTPUT = 0.5773502691896257
_GROK_SCORES = 0.08838834764831845
_GROK_CAP = 30.0


def _with_shared(keys: Keys, network: Experts) -> Experts:
    """*network* with a network beside the experts, as wide as a key says, or as one expert."""
    width = keys.integer("expert_shared_feed_forward_length", 0) or network.width
    return replace(network, shared=width)


def _compute_shared_width(config: Config) -> int:
    """Width of the network beside the experts; without one, a folder is refused.

    GGUF's key of the width would be 0, which means that it is as wide as an expert.
    """
    count: int = config["num_shared_experts"]
    if not count:
        why = "only a network beside the experts is computed"
        raise refusal("num_shared_experts", count, why, is_ignorable=False)
    width: int = config["moe_intermediate_size"]
    return count * width


def _exaone_experts(keys: Keys) -> ModelConfig:
    check_local_base(keys, keys.number("rope.freq_base", 10000.0))
    network = experts(keys, routing=group_routing(keys))
    return dense_as_stored(
        keys,
        qk_norm="head",
        period=_PERIOD,
        window=keys.integer("attention.sliding_window"),
        each=rotate_windows_only,
        mixture=_with_shared(keys, network),
    )


def _exaone_keys(config: Config) -> dict[str, Any]:
    if not config["sliding_window"]:
        raise refusal(
            "sliding_window", config["sliding_window"], "in GGUF, some layers have a window"
        )
    return {
        **group_keys(config),
        **alternating(_PERIOD, "sliding_window_pattern")(config),
        "expert_shared_count": config["num_shared_experts"],
        "expert_shared_feed_forward_length": _compute_shared_width(config),
        "leading_dense_block_count": leading_dense_layers(config, config["first_k_dense_replace"]),
    }


# Layers with a window rotate, every fourth has full attention and does not.
register(
    title="EXAONE with experts",
    architecture="exaone-moe",
    config_keys={
        **GROUPED_CONFIG,
        **WINDOW_CONFIG,
        **reads("mlp_layer_types num_shared_experts sliding_window_pattern"),
    },
    gguf_keys=GROUPED_KEYS | reads("expert_shared_feed_forward_length rope.freq_base_swa"),
    tensors={"mlp.e_score_correction_bias": "exp_probs_b.bias"},
    biases={"attention_bias": ATTENTION},
    more_blocks=True,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "exp_probs_b.bias", "rope_freqs.weight", *BIASES),
        ignores=(),
        broken_by_zero=("attention.sliding_window",),
        needs=frozenset({"window"}),
        **OWN_HEAD,
    ),
    translate=_exaone_keys,
    decoder=_exaone_experts,
)


def _hy_v3(keys: Keys) -> ModelConfig:
    """Attention, then experts in layers with a router and a dense network in others."""
    model_sizes = sizes(keys)
    # the last layer that does not draft has experts, with corrections if the model has any
    last = model_sizes.layers - keys.integer("nextn_predict_layers", 0) - 1
    correction = "exp_probs_b"  # unlike that of other families, its name lacks ``.bias``
    own_routing = {
        "corrected": f"blk.{last}.{correction}" in keys.weights,
        "correction": correction,
    }
    network = experts(keys, routing=group_routing(keys) | own_routing)
    has_router = [
        f"blk.{layer}.ffn_gate_inp.weight" in keys.weights for layer in range(model_sizes.layers)
    ]
    first = has_router.index(True) if True in has_router else len(has_router)
    if not all(has_router[first:]):
        raise contradiction(keys, "layers without experts behind one that has them")
    mixer = attention(keys, model_sizes.dim, qk_norm="head", fused=is_fused(keys))
    mixture = _with_shared(keys, network)
    plain = FeedForward(model_sizes.ffn)
    networks = (mixture if routed else plain for routed in has_router)
    return model_of(keys, model_sizes, (usual_block(mixer, network) for network in networks))


def _hy_v3_keys(config: Config) -> dict[str, Any]:
    leading_dense_layers(config, 1)  # only to refuse other lists: a dense layer lacks a router
    return {
        "expert_gating_func": 2,
        "expert_shared_feed_forward_length": _compute_shared_width(config),
        "expert_weights_norm": True,
        "expert_weights_scale": float(config["router_scaling_factor"]),
    }


# A layer has experts if it has a router.
register(
    title="HY V3",
    architecture="hy_v3",
    config_keys={
        **EXPERT_CONFIG,
        **reads("mlp_layer_types moe_intermediate_size num_shared_experts router_scaling_factor"),
        "enable_moe_fp32_combine": HARMLESS,
        "num_nextn_predict_layers": HARMLESS,  # of blocks that are left out
        "route_norm": neutral(None, True),
    },
    gguf_keys=GROUPED_KEYS | reads("expert_shared_feed_forward_length"),
    tensors={
        "mlp.e_score_correction_bias": "exp_probs_b",
        "mlp.expert_bias": "exp_probs_b",
        "mlp.router.gate": "ffn_gate_inp",
        **SHARED_MLP_TENSORS,
    },
    biases={"attention_bias": ATTENTION},
    more_blocks=True,
    llama_cpp=LlamaCppSupport(tensors=("output.weight", "exp_probs_b", *BIASES)),
    translate=_hy_v3_keys,
    decoder=_hy_v3,
)


def _cohere2_experts(keys: Keys) -> ModelConfig:
    """Attention parallel to a dense network in the first layers, to experts in others."""
    model_sizes = sizes(keys)
    usual = attention(keys, model_sizes.dim, fused=is_fused(keys))
    check_local_base(keys, usual.rope.theta if usual.rope else 0.0)
    dense_layers = keys.integer("leading_dense_block_count")
    routing = group_routing(keys) | {"corrected": False}
    mixture = experts(keys, width=model_sizes.ffn, routing=routing)
    mixture_scale = 1.0
    if shared := keys.integer("expert_shared_count", 0):
        width = keys.integer("expert_shared_feed_forward_length", 0)
        mixture = replace(mixture, shared=width or shared * mixture.width)
        mixture_scale = 0.5  # the result is the mean of the experts and of the network beside them
    network = FeedForward(model_sizes.ffn)
    window_size = keys.integer("attention.sliding_window")
    windows = read_windows(keys, model_sizes.layers, period=_PERIOD, window=window_size, last=False)
    blocks = []
    for layer, window in enumerate(windows):
        is_dense = layer < dense_layers
        rotates = window or is_dense
        mixer = replace(usual, window=window, rope=usual.rope if rotates else None)
        network_branch = Branch(
            "attn_norm",
            (network if is_dense else mixture,),
            scale=1.0 if is_dense else mixture_scale,
            parallel=True,
        )
        blocks.append((Branch("attn_norm", (mixer,)), network_branch))
    return model_of(
        keys, model_sizes, blocks, logit_scale=keys.number("logit_scale"), **_norms(keys)
    )


def _norms(keys: Keys) -> dict[str, Any]:
    """Fields of :class:`ModelConfig`: RMS norms if the file has their epsilon, else LayerNorms."""
    rms = keys.number("attention.layer_norm_rms_epsilon", 0.0)
    if rms:
        return {"norm_eps": rms}
    return {"norm_eps": keys.number("attention.layer_norm_epsilon"), "centered_norms": True}


def _cohere2_kinds(config: Config) -> list[str]:
    """Kind of the attention of each layer.

    As in transformers, ``layer_types`` comes first. Without it, the first layers, as many as
    ``first_k_dense_replace`` says, have a period of their own, and the other layers are counted
    from 0 again; ``mlp_layer_types`` does not matter here.
    """
    stated: list[str] | None = config.get("layer_types")
    if stated is not None:
        return stated
    layers = config["num_hidden_layers"]
    first = config.get("first_k_dense_replace", 0)
    if first > layers:
        raise wrong_config(f"first_k_dense_replace is {first}, and num_hidden_layers {layers}")
    kinds = _kinds_of_period(first, config["prefix_dense_sliding_window_pattern"])
    return kinds + _kinds_of_period(layers - first, config["sliding_window_pattern"])


def _kinds_of_period(layers: int, period: int) -> list[str]:
    """Kinds of so many *layers*: the last of each *period* has full attention."""
    return [
        "sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(layers)
    ]


def _cohere2_keys(config: Config) -> dict[str, Any]:
    """GGUF keys of windows and experts; options without a key in GGUF are refused."""
    dense_layers = leading_dense_layers(config, config.get("first_k_dense_replace") or 0)
    shared = config["num_shared_experts"]
    strategy = config["shared_expert_combination_strategy"]
    if shared and strategy != "average":
        why = "in GGUF, experts and the network beside them are averaged"
        raise refusal("shared_expert_combination_strategy", strategy, why)
    if dense_layers and config["prefix_dense_sliding_window_pattern"] != 1:
        why = "only first layers without windows, which rotate, are computed"
        period = config["prefix_dense_sliding_window_pattern"]
        raise refusal("prefix_dense_sliding_window_pattern", period, why)
    selection = config["expert_selection_fn"]
    if selection not in ("sigmoid", "softmax"):
        raise wrong_config(f"expert_selection_fn is {selection!r:.80}")
    if config.get("rope_scaling"):
        why = "transformers 5.24 ignores it in this class, and reads `rope_parameters`"
        raise refusal("rope_scaling", config["rope_scaling"], why)
    is_sigmoid = selection == "sigmoid"
    keys = alternating(_PERIOD)({**config, "layer_types": _cohere2_kinds(config)}) | {
        "expert_feed_forward_length": config["intermediate_size"],
        "expert_gating_func": 2 if is_sigmoid else 1,
        # A softmax over the chosen logits is one over all, divided by the sum of the chosen ones.
        "expert_weights_norm": config["norm_topk_prob"] if is_sigmoid else True,
        "expert_shared_count": shared,
        "expert_shared_feed_forward_length": shared * config["intermediate_size"],
        "leading_dense_block_count": dense_layers,
    }
    if dense_layers:
        keys["feed_forward_length"] = config["prefix_dense_intermediate_size"]
    return keys


# Attention and network are parallel, behind one norm. The first layers have RoPE and no experts; of
# the others, those with windows have RoPE.
register(
    title="Command A and North with experts",
    architecture="cohere2moe",
    model_types=("cohere2_moe",),
    nullable=("rms_norm_eps",),
    rope_style="interleaved",
    gguf_rope_style="interleaved",
    config_keys={
        **EXPERT_CONFIG,
        **WINDOW_CONFIG,
        **reads("expert_selection_fn first_k_dense_replace layer_norm_eps logit_scale"),
        **reads("mlp_layer_types norm_topk_prob num_shared_experts sliding_window_pattern"),
        **reads("prefix_dense_intermediate_size prefix_dense_sliding_window_pattern"),
        **reads("shared_expert_combination_strategy"),
        "num_nextn_predict_layers": HARMLESS,  # of blocks that are left out
    },
    gguf_keys=GROUPED_KEYS
    | reads("attention.layer_norm_epsilon expert_shared_feed_forward_length logit_scale")
    | reads("rope.freq_base_swa"),
    biases={"attention_bias": ATTENTION},
    more_blocks=True,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", *BIASES),
        ignores=(),
        needs=frozenset({"window"}),
        broken_by_zero=("attention.sliding_window", "logit_scale"),
    ),
    translate=_cohere2_keys,
    decoder=_cohere2_experts,
)


def _deepseek_ocr(keys: Keys) -> ModelConfig:
    network = experts_by_groups(keys, default="softmax")
    model = dense_as_stored(keys, mixture=network)
    head_dim = model.attentions[0].head_dim
    for key, only in (
        ("rope.dimension_count", head_dim),
        ("rope.freq_base", 10000),
        ("rope.scale_linear", 1),
        ("rope.scaling.factor", 1),
    ):
        if (value := keys.number(key, only)) != only:
            why = f"llama.cpp computes {only} only"
            raise value_refusal(keys, key, value, why)
    return model


# The text part of a model of images; its attention is the usual one, not that over latents.
register(
    title="DeepSeek-OCR, its text",
    architecture="deepseek2-ocr",
    model_types=(),
    gguf_keys=GROUPED_KEYS,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "exp_probs_b.bias", *BIASES),
        only_whole_width=True,
        only_whole_keys=True,
    ),
    decoder=_deepseek_ocr,
)


def _grok(keys: Keys) -> ModelConfig:
    """Attention and experts with norms on both sides; refuses what Grok 2 adds."""
    model_sizes = sizes(keys)
    cap = keys.number("attn_logit_softcapping", _GROK_CAP)
    scale = keys.number("attention.output_scale", _GROK_SCORES)
    mixer = attention(keys, model_sizes.dim, scale=scale, softcap=cap, fused=is_fused(keys))
    if mixer.rope is not None and mixer.rope.scaling == "yarn":
        raise Unsupported(
            f"{keys.path.name}: YaRN with the bounds of Grok 2 (beta_fast 8) is not computed",
            hint="choose another model",
        )
    network = experts(keys, width=model_sizes.ffn, activation="gelu_tanh")
    has_norm_of_layer = "blk.0.layer_output_norm.weight" in keys.weights
    norm_behind = "layer_output_norm" if has_norm_of_layer else "post_ffw_norm"
    norms = (("attn_norm", "attn_output_norm"), ("ffn_norm", norm_behind))
    if "blk.0.ffn_up.weight" in keys.weights:
        raise Unsupported(
            f"{keys.path.name}: a dense network whose result is averaged with that of the experts "
            "before one norm (Grok 2) is not computed",
            hint="choose another model",
        )
    return model_of(
        keys,
        model_sizes,
        [usual_block(mixer, network, norms=norms)] * model_sizes.layers,
        embedding_scale=keys.number("embedding_scale", _GROK_EMBEDDING),
        logit_scale=keys.number("logit_scale", _GROK_OUTPUT),
        final_softcap=keys.number("final_logit_softcapping", 0.0),
    )


register(
    title="Grok 1",
    architecture="grok",
    model_types=(),
    gguf_keys={
        **EXPERT_KEYS,
        **reads("attention.output_scale attn_logit_softcapping embedding_scale"),
        **reads("final_logit_softcapping logit_scale"),
        "router_logit_softcapping": HARMLESS,  # engines do not read it
        "attention.temperature_length": HARMLESS,
    },
    llama_cpp=LlamaCppSupport(tensors=("output.weight", *BIASES), only_whole_width=True),
    decoder=_grok,
)


def _arctic(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys)
    mixer = attention(keys, model_sizes.dim, fused=is_fused(keys))
    block = (
        Branch("attn_norm", (mixer,)),
        Branch("ffn_norm", (FeedForward(model_sizes.dim),)),
        Branch("ffn_norm_exps", (experts(keys, width=model_sizes.ffn),), parallel=True),
    )
    return model_of(keys, model_sizes, [block] * model_sizes.layers)


# The dense network is as wide as the model; the experts read the input of the block.
register(
    title="Snowflake Arctic",
    architecture="arctic",
    model_types=(),
    gguf_rope_style="interleaved",
    gguf_keys=EXPERT_KEYS,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", *BIASES),
        ignores=(*WINDOWS, "expert_feed_forward_length"),
        only_whole_width=True,
    ),
    decoder=_arctic,
)

"""Families with layers of a state: Mamba-2, which several share, and gated short convolutions.

Falcon-H1 has attention and Mamba-2 behind one norm; its many factors are part of the weights in
GGUF, and are multiplied into those of a folder. In Nemotron-H each layer is Mamba-2, attention
without RoPE, a feed-forward network or experts. LFM2 has attention in some layers, convolutions in
the others.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.families.blocks import Branch, Experts, FeedForward, Mamba2, Mixer, ShortConvolution
from bitnet.families.dense import (
    ModelConfig,
    attention,
    layer_kinds,
    model_of,
    per_layer,
    sizes,
    usual_block,
)
from bitnet.families.experts import (
    EXPERT_CONFIG,
    EXPERT_KEYS,
    GROUPED_CONFIG,
    GROUPED_KEYS,
    experts,
    group_keys,
    group_routing,
)
from bitnet.families.family import (
    ATTENTION,
    MLP,
    QKV,
    Family,
    LlamaCppSupport,
    Values,
    register,
    register_variant,
)
from bitnet.families.keys import Config, Keys, Rule, contradiction, neutral, read, reads, refusal
from bitnet.families.linear import decay_rates

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Rules of its keys in GGUF files.
MAMBA2_KEYS = {
    "attention.causal": neutral(True, note="states look back only"),
    "attention.sliding_window": neutral(0),
    **reads("ssm.conv_kernel ssm.group_count ssm.inner_size ssm.state_size ssm.time_step_rank"),
}
_INFINITY = {"__float__": "Infinity"}  # as transformers writes it
_NO_LIMIT = neutral(None, [0.0, math.inf], [0.0, _INFINITY], note="steps are not limited")
#: Rules of most of its keys in ``config.json``.
MAMBA2_CONFIG = {
    **reads("mamba_d_conv mamba_d_head mamba_d_state mamba_n_groups mamba_n_heads"),
    "time_step_limit": _NO_LIMIT,
}


def mamba2(keys: Keys, **overrides: Any) -> Mamba2:
    """The mixer, with *overrides* fields, as all families read its keys."""
    heads = keys.integer("ssm.time_step_rank")
    width = keys.integer("ssm.inner_size")
    if width % max(heads, 1):
        raise contradiction(keys, f"{heads} heads of a state-space model that are {width} wide")
    groups = keys.integer("ssm.group_count")
    sizes_of_states = keys.integer("ssm.state_size"), keys.integer("ssm.conv_kernel")
    overrides = {"norm_groups": groups, **overrides}
    return Mamba2(heads, width // max(heads, 1), groups, *sizes_of_states, **overrides)


def mamba2_values(groups: int) -> Values:
    """Functions from a folder's tensors to GGUF's."""
    return {
        "ssm_a": lambda logarithms: decay_rates(logarithms)[:, None],
        "ssm_conv1d.weight": lambda weight: weight[:, 0],
        "ssm_d": lambda factors: factors[:, None],
        "ssm_norm.weight": lambda weight: weight.reshape(groups, -1),
    }


def _falcon_h1(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys)
    norm = {} if "blk.0.ssm_norm.weight" in keys.weights else {"norm_groups": 0}
    first = bool(keys.config and keys.config.get("mamba_norm_before_gate", True))
    mixers = attention(keys, model_sizes.dim), mamba2(keys, norm_first=first, **norm)
    block = Branch("attn_norm", mixers), Branch("ffn_norm", (FeedForward(model_sizes.ffn),))
    return model_of(keys, model_sizes, [block] * model_sizes.layers, bare_norms=("ffn_norm",))


def _width(config: Config) -> int:
    """Width of all heads of Mamba-2."""
    width = config["mamba_d_ssm"]
    heads = config["mamba_n_heads"]
    if width is None:
        width = config["mamba_expand"] * config["hidden_size"]
    head_dim = config["mamba_d_head"]
    if head_dim != "auto" and head_dim * heads != width:
        raise ValueError(
            f"mamba_n_heads {heads} of mamba_d_head {head_dim} do not have the width "
            f"mamba_d_ssm, or mamba_expand times hidden_size, {width}"
        )
    return int(width)


def _falcon_factors(config: Config) -> dict[str, float]:
    gate, down = config["mlp_multipliers"] or (1.0, 1.0)
    inner = config["attention_in_multiplier"]
    key = config["key_multiplier"]
    return {
        "token_embd.weight": config["embedding_multiplier"],
        "output.weight": config["lm_head_multiplier"],
        "attn_q.weight": inner,
        "attn_k.weight": inner * key,
        "attn_k.bias": key,
        "attn_v.weight": inner,
        "attn_output.weight": config["attention_out_multiplier"],
        "attn_output.bias": config["attention_out_multiplier"],
        "ssm_out.weight": config["ssm_out_multiplier"],
        "ssm_out.bias": config["ssm_out_multiplier"],
        "ffn_gate.weight": gate,
        "ffn_gate.bias": gate,
        "ffn_down.weight": down,
        "ffn_down.bias": down,
    }


def _falcon_values(config: Config) -> Values:
    width = _width(config)
    states = config["mamba_n_groups"] * config["mamba_d_state"]
    parts = (width, width, states, states, config["mamba_n_heads"])
    factors = config["ssm_multipliers"] or [1.0] * len(parts)
    if len(factors) != len(parts):
        raise ValueError(f"ssm_multipliers has {len(factors)} entries, expected {len(parts)}")

    def multiply(rows: NDArray[Any], factor: float = 1.0) -> NDArray[Any]:
        if rows.shape[0] != sum(parts):  # before a wrong size allocates anything
            raise ValueError(f"{rows.shape[0]:,} rows, expected {sum(parts):,}")
        of_rows = np.repeat(np.array(factors, dtype=np.float32), parts)
        of_rows = of_rows.reshape(-1, *[1] * (rows.ndim - 1))
        scaled: NDArray[Any] = np.multiply(rows, of_rows * np.float32(factor))
        return scaled

    return {
        **mamba2_values(config["mamba_n_groups"]),
        "ssm_in.weight": partial(multiply, factor=config["ssm_in_multiplier"]),
        "ssm_in.bias": multiply,
    }


_FACTORS = (
    "attention_in_multiplier",
    "attention_out_multiplier",
    "embedding_multiplier",
    "key_multiplier",
    "lm_head_multiplier",
    "ssm_in_multiplier",
    "ssm_out_multiplier",
)
register(
    title="Falcon-H1",
    architecture="falcon-h1",
    config_keys={
        **MAMBA2_CONFIG,
        **dict.fromkeys(_FACTORS, read("factor, multiplied into weights")),
        **reads("mamba_d_ssm mamba_expand mamba_norm_before_gate mlp_multipliers ssm_multipliers"),
        "mamba_rms_norm": Rule("there is a norm if it is among the tensors"),
    },
    gguf_keys=MAMBA2_KEYS,
    values=_falcon_values,
    factors=_falcon_factors,
    biases={
        "attention_bias": ATTENTION,
        "mamba_conv_bias": ("ssm_conv1d",),
        "mamba_proj_bias": ("ssm_in",),
        "mlp_bias": MLP,
        "projectors_bias": ("ssm_out",),
    },
    llama_cpp=LlamaCppSupport(
        tensors=(
            "output.weight",
            "ssm_dt.bias",
            "ssm_conv1d.bias",
            *(f"{part}.bias" for part in (*QKV, *MLP)),
        ),
        required=("ssm_conv1d.bias",),
        ignores=(),
    ),
    translate=lambda config: {"ssm.inner_size": _width(config)},
    decoder=_falcon_h1,
)

_KINDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_FORMER_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}


def _nemotron_h(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys, ffn=0)
    kv_heads = per_layer(keys, "attention.head_count_kv", model_sizes.layers)
    widths = per_layer(keys, "feed_forward_length", model_sizes.layers)
    states = mamba2(keys)

    def mixer(layer: int, heads: int, width: int) -> Mixer:
        if width and f"blk.{layer}.ffn_gate_inp.weight" in keys.weights:
            return _mixture(keys, width)
        if width:
            return FeedForward(width, "relu_squared", gated=False)
        return attention(keys, model_sizes.dim, kv_heads=heads, rope=None) if heads else states

    blocks = (
        (Branch("attn_norm", (mixer(layer, heads, width),)),)
        for layer, (heads, width) in enumerate(zip(kv_heads, widths, strict=True))
    )
    return model_of(keys, model_sizes, blocks)


def _mixture(keys: Keys, width: int) -> Experts:
    """Experts of a layer, of as many numbers together as its *width* if no key says how many."""
    routing = group_routing(keys) | {"corrected": True, "gating": "sigmoid"}
    used = max(keys.integer("expert_used_count"), 1)
    network = experts(
        keys, width=width // used, routing=routing, activation="relu_squared", gated=False
    )
    return replace(
        network,
        latent=keys.integer("moe_latent_size", 0),
        shared=keys.integer("expert_shared_feed_forward_length", 0),
    )


def _nemotron_keys(config: Config) -> dict[str, Any]:
    kinds = config.get("layers_block_type") or config.get("layer_types")
    if kinds is None and "hybrid_override_pattern" not in config:
        raise KeyError("layers_block_type")
    if kinds is None:
        kinds = [_KINDS[letter] for letter in config["hybrid_override_pattern"]]
    kinds = [_FORMER_NAMES.get(kind, kind) for kind in kinds]
    if set(kinds) - set(_KINDS.values()) or {"mlp", "moe"} <= set(kinds):
        why = "layers are linear_attention, full_attention, and either mlp or moe"
        raise refusal("layers_block_type", kinds, why)
    widths = {"mlp": config.get("intermediate_size"), "moe": config.get("moe_intermediate_size")}
    heads = config["num_key_value_heads"]
    has_experts = "moe" in kinds
    return {
        "block_count": len(kinds),
        "attention.head_count_kv": [heads if kind == "full_attention" else 0 for kind in kinds],
        "feed_forward_length": [widths.get(kind, 0) for kind in kinds],
        "attention.layer_norm_epsilon": config["rms_norm_eps"],
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
        **(_expert_keys(config) if has_experts else {"expert_count": 0}),
    }


def _expert_keys(config: Config) -> dict[str, Any]:
    return {
        **group_keys(config),
        "architecture": "nemotron_h_moe",
        "leading_dense_block_count": 0,
        "moe_latent_size": config.get("moe_latent_size") or 0,
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
    }


register(
    title="Nemotron-H",
    architecture="nemotron_h",
    gguf=("nemotron_h_moe",),
    activation="relu2",
    aliases={
        "attention_head_dim": "head_dim",
        "layer_norm_epsilon": "rms_norm_eps",
        "mamba_conv_bias": "use_conv_bias",
        "mamba_d_conv": "conv_kernel",
        "mamba_n_groups": "n_groups",
    },
    config_keys={
        **GROUPED_CONFIG,
        **reads("conv_kernel hybrid_override_pattern layer_types layers_block_type"),
        **reads("mamba_head_dim mamba_num_heads moe_shared_expert_intermediate_size"),
        **reads("n_groups ssm_state_size"),
        "moe_latent_size": read("width of what experts read and give; null: the model's"),
        "mamba_hidden_act": neutral(None, "silu"),
        "mlp_hidden_act": neutral(None, "relu2"),
        "time_step_limit": _NO_LIMIT,
        "time_step_min": Rule("no limit, as in llama.cpp; transformers limits prompts only"),
        **dict.fromkeys(
            ("attention_bias", "first_k_dense_replace", "mamba_proj_bias", "sliding_window"),
            Rule("transformers ignores it"),
        ),
    },
    gguf_keys={
        **GROUPED_KEYS,
        **MAMBA2_KEYS,
        **reads("attention.layer_norm_epsilon expert_shared_feed_forward_length"),
        **reads("moe_latent_size"),
        "expert_gating_func": neutral(2, note="a sigmoid of each of the router's logits"),
        "expert_shared_count": Rule("there is one, of the width below"),
        "leading_dense_block_count": neutral(0),
    },
    tensors={"norm": "attn_norm"},
    values=lambda config: mamba2_values(config["n_groups"]),
    biases={
        "mlp_bias": (
            *("ffn_up", "ffn_down", "ffn_up_shexp", "ffn_down_shexp"),
            *("ffn_latent_down", "ffn_latent_up"),
        ),
        "use_bias": ("ssm_in", "ssm_out"),
        "use_conv_bias": ("ssm_conv1d",),
    },
    llama_cpp=LlamaCppSupport(
        tensors=(
            "output.weight",
            "ssm_dt.bias",
            "ssm_conv1d.bias",
            "ffn_up.bias",
            "ffn_down.bias",
            "exp_probs_b.bias",
        ),
        required=("ssm_conv1d.bias",),
        ignores=(),
        needs=frozenset({"attention", "state"}),
    ),
    partial_rotation=True,
    translate=_nemotron_keys,
    decoder=_nemotron_h,
)


def _lfm2(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys)
    convolution = ShortConvolution(model_sizes.dim, keys.integer("shortconv.l_cache"))
    networks: list[FeedForward | Experts] = [FeedForward(model_sizes.ffn)] * model_sizes.layers
    if keys.architecture == "lfm2moe":
        first = keys.integer("leading_dense_block_count", 0)
        routing = {"gating": "sigmoid", "corrected": True}
        networks[first:] = [experts(keys, routing=routing)] * len(networks[first:])
    kv_heads = per_layer(keys, "attention.head_count_kv", model_sizes.layers)
    mixers = (
        attention(keys, model_sizes.dim, kv_heads=heads, qk_norm="head") if heads else convolution
        for heads in kv_heads
    )
    return model_of(
        keys, model_sizes, map(usual_block, mixers, networks), final_norm="token_embd_norm"
    )


def _lfm2_keys(config: Config) -> dict[str, Any]:
    """Keys of convolutions and attention."""
    layers = config["num_hidden_layers"]
    kinds = config.get("layer_types")
    if kinds is None:
        full = config.get("full_attn_idxs")
        full = range(layers) if full is None else full
        kinds = ["full_attention" if layer in full else "conv" for layer in range(layers)]
    heads = {"full_attention": config["num_key_value_heads"], "conv": 0}
    return {"attention.head_count_kv": layer_kinds(config, kinds, heads)}


def _lfm2_width(config: Config) -> int:
    """Width inside the feed-forward network, which transformers rounds to a multiple."""
    width = config["intermediate_size"]
    factor = config["block_ffn_dim_multiplier"]
    if not config["block_auto_adjust_ff_dim"]:
        return int(width)
    width = int(2 * width / 3)
    if factor is None:
        return width
    multiple = config["block_multiple_of"]
    return int(-(-int(factor * width) // multiple) * multiple)


_LFM2_SUPPORT = LlamaCppSupport(
    tensors=("output.weight",),
    ignores=(),
    whole_width=True,
    needs=frozenset({"attention", "state"}),
)
#: Rules for the keys of short convolutions, and the setting of their biases in a folder.
CONVOLUTION_KEYS = {
    **reads("shortconv.l_cache"),
    "attention.causal": neutral(True, note="convolutions look back only"),
}
CONVOLUTION_BIASES = {"conv_bias": ("shortconv.in_proj", "shortconv.conv", "shortconv.out_proj")}


def squeeze_convolution(_config: Config) -> Values:
    """A function for the kernels of short convolutions, which have an axis of length 1."""
    return {"shortconv.conv.weight": partial(np.squeeze, axis=1)}


# The tables of both; the networks differ.
_LFM2 = Family(
    title="LFM2 and LFM2.5",
    architecture="lfm2",
    model_types=(),
    aliases={"norm_eps": "rms_norm_eps", "tie_embedding": "tie_word_embeddings"},
    defaults={"tie_word_embeddings": True},
    config_keys=reads("conv_L_cache layer_types"),
    gguf_keys={
        **CONVOLUTION_KEYS,
        "attention.sliding_window": neutral(0),
    },
    values=squeeze_convolution,
    biases=CONVOLUTION_BIASES,
    llama_cpp=_LFM2_SUPPORT,
    decoder=_lfm2,
)
register_variant(
    _LFM2,
    title="LFM2 and LFM2.5, dense",
    model_types=("lfm2",),
    aliases={"block_ff_dim": "intermediate_size"},
    config_keys={
        **reads("block_auto_adjust_ff_dim block_ffn_dim_multiplier block_multiple_of"),
        **reads("full_attn_idxs"),
    },
    translate=lambda config: _lfm2_keys(config) | {"feed_forward_length": _lfm2_width(config)},
)
register_variant(
    _LFM2,
    title="LFM2 and LFM2.5 with experts",
    architecture="lfm2moe",
    model_types=("lfm2_moe",),
    config_keys={
        **EXPERT_CONFIG,
        **reads("moe_intermediate_size num_dense_layers"),
        "norm_topk_prob": neutral(None, True, note="weights are divided by their sum"),
        "routed_scaling_factor": neutral(None, 1.0),
        "use_expert_bias": neutral(None, True, note="the choice has corrections"),
    },
    gguf_keys={
        **EXPERT_KEYS,
        **reads("leading_dense_block_count"),
        "expert_gating_func": neutral(2, note="a sigmoid of each of the router's logits"),
    },
    llama_cpp=replace(_LFM2_SUPPORT, tensors=("output.weight", "exp_probs_b.bias")),
    translate=lambda config: _lfm2_keys(config) | {"expert_gating_func": 2},
)


def _mamba2_alone(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys, ffn=0)
    block = (Branch("attn_norm", (mamba2(keys),)),)
    return model_of(keys, model_sizes, [block] * model_sizes.layers)


def _mamba2_keys(config: Config) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    width = config["expand"] * config["hidden_size"]
    if heads * config["head_dim"] != width:
        raise ValueError(f"{heads} heads of {config['head_dim']}, which are not {width} wide")
    return {
        "attention.head_count": 0,
        "attention.head_count_kv": 0,
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "feed_forward_length": 0,
        "ssm.inner_size": width,
        "ssm.time_step_rank": heads,
    }


# Blocks of one state space each. A folder does not say how many positions it was trained for.
register(
    title="Mamba 2",
    architecture="mamba2",
    aliases={"num_heads": "num_attention_heads", "state_size": "ssm_state_size"},
    defaults={"max_position_embeddings": 1 << 20},
    config_keys={
        **reads("conv_kernel expand layer_norm_epsilon n_groups ssm_state_size"),
        "time_step_limit": _NO_LIMIT,
    },
    gguf_keys=MAMBA2_KEYS,
    tensors={"norm": "attn_norm"},
    values=lambda config: mamba2_values(config["n_groups"]),
    biases={"use_bias": ("ssm_in", "ssm_out"), "use_conv_bias": ("ssm_conv1d",)},
    rotates=False,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "ssm_conv1d.bias", "ssm_dt.bias"),
        required=("ssm_conv1d.bias",),
        ignores=(),
    ),
    translate=_mamba2_keys,
    decoder=_mamba2_alone,
)

"""Families with a gate for each head of the attention: Spark-X2.5 and Laguna.

Layers with a window have a RoPE of their own: other rotary dimensions, another base, no scaling.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from bitnet.families.blocks import Activation, Attention, FeedForward
from bitnet.families.dense import (
    WINDOW_CONFIG,
    ModelConfig,
    dense,
    is_fused,
    model_of,
    per_layer,
    read_windows,
    rotate_windows_by,
    sizes,
    usual_block,
    window_pattern,
)
from bitnet.families.experts import (
    EXPERT_CONFIG,
    GROUPED_KEYS,
    experts,
    group_routing,
    leading_dense_layers,
)
from bitnet.families.family import ATTENTION, BIASES, LlamaCppSupport, register
from bitnet.families.keys import Config, Keys, neutral, read, reads, value_refusal
from bitnet.families.rope import rope_from, without_scaling

if TYPE_CHECKING:
    from bitnet.families.rope import Rope

_PERIOD = 4  # by default, the first of this many layers has no window
_GELUS: tuple[Activation, ...] = ("gelu", "gelu_tanh")  # of Spark-X2.5
_OWN_ROPE = reads("rope.dimension_count_swa rope.freq_base_swa")


def _local_rope(keys: Keys, rope: Rope) -> Rope:
    """RoPE of the layers with a window, from that of the other layers, *rope*."""
    return without_scaling(
        rope,
        theta=keys.number("rope.freq_base_swa", rope.theta),
        dims=keys.integer("rope.dimension_count_swa", rope.dims),
    )


def _check_unscaled(keys: Keys) -> None:
    """Refuse a GGUF file with scaled positions: llama.cpp scales layers with windows, too."""
    for key in ("rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor"):
        factor = keys.number(key, 1.0)
        if keys.config is None and factor not in (0, 1):
            why = "llama.cpp scales layers with windows by it, too"
            raise value_refusal(keys, key, factor, why)


def _spark(keys: Keys) -> ModelConfig:
    _check_unscaled(keys)
    # Files of other programs do not have the key: llama.cpp always computes the tanh form.
    name = keys.value("hidden_activation", "gelu_tanh")
    if name not in _GELUS:
        why = f"only {' and '.join(_GELUS)} are computed"
        raise value_refusal(keys, "hidden_activation", name, why)
    return dense(
        keys,
        fused=is_fused(keys),
        own_gate="heads",
        ffn={"activation": name},
        each=rotate_windows_by(partial(_local_rope, keys)),
    )


def _spark_keys(config: Config) -> dict[str, Any]:
    window = config["sliding_window"] or 0
    pattern = window_pattern(config, window)
    if pattern is None:
        raise KeyError("layer_types")
    return {
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": pattern,
        "hidden_activation": "gelu",
        "rope.dimension_count_swa": _local_dimensions(config),
    }


def _local_dimensions(config: Config) -> int:
    """Rotary dimensions of layers with a window, from their table; by default the whole head."""
    table = config.get("rope_parameters") or {}
    share = (table.get("sliding_attention") or {}).get("partial_rotary_factor")
    return int(config["head_dim"] * (1.0 if share is None else share))


# Folders are computed with the exact GELU, files of llama.cpp by the hyperbolic tangent.
register(
    title="Spark-X2.5",
    architecture="spark2_5",
    activation="gelu",
    stated="gate_attn_act_mode head_dim headwise_attn_output_gate hidden_act layer_types "
    "num_key_value_heads rms_norm_eps rope_parameters sliding_window",
    config_keys={
        **WINDOW_CONFIG,
        "gate_attn_act_mode": neutral("sigmoid"),
        "headwise_attn_output_gate": neutral(True),
    },
    gguf_keys=_OWN_ROPE | {"hidden_activation": read("`gelu`, or `gelu_tanh` without the key")},
    tensors={"self_attn.g_proj": "attn_gate", "self_attn.q_k_v_proj": "attn_qkv"},
    layered_rope=True,
    partial_rotation=True,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", *BIASES),
        ignores=(),
        gelu_tanh=True,
        broken_by_zero=("attention.sliding_window",),
    ),
    translate=_spark_keys,
    decoder=_spark,
)


def _laguna(keys: Keys) -> ModelConfig:
    """Attention whose heads and windows differ by layer; experts behind dense layers."""
    model_sizes = sizes(keys)
    layers = model_sizes.layers
    heads = per_layer(keys, "attention.head_count", layers)
    kv_heads = per_layer(keys, "attention.head_count_kv", layers)
    head_dim = keys.integer("attention.key_length")
    window = keys.integer("attention.sliding_window", 0)
    windows = read_windows(keys, layers, period=_PERIOD, window=window, last=False)
    rope = rope_from(keys, head_dim)
    local = _local_rope(keys, rope)
    network = FeedForward(model_sizes.ffn)
    mixture = experts(
        keys,
        routing=group_routing(keys) | {"corrected": True},
        shared=keys.integer("expert_shared_feed_forward_length"),
    )
    first = keys.integer("leading_dense_block_count")
    blocks = []
    for layer in range(layers):
        mixer = Attention(
            heads[layer],
            kv_heads[layer],
            head_dim,
            local if windows[layer] else rope,
            max(head_dim, 1) ** -0.5,
            window=windows[layer],
            qk_norm="head",
            own_gate=_gate_of(keys, layer, heads[layer]),
            gate_activation="softplus",
        )
        blocks.append(usual_block(mixer, network if layer < first else mixture))
    return model_of(keys, model_sizes, blocks)


def _gate_of(keys: Keys, layer: int, heads: int) -> Literal["numbers", "heads"]:
    """``own_gate`` of a layer, by the rows of the gate's matrix."""
    rows = keys.row_count(f"blk.{layer}.attn_gate.weight", heads)
    return "heads" if rows == heads else "numbers"


def _laguna_keys(config: Config) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    window = config["sliding_window"] or 0
    pattern = window_pattern(config, window) or [False] * layers
    heads = config.get("num_attention_heads_per_layer")
    return {
        "attention.head_count": heads or [config["num_attention_heads"]] * layers,
        "attention.sliding_window": window if any(pattern) else 0,
        "attention.sliding_window_pattern": pattern,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": float(config["moe_routed_scaling_factor"]),
        "leading_dense_block_count": leading_dense_layers(config, 1),
        "rope.dimension_count_swa": _local_dimensions(config),
    }


register(
    title="Laguna",
    architecture="laguna",
    config_keys={
        **EXPERT_CONFIG,
        **WINDOW_CONFIG,
        **reads("mlp_layer_types moe_intermediate_size num_attention_heads_per_layer"),
        **reads("shared_expert_intermediate_size"),
        "gating": neutral(None, True, "per-head", "per-element", note="the tensors say which"),
        "moe_apply_router_weight_on_input": neutral(None, False),
        "moe_routed_scaling_factor": read("factor on the weights of experts"),
        "moe_router_logit_softcapping": neutral(None, 0),
    },
    gguf_keys={**GROUPED_KEYS, **_OWN_ROPE, **reads("expert_shared_feed_forward_length")},
    tensors={
        "self_attn.g_proj": "attn_gate",
        "mlp.experts.e_score_correction_bias": "exp_probs_b.bias",
    },
    biases={"attention_bias": ATTENTION},
    layered_rope=True,
    partial_rotation=True,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "exp_probs_b.bias", *BIASES), ignores=(), rotates_as_first=True
    ),
    translate=_laguna_keys,
    decoder=_laguna,
)

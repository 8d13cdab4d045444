"""OLMo Hybrid: layers of linear attention, whose states may change sign, and of full attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.families.blocks import FeedForward
from bitnet.families.dense import (
    ModelConfig,
    attention,
    layer_kinds,
    model_of,
    per_layer,
    sizes,
    usual_block,
)
from bitnet.families.family import ATTENTION, register
from bitnet.families.keys import Config, Keys, neutral, read, reads
from bitnet.families.linear import DELTA_CONFIG, DELTA_KEYS, decay_rates, delta_net

if TYPE_CHECKING:
    from bitnet.families.family import Values

# Layers with full attention have norms behind attention and network, the others before them. The
# norm behind attention is called ``ffn_norm``, since tensor_names.py gives that name to
# ``post_attention_layernorm`` in the folders of all families.
_BEHIND = (("", "ffn_norm"), ("", "post_ffw_norm"))
_EPS = 1e-5  # epsilon of ``ssm_norm``, whatever the model's is
_PERIOD = 4  # without ``layer_types``, the last of each four layers has full attention


def _olmo_hybrid(keys: Keys) -> ModelConfig:
    """A delta net in layers without key heads, attention in the others."""
    model_sizes = sizes(keys)
    kv_heads = per_layer(keys, "attention.head_count_kv", model_sizes.layers)
    linear = delta_net(
        keys,
        grouped=True,
        apart=True,
        strength=2.0 if keys.flag("ssm.negative_eigenvalues", True) else 1.0,
        eps=_EPS,
    )
    network = FeedForward(model_sizes.ffn)
    without_rope = {} if keys.flag("attention.rotates", False) else {"rope": None}
    blocks = []
    for count in kv_heads:
        if count:
            full = attention(keys, model_sizes.dim, kv_heads=count, qk_norm="whole", **without_rope)
            blocks.append(usual_block(full, network, norms=_BEHIND))
        else:
            blocks.append(usual_block(linear, network))
    return model_of(keys, model_sizes, blocks)


def _keys(config: Config) -> dict[str, Any]:
    """GGUF keys; layers without key heads have linear attention."""
    layers = config["num_hidden_layers"]
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = [
            "full_attention" if layer % _PERIOD == _PERIOD - 1 else "linear_attention"
            for layer in range(layers)
        ]
        if "full_attention" not in kinds:
            kinds[-1] = "full_attention"
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    key_heads = config.get("linear_num_key_heads") or heads
    value_heads = config.get("linear_num_value_heads") or heads
    # The defaults of transformers' configuration class.
    key_dim = config.get("linear_key_head_dim") or int(0.75 * config["hidden_size"] / key_heads)
    value_dim = config.get("linear_value_head_dim") or 2 * key_dim
    # Only a null ``rope_theta`` turns RoPE off; without the key, transformers' default counts.
    rope = config.get("rope_parameters") or {}
    meanings = {"full_attention": kv_heads, "linear_attention": 0}
    return {
        "attention.head_count_kv": layer_kinds(config, kinds, meanings),
        "attention.rotates": rope.get("rope_theta", 0) is not None,
        "ssm.group_count": key_heads,
        "ssm.inner_size": value_heads * value_dim,
        "ssm.negative_eigenvalues": bool(config["linear_allow_neg_eigval"]),
        "ssm.state_size": key_dim,
        "ssm.time_step_rank": value_heads,
    }


def _values(_config: Config) -> Values:
    return {"ssm_a": decay_rates}


register(
    title="OLMo Hybrid",
    architecture="olmo_hybrid",
    defaults={"linear_allow_neg_eigval": True, "linear_conv_kernel_dim": 4},
    nullable=(
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "num_key_value_heads",
        "rope_parameters",
    ),
    config_keys={
        **DELTA_CONFIG,
        **reads("layer_types"),
        "linear_allow_neg_eigval": read("doubles the strengths, so that states may change sign"),
        "sliding_window": neutral(None),
    },
    gguf_keys={
        **DELTA_KEYS,
        "attention.rotates": read("there is a position embedding"),
        "ssm.negative_eigenvalues": read("doubles the strengths, so that states may change sign"),
    },
    tensors={
        "attention_layer_norm": "attn_norm",
        "feedforward_layer_norm": "ffn_norm",
        **{f"linear_attn.{part}_proj": f"ssm_{part}" for part in "qkv"},
        **{f"linear_attn.{part}_conv1d": f"ssm_conv1d_{part}" for part in "qkv"},
        "linear_attn.a_proj": "ssm_alpha",
        "linear_attn.b_proj": "ssm_beta",
        "linear_attn.g_proj": "attn_gate",
        "linear_attn.o_norm": "ssm_norm",
        "linear_attn.o_proj": "ssm_out",
    },
    values=_values,
    biases={"attention_bias": ATTENTION},
    llama_cpp=None,
    translate=_keys,
    decoder=_olmo_hybrid,
)

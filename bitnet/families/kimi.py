"""Kimi Linear: linear attention with decays of its own (KDA), and attention over latents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.families.blocks import Experts, FeedForward, KimiDelta
from bitnet.families.deepseek import latent_attention, latent_keys
from bitnet.families.dense import ModelConfig, layer_kinds, model_of, per_layer, sizes, usual_block
from bitnet.families.experts import (
    GROUPED_CONFIG,
    GROUPED_KEYS,
    experts_by_groups,
    leading_dense_layers,
)
from bitnet.families.family import OWN_HEAD, LlamaCppSupport, register
from bitnet.families.keys import Config, Keys, Rule, neutral, read, reads, refusal
from bitnet.families.linear import decay_rates

if TYPE_CHECKING:
    from bitnet.families.family import Values

_PERIOD = 4  # layers, the first of which but that of the model has attention, if no key says which


def _kimi(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys)
    kv_heads = per_layer(keys, "attention.head_count_kv", model_sizes.layers)
    first = keys.integer("leading_dense_block_count", 0)
    linear = KimiDelta(
        heads=keys.integer("attention.head_count"),
        head_dim=keys.integer("kda.head_dim"),
        kernel=keys.integer("ssm.conv_kernel"),
    )
    full = replace(latent_attention(keys, 0), rotates=False)
    usual = FeedForward(model_sizes.ffn)
    mixture: FeedForward | Experts = usual
    if first < model_sizes.layers:
        mixture = experts_by_groups(keys, corrected=True)
    blocks = (
        usual_block(full if count else linear, usual if layer < first else mixture)
        for layer, count in enumerate(kv_heads)
    )
    return model_of(keys, model_sizes, blocks)


def _kinds(config: Config, own: Config) -> list[str]:
    """Kind of each layer, by the table *own* of linear attention if that says it."""
    layers = config["num_hidden_layers"]
    if "full_attn_layers" in own and "kda_layers" in own:
        full = set(own["full_attn_layers"])  # numbered from 1
        if full | set(own["kda_layers"]) != set(range(1, layers + 1)):
            raise ValueError("full_attn_layers and kda_layers are not all layers")
        return [
            "full_attention" if layer + 1 in full else "linear_attention" for layer in range(layers)
        ]
    return config.get("layer_types") or [
        "full_attention" if layer and layer % _PERIOD == 0 else "linear_attention"
        for layer in range(layers)
    ]


def _keys(config: Config) -> dict[str, Any]:
    own = config.get("linear_attn_config") or {}
    heads = own.get("num_heads", config.get("linear_num_heads"))
    if heads != config["num_attention_heads"]:
        raise refusal("linear_num_heads", heads, "only as many heads as of attention are computed")
    first = config.get("first_k_dense_replace", 1)
    kernel = own.get("short_conv_kernel_size", config.get("linear_conv_kernel_dim"))
    return latent_keys(config) | {
        "attention.head_count_kv": layer_kinds(
            config, _kinds(config, own), {"full_attention": 1, "linear_attention": 0}
        ),
        "kda.head_dim": own.get("head_dim", config.get("linear_head_dim")),
        "leading_dense_block_count": leading_dense_layers(config, first),
        "ssm.conv_kernel": kernel,
    }


def _values(_config: Config) -> Values:
    return {"ssm_a": lambda logarithms: decay_rates(logarithms.reshape(-1, 1))}


register(
    title="Kimi Linear",
    architecture="kimi-linear",
    aliases={
        "model_max_length": "max_position_embeddings",
        "moe_renormalize": "norm_topk_prob",
        "num_expert_group": "n_group",
        "num_experts_per_token": "num_experts_per_tok",
        "num_shared_experts": "n_shared_experts",
    },
    config_keys={
        **GROUPED_CONFIG,
        **reads("kv_lora_rank layer_types linear_conv_kernel_dim mlp_layer_types q_lora_rank"),
        **reads("qk_nope_head_dim qk_rope_head_dim v_head_dim"),
        "linear_attn_config": read("heads, convolution and layers of linear attention"),
        "linear_head_dim": read("width of a head of linear attention"),
        "linear_num_heads": read("must be those of attention"),
        "mla_use_nope": neutral(None, True),
        "moe_layer_freq": neutral(None, 1),
        "moe_router_activation_func": neutral(None, "sigmoid"),
        "qk_head_dim": Rule("the sum of both widths"),
        "use_grouped_topk": neutral(None, True),
    },
    gguf_keys={
        **GROUPED_KEYS,
        **reads("attention.key_length_mla attention.kv_lora_rank attention.q_lora_rank"),
        **reads("attention.value_length_mla kda.head_dim ssm.conv_kernel"),
        "attention.causal": neutral(True, note="states look back only"),
        "attention.key_length": Rule("width of a latent with its dimensions behind"),
        "attention.value_length": Rule("width of a latent"),
    },
    tensors={
        **{f"self_attn.{part}_conv1d": f"ssm_conv1d_{part}" for part in "qkv"},
        **{f"self_attn.{part}_proj": f"ssm_{part}" for part in ("f_a", "f_b", "g_a", "g_b")},
        "self_attn.A_log": "ssm_a",
        "self_attn.b_proj": "ssm_beta",
        "self_attn.dt_bias": "ssm_dt.bias",
        "self_attn.o_norm": "ssm_norm",
        "block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias",
        # transformers writes networks without experts under this name, too
        **{
            f"{module}.{part}_proj": f"ffn_{part}"
            for module in ("mlp", "block_sparse_moe")
            for part in ("gate", "up", "down")
        },
        **{
            f"block_sparse_moe.shared_experts.{part}_proj": f"ffn_{part}_shexp"
            for part in ("gate", "up", "down")
        },
    },
    values=_values,
    biases={"attention_bias": ("attn_q_a", "attn_kv_a_mqa", "attn_output")},
    rotates=False,
    llama_cpp=LlamaCppSupport(
        tensors=("exp_probs_b.bias", "ssm_dt.bias"),
        ignores=(),
        needs=frozenset({"attention", "state"}),
        **OWN_HEAD,
    ),
    translate=_keys,
    decoder=_kimi,
)

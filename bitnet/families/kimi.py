"""Kimi Linear and Ling 3: linear attention with decays of its own (KDA), and latent attention.

Ling 2, whose attention is the usual one, is here, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.families.blocks import Experts, FeedForward, KimiDelta, LatentAttention
from bitnet.families.deepseek import latent_attention, latent_keys
from bitnet.families.dense import (
    ModelConfig,
    dense,
    layer_kinds,
    model_of,
    per_layer,
    sizes,
    usual_block,
)
from bitnet.families.experts import (
    GROUPED_CONFIG,
    GROUPED_KEYS,
    experts_by_groups,
    leading_dense_layers,
)
from bitnet.families.family import OWN_HEAD, LlamaCppSupport, register
from bitnet.families.keys import (
    Config,
    Keys,
    Rule,
    neutral,
    read,
    reads,
    refusal,
    value_refusal,
    wrong_config,
)
from bitnet.families.linear import decay_rates
from bitnet.families.rope import rope_parameters, rope_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bitnet.families.family import Values

# By default, one layer in this many has full attention: layers 4, 8, ..., numbered from 0.
_PERIOD = 4


def _linear(keys: Keys) -> KimiDelta:
    """Linear attention, from the keys that both families have."""
    return KimiDelta(
        heads=keys.integer("attention.head_count"),
        head_dim=keys.integer("kda.head_dim"),
        kernel=keys.integer("ssm.conv_kernel"),
    )


def _kimi(keys: Keys) -> ModelConfig:
    full = replace(latent_attention(keys), rotates=False)
    # llama.cpp always divides weights by their sum, and its converter does not write the key.
    renormalised = keys.flag("expert_weights_norm", True)
    return _decoder(keys, _linear(keys), full, renormalised=renormalised)


def _decoder(
    keys: Keys, linear: KimiDelta, full: LatentAttention, *, shared: int = 0, **routing: Any
) -> ModelConfig:
    """Blocks with *linear* attention, or with *full* attention in layers that have key heads.

    *shared* is the width of all networks beside the experts together; if it is 0, the keys of
    grouped experts give it. *routing* has fields of :class:`Routing`.
    """
    model_sizes = sizes(keys)
    kv_heads = per_layer(keys, "attention.head_count_kv", model_sizes.layers)
    first = keys.integer("leading_dense_block_count", 0)
    network = FeedForward(model_sizes.ffn)
    mixture: FeedForward | Experts = network
    if first < model_sizes.layers:
        usual_mixture = experts_by_groups(keys, corrected=True, **routing)
        mixture = replace(usual_mixture, shared=shared or usual_mixture.shared)
    blocks = (
        usual_block(full if n_kv_heads else linear, network if layer < first else mixture)
        for layer, n_kv_heads in enumerate(kv_heads)
    )
    return model_of(keys, model_sizes, blocks)


def _kinds(config: Config, table: Config) -> list[str]:
    """Kind of each layer, ``full_attention`` or ``linear_attention``.

    As in transformers, ``layer_types`` comes before the lists of layers in *table*, which is
    ``linear_attn_config``; without one of the two lists, the other does not count.
    """
    kinds: list[str] | None = config.get("layer_types")
    if kinds is not None:
        return kinds
    layers = range(config["num_hidden_layers"])
    full = {layer for layer in layers if layer and layer % _PERIOD == 0}
    if "full_attn_layers" in table and "kda_layers" in table:
        numbers = [*table["full_attn_layers"], *table["kda_layers"]]
        if sorted(numbers) != [layer + 1 for layer in layers]:
            problem = "full_attn_layers and kda_layers do not list each layer once, from 1"
            raise wrong_config(f"linear_attn_config: {problem}")
        full = {number - 1 for number in table["full_attn_layers"]}
    return ["full_attention" if layer in full else "linear_attention" for layer in layers]


def _keys(config: Config) -> dict[str, Any]:
    """GGUF keys of Kimi Linear; its options of linear attention may be in a table of their own."""
    table = config.get("linear_attn_config") or {}
    key = "linear_attn_config.num_heads" if "num_heads" in table else "linear_num_heads"
    heads = table.get("num_heads", config.get("linear_num_heads"))
    if heads != config["num_attention_heads"]:
        why = "only as many heads as in full attention are computed"
        raise refusal(key, heads, why, is_ignorable=False)
    first = config.get("first_k_dense_replace", 1)
    kernel = table.get("short_conv_kernel_size", config.get("linear_conv_kernel_dim"))
    return latent_keys(config) | {
        "attention.head_count_kv": layer_kinds(
            config, _kinds(config, table), {"full_attention": 1, "linear_attention": 0}
        ),
        "kda.head_dim": table.get("head_dim", config.get("linear_head_dim")),
        "leading_dense_block_count": leading_dense_layers(config, first),
        "ssm.conv_kernel": kernel,
    }


def _values(_config: Config) -> Values:
    """A function that computes rates of decay, ``(heads, 1)``, from the logarithms of a folder."""
    return {"ssm_a": lambda logarithms: decay_rates(logarithms.reshape(-1, 1))}


# Other names of keys, in both families.
_ALIASES = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
_CONFIG = {
    **GROUPED_CONFIG,
    **reads("kv_lora_rank layer_types linear_conv_kernel_dim mlp_layer_types q_lora_rank"),
    **reads("qk_nope_head_dim qk_rope_head_dim v_head_dim"),
    "linear_head_dim": read("width of a head of linear attention"),
    "linear_num_heads": read("must be those of attention"),
    "qk_head_dim": Rule("not read: the sum of both widths"),
}
_KEYS = {
    **GROUPED_KEYS,
    **reads("attention.key_length_mla attention.kv_lora_rank attention.q_lora_rank"),
    **reads("attention.value_length_mla kda.head_dim ssm.conv_kernel"),
    "attention.causal": neutral(True, note="states look back only"),
    "attention.key_length": Rule("not read: ``attention.kv_lora_rank`` plus the rotary dimensions"),
    "attention.value_length": Rule("not read: width of a latent"),
}

register(
    title="Kimi Linear",
    architecture="kimi-linear",
    aliases=_ALIASES,
    config_keys={
        **_CONFIG,
        "linear_attn_config": read("heads, convolution and layers of linear attention"),
        "mla_use_nope": neutral(None, True),
        "moe_layer_freq": neutral(None, 1),
        "moe_router_activation_func": neutral(None, "sigmoid"),
        "use_grouped_topk": neutral(None, True),
    },
    gguf_keys=_KEYS,
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
    rotates=False,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "exp_probs_b.bias", "ssm_dt.bias"),
        lacks=("attn_q_a.weight",),
        ignores=("expert_weights_norm",),
        needs=frozenset({"attention", "state"}),
        **OWN_HEAD,
    ),
    translate=_keys,
    decoder=_kimi,
)


def _ling(keys: Keys) -> ModelConfig:
    return dense(keys, qk_norm="head", fused=True, mixture=experts_by_groups(keys))


register(
    title="Ling and Ring 2",
    architecture="bailingmoe2",
    model_types=(),
    gguf_keys=GROUPED_KEYS | reads("expert_shared_feed_forward_length"),
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "exp_probs_b.bias"), tied=False, only_whole_width=True
    ),
    decoder=_ling,
)


_LIMITS = ("swiglu_clamp_exp", "swiglu_clamp_shexp")


def _ling3(keys: Keys) -> ModelConfig:
    """Linear attention with limited decays, and gated attention over latents."""
    for key in _LIMITS:
        limits = keys.value(key, 0.0)
        if any(limits if isinstance(limits, list) else [limits]):
            raise value_refusal(keys, key, limits, "experts are computed without limits only")
    floor = keys.number("kda.gate_lower_bound")
    if floor >= 0:
        why = "the logarithm of a decay is below 0"
        raise value_refusal(keys, "kda.gate_lower_bound", floor, why, is_ignorable=False)
    linear = replace(_linear(keys), low_rank=False, floor=floor)
    full = replace(latent_attention(keys), gated=True)
    # The key, if there is one, has the width of all networks beside the experts.
    return _decoder(keys, linear, full, shared=keys.integer("expert_shared_feed_forward_length", 0))


def _ling3_keys(config: Config) -> dict[str, Any]:
    """GGUF keys of Ling 3; layers without key heads have linear attention."""
    layers = config["num_hidden_layers"]
    period = config["layer_group_size"]
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = [
            "linear_attention" if (layer + 1) % period else "full_attention"
            for layer in range(layers)
        ]
    heads = config.get("linear_num_heads", config["num_attention_heads"])
    if heads != config["num_attention_heads"]:
        why = "only as many heads as in full attention are computed"
        raise refusal("linear_num_heads", heads, why)
    for key in ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list"):
        if any(config.get(key) or ()):
            raise refusal(key, config[key], "experts are computed without limits only")
    floor = float(config["kda_lower_bound"])
    if floor >= 0:
        why = "the logarithm of a decay is below 0"
        raise refusal("kda_lower_bound", floor, why, is_ignorable=False)
    rope = rope_parameters(config)
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise refusal(rope_table(config), dict(rope), "only rotations without scaling are computed")
    meanings = {"full_attention": 1, "linear_attention": 0}
    return latent_keys(config) | {
        "attention.head_count_kv": layer_kinds(config, kinds, meanings),
        "kda.gate_lower_bound": floor,
        "kda.head_dim": config.get("linear_head_dim", config["head_dim"]),
        "leading_dense_block_count": leading_dense_layers(config, config["first_k_dense_replace"]),
        "ssm.conv_kernel": config.get("linear_conv_kernel_dim", config["short_conv_kernel_size"]),
    }


def _ling3_values(_config: Config) -> Values:
    """As :func:`_values`, but the rates are positive, as in GGUF files of this architecture."""

    def rates(logarithms: NDArray[Any]) -> NDArray[Any]:
        positive_rates: NDArray[Any] = np.exp(logarithms.reshape(-1, 1))
        return positive_rates

    return {"ssm_a": rates}


_NO_LIMITS = read("must be 0 or null for each layer")
# Names of tensors within the attention, in published folders and in transformers' modules.
_LING3_TENSORS = {
    **{f"{part}_conv1d": f"ssm_conv1d_{part}" for part in "qkv"},
    **{f"{part}_proj": f"attn_{part}" for part in "qkv"},
    "A_log": "ssm_a",
    "b_proj": "ssm_beta",
    "dense": "attn_output",
    "dt_bias": "ssm_dt.bias",
    "f_proj": "ssm_f_a",
    "g_proj": "attn_gate",
    "kv_a_layernorm": "attn_kv_a_norm",
    "kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "kv_b_proj": "attn_kv_b",
    "o_norm": "ssm_norm",
    "o_proj": "attn_output",
    "q_a_layernorm": "attn_q_a_norm",
    "q_a_proj": "attn_q_a",
    "q_b_proj": "attn_q_b",
}
register(
    title="Ling and Ring 3",
    architecture="bailingmoe3",
    model_types=("bailing_hybrid",),
    aliases=_ALIASES,
    config_keys={
        **_CONFIG,
        **reads("kda_lower_bound layer_group_size short_conv_kernel_size"),
        "expert_swiglu_limit_list": _NO_LIMITS,
        "gated_attention_proj_granularity_type": neutral(None, "head_wise"),
        "head_dim": read("width of a head of linear attention"),
        "kda_safe_gate": neutral(None, True),
        "moe_shared_expert_intermediate_size": Rule("the tensors are as wide as other experts"),
        "no_kda_lora": neutral(None, True),
        "rope_interleave": neutral(None, True),
        "share_expert_swiglu_limit_list": _NO_LIMITS,
    },
    gguf_keys={
        **_KEYS,
        **reads("expert_shared_feed_forward_length kda.gate_lower_bound"),
        **dict.fromkeys(_LIMITS, read("must be 0 for each layer")),
        "kda.safe_gate": neutral(True),
    },
    tensors={
        f"{module}.{own}": name
        for module in ("attention", "self_attn", "self_attn.forget_gate")
        for own, name in _LING3_TENSORS.items()
    }
    | {"mlp.gate.expert_bias": "exp_probs_b.bias"},
    names_with_states={"attn_gate": "ssm_g_a"},
    values=_ling3_values,
    more_blocks=True,
    rope_style="interleaved",
    gguf_rope_style="interleaved",
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "exp_probs_b.bias", "ssm_dt.bias"),
        ignores=(),
        needs=frozenset({"attention", "state"}),
    ),
    translate=_ling3_keys,
    decoder=_ling3,
)

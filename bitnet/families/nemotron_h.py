"""Nemotron-H, dense: each layer is Mamba-2, attention without RoPE, or a feed-forward network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.families.blocks import Branch, FeedForward, Mixer
from bitnet.families.dense import attention, model_of, per_layer, sizes
from bitnet.families.family import Family, LlamaCppSupport, register
from bitnet.families.mamba2 import (
    MAMBA2_KEYS,
    NO_LIMIT,
    mamba2,
    mamba2_keys,
    mamba2_tensors,
    mamba2_values,
)
from bitnet.families.rules import Rule, neutral, read, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys

_KINDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_IGNORED = Rule("transformers ignores it")
_EXPERTS = Rule("of layers with experts, which are refused")
_FORMER_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}


def _decoder(keys: Keys) -> ModelConfig:
    its = sizes(keys, ffn=0)
    kv_heads = per_layer(keys, "attention.head_count_kv", its.layers)
    widths = per_layer(keys, "feed_forward_length", its.layers)
    states = mamba2(keys)

    def mixer(heads: int, width: int) -> Mixer:
        if width:
            return FeedForward(width, "relu", gated=False)  # relu(x) * x
        return attention(keys, its.dim, kv_heads=heads, rope=None) if heads else states

    blocks = (
        (Branch("attn_norm", (mixer(heads, width),)),)
        for heads, width in zip(kv_heads, widths, strict=True)
    )
    return model_of(keys, its, blocks)


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    kinds = config.get("layers_block_type") or config.get("layer_types")
    if kinds is None:
        kinds = [_KINDS[letter] for letter in config["hybrid_override_pattern"]]
    kinds = [_FORMER_NAMES.get(kind, kind) for kind in kinds]
    for kind in kinds:
        if kind not in ("linear_attention", "full_attention", "mlp"):
            raise refusal(
                "layers_block_type",
                kind,
                model="config.json",
                kind="Nemotron-H",
                why="layers with experts are not computed",
            )
    heads, width = config["num_key_value_heads"], config["intermediate_size"]
    epsilon = config["rms_norm_eps"]
    return {
        "block_count": len(kinds),
        "attention.head_count_kv": [heads if kind == "full_attention" else 0 for kind in kinds],
        "feed_forward_length": [width if kind == "mlp" else 0 for kind in kinds],
        "attention.layer_norm_epsilon": epsilon,
        **mamba2_keys(
            heads=config["mamba_num_heads"],
            width=config["mamba_num_heads"] * config["mamba_head_dim"],
            groups=config["n_groups"],
            state_size=config["ssm_state_size"],
            kernel=config["conv_kernel"],
        ),
    }


register(
    Family(
        title="Nemotron-H, dense",
        architecture="nemotron_h",
        model_types=("nemotron_h",),
        activation="relu2",
        aliases={
            "layer_norm_epsilon": "rms_norm_eps",
            "mamba_conv_bias": "use_conv_bias",
            "mamba_d_conv": "conv_kernel",
            "mamba_n_groups": "n_groups",
        },
        defaults={
            "conv_kernel": 4,
            "head_dim": 128,
            "intermediate_size": 21504,
            "layer_norm_epsilon": 1e-5,
            "mamba_head_dim": 64,
            "mamba_num_heads": 128,
            "max_position_embeddings": 4096,
            "n_groups": 8,
            "num_key_value_heads": 8,
            "ssm_state_size": 128,
            "use_conv_bias": True,
        },
        config_keys={
            "attention_bias": _IGNORED,
            "conv_kernel": read("positions of a convolution"),
            "hybrid_override_pattern": read("a letter for each layer, without `layers_block_type`"),
            "layer_norm_epsilon": read("epsilon of every norm"),
            "layer_types": read("other name of `layers_block_type`"),
            "layers_block_type": read(
                "what each layer is: a state-space model, attention, a network"
            ),
            "mamba_conv_bias": read("other name of `use_conv_bias`"),
            "mamba_d_conv": read("other name of `conv_kernel`"),
            "mamba_head_dim": read("width of a head of a state-space model"),
            "mamba_hidden_act": neutral(None, "silu"),
            "mamba_n_groups": read("other name of `n_groups`"),
            "mamba_num_heads": read("heads of a state-space model"),
            "mamba_proj_bias": _IGNORED,
            "mlp_bias": read("biases in the feed-forward network"),
            "mlp_hidden_act": neutral(None, "relu2"),
            "moe_intermediate_size": _EXPERTS,
            "n_groups": read("groups of heads that share inputs and outputs of states"),
            "n_routed_experts": _EXPERTS,
            "num_experts_per_tok": _EXPERTS,
            "num_nextn_predict_layers": _EXPERTS,
            "sliding_window": _IGNORED,
            "ssm_state_size": read("rows of a state"),
            "time_step_limit": NO_LIMIT,
            "time_step_min": Rule("no limit, as in llama.cpp; transformers limits prompts only"),
            "use_bias": read("biases of the projections of a state-space model"),
            "use_conv_bias": read("biases of convolutions"),
        },
        gguf_keys={
            **MAMBA2_KEYS,
            "attention.head_count_kv": read("key and value heads; 0: a layer without attention"),
            "attention.layer_norm_epsilon": read("as `attention.layer_norm_rms_epsilon`"),
            "feed_forward_length": read("width inside a network; 0: a layer without one"),
        },
        tensors={
            "embeddings": "token_embd",
            "norm_f": "output_norm",
            "norm": "attn_norm",
            "mixer.q_proj": "attn_q",
            "mixer.k_proj": "attn_k",
            "mixer.v_proj": "attn_v",
            "mixer.o_proj": "attn_output",
            "mixer.up_proj": "ffn_up",
            "mixer.down_proj": "ffn_down",
            **mamba2_tensors("mixer"),
        },
        values=lambda config: mamba2_values(config["n_groups"]),
        biases={
            "mlp_bias": ("ffn_up", "ffn_down"),
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
            ),
            required=("ssm_conv1d.bias",),
            ignores=(),
            needs=frozenset({"attention", "state"}),
        ),
        partial_rotation=True,
        translate=_translate,
        decoder=_decoder,
    )
)

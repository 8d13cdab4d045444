"""Falcon-H1: attention and Mamba-2 behind one norm.

A GGUF file has the model's many factors in its weights. A folder has them as keys, and its weights
are multiplied by them when they are read.
"""

from __future__ import annotations

import numpy as np

from bitnet.families.blocks import Branch, FeedForward
from bitnet.families.dense import ModelConfig, attention, check_parts, model_of, sizes
from bitnet.families.family import (
    ATTENTION,
    MLP,
    QKV,
    LlamaCppSupport,
    RowFactors,
    Values,
    register,
)
from bitnet.families.keys import Config, Keys, Rule, read, reads, wrong_config
from bitnet.families.mamba2 import MAMBA2_CONFIG, MAMBA2_KEYS, mamba2, mamba2_values

#: Keys of ``config.json`` with one factor each.
_FACTORS = (
    "attention_in_multiplier",
    "attention_out_multiplier",
    "embedding_multiplier",
    "key_multiplier",
    "lm_head_multiplier",
    "ssm_in_multiplier",
    "ssm_out_multiplier",
)


def _falcon_h1(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys)
    check_parts(keys, "ssm_norm", key="mamba_rms_norm")
    norm = {} if "blk.0.ssm_norm.weight" in keys.weights else {"norm_groups": 0}
    # in a GGUF file the norm is behind the gate; in a folder before it, unless a key is false
    is_first = bool(keys.config is not None and keys.text_config["mamba_norm_before_gate"])
    mixers = (attention(keys, model_sizes.dim), mamba2(keys, norm_first=is_first, **norm))
    network = FeedForward(model_sizes.ffn)
    block = (Branch("attn_norm", mixers), Branch("ffn_norm", (network,)))
    return model_of(keys, model_sizes, [block] * model_sizes.layers, unsuffixed_norms=("ffn_norm",))


def _width(config: Config) -> int:
    """Width of all heads of Mamba-2."""
    width = config["mamba_d_ssm"]
    heads = config["mamba_n_heads"]
    if width is None:
        width = config["mamba_expand"] * config["hidden_size"]
    head_dim = config["mamba_d_head"]
    if head_dim != "auto" and head_dim * heads != width:
        raise wrong_config(
            f"mamba_n_heads {heads} of mamba_d_head {head_dim} do not have the width "
            f"mamba_d_ssm, or mamba_expand times hidden_size, {width}"
        )
    return int(width)


def _falcon_factors(config: Config) -> dict[str, float]:
    """Factors on tensors; a factor on inputs does not count for the bias of their product."""
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
    """As :func:`mamba2_values`, and functions for ``ssm_in``, whose groups of rows have factors."""
    width = _width(config)
    states = config["mamba_n_groups"] * config["mamba_d_state"]
    # rows of gates, of values, of states' inputs (B) and outputs (C), and of steps
    parts = (width, width, states, states, config["mamba_n_heads"])
    factors = config["ssm_multipliers"] or [1.0] * len(parts)
    if len(factors) != len(parts):
        raise wrong_config(f"ssm_multipliers has {len(factors)} entries, expected {len(parts)}")

    row_factors = np.array(factors, dtype=np.float32) * np.float32(config["ssm_in_multiplier"])
    return {
        **mamba2_values(config["mamba_n_groups"]),
        "ssm_in.weight": RowFactors(tuple(row_factors.tolist()), parts),
        "ssm_in.bias": RowFactors(tuple(factors), parts),
    }


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

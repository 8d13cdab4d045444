"""Mamba-2, which several families share, and Falcon-H1: attention and Mamba-2 behind one norm.

The many factors of Falcon-H1 are part of the weights in GGUF, and are multiplied into those of a
folder.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.families.blocks import Branch
from bitnet.families.dense import attention, model_of, sizes
from bitnet.families.family import ATTENTION, MLP, QKV, Family, LlamaCppSupport, register
from bitnet.families.keys import contradiction, neutral, read
from bitnet.families.mixers import FeedForward, Mamba2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys

#: Rules of its keys in GGUF files.
MAMBA2_KEYS = {
    "attention.causal": neutral(True, note="states look back only"),
    "attention.sliding_window": neutral(0),
    "ssm.conv_kernel": read("positions of the convolution"),
    "ssm.group_count": read("groups of heads that share inputs and outputs of states"),
    "ssm.inner_size": read("width of all heads"),
    "ssm.state_size": read("rows of a state"),
    "ssm.time_step_rank": read("heads of the state-space model"),
}
_INFINITY = {"__float__": "Infinity"}  # as transformers writes it
NO_LIMIT = neutral(None, [0.0, math.inf], [0.0, _INFINITY], note="steps are not limited")


#: Rules of most of its keys in ``config.json``.
MAMBA2_CONFIG = {
    "mamba_d_conv": read("positions of a convolution"),
    "mamba_d_head": read("must be the width of a head"),
    "mamba_d_state": read("rows of a state"),
    "mamba_n_groups": read("groups of heads that share inputs and outputs of states"),
    "mamba_n_heads": read("heads of the state-space model"),
    "time_step_limit": NO_LIMIT,
}


def mamba2(keys: Keys, **more: Any) -> Mamba2:
    """The mixer, with *more* fields, as all families read its keys."""
    heads, width = keys.integer("ssm.time_step_rank"), keys.integer("ssm.inner_size")
    if width % max(heads, 1):
        raise contradiction(keys, f"{heads} heads of a state-space model that are {width} wide")
    groups = keys.integer("ssm.group_count")
    sizes_of_states = keys.integer("ssm.state_size"), keys.integer("ssm.conv_kernel")
    more = {"norm_groups": groups, **more}
    return Mamba2(heads, width // max(heads, 1), groups, *sizes_of_states, **more)


def mamba2_keys(
    *, heads: int, width: int, groups: int, state_size: int, kernel: int
) -> dict[str, Any]:
    """The keys of a GGUF file."""
    return {
        "ssm.conv_kernel": kernel,
        "ssm.group_count": groups,
        "ssm.inner_size": width,
        "ssm.state_size": state_size,
        "ssm.time_step_rank": heads,
    }


def mamba2_tensors(module: str) -> dict[str, str]:
    """GGUF's names of the tensors below *module* of a layer."""
    return {
        f"{module}.in_proj": "ssm_in",
        f"{module}.conv1d": "ssm_conv1d",
        f"{module}.dt_bias": "ssm_dt.bias",
        f"{module}.A_log": "ssm_a",
        f"{module}.D": "ssm_d",
        f"{module}.norm": "ssm_norm",
        f"{module}.out_proj": "ssm_out",
    }


def mamba2_values(groups: int) -> Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]]:
    """Functions from a folder's tensors to GGUF's."""
    return {
        "ssm_a": lambda logarithms: -np.exp(logarithms)[:, None],
        "ssm_conv1d.weight": lambda weight: weight[:, 0],
        "ssm_d": lambda factors: factors[:, None],
        "ssm_norm.weight": lambda weight: weight.reshape(groups, -1),
    }


def _falcon_h1(keys: Keys) -> ModelConfig:
    its = sizes(keys)
    norm = {} if "blk.0.ssm_norm.weight" in keys.weights else {"norm_groups": 0}
    first = bool(keys.config and keys.config.get("mamba_norm_before_gate", True))
    mixers = attention(keys, its.dim), mamba2(keys, norm_first=first, **norm)
    block = Branch("attn_norm", mixers), Branch("ffn_norm", (FeedForward(its.ffn),))
    return model_of(keys, its, [block] * its.layers, bare_norms=("ffn_norm",))


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    return mamba2_keys(
        heads=config["mamba_n_heads"],
        width=_width(config),
        groups=config["mamba_n_groups"],
        state_size=config["mamba_d_state"],
        kernel=config["mamba_d_conv"],
    )


def _width(config: Mapping[str, Any]) -> int:
    """Width of all heads of Mamba-2."""
    width, heads = config["mamba_d_ssm"], config["mamba_n_heads"]
    if width is None:
        width = config["mamba_expand"] * config["hidden_size"]
    head_dim = config["mamba_d_head"]
    if head_dim != "auto" and head_dim * heads != width:
        raise ValueError(f"{heads} heads of {head_dim}, which are not {width} wide")
    return int(width)


def _factors(config: Mapping[str, Any]) -> dict[str, float]:
    gate, down = config["mlp_multipliers"] or (1.0, 1.0)
    inner, key = config["attention_in_multiplier"], config["key_multiplier"]
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


def _values(config: Mapping[str, Any]) -> dict[str, Callable[[NDArray[Any]], NDArray[Any]]]:
    width, states = _width(config), config["mamba_n_groups"] * config["mamba_d_state"]
    parts = (width, width, states, states, config["mamba_n_heads"])
    factors = np.array(config["ssm_multipliers"] or [1.0] * 5, dtype=np.float32)
    rows = np.repeat(factors, parts)
    return {
        **mamba2_values(config["mamba_n_groups"]),
        "ssm_in.weight": partial(
            np.multiply, rows[:, None] * np.float32(config["ssm_in_multiplier"])
        ),
        "ssm_in.bias": partial(np.multiply, rows),
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
    Family(
        title="Falcon-H1",
        architecture="falcon-h1",
        model_types=("falcon_h1",),
        defaults={
            **dict.fromkeys(_FACTORS, 1.0),
            "mamba_d_conv": 4,
            "mamba_d_head": "auto",
            "mamba_d_ssm": 1024,
            "mamba_d_state": 256,
            "mamba_expand": 2,
            "mamba_conv_bias": True,
            "mamba_n_groups": 1,
            "mamba_n_heads": 128,
            "max_position_embeddings": 8192,
            "mlp_multipliers": None,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "ssm_multipliers": None,
        },
        config_keys={
            **MAMBA2_CONFIG,
            **dict.fromkeys(_FACTORS, read("factor, multiplied into weights")),
            "mamba_d_ssm": read("width of all heads of the state-space model"),
            "mamba_expand": read("without `mamba_d_ssm`: that over `hidden_size`"),
            "mamba_norm_before_gate": read("its norm is before the gate"),
            "mamba_rms_norm": read("it has a norm"),
            "mlp_multipliers": read("factors on the gate and the output of that network"),
            "ssm_multipliers": read("factors on the five parts of its input projection"),
        },
        gguf_keys=MAMBA2_KEYS,
        tensors={
            "final_layernorm": "output_norm",
            "pre_ff_layernorm.weight": "ffn_norm",  # as llama.cpp reads it
            "feed_forward.gate_proj": "ffn_gate",
            "feed_forward.up_proj": "ffn_up",
            "feed_forward.down_proj": "ffn_down",
            **mamba2_tensors("mamba"),
        },
        values=_values,
        factors=_factors,
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
        translate=_translate,
        decoder=_falcon_h1,
    )
)

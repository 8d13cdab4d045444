"""Mamba 2: the mixer, which several families have, and the family whose blocks have no other."""

from __future__ import annotations

import math
from typing import Any

from bitnet.families.blocks import Branch, Mamba2
from bitnet.families.dense import ModelConfig, model_of, sizes
from bitnet.families.family import LlamaCppSupport, Values, register
from bitnet.families.keys import Config, Keys, contradiction, neutral, reads, wrong_config
from bitnet.families.linear import decay_rates

#: Rules for the mixer's keys in GGUF files.
MAMBA2_KEYS = {
    "attention.causal": neutral(True, note="states look back only"),
    "attention.sliding_window": neutral(0),
    **reads("ssm.conv_kernel ssm.group_count ssm.inner_size ssm.state_size ssm.time_step_rank"),
}
_INFINITY = {"__float__": "Infinity"}  # as transformers writes it
#: Rule for ``time_step_limit``.
NO_LIMIT = neutral(None, [0.0, math.inf], [0.0, _INFINITY], note="steps are not limited")
#: Rules for the mixer's keys in ``config.json`` that most families with it have.
MAMBA2_CONFIG = {
    **reads("mamba_d_conv mamba_d_head mamba_d_state mamba_n_groups mamba_n_heads"),
    "time_step_limit": NO_LIMIT,
}


def mamba2(keys: Keys, **overrides: Any) -> Mamba2:
    """The mixer, from the keys that all families with Mamba-2 have.

    *overrides* are fields of :class:`Mamba2` that replace those from the keys.

    Raises:
        InvalidFormat: the width is not a multiple of the number of heads.
    """
    heads = keys.integer("ssm.time_step_rank")
    width = keys.integer("ssm.inner_size")
    if width % max(heads, 1):
        problem = f"the width of the state-space model, {width}, is not a multiple of {heads} heads"
        raise contradiction(keys, problem)
    groups = keys.integer("ssm.group_count")
    state_size = keys.integer("ssm.state_size")
    kernel = keys.integer("ssm.conv_kernel")
    fields = {"norm_groups": groups, **overrides}
    return Mamba2(heads, width // max(heads, 1), groups, state_size, kernel, **fields)


def mamba2_values(groups: int) -> Values:
    """Functions from a folder's tensors to GGUF's, for a mixer with so many *groups*."""
    return {
        "ssm_a": lambda logarithms: decay_rates(logarithms)[:, None],
        "ssm_conv1d.weight": lambda weight: weight[:, 0],
        "ssm_d": lambda factors: factors[:, None],
        "ssm_norm.weight": lambda weight: weight.reshape(groups, -1),
    }


def _mamba2_alone(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys, ffn=0)
    block = (Branch("attn_norm", (mamba2(keys),)),)
    return model_of(keys, model_sizes, [block] * model_sizes.layers)


def _mamba2_keys(config: Config) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    head_dim = config["head_dim"]
    width = config["expand"] * config["hidden_size"]
    if heads * head_dim != width:
        raise wrong_config(
            f"num_heads {heads} of head_dim {head_dim} do not have the width expand times "
            f"hidden_size, {width}"
        )
    return {
        "attention.head_count": 0,
        "attention.head_count_kv": 0,
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "feed_forward_length": 0,
        "ssm.inner_size": width,
        "ssm.time_step_rank": heads,
    }


# Each block is a state space. A folder does not state a context length, hence the default, 2**20.
register(
    title="Mamba 2",
    architecture="mamba2",
    aliases={"num_heads": "num_attention_heads", "state_size": "ssm_state_size"},
    defaults={"max_position_embeddings": 1 << 20},
    config_keys={
        **reads("conv_kernel expand layer_norm_epsilon n_groups ssm_state_size"),
        "time_step_limit": NO_LIMIT,
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

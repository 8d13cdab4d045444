"""Families with the first Mamba: Mamba 1, Falcon-Mamba and, beside attention, Jamba.

Each channel has a state of its own, whose numbers decay at different rates.
"""

from __future__ import annotations

from typing import Any, Literal

from bitnet.families.blocks import Branch, FeedForward, Mamba1, Mixer
from bitnet.families.dense import ModelConfig, attention, model_of, per_layer, sizes, usual_block
from bitnet.families.experts import EXPERT_CONFIG, EXPERT_KEYS, experts
from bitnet.families.family import LlamaCppSupport, Values, register, register_variant
from bitnet.families.keys import Config, Keys, contradiction, neutral, read, reads
from bitnet.families.lfm2 import CONVOLUTION_KEYS
from bitnet.families.linear import decay_rates

_KEYS = {
    "attention.causal": CONVOLUTION_KEYS["attention.causal"],
    "attention.sliding_window": neutral(0),
    **reads("ssm.conv_kernel ssm.inner_size ssm.state_size ssm.time_step_rank"),
}
# By default, the width of the vector that gives the steps (``dt_rank``) is hidden_size over this.
_CHANNELS = 16


def _mamba1(keys: Keys) -> Mamba1:
    """The mixer, from the keys that all of these families have."""
    norms: Literal["", "weighted", "bare"] = "weighted" if keys.architecture == "jamba" else ""
    if keys.flag("ssm.dt_b_c_rms", False):
        norms = "bare"
    eps = keys.number("attention.layer_norm_rms_epsilon")
    return Mamba1(
        width=keys.integer("ssm.inner_size"),
        state_size=keys.integer("ssm.state_size"),
        step_rank=keys.integer("ssm.time_step_rank"),
        kernel=keys.integer("ssm.conv_kernel"),
        norms=norms,
        eps=keys.number("ssm.layer_norm_rms_epsilon", eps),
    )


def _states_alone(keys: Keys) -> ModelConfig:
    """Blocks of a single mixer, without a network."""
    model_sizes = sizes(keys, ffn=0)
    block = (Branch("attn_norm", (_mamba1(keys),)),)
    return model_of(keys, model_sizes, [block] * model_sizes.layers)


def _step_rank(config: Config, key: str) -> int:
    """Width of the vector that gives the steps: the value of *key*, or its default if not set."""
    rank = config[key]
    return -(-config["hidden_size"] // _CHANNELS) if rank in (None, "auto") else int(rank)


def _values(_config: Config) -> Values:
    """Functions that make rates of decay, and remove the axis of length 1 from kernels."""
    return {"ssm_a": decay_rates, "ssm_conv1d.weight": lambda weight: weight[:, 0]}


def _mamba_keys(config: Config) -> dict[str, Any]:
    return {
        "attention.head_count": 0,
        "attention.head_count_kv": 0,
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "feed_forward_length": 0,
        "ssm.inner_size": config.get("intermediate_size")
        or int(config["expand"] * config["hidden_size"]),
        "ssm.time_step_rank": _step_rank(config, "time_step_rank"),
    }


def _tensors(module: str) -> dict[str, str]:
    """Names within a layer of the tensors that only this Mamba has, in the *module*."""
    return {
        f"{module}.x_proj": "ssm_x",
        f"{module}.dt_proj": "ssm_dt",
        f"{module}.dt_layernorm": "ssm_dt_norm",
        f"{module}.b_layernorm": "ssm_b_norm",
        f"{module}.c_layernorm": "ssm_c_norm",
    }


# Each block is a state space. A folder does not state a context length, hence the default, 2**20.
_MAMBA = register(
    title="Mamba 1",
    architecture="mamba",
    aliases={"state_size": "ssm_state_size"},
    defaults={"max_position_embeddings": 1 << 20, "num_attention_heads": 0},
    config_keys={
        **reads("conv_kernel expand layer_norm_epsilon ssm_state_size"),
        "time_step_rank": read("numbers that steps are made of; auto: one for 16 of hidden_size"),
    },
    gguf_keys={
        **_KEYS,
        "ssm.dt_b_c_rms": read("norms of steps, inputs and outputs of states"),
        "ssm.layer_norm_rms_epsilon": read("their epsilon, where it is not that of the others"),
    },
    tensors={"norm": "attn_norm", **_tensors("mixer")},
    values=_values,
    biases={
        "": ("ssm_dt",),
        "use_bias": ("ssm_in", "ssm_out"),
        "use_conv_bias": ("ssm_conv1d",),
    },
    rotates=False,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "ssm_conv1d.bias", "ssm_dt.bias"),
        required=("ssm_conv1d.bias",),
        ignores=(),
        wide_states=True,
    ),
    translate=_mamba_keys,
    decoder=_states_alone,
)


def _falcon_keys(config: Config) -> dict[str, Any]:
    own = {"ssm.dt_b_c_rms": True, "ssm.layer_norm_rms_epsilon": config["mixer_rms_eps"]}
    return _mamba_keys(config) | own


register_variant(
    _MAMBA,
    title="Falcon-Mamba",
    in_gguf=False,
    model_types=("falcon_mamba",),
    config_keys=reads("mixer_rms_eps"),
    translate=_falcon_keys,
)


def _check_experts(keys: Keys, layers: int) -> None:
    """Refuse a folder with experts in other layers than its ``config.json`` says."""
    if keys.config is None:
        return
    period = keys.text_config["expert_layer_period"]
    offset = keys.text_config["expert_layer_offset"]
    has_several = keys.integer("expert_count", 0) > 1
    for layer in range(layers):
        is_expected = has_several and layer % period == offset
        if is_expected != (f"blk.{layer}.ffn_gate_inp.weight" in keys.weights):
            experts_there = "no experts" if is_expected else "experts"
            raise contradiction(
                keys,
                f"layer {layer} has {experts_there}, against expert_layer_period = {period} and "
                f"expert_layer_offset = {offset}",
            )


def _jamba(keys: Keys) -> ModelConfig:
    """Mamba in layers without key heads, attention in others; experts in layers with a router."""
    model_sizes = sizes(keys)
    _check_experts(keys, model_sizes.layers)
    kv_heads = per_layer(keys, "attention.head_count_kv", model_sizes.layers)
    state = _mamba1(keys)
    network = FeedForward(model_sizes.ffn)

    def make_block(layer: int, heads: int) -> tuple[Branch, ...]:
        mixer: Mixer = state
        if heads:
            mixer = attention(keys, model_sizes.dim, kv_heads=heads, rope=None)
        if f"blk.{layer}.ffn_gate_inp.weight" not in keys.weights:
            return usual_block(mixer, network)
        routing = {"renormalised": False}
        return usual_block(mixer, experts(keys, width=model_sizes.ffn, routing=routing))

    return model_of(keys, model_sizes, [make_block(*each) for each in enumerate(kv_heads)])


def _jamba_keys(config: Config) -> dict[str, Any]:
    period = config["attn_layer_period"]
    offset = config["attn_layer_offset"]
    heads = config["num_key_value_heads"]
    layers = range(config["num_hidden_layers"])
    return {
        "attention.head_count_kv": [heads if at % period == offset else 0 for at in layers],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.time_step_rank": _step_rank(config, "mamba_dt_rank"),
    }


register(
    title="Jamba",
    architecture="jamba",
    config_keys={
        **EXPERT_CONFIG,
        **reads("attn_layer_offset attn_layer_period expert_layer_offset expert_layer_period"),
        **reads("mamba_d_conv mamba_d_state mamba_expand"),
        "mamba_dt_rank": read("numbers that steps are made of; auto: one for 16 of hidden_size"),
        "sliding_window": neutral(None),
    },
    gguf_keys=_KEYS | EXPERT_KEYS,
    tensors={
        **_tensors("mamba"),
        "feed_forward.router": "ffn_gate_inp",
        "pre_ff_layernorm.weight": "ffn_norm.weight",
    },
    values=_values,
    biases={
        "": ("ssm_dt",),
        "mamba_conv_bias": ("ssm_conv1d",),
        "mamba_proj_bias": ("ssm_in", "ssm_out"),
    },
    rotates=False,
    llama_cpp=LlamaCppSupport(
        tensors=("output.weight", "ssm_conv1d.bias", "ssm_dt.bias"),
        required=("ssm_conv1d.bias",),
        ignores=(),
        only_whole_width=True,
        wide_states=True,
        needs=frozenset({"attention", "state"}),
    ),
    translate=_jamba_keys,
    decoder=_jamba,
)

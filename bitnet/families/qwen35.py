"""Qwen 3.5 to 3.8: gated delta nets, with gated attention in every fourth layer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.families.blocks import Branch
from bitnet.families.dense import attention, layer_kinds, model_of, sizes
from bitnet.families.experts import (
    EXPERT_CONFIG,
    EXPERT_TENSORS,
    SHARED_KEYS,
    expert_keys,
    experts,
)
from bitnet.families.family import (
    ATTENTION,
    BIASES,
    Family,
    LlamaCppSupport,
    register,
    register_variant,
)
from bitnet.families.keys import contradiction, neutral, read, refusal
from bitnet.families.mixers import DeltaNet, FeedForward

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys
    from bitnet.families.mixers import Experts

_PERIOD = 4
_IS_LINEAR = {"linear_attention": True, "full_attention": False}


def _decoder(keys: Keys) -> ModelConfig:
    model_sizes = sizes(keys)
    drafting = keys.integer("nextn_predict_layers", 0)  # blocks at the end, not of the text
    layers = range(model_sizes.layers - drafting)
    full = attention(keys, model_sizes.dim, qk_norm="head", gated=True)
    pairs = keys.integer("rope.dimension_count", full.head_dim) // 2
    sections = keys.value("rope.dimension_sections", _sections(pairs))
    if not isinstance(sections, list) or sections != _sections(pairs):
        why = f"only {_sections(pairs)}, which cover all {pairs} pairs, is computed"
        key, label = "rope.dimension_sections", keys.path.name
        raise refusal(key, sections, why, model=label, kind="Qwen 3.5")
    heads = keys.integer("ssm.time_step_rank")
    linear = DeltaNet(
        heads=heads,
        key_heads=keys.integer("ssm.group_count"),
        key_dim=keys.integer("ssm.state_size"),
        value_dim=keys.integer("ssm.inner_size") // max(heads, 1),
        kernel=keys.integer("ssm.conv_kernel"),
        grouped=keys.config is not None,
    )
    network: FeedForward | Experts = FeedForward(model_sizes.ffn)
    if keys.architecture == "qwen35moe":
        network = _experts(keys, model_sizes.ffn)
    blocks = (
        (
            Branch("attn_norm", (linear if is_linear else full,)),
            Branch("post_attention_norm", (network,)),
        )
        for is_linear in _linear_layers(keys, model_sizes.layers)[: len(layers)]
    )
    model = model_of(keys, model_sizes, blocks)
    last = f"blk.{len(layers)}."
    own = {f"{last}nextn.{name}.weight" for name in ("embed_tokens", "shared_head_head")}
    if drafting != 1 or own & keys.weights.keys():  # only one block with the model's head drafts
        left_out = tuple(f"blk.{layer}." for layer in range(len(layers), model_sizes.layers))
        return replace(model, left_out=left_out)
    if f"{last}nextn.eh_proj.weight" not in keys.weights:
        return model  # the file was written without the block
    block = Branch("attn_norm", (full,)), Branch("post_attention_norm", (network,))
    drafter = replace(model, blocks=(block,), first_block=len(layers), joined=True)
    return replace(model, drafter=drafter)


def _experts(keys: Keys, width: int) -> Experts:
    return experts(
        keys,
        width=width // max(keys.integer("expert_used_count"), 1),
        shared=keys.integer("expert_shared_feed_forward_length", width),
        shared_gated=True,
    )


def _sections(pairs: int) -> list[int]:
    """Pairs that rotate by each coordinate, in turn; those of a text have equal coordinates."""
    return [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0]


def _linear_layers(keys: Keys, layers: int) -> list[bool]:
    """True for each block without attention over all positions."""
    recurrent = keys.value("attention.recurrent_layers", None)
    if recurrent is None:
        period = keys.integer("full_attention_interval", _PERIOD)
        if not period:
            raise contradiction(keys, "full_attention_interval is 0, expected at least 1")
        return [(layer + 1) % period != 0 for layer in range(layers)]
    if not isinstance(recurrent, list) or len(recurrent) != layers:
        problem = f"is {recurrent!r}, expected {layers} entries"
        raise contradiction(keys, f"attention.recurrent_layers {problem}")
    return [bool(value) for value in recurrent]


def _translate(config: Mapping[str, Any]) -> dict[str, Any]:
    is_linear = layer_kinds(config, config.get("layer_types"), _IS_LINEAR)
    if is_linear is None:
        period = config.get("full_attention_interval", _PERIOD)
        is_linear = [(layer + 1) % period != 0 for layer in range(config["num_hidden_layers"])]
    heads, rope = config["linear_num_value_heads"], config["rope_parameters"]
    share = rope.get("partial_rotary_factor", config["partial_rotary_factor"])
    pairs = int(config["head_dim"] * share) // 2
    return {
        "attention.recurrent_layers": is_linear,
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * config["linear_value_head_dim"],
        "rope.dimension_sections": _sections(pairs),
    }


def _translate_experts(config: Mapping[str, Any]) -> dict[str, Any]:
    shared = {"expert_shared_feed_forward_length": config["shared_expert_intermediate_size"]}
    return _translate(config) | expert_keys(config, 256, "moe_intermediate_size") | shared


_QWEN35 = register(
    Family(
        title="Qwen 3.5, 3.6 and 3.8, dense",
        architecture="qwen35",
        model_types=("qwen3_5", "qwen3_5_text"),
        defaults={
            "head_dim": 256,
            "num_key_value_heads": 4,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "partial_rotary_factor": 0.25,
            "rope_parameters": {},
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768,
        },
        config_keys={
            "attn_output_gate": neutral(None, True),
            "full_attention_interval": read("one layer in this many has attention"),
            "layer_types": read("which layers have attention, which a delta net"),
            "linear_conv_kernel_dim": read("positions of the convolution"),
            "linear_key_head_dim": read("width of a key of the delta net"),
            "linear_num_key_heads": read("its key heads"),
            "linear_num_value_heads": read("its heads"),
            "linear_value_head_dim": read("width of a value of the delta net"),
            "mlp_only_layers": neutral(None, []),
            "partial_rotary_factor": read("rotary share of a head"),
        },
        rope_parameters={
            "mrope_section": "of positions in images; those of a text are equal",
            "mrope_interleaved": "as `mrope_section`",
        },
        gguf_keys={
            "attention.recurrent_layers": read("which layers have a delta net"),
            "attention.sliding_window": neutral(0),
            "full_attention_interval": read("one layer in this many has attention"),
            "nextn_predict_layers": read("blocks at the end; a single one drafts tokens"),
            "rope.dimension_sections": read("must cover all pairs, as those of a text do"),
            "ssm.conv_kernel": read("positions of the convolution"),
            "ssm.group_count": read("key heads of the delta net"),
            "ssm.inner_size": read("width of its values"),
            "ssm.state_size": read("width of a key of the delta net"),
            "ssm.time_step_rank": read("heads of the delta net"),
        },
        tensors={
            "post_attention_layernorm": "post_attention_norm",
            "linear_attn.in_proj_qkv": "attn_qkv",
            "linear_attn.in_proj_z": "attn_gate",
            "linear_attn.in_proj_a": "ssm_alpha",
            "linear_attn.in_proj_b": "ssm_beta",
            "linear_attn.conv1d": "ssm_conv1d",
            "linear_attn.norm": "ssm_norm",
            "linear_attn.out_proj": "ssm_out",
            "linear_attn.A_log": "ssm_a",
            "linear_attn.dt_bias": "ssm_dt.bias",
        },
        values=lambda _config: {
            "ssm_a": lambda logarithm: -np.exp(logarithm),
            "ssm_conv1d.weight": partial(np.squeeze, axis=1),
            "ssm_norm.weight": np.asarray,
        },
        biases={"attention_bias": ATTENTION},
        partial_rotation=True,
        norms_from_zero=True,
        llama_cpp=LlamaCppSupport(
            tensors=("output.weight", *BIASES, "ssm_dt.bias"),
            needs=frozenset({"attention", "state"}),
        ),
        translate=_translate,
        decoder=_decoder,
    )
)
register_variant(
    _QWEN35,
    title="Qwen 3.5 and 3.6 with experts",
    architecture="qwen35moe",
    model_types=("qwen3_5_moe", "qwen3_5_moe_text"),
    defaults={
        "num_key_value_heads": 2,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    config_keys={
        **EXPERT_CONFIG,
        "shared_expert_intermediate_size": read("width of the network beside the experts"),
    },
    gguf_keys=SHARED_KEYS,
    tensors={
        **EXPERT_TENSORS,
        "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
        "mlp.shared_expert.up_proj": "ffn_up_shexp",
        "mlp.shared_expert.down_proj": "ffn_down_shexp",
        "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    },
    translate=_translate_experts,
)

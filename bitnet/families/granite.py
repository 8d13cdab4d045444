"""Granite: Llama with scales on embeddings, scores, residuals and logits; also with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.families.dense import dense, sizes
from bitnet.families.experts import EXPERT_CONFIG, EXPERT_KEYS, expert_keys, experts, in_layers
from bitnet.families.family import ATTENTION, MLP, Family, LlamaCppSupport, register
from bitnet.families.rules import neutral, read, refusal

__all__ = [
    "EXPERT_NAMES",
    "SCALES_CONFIG",
    "SCALES_DEFAULTS",
    "SCALES_KEYS",
    "build_with_scales",
    "granite_experts",
    "model_scales",
    "scale_keys",
]

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys
    from bitnet.families.networks import Experts


def scale_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF keys of the scales in a ``config.json``."""
    for key in ("attention_multiplier", "embedding_multiplier", "residual_multiplier"):
        if config[key] == 0:
            raise refusal(
                key,
                0,
                model="config.json",
                kind="Granite",
                why="in GGUF, zero means that there is none",
            )
    return {
        "attention.scale": float(config["attention_multiplier"]),
        "embedding_scale": float(config["embedding_multiplier"]),
        "residual_scale": float(config["residual_multiplier"]),
        "logit_scale": float(config["logits_scaling"]),
    }


def build_with_scales(keys: Keys) -> ModelConfig:
    """ModelConfig of the usual blocks with scales by keys, of which 0 means that there is none."""
    scale = keys.number("attention.scale", 0.0)
    model = dense(
        keys,
        network=in_layers(granite_experts(keys)) if keys.architecture == "granitemoe" else None,
        residual_scale=keys.number("residual_scale", 1.0) or 1.0,
        each=lambda _layer, usual: replace(usual, scale=scale or usual.scale),
    )
    return replace(model, **model_scales(keys))


def model_scales(keys: Keys) -> dict[str, Any]:
    """Fields of :class:`ModelConfig`: factors on embeddings and logits."""
    return {
        "embedding_scale": keys.number("embedding_scale", 1.0) or 1.0,
        "logit_scale": 1 / (keys.number("logit_scale", 1.0) or 1.0),
    }


def granite_experts(keys: Keys) -> Experts:
    """The experts of a layer, and the network beside them."""
    return experts(
        keys,
        width=sizes(keys).ffn,
        routing={"gating": "softmax_chosen", "renormalised": False},
        shared=keys.integer("expert_shared_feed_forward_length", 0),
    )


def _translate_experts(config: Mapping[str, Any]) -> dict[str, Any]:
    shared = config.get("shared_intermediate_size") or 0
    own = {"expert_shared_feed_forward_length": shared} if shared else {}
    return scale_keys(config) | expert_keys(config, 8) | own


SCALES_DEFAULTS = {
    "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
}
SCALES_CONFIG = {
    "attention_bias": read("biases around attention"),
    "attention_multiplier": read("factor on attention scores"),
    "embedding_multiplier": read("factor on embeddings"),
    "residual_multiplier": read("factor on the outputs of attention and feed-forward"),
    "logits_scaling": read("logits are divided by it"),
}
EXPERT_NAMES = {
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    "block_sparse_moe.input_linear": "ffn_gate_up_exps",
    "block_sparse_moe.output_linear": "ffn_down_exps",
    "shared_mlp.input_linear": "ffn_gate_up_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp",
}
SCALES_KEYS = {
    "attention.sliding_window": neutral(0),
    "attention.scale": read("on scores"),
    "embedding_scale": read("on embeddings"),
    "residual_scale": read("on the outputs of attention and feed-forward"),
    "logit_scale": read("logits are divided by it"),
}

register(
    Family(
        title="Granite, dense",
        architecture="granite",
        model_types=("granite",),
        activation="silu",
        gguf_rope_style="interleaved",
        defaults=SCALES_DEFAULTS,
        config_keys=SCALES_CONFIG | {"mlp_bias": read("biases in the feed-forward network")},
        gguf_keys=SCALES_KEYS,
        biases={"attention_bias": ATTENTION, "mlp_bias": MLP},
        llama_cpp=LlamaCppSupport(tensors=("output.weight", ".bias", "rope_freqs.weight")),
        translate=scale_keys,
        decoder=build_with_scales,
    )
)
register(
    Family(
        title="Granite with experts",
        architecture="granitemoe",
        model_types=("granitemoe", "granitemoeshared"),
        activation="silu",
        gguf_rope_style="interleaved",
        defaults=SCALES_DEFAULTS | {"num_experts_per_tok": 2, "shared_intermediate_size": 0},
        config_keys={
            **SCALES_CONFIG,
            **EXPERT_CONFIG,
            "shared_intermediate_size": read("width of the network beside the experts"),
        },
        gguf_keys={
            **SCALES_KEYS,
            **EXPERT_KEYS,
            "expert_shared_feed_forward_length": read("width of the network beside the experts"),
        },
        tensors=EXPERT_NAMES,
        biases={"attention_bias": ATTENTION},
        llama_cpp=LlamaCppSupport(
            tensors=("output.weight", ".bias", "rope_freqs.weight"), nonzero=("logit_scale",)
        ),
        translate=_translate_experts,
        decoder=build_with_scales,
    )
)

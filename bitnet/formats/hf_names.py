"""From Hugging Face's ``config.json`` and tensor names to GGUF's keys and names."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.errors import InvalidFormat, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["ARCHITECTURES", "gguf_keys", "gguf_name", "rope_tensors", "text_config"]

# model_type: GGUF architecture and the activations its graph has.
ARCHITECTURES: dict[str, tuple[str, str]] = {
    "bitnet": ("bitnet-b1.58", "relu2"),
    "gemma2": ("gemma2", "gelu_pytorch_tanh"),
    "gemma3": ("gemma3", "gelu_pytorch_tanh"),
    "gemma3_text": ("gemma3", "gelu_pytorch_tanh"),
    "llama": ("llama", "silu"),
    "mistral": ("llama", "silu"),
    "phi3": ("phi3", "silu"),
    "qwen2": ("qwen2", "silu"),
    "qwen3": ("qwen3", "silu"),
}

# What transformers assumes where a config.json is silent and silence would give another model;
# published Gemma 3 files say little more than their sizes.
_GEMMA = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_GEMMA3 = _GEMMA | {"rope_theta": 1e6, "max_position_embeddings": 131072}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "bitnet": {"rope_theta": 500000.0},
    "gemma2": _GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "mistral": {"sliding_window": 4096},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"use_sliding_window": False, "head_dim": 128},
}

_PLAIN_KEYS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_OUTER = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "lm_head.bias": "output.bias",
}
_INNER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.attn_sub_norm": "attn_sub_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.ffn_sub_norm": "ffn_sub_norm",
}
_INNER_GEMMA = _INNER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_LAYER = re.compile(r"layers\.(?P<number>\d+)\.(?P<part>.+)\.(?P<kind>weight|bias|weight_scale)")
_PREFIX = re.compile(r"^(?:language_model\.)?(?:model\.)?(?:language_model\.)?(?:model\.)?")
_NOT_TEXT = re.compile(
    r"^(?:model\.)?(?:vision_tower|multi_modal_projector)\.|rotary_emb\.inv_freq$"
)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a ``config.json``, checked for what we can run.

    Raises:
        Unsupported: a ``model_type`` or an activation without a graph of ours.
    """
    inner = config.get("text_config")
    found: Mapping[str, Any] = inner if isinstance(inner, dict) else config
    kind = found.get("model_type", config.get("model_type"))
    if kind not in ARCHITECTURES:
        raise Unsupported(
            f"Unsupported architecture: {kind or '(none)'}. "
            f"Supported: {', '.join(sorted(ARCHITECTURES))}",
            hint="choose a model of one of these families",
        )
    wanted = ARCHITECTURES[kind][1]
    activation = found.get("hidden_activation") or found.get("hidden_act") or wanted
    if activation != wanted:
        raise Unsupported(f"{kind} with activation {activation!r}; supported: {wanted!r}")
    return {**_DEFAULTS.get(kind, {}), **found, "model_type": kind}


def gguf_name(name: str, architecture: str) -> str:
    """GGUF's name for the tensor *name*; unchanged where there is none, empty to leave it out.

    A ``weight_scale`` becomes ``<linear>.scale``.
    """
    if _NOT_TEXT.search(name):
        return ""
    short = _PREFIX.sub("", name)
    if short in _OUTER:
        return _OUTER[short]
    match = _LAYER.fullmatch(short)
    inner = _INNER_GEMMA if architecture.startswith("gemma") else _INNER
    part = inner.get(match["part"]) if match else None
    if match is None or part is None:
        return name
    kind = "scale" if match["kind"] == "weight_scale" else match["kind"]
    return f"blk.{match['number']}.{part}.{kind}"


def gguf_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata that says what :func:`text_config`'s *config* says."""
    architecture, _ = ARCHITECTURES[config["model_type"]]
    keys = {key: config[name] for name, key in _PLAIN_KEYS.items() if config.get(name) is not None}
    keys |= _window_keys(config) | _rope_keys(config)
    if config.get("query_pre_attn_scalar"):
        keys["attention.scale"] = config["query_pre_attn_scalar"] ** -0.5
    if architecture == "gemma2":
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            keys[name] = config.get(name, 0.0) or 0.0
    metadata = {f"{architecture}.{key}": value for key, value in keys.items()}
    return {"general.architecture": architecture, **metadata}


def _window_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    window = config.get("sliding_window") or 0
    if config.get("use_sliding_window") is False:  # Qwen
        window = 0
    keys: dict[str, Any] = {"attention.sliding_window": window}
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        keys["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in kinds]
    elif config.get("use_sliding_window"):
        first = config.get("max_window_layers", 0)
        local = [layer >= first for layer in range(config["num_hidden_layers"])]
        keys["attention.sliding_window_pattern"] = local
    elif isinstance(config.get("sliding_window_pattern"), int):
        keys["attention.sliding_window_pattern"] = config["sliding_window_pattern"]
    return keys


def _rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Scaling and base of layers that see everything, from either spelling of the configuration."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    found = found.get("full_attention", found)
    kind = found.get("rope_type") or found.get("type") or "default"
    base = found.get("rope_theta") or config.get("rope_theta") or 10000.0
    original = found.get("original_max_position_embeddings") or config.get(
        "original_max_position_embeddings"
    )
    return {**found, "rope_type": kind, "rope_theta": float(base), "original": original}


def _rope_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = _rope_parameters(config)
    keys: dict[str, Any] = {
        "rope.freq_base": rope["rope_theta"],
        "rope.dimension_count": 2 * _pairs(config, rope),
    }
    local = (config.get("rope_parameters") or {}).get("sliding_attention") or {}
    local_base = local.get("rope_theta") or config.get("rope_local_base_freq")
    if local_base:
        keys["rope.freq_base_swa"] = float(local_base)
    if rope["original"]:
        keys["rope.scaling.original_context_length"] = rope["original"]
    if rope.get("attention_factor"):
        keys["rope.scaling.attn_factor"] = float(rope["attention_factor"])
    # Llama 3's and Phi's scalings are tensors: see rope_tensors.
    if rope["rope_type"] not in ("default", "llama3", "longrope"):
        keys["rope.scaling.type"] = rope["rope_type"]
        keys["rope.scaling.factor"] = float(rope.get("factor", 1.0))
    return keys


def rope_tensors(config: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """The frequency divisors GGUF keeps as tensors, by GGUF name.

    Raises:
        InvalidFormat: the scaling's parameters are missing.
    """
    rope = _rope_parameters(config)
    try:
        if rope["rope_type"] == "llama3":
            return {"rope_freqs.weight": _llama3_divisors(_pairs(config, rope), rope)}
        if rope["rope_type"] == "longrope":
            return {
                "rope_factors_short.weight": np.array(rope["short_factor"], dtype=np.float32),
                "rope_factors_long.weight": np.array(rope["long_factor"], dtype=np.float32),
            }
    except (KeyError, TypeError, ValueError):
        raise InvalidFormat(
            f"config.json: rope scaling {rope['rope_type']!r} lacks parameters",
            hint="fetch config.json again",
        ) from None
    return {}


def _pairs(config: Mapping[str, Any], rope: Mapping[str, Any]) -> int:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    partial = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    return int(head_dim * partial) // 2


def _llama3_divisors(pairs: int, rope: Mapping[str, Any]) -> NDArray[np.float32]:
    """Slow pairs divided by the factor, fast ones kept, a blend between (Llama 3.1's release)."""
    frequencies = rope["rope_theta"] ** (-np.arange(pairs, dtype=np.float64) / pairs)
    turns = rope["original"] * frequencies / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - kept) / rope["factor"] + kept), dtype=np.float32)

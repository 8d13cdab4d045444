"""Folders of models with code of their own, and the equations of that code, in float64.

A folder has random tensors with the names of the published ones. The function of each case follows
the published code, and uses nothing of this package.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from hf_folders import save_tensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Tensors = dict[str, Floats]
    Config = dict[str, Any]

VOCAB = 96
DIM = 64
LAYERS = 3


def rms_norm(x: Floats, weight: Floats, eps: float = 1e-6) -> Floats:
    return weight * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def layer_norm(x: Floats, weight: Floats, bias: Floats | float, eps: float) -> Floats:
    centered = x - x.mean(axis=-1, keepdims=True)
    return weight * centered / np.sqrt(np.mean(centered**2, axis=-1, keepdims=True) + eps) + bias


def silu(x: Floats) -> Floats:
    return x / (1 + np.exp(-x))


def softmax(x: Floats) -> Floats:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def rotate(x: Floats, base: float) -> Floats:
    """Heads ``(T, H, D)`` rotated by their position, element i with element i + D / 2."""
    positions, _, width = x.shape
    inv_freq = base ** (-np.arange(0, width, 2) / width)
    angles = np.arange(positions)[:, None] * np.concatenate([inv_freq, inv_freq])
    first, second = np.split(x, 2, axis=-1)
    partner = np.concatenate([-second, first], axis=-1)
    return x * np.cos(angles)[:, None] + partner * np.sin(angles)[:, None]


def attend(
    q: Floats,
    k: Floats,
    v: Floats,
    scale: float,
    slopes: Floats | None = None,
    window: int = 1 << 30,
) -> Floats:
    """Results ``(T, H D)`` of heads with a key head each; scores fall by *slopes* with distance."""
    scores = np.einsum("ihd,jhd->hij", q, k) * scale
    distance = np.arange(len(q))[:, None] - np.arange(len(q))
    if slopes is not None:
        scores -= slopes[:, None, None] * distance
    is_hidden = (distance < 0) | (distance >= window)
    mixed = np.einsum("hij,jhd->ihd", softmax(np.where(is_hidden, -np.inf, scores)), v)
    return mixed.reshape(len(q), -1)


def alibi_slopes(heads: int) -> Floats:
    """Slopes of ALiBi, ``(heads,)``; *heads* is a power of two."""
    return 2.0 ** (-8 * np.arange(1, heads + 1) / heads)


def heads_of(x: Floats, count: int) -> Floats:
    return x.reshape(len(x), count, -1)


def deepseek(t: Tensors, c: Config, ids: list[int]) -> Floats:
    heads = c["num_attention_heads"]
    kv_heads = c["num_key_value_heads"]
    scale = (DIM // heads) ** -0.5
    x = t["model.embed_tokens.weight"][ids]

    def network(name: str, h: Floats) -> Floats:
        gate = silu(h @ t[f"{name}.gate_proj.weight"].T)
        return (gate * (h @ t[f"{name}.up_proj.weight"].T)) @ t[f"{name}.down_proj.weight"].T

    def experts(name: str, h: Floats) -> Floats:
        weights = softmax(h @ t[f"{name}.gate.weight"].T)
        chosen = np.argsort(-weights, axis=-1)[:, : c["num_experts_per_tok"]]
        mixed = network(f"{name}.shared_experts", h)
        for row, numbers in enumerate(chosen):
            for number in numbers:
                result = network(f"{name}.experts.{number}", h[row : row + 1])[0]
                mixed[row] += weights[row, number] * result
        return mixed

    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        h = rms_norm(x, t[f"{name}.input_layernorm.weight"], c["rms_norm_eps"])
        q, k, v = (h @ t[f"{name}.self_attn.{part}_proj.weight"].T for part in "qkv")
        q = rotate(heads_of(q, heads), c["rope_theta"])
        k = rotate(heads_of(k, kv_heads), c["rope_theta"])
        k, v = (np.repeat(y, heads // kv_heads, axis=1) for y in (k, heads_of(v, kv_heads)))
        x = x + attend(q, k, v, scale) @ t[f"{name}.self_attn.o_proj.weight"].T
        h = rms_norm(x, t[f"{name}.post_attention_layernorm.weight"], c["rms_norm_eps"])
        is_dense = layer < c["first_k_dense_replace"]
        x = x + (network if is_dense else experts)(f"{name}.mlp", h)
    return rms_norm(x, t["model.norm.weight"], c["rms_norm_eps"]) @ t["lm_head.weight"].T


def jais(t: Tensors, c: Config, ids: list[int]) -> Floats:
    heads = c["n_head"]
    eps = c["layer_norm_epsilon"]
    x = t["transformer.wte.weight"][ids] * c["mup_embeddings_scale"]

    def linear(name: str, h: Floats) -> Floats:  # stored with a row for each input
        return h @ t[f"{name}.weight"] + t[f"{name}.bias"]

    for layer in range(c["n_layer"]):
        name = f"transformer.h.{layer}"
        h = layer_norm(x, t[f"{name}.ln_1.weight"], t[f"{name}.ln_1.bias"], eps)
        q, k, v = (heads_of(y, heads) for y in np.split(linear(f"{name}.attn.c_attn", h), 3, 1))
        mixed = attend(q, k, v, 1 / (DIM // heads), alibi_slopes(heads))
        x = x + linear(f"{name}.attn.c_proj", mixed)
        h = layer_norm(x, t[f"{name}.ln_2.weight"], t[f"{name}.ln_2.bias"], eps)
        gated = linear(f"{name}.mlp.c_fc", h) * silu(linear(f"{name}.mlp.c_fc2", h))
        x = x + linear(f"{name}.mlp.c_proj", gated)
    x = layer_norm(x, t["transformer.ln_f.weight"], t["transformer.ln_f.bias"], eps)
    factor = c["mup_output_alpha"] * c["mup_width_scale"]
    return x @ t["transformer.wte.weight"].T * factor


def openelm(t: Tensors, c: Config, ids: list[int]) -> Floats:
    width = c["head_dim"]
    x = t["transformer.token_embeddings.weight"][ids]
    for layer in range(c["num_transformer_layers"]):
        name = f"transformer.layers.{layer}"
        heads = c["num_query_heads"][layer]
        kv_heads = c["num_kv_heads"][layer]
        h = rms_norm(x, t[f"{name}.attn_norm.weight"])
        qkv = heads_of(h @ t[f"{name}.attn.qkv_proj.weight"].T, heads + 2 * kv_heads)
        q, k, v = np.split(qkv, [heads, heads + kv_heads], axis=1)
        q = rotate(rms_norm(q, t[f"{name}.attn.q_norm.weight"]), c["rope_freq_constant"])
        k = rotate(rms_norm(k, t[f"{name}.attn.k_norm.weight"]), c["rope_freq_constant"])
        k, v = (np.repeat(y, heads // kv_heads, axis=1) for y in (k, v))
        x = x + attend(q, k, v, width**-0.5) @ t[f"{name}.attn.out_proj.weight"].T
        h = rms_norm(x, t[f"{name}.ffn_norm.weight"])
        gate, up = np.split(h @ t[f"{name}.ffn.proj_1.weight"].T, 2, axis=1)
        x = x + (silu(gate) * up) @ t[f"{name}.ffn.proj_2.weight"].T
    x = rms_norm(x, t["transformer.norm.weight"])
    return x @ t["transformer.token_embeddings.weight"].T


def plamo(t: Tensors, c: Config, ids: list[int]) -> Floats:
    heads = c["num_attention_heads"]
    kv_heads = heads // c["n_shared_head"]
    eps = c["rms_norm_eps"]
    x = t["model.embed_tokens.weight"][ids]
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.layers.{layer}"
        h = rms_norm(x, t[f"{name}.norm.weight"], eps)
        q, k, v = (h @ t[f"{name}.self_attn.{part}_proj.weight"].T for part in "qkv")
        k, v = (np.tile(heads_of(y, kv_heads), (1, c["n_shared_head"], 1)) for y in (k, v))
        q = rotate(heads_of(q, heads), 10000.0)
        mixed = attend(q, rotate(k, 10000.0), v, (DIM // heads) ** -0.5)
        gate = silu(h @ t[f"{name}.mlp.gate_proj.weight"].T)
        gated = gate * (h @ t[f"{name}.mlp.up_proj.weight"].T)
        x = x + mixed @ t[f"{name}.self_attn.o_proj.weight"].T
        x = x + gated @ t[f"{name}.mlp.down_proj.weight"].T
    return rms_norm(x, t["model.norm.weight"], eps) @ t["lm_head.weight"].T


def refact(t: Tensors, c: Config, ids: list[int]) -> Floats:
    heads = c["n_head"]
    eps = c["layer_norm_epsilon"]
    x = t["transformer.wte.weight"][ids]
    for layer in range(c["n_layer"]):
        name = f"transformer.h.{layer}"
        h = layer_norm(x, t[f"{name}.ln_1.weight"], 0.0, eps)
        q = heads_of(h @ t[f"{name}.attn.q.weight"].T, heads)
        both = np.split(h @ t[f"{name}.attn.kv.weight"].T, 2, axis=1)
        k, v = (np.repeat(heads_of(y, 1), heads, axis=1) for y in both)
        mixed = attend(q, k, v, (DIM // heads) ** -0.5, alibi_slopes(heads))
        x = x + mixed @ t[f"{name}.attn.c_proj.weight"].T
        h = layer_norm(x, t[f"{name}.ln_2.weight"], 0.0, eps)
        gate, up = np.split(h @ t[f"{name}.mlp.gate_up_proj.weight"].T, 2, axis=1)
        x = x + (silu(gate) * up) @ t[f"{name}.mlp.c_proj.weight"].T
    return layer_norm(x, t["transformer.ln_f.weight"], 0.0, eps) @ t["lm_head.weight"].T


def spark(t: Tensors, c: Config, ids: list[int]) -> Floats:
    heads = c["num_attention_heads"]
    kv_heads = c["num_key_value_heads"]
    width = c["head_dim"]
    eps = c["rms_norm_eps"]
    erf = np.vectorize(math.erf)
    x = t["model.embedding.weight"][ids]
    for layer, kind in enumerate(c["layer_types"]):
        name = f"model.layers.{layer}"
        rope = c["rope_parameters"][kind]
        rot_dim = int(width * rope["partial_rotary_factor"])
        h = rms_norm(x, t[f"{name}.input_layernorm.weight"], eps)
        qkv = heads_of(h @ t[f"{name}.self_attn.q_k_v_proj.weight"].T, heads + 2 * kv_heads)
        q, k, v = np.split(qkv, [heads, heads + kv_heads], axis=1)
        q, k = (
            np.concatenate([rotate(y[..., :rot_dim], rope["rope_theta"]), y[..., rot_dim:]], -1)
            for y in (q, k)
        )
        k, v = (np.repeat(y, heads // kv_heads, axis=1) for y in (k, v))
        window = c["sliding_window"] if kind == "sliding_attention" else 1 << 30
        mixed = heads_of(attend(q, k, v, width**-0.5, window=window), heads)
        gate = 1 / (1 + np.exp(-h @ t[f"{name}.self_attn.g_proj.weight"].T))
        mixed = (mixed * gate[:, :, None]).reshape(len(ids), -1)
        x = x + mixed @ t[f"{name}.self_attn.out_proj.weight"].T
        h = rms_norm(x, t[f"{name}.post_attention_layernorm.weight"], eps)
        gate = h @ t[f"{name}.mlp.gate_proj.weight"].T
        gate = gate * (1 + erf(gate / np.sqrt(2))) / 2
        up = h @ t[f"{name}.mlp.up_proj.weight"].T
        x = x + (gate * up) @ t[f"{name}.mlp.down_proj.weight"].T
    return rms_norm(x, t["model.norm.weight"], eps) @ t["model.embedding.weight"].T


def _mlp(width: int) -> dict[str, tuple[int, ...]]:
    both = {f"{part}_proj.weight": (width, DIM) for part in ("gate", "up")}
    return both | {"down_proj.weight": (DIM, width)}


def _below(prefix: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def _of_blocks(
    prefix: str, block: Callable[[int], dict[str, tuple[int, ...]]]
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        shapes |= _below(f"{prefix}.{layer}", block(layer))
    return shapes


_OUTER = {
    "model.embed_tokens.weight": (VOCAB, DIM),
    "model.norm.weight": (DIM,),
    "lm_head.weight": (VOCAB, DIM),
}
_GPT_OUTER = {"transformer.wte.weight": (VOCAB, DIM), "transformer.ln_f.weight": (DIM,)}


def _deepseek_block(layer: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (DIM,),
        "post_attention_layernorm.weight": (DIM,),
        "self_attn.q_proj.weight": (DIM, DIM),
        "self_attn.k_proj.weight": (32, DIM),
        "self_attn.v_proj.weight": (32, DIM),
        "self_attn.o_proj.weight": (DIM, DIM),
    }
    if layer == 0:
        return shapes | _below("mlp", _mlp(128))
    for number in range(6):
        shapes |= _below(f"mlp.experts.{number}", _mlp(32))
    return shapes | _below("mlp.shared_experts", _mlp(64)) | {"mlp.gate.weight": (6, DIM)}


def _jais_block(_layer: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "attn.c_attn.weight": (DIM, 3 * DIM),
        "attn.c_proj.weight": (DIM, DIM),
        "mlp.c_fc.weight": (DIM, 160),
        "mlp.c_fc2.weight": (DIM, 160),
        "mlp.c_proj.weight": (160, DIM),
        "ln_1.weight": (DIM, DIM),  # replaced below: here for the width of its bias
        "ln_2.weight": (DIM, DIM),
    }
    biases = {name.replace("weight", "bias"): shape[1:] for name, shape in shapes.items()}
    return shapes | {"ln_1.weight": (DIM,), "ln_2.weight": (DIM,)} | biases


def _openelm_block(layer: int) -> dict[str, tuple[int, ...]]:
    heads = (4, 4, 8)[layer]
    width = (32, 128, 160)[layer]
    return {
        "attn_norm.weight": (DIM,),
        "ffn_norm.weight": (DIM,),
        "attn.q_norm.weight": (16,),
        "attn.k_norm.weight": (16,),
        "attn.qkv_proj.weight": (heads * 2 * 16, DIM),
        "attn.out_proj.weight": (DIM, heads * 16),
        "ffn.proj_1.weight": (2 * width, DIM),
        "ffn.proj_2.weight": (DIM, width),
    }


def _plamo_block(_layer: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "norm.weight": (DIM,),
        "self_attn.q_proj.weight": (DIM, DIM),
        "self_attn.k_proj.weight": (16, DIM),
        "self_attn.v_proj.weight": (16, DIM),
        "self_attn.o_proj.weight": (DIM, DIM),
    }
    return shapes | _below("mlp", _mlp(128))


def _refact_block(_layer: int) -> dict[str, tuple[int, ...]]:
    return {
        "ln_1.weight": (DIM,),
        "ln_2.weight": (DIM,),
        "attn.q.weight": (DIM, DIM),
        "attn.kv.weight": (2 * 16, DIM),
        "attn.c_proj.weight": (DIM, DIM),
        "mlp.gate_up_proj.weight": (2 * 256, DIM),
        "mlp.c_proj.weight": (DIM, 256),
    }


def _spark_block(_layer: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (DIM,),
        "post_attention_layernorm.weight": (DIM,),
        "self_attn.g_proj.weight": (4, DIM),
        "self_attn.out_proj.weight": (DIM, 4 * 32),
        "self_attn.q_k_v_proj.weight": (8 * 32, DIM),
    }
    return shapes | _below("mlp", _mlp(128))


#: Configuration, shapes of the tensors and equations of each folder, by its ``model_type``.
PUBLISHED: dict[str, tuple[Config, dict[str, tuple[int, ...]], Callable[..., Floats]]] = {
    "deepseek": (
        {
            "architectures": ["DeepseekForCausalLM"],
            "attention_bias": False,
            "first_k_dense_replace": 1,
            "hidden_act": "silu",
            "hidden_size": DIM,
            "intermediate_size": 128,
            "max_position_embeddings": 64,
            "moe_intermediate_size": 32,
            "moe_layer_freq": 1,
            "n_routed_experts": 6,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
            "num_attention_heads": 4,
            "num_experts_per_tok": 3,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6,
            "rope_scaling": None,
            "rope_theta": 10000,
            "scoring_func": "softmax",
            "tie_word_embeddings": False,
            "vocab_size": VOCAB,
        },
        _OUTER | _of_blocks("model.layers", _deepseek_block),
        deepseek,
    ),
    "jais": (
        {
            "activation_function": "swiglu",
            "architectures": ["JAISLMHeadModel"],
            "layer_norm_epsilon": 1e-5,
            "mup_embeddings_scale": 4.0,
            "mup_output_alpha": 2.0,
            "mup_scale_qk_dot_by_d": True,
            "mup_width_scale": 0.25,
            "n_embd": DIM,
            "n_head": 4,
            "n_inner": 160,
            "n_layer": LAYERS,
            "n_positions": 64,
            "position_embedding_type": "alibi",
            "vocab_size": VOCAB,
        },
        _GPT_OUTER
        | {"transformer.ln_f.bias": (DIM,), "transformer.relative_pe.slopes": (4, 1, 1)}
        | _of_blocks("transformer.h", _jais_block),
        jais,
    ),
    "openelm": (
        {
            "activation_fn_name": "swish",
            "architectures": ["OpenELMForCausalLM"],
            "ffn_dim_divisor": 32,
            "ffn_multipliers": [0.5, 2.0, 2.4],
            "ffn_with_glu": True,
            "head_dim": 16,
            "max_context_length": 64,
            "model_dim": DIM,
            "normalization_layer_name": "rms_norm",
            "normalize_qk_projections": True,
            "num_gqa_groups": 2,
            "num_kv_heads": [2, 2, 4],
            "num_query_heads": [4, 4, 8],
            "num_transformer_layers": LAYERS,
            "qkv_multipliers": [0.5, 1.0],
            "rope_freq_constant": 10000,
            "rope_max_length": 128,
            "share_input_output_layers": True,
            "vocab_size": VOCAB,
        },
        {"transformer.token_embeddings.weight": (VOCAB, DIM), "transformer.norm.weight": (DIM,)}
        | _of_blocks("transformer.layers", _openelm_block),
        openelm,
    ),
    "plamo": (
        {
            "architectures": ["PlamoForCausalLM"],
            "hidden_size": DIM,
            "intermediate_size": 128,
            "max_position_embeddings": 64,
            "n_shared_head": 4,
            "num_attention_heads": 8,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "vocab_size": VOCAB,
        },
        _OUTER | _of_blocks("model.layers.layers", _plamo_block),
        plamo,
    ),
    "gpt_refact": (
        {
            "architectures": ["GPTRefactForCausalLM"],
            "attention_softmax_in_fp32": True,
            "layer_norm_epsilon": 1e-5,
            "multi_query": True,
            "n_embd": DIM,
            "n_head": 4,
            "n_inner": None,
            "n_layer": LAYERS,
            "n_positions": 64,
            "tie_word_embeddings": False,
            "vocab_size": VOCAB,
        },
        _GPT_OUTER | {"lm_head.weight": (VOCAB, DIM)} | _of_blocks("transformer.h", _refact_block),
        refact,
    ),
}


def _rope(base: float, share: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": share}


PUBLISHED["spark2_5"] = (
    {
        "architectures": ["Spark2_5ForCausalLM"],
        "gate_attn_act_mode": "sigmoid",
        "head_dim": 32,
        "headwise_attn_output_gate": True,
        "hidden_act": "gelu",
        "hidden_size": DIM,
        "intermediate_size": 128,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "max_position_embeddings": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": _rope(5e6, 0.25),
            "sliding_attention": _rope(1e4, 1.0),
        },
        "sliding_window": 6,
        "tie_word_embeddings": True,
        "vocab_size": VOCAB,
    },
    {"model.embedding.weight": (VOCAB, DIM), "model.norm.weight": (DIM,)}
    | _of_blocks("model.layers", _spark_block),
    spark,
)


def write_folder(kind: str, folder: Path, **changes: Any) -> Callable[[list[int]], Floats]:
    """Write a random folder of the type *kind*; return a function from ids to its code's logits."""
    config, shapes, logits = PUBLISHED[kind]
    config = {"model_type": kind, **config, **changes}
    rng = np.random.default_rng(5)
    tensors = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape) * 0.15
        if ("norm" in name or ".ln_" in name) and "bias" not in name:
            values += 1
        tensors[name] = values.astype(np.float32)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_tensors(folder / "model.safetensors", tensors)
    exact = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    return lambda ids: logits(exact, config, ids)

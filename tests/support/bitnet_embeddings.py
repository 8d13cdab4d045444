"""Tiny random models as Microsoft's BitNet embedding models are published, in both containers.

https://github.com/microsoft/BitNet/blob/16da220/utils/convert-bitnet-embedding-to-gguf.py
"""

import json

import numpy as np
from builders import Tensor, i2_s, write_gguf
from hf_folders import bf16, save_tensors, tokenizer_folder
from tiny_models import TOKENS, letters

DIM = 128
HEADS = 4
HEAD = 64
FFN = 256
LAYERS = 2
VOCAB = 64
EPS = 1e-6
_COMMON = {
    "hidden_size": DIM,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "head_dim": HEAD,
    "vocab_size": VOCAB,
    "rms_norm_eps": EPS,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
}
CONFIGS = {
    "qwen3": _COMMON
    | {
        "architectures": ["Qwen3Model"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "num_key_value_heads": 2,
        "rope_theta": 1000000,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": LAYERS,
    },
    "gemma3": _COMMON
    | {
        "architectures": ["Gemma3TextModel"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "num_key_value_heads": 1,
        "rope_theta": 10000.0,
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": HEAD,
        "layer_types": ["full_attention"] * LAYERS,
        "sliding_window": 512,
    },
}
_PROJECTIONS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NORMS = {
    "qwen3": {
        "input_layernorm": "attn_norm",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "ffn_norm",
    },
    "gemma3": {
        "input_layernorm": "attn_norm",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}
_TYPES = "sentence_transformers.models."
_PIECE = {"Sequence": {"id": "A", "type_id": 0}}
_END = {"SpecialToken": {"id": "</s>", "type_id": 0}}


def sizes(kind):
    """Rows and columns of each projection, by its name in the folder."""
    kv = CONFIGS[kind]["num_key_value_heads"] * HEAD
    outputs = (HEADS * HEAD, kv, kv, DIM, FFN, FFN, DIM)
    inputs = (DIM, DIM, DIM, HEADS * HEAD, DIM, DIM, FFN)
    return dict(zip(_PROJECTIONS, zip(outputs, inputs, strict=True), strict=True))


def random_weights(kind, seed=0):
    """Float32 arrays by their names in the folder.

    All are exact in bfloat16. In float16 the norms are, even after one was added to Gemma 3's.
    """
    rng = np.random.default_rng(seed)

    def norm(width, around):
        return (around + rng.integers(-32, 32, width) / 64).astype("<f4")

    around = 0 if kind == "gemma3" else 1
    embedding = (rng.standard_normal((VOCAB, DIM)) * 0.5).astype("<f4")
    weights = {"embed_tokens.weight": (embedding.view("<u4") >> 16 << 16).view("<f4")}
    for layer in range(LAYERS):
        for part, shape in sizes(kind).items():
            name = f"layers.{layer}.{part}"
            # Ternary numbers of one size: their mean is the same however it is added up.
            weights[f"{name}.weight"] = (rng.integers(-1, 2, shape) * 0.0625).astype("<f4")
            weights[f"{name}.norm.weight"] = norm(shape[1], 1)
        for part in _NORMS[kind]:
            width = HEAD if part.startswith("self_attn.") else DIM
            weights[f"layers.{layer}.{part}.weight"] = norm(width, around)
    return weights | {"norm.weight": norm(DIM, around)}


def folder(path, kind, *, seed=0, pooling="lasttoken", **more):
    """The published folder; *more* goes into its config.json."""
    path.mkdir(parents=True, exist_ok=True)
    tensors = {name: bf16(values) for name, values in random_weights(kind, seed).items()}
    save_tensors(path / "model.safetensors", tensors)
    modules = [
        {"idx": at, "name": str(at), "path": f"{at}_{name}" if at else "", "type": _TYPES + name}
        for at, name in enumerate(("Transformer", "Pooling", "Normalize"))
    ]
    modes = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    pooling_config = {f"pooling_mode_{mode}": mode == pooling for mode in modes}
    pooling_config |= {"word_embedding_dimension": DIM, "include_prompt": True}
    tokenizer_folder(path, TOKENS)
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [_PIECE, _END],
        "pair": [_PIECE, _END, {"Sequence": {"id": "B", "type_id": 1}}, _END],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # that of the family would add its own tokens
        "bos_token": None,
        "eos_token": "</s>",
        "add_bos_token": False,
    }
    (path / "1_Pooling").mkdir(exist_ok=True)
    for name, content in {
        "config.json": CONFIGS[kind] | more,
        "modules.json": modules,
        "1_Pooling/config.json": pooling_config,
        "config_sentence_transformers.json": {
            "prompts": {"query": "ab", "document": ""},
            "default_prompt_name": None,
        },
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
    }.items():
        (path / name).write_text(json.dumps(content))
    return path


def gguf(path, kind, *, seed=0, **more):
    """The same as Microsoft's converter writes it with ``--outtype i2_s``; *more* are keys."""
    config = CONFIGS[kind]
    keys = {
        "block_count": LAYERS,
        "context_length": 64,
        "embedding_length": DIM,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": config["num_key_value_heads"],
        "vocab_size": VOCAB,
        "rope.dimension_count": HEAD,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "rope.freq_base": float(config["rope_theta"]),
        "attention.layer_norm_rms_epsilon": EPS,
        "pooling_type": 3,
    }
    metadata = {"general.architecture": kind, "general.file_type": 40}
    metadata |= {f"{kind}.{key}": value for key, value in (keys | more).items()}
    metadata |= letters(add_bos_token=False, add_eos_token=True)
    tensors = [_tensor(_gguf_name(name, kind), values, kind)
               for name, values in random_weights(kind, seed).items()]  # fmt: skip
    return write_gguf(path, metadata, tensors)


def _tensor(name, values, kind):
    """The tensor *name* as the converter stores it: I2_S, or float16."""
    if len(values.shape) == 2 and name != "token_embd.weight":
        mean = np.abs(values).mean()
        codes = np.round(values / mean).clip(-1, 1).astype(int).reshape(-1) + 1
        return i2_s(name, values.shape, codes, float(mean))
    if kind == "gemma3" and name.endswith("norm.weight"):
        values = values + 1
    return Tensor(name, values.shape, 1, values.astype("<f2").tobytes())


def _gguf_name(name, kind):
    """Name in a GGUF file of the tensor that the folder calls *name*."""
    outer = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
    if name in outer:
        return outer[name]
    _, layer, part = name.removesuffix(".weight").split(".", 2)
    inner = {**_PROJECTIONS, **_NORMS[kind]}
    new = inner.get(part) or f"{inner[part.removesuffix('.norm')]}_norm_in"
    return f"blk.{layer}.{new}.weight"

"""Tiny models as Hugging Face's folders: config.json and safetensors with their names."""

import json
import struct

import numpy as np
from tiny_keys import KEYS, VOCAB
from tiny_models import tiny

from bitnet.families.family import of_gguf
from bitnet.families.tensor_names import _INNER, _OUTER
from bitnet.quants.registry import dequantize

# GGUF architecture: model_type and activation.
MODEL_TYPES = {
    "bitnet-b1.58": ("bitnet", "relu2"),
    "gemma2": ("gemma2", "gelu_pytorch_tanh"),
    "gemma3": ("gemma3_text", "gelu_pytorch_tanh"),
    "llama": ("llama", "silu"),
    "mistral": ("mistral", "silu"),
    "phi3": ("phi3", "silu"),
    "qwen2": ("qwen2", "silu"),
    "qwen3": ("qwen3", "silu"),
}


def save_tensors(path, tensors):
    """Write *tensors* to a safetensors file: by name an array, stored as F32, or (dtype, array)."""
    directory = {}
    data = b""
    for name, value in tensors.items():
        dtype, array = value if isinstance(value, tuple) else ("F32", value.astype("<f4"))
        offsets = [len(data), len(data) + array.nbytes]
        directory[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    header = json.dumps(directory).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def bf16(values):
    """*values* as the upper halves of their float32, and the name of that type."""
    return "BF16", (np.asarray(values, "<f4").view("<u4") >> 16).astype("<u2")


def hf_name(name, architecture):
    """Name in a folder of the tensor that a GGUF file of *architecture* calls *name*."""
    family = of_gguf("llama" if architecture == "mistral" else architecture)
    inner = _INNER | family.tensors
    outer = {gguf: hf for hf, gguf in reversed(_OUTER.items())}  # the first, which is usual
    if name in outer:
        return f"model.{outer[name]}" if not outer[name].startswith("lm_head") else outer[name]
    _, layer, part, kind = name.split(".")
    if architecture == "phi3" and part == "ffn_up":  # gate and up are one matrix
        return f"model.layers.{layer}.mlp.gate_up_proj.{kind}"
    usual = {gguf: hf for hf, gguf in reversed(inner.items())}
    return f"model.layers.{layer}.{usual[part]}.{kind}"


# Keys of published files of a family, besides those that every family has.
STATED = {
    "bitnet-b1.58": {"rope_theta": 5e5},
    # The width of a head, with which GGUF's engines scale scores whatever a file says.
    "gemma2": {
        "query_pre_attn_scalar": 64,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3": {"query_pre_attn_scalar": 64},
    "phi3": {"original_max_position_embeddings": KEYS["context_length"]},
}


def config(architecture, **more):
    """A config.json for :func:`tiny_models.tiny`'s shape."""
    kind, activation = MODEL_TYPES[architecture]
    online = {
        "quant_method": "bitnet",
        "linear_class": "autobitlinear",
        "quantization_mode": "online",
    }
    ternary = {"quantization_config": online} if kind == "bitnet" else {}
    return (
        {
            "model_type": kind,
            "hidden_act": activation,
            "hidden_size": KEYS["embedding_length"],
            "intermediate_size": KEYS["feed_forward_length"],
            "num_hidden_layers": KEYS["block_count"],
            "num_attention_heads": KEYS["attention.head_count"],
            "num_key_value_heads": KEYS["attention.head_count_kv"],
            "head_dim": KEYS["embedding_length"] // KEYS["attention.head_count"],
            "max_position_embeddings": KEYS["context_length"],
            "rms_norm_eps": KEYS["attention.layer_norm_rms_epsilon"],
            "vocab_size": VOCAB,
            "tie_word_embeddings": True,
            "sliding_window": 4 if architecture in ("gemma2", "gemma3") else None,
        }
        | STATED.get(architecture, {})
        | ternary
        | more
    )


def tiny_folder(folder, architecture, *, as_bf16=False, weights=None, **more):
    """A random model of a family in *folder*, or *weights*; *more* goes into its config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = weights or tiny("llama" if architecture == "mistral" else architecture).weights
    tensors = {}
    for name, weight in weights.items():
        values = dequantize(weight)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            values = values - 1  # GGUF files store the norm's weight plus one
        tensors[hf_name(name, architecture)] = bf16(values) if as_bf16 else values
    save_tensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config(architecture, **more)))
    return folder


def tokenizer_folder(folder, tokens, merges=()):
    """A byte-level ``tokenizer.json`` as GPT-2's, with ``<...>`` tokens as special ones."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": id, "content": text, "special": True} | flags
        for id, text in enumerate(tokens)
        if text.startswith("<")
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    document = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {text: id for id, text in enumerate(tokens)},
            "merges": list(merges),
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    # The class of a family would add tokens of its own to this vocabulary.
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[0],
        "eos_token": tokens[1],
        "add_bos_token": True,
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings | {"chat_template": "{{ messages[0].content }}"})
    )
    return folder

"""Tiny models of every family as files that llama.cpp loads."""

import zlib

import numpy as np
from builders import Tensor, vocabulary, write_gguf
from tiny_keys import DIM, ENCODERS, EXPERTS, HYBRIDS, MIXTURES, VOCAB
from tiny_models import TOKENS, in_encoding, tiny

from bitnet.formats.containers import open_checkpoint
from bitnet.quants import types
from bitnet.quants.registry import quantize

IDS = tuple(np.random.default_rng(2).integers(3, 60, 40).tolist())
# Architecture, and GGUF keys that differ from those of tiny_keys, by case.
CASES = {
    # llama.cpp chooses the positions by the number of layers, 32 or 40, since no key names them.
    "baichuan": ("baichuan", {"block_count": 32}),
    "baichuan-alibi": ("baichuan", {"block_count": 40}),
    "qwen": ("qwen", {"attention.head_count_kv": 4, "feed_forward_length": 1024}),
    "ernie4_5": ("ernie4_5", {}),
    "arcee": ("arcee", {}),
    "deepseek2": ("deepseek2", {}),
    "deepseek2-growing-queries": (
        "deepseek2",
        {"attention.temperature_length": 8, "attention.temperature_scale": 0.3},
    ),
    "deepseek2-yarn": (
        "deepseek2",
        {
            "attention.q_lora_rank": 0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.yarn_log_multiplier": 0.0707,
            "rope.scaling.original_context_length": 16,
        },
    ),
    "exaone4": ("exaone4", {"block_count": 5, "attention.sliding_window": 0}),
    "exaone4-windows": ("exaone4", {"block_count": 64, "attention.sliding_window": 6}),
    "exaone4-windows-without-a-key": (
        "exaone4",
        {"block_count": 64, "attention.sliding_window": None},
    ),
    "gemma": ("gemma", {}),
    # llama.cpp aborts if none of its layers sees the whole text: every sixth does.
    "gemma-embedding": ("gemma-embedding", {"block_count": 6, "attention.sliding_window": 8}),
    "llama-embed": ("llama-embed", {}),
    "gemma2-attention-scale": ("gemma2", {"attention.scale": 0.4}),
    "gemma3-attention-scale": ("gemma3", {"attention.scale": 0.4}),
    "gemma3n": ("gemma3n", {}),
    "gemma3n-shared-caches": ("gemma3n", {"block_count": 22}),
    "gemma4": ("gemma4", {}),
    "gemma4-experts": ("gemma4", EXPERTS),
    "granite": (
        "granite",
        {
            "attention.scale": 0.2,
            "embedding_scale": 3.0,
            "residual_scale": 0.4,
            "logit_scale": 5.0,
        },
    ),
    "granite_swa": (
        "granite_swa",
        {
            "attention.rope_pattern": [True, False],
            "attention.sliding_window": 6,
            "attention.sliding_window_pattern": [False, True],
            "embedding_scale": 3.0,
            "logit_scale": 5.0,
            "residual_scale": 0.4,
        },
    ),
    "mistral4": ("mistral4", {}),
    "hrm-text-longer-stacks": (
        "hrm_text",
        {
            "block_count": 12,
            "embedding_scale": 5.0,
            "hrm.h_cycles": 2,
            "hrm.l_cycles": 2,
            "hrm.layers_per_stack": 2,
            "rope.freq_base": 500.0,
        },
    ),
    "nanbeige": ("nanbeige", {"num_loops": 3}),
    "plamo3": ("plamo3", {"attention.sliding_window": 6, "block_count": 9, "rope.freq_base": 1e6}),
    "gpt-oss": ("gpt-oss", {"block_count": 3, "attention.sliding_window": 6}),
    "gpt-oss-yarn": (
        "gpt-oss",
        {
            "block_count": 2,
            "rope.freq_base": 150000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
        },
    ),
    "mistral3": ("mistral3", {}),
    "mistral3-yarn": (
        "mistral3",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "rope.scaling.original_context_length": 16,
        },
    ),
    "olmo2": ("olmo2", {}),
    "seed-oss": ("seed_oss", {}),
    "bert": ("bert", {}),
    "eurobert": ("eurobert", {}),
    "jina-bert-v2": ("jina-bert-v2", {}),
    "jina-bert-v3": ("jina-bert-v3", {}),
    "modern-bert": ("modern-bert", {"block_count": 4}),
    "modern-bert-silu": ("modern-bert", {"block_count": 4, "hidden_activation": "silu"}),
    "neo-bert": ("neo-bert", {}),
    "nomic-bert": ("nomic-bert", {}),
    "nomic-bert-moe": ("nomic-bert-moe", {"block_count": 4}),
    "smollm3": ("smollm3", {"block_count": 5}),
    "linear-as-in-2023": ("llama", {"rope.scale_linear": 4.0}),
    "linear-without-a-type": ("llama", {"rope.scaling.factor": 4.0}),
    "yarn": (
        "llama",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
        },
    ),
    "yarn-with-attention-factor": (
        "llama",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.attn_factor": 0.7,
        },
    ),
    "attention-factor-alone": ("qwen3", {"rope.scaling.attn_factor": 1.3}),
    "gemma3-final-soft-cap": ("gemma3", {"final_logit_softcapping": 3.0}),
}
DELTA_NET = {  # keys as wide as values, and the epsilon that llama.cpp has for them
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.dimension_sections": [3, 3, 2, 0],
    "ssm.inner_size": 4 * 32,
}
# Keys of mixtures with delta nets, by architecture.
_DELTA_NET_MIXTURES = {
    "qwen35moe": DELTA_NET,
    "qwen3next": {key: DELTA_NET[key] for key in DELTA_NET if not key.startswith("rope.")},
}
# Architectures that llama.cpp lacks, and phimoe, which it computes with other norms and another
# choice of experts.
_NOT_THERE = ("aria_text", "flex_olmo", "flint", "phimoe")
OF_EXPERTS = {
    f"{name}-experts": (
        name,
        {"attention.head_count_kv": 4, "vocab_size": VOCAB} | _DELTA_NET_MIXTURES.get(name, {}),
    )
    for name in MIXTURES
    if name not in _NOT_THERE
}
OF_STATES = {
    name: (
        name,
        (DELTA_NET if name == "qwen35" else {})
        | ({"attention.layer_norm_epsilon": 1e-5} if name.startswith("nemotron") else {}),
    )
    for name in HYBRIDS
}
# llama.cpp never takes the embedding for the head of these.
OWN_HEADS = (
    *(
        "apertus",
        "baichuan",
        "codeshell",
        "gptneox",
        "internlm2",
        "nemotron",
        "olmo2",
        "orion",
        "phi2",
    ),
    *("jais", "kimi-linear", "plamo", "qwen", "stablelm", "xverse", *MIXTURES),
)


def quantized(weight, encoding):
    """*weight*, in *encoding* if it is the matrices of experts."""
    if len(weight.shape) != 3 or encoding == "F32":
        return weight
    values = weight.data.view("<f4").reshape(weight.shape)
    return quantize(weight.name, values, types.by_name(encoding))


def _bias_of(matrix):
    """A random bias for the rows of *matrix*."""
    rng = np.random.default_rng(zlib.crc32(matrix.name.encode()))
    values = (rng.standard_normal(matrix.shape[0]) * 0.08).astype("<f4")
    return Tensor(matrix.name.replace("weight", "bias"), matrix.shape[:1], 0, values.tobytes())


def convolution_biases(tensors):
    """Biases of the convolutions of state spaces, without which llama.cpp crashes."""
    if not any(tensor.name.endswith(".ssm_d") for tensor in tensors):
        return []
    return [
        Tensor(
            tensor.name.replace("weight", "bias"),
            tensor.shape[:1],
            0,
            np.linspace(-0.1, 0.1, tensor.shape[0], dtype=np.float32).tobytes(),
        )
        for tensor in tensors
        if tensor.name.endswith("ssm_conv1d.weight")
    ]


def written(path, architecture, keys, experts="F32", encoding="F32"):
    """The checkpoint of a tiny model in a new file at *path* that llama.cpp loads.

    Matrices of blocks are in *encoding*; if that is F32, those of experts are in *experts*.
    """
    model = tiny(architecture, **({"vocab_size": VOCAB} | keys))
    model = in_encoding(model, encoding, rounded=True)
    stored = {name: quantized(weight, experts) for name, weight in model.weights.items()}
    tokenizer_keys = vocabulary(
        TOKENS,
        merges=[],
        token_types=[3, 3, 3, *[1] * (VOCAB - 3)],
        pre="gpt-2",
        bos_token_id=0,
        eos_token_id=1,
    )
    if architecture in ENCODERS:
        tokenizer_keys["tokenizer.ggml.token_type_count"] = 2
    metadata = {key: value for key, value in model.metadata.items() if value is not None}
    tensors = [Tensor(w.name, w.shape, w.quant.ggml_id, w.data.tobytes()) for w in stored.values()]
    if architecture in OWN_HEADS:
        tensors.append(Tensor("output.weight", (VOCAB, DIM), 0, tensors[0].data))
    if architecture == "gpt-oss":  # where these biases are not optional
        tensors += [
            _bias_of(matrix)
            for matrix in tensors
            if any(f"attn_{part}.weight" in matrix.name for part in ("q", "k", "v", "output"))
        ]
    tensors += convolution_biases(tensors)
    return open_checkpoint(write_gguf(path, metadata | tokenizer_keys, tensors))

"""Tiny random models of every family, as checkpoints in memory or GGUF files."""

import string
import zlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from builders import Tensor, vocabulary, write_gguf
from tiny_keys import DIM, KEYS, TEXT_TYPES, VOCAB, metadata

from bitnet.families.family import of_gguf
from bitnet.formats.checkpoint import Checkpoint
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.hidden_program import layout
from bitnet.models.load import config_from, load_model
from bitnet.quants import types
from bitnet.quants.registry import quantize
from bitnet.quants.weight import Weight
from bitnet.runtime.scheduler import Scheduler
from bitnet.tokenizer.spec import byte_spelling
from bitnet.verify.trace import TEXT

F32 = types.by_name("F32")


def tiny(architecture, *, seed=0, **more):
    """An F32 checkpoint of *architecture*; *more* are GGUF keys below its name that differ.

    Weights are random numbers that depend on *seed* and the name of the tensor; norms are near one.
    """
    rope_style = of_gguf(architecture).gguf_rope_style
    width = more.get("embedding_length", DIM)
    embedding = _f32("token_embd.weight", _normal(seed, "token_embd.weight", (VOCAB, width)) * 0.5)
    weights = {embedding.name: embedding}
    if architecture == "gemma4":
        freq_factors = np.where(np.arange(64) < 16, 1, 1e30)
        weights["rope_freqs.weight"] = _f32("rope_freqs.weight", freq_factors)
        for layer in range(more.get("block_count", 4)):
            name = f"blk.{layer}.layer_output_scale.weight"
            weights[name] = _f32(name, np.array([0.8 + 0.1 * layer]))
            if more.get("expert_count"):  # a layer has experts if it has a router
                router = f"blk.{layer}.ffn_gate_inp.weight"
                weights[router] = _f32(router, _normal(seed, router, (6, width)) * 0.5)
                name = f"blk.{layer}.ffn_down_exps.scale"
                weights[name] = _f32(name, 1 + _normal(seed, name, 6) * 0.2)
    if architecture == "gemma3n":  # llama.cpp needs keys also in layers that share those of others
        for layer in range(20, more.get("block_count", 5)):
            for part, shape in (("k", (128, width)), ("v", (128, width)), ("k_norm", (64,))):
                name = f"blk.{layer}.attn_{part}.weight"
                weights[name] = _f32(name, 1 + _normal(seed, name, shape) * 0.08)
    if architecture == "neo-bert":  # queries, keys and values are one matrix if it has this one
        name = "blk.0.attn_qkv.weight"
        weights[name] = _f32(name, _normal(seed, name, (3 * width, width)) * 0.08)
    if architecture == "jina-bert-v2":  # gate and up are one matrix if it is twice as wide
        name = "blk.0.ffn_up.weight"
        weights[name] = _f32(name, _normal(seed, name, (1024, width)) * 0.08)
    if architecture in TEXT_TYPES:  # it has segment embeddings if it has this table
        name = "token_types.weight"
        weights[name] = _f32(name, _normal(seed, name, (2, width)) * 0.3)
    if more.get("nextn_predict_layers"):  # a model drafts if it has this tensor
        name = f"blk.{more['block_count'] - 1}.nextn.eh_proj.weight"
        weights[name] = _f32(name, _normal(seed, name, (width, 2 * width)) * 0.08)
    keys = metadata(architecture, **more)
    if architecture in (
        "bailingmoe2",
        "bailingmoe3",
        "axk1",
        "deepseek2",
        "mistral4",
        "ernie4_5-moe",
        "exaone-moe",
        "minimax-m2",
    ):  # their routers may have a correction of the choice
        name = f"blk.{keys[f'{architecture}.block_count'] - 1}.exp_probs_b.bias"
        weights[name] = _f32(name, _normal(seed, name, keys[f"{architecture}.expert_count"]) * 0.2)
    checkpoint = Checkpoint(Path(f"tiny-{architecture}"), architecture, keys, weights, rope_style)
    # A layer has experts if it has a router, and may correct it.
    routers = {"hy_v3": (("ffn_gate_inp.weight", 0.5), ("exp_probs_b", 0.2))}
    # Sigmoids of large logits are nearly equal in float32, which then chooses as it rounds.
    routers["flint"] = (("ffn_gate_inp.weight", 0.2),)
    if architecture in routers:
        last = keys[f"{architecture}.block_count"] - 1
        for name, spread in routers[architecture]:
            whole = f"blk.{last}.{name}"
            shape = (6, width) if name.endswith("weight") else (6,)
            weights[whole] = _f32(whole, _normal(seed, whole, shape) * spread)
    if architecture == "nemotron_h_moe":  # a network has experts if it has a router
        for layer in range(2, keys[f"{architecture}.block_count"], 3):
            name = f"blk.{layer}.ffn_gate_inp.weight"
            weights[name] = _f32(name, _normal(seed, name, (6, width)) * 0.3)
    config = config_from(checkpoint)
    depth = config.n_layers
    is_looped = depth > 2 * keys[f"{architecture}.block_count"]
    for name, shape in layout(config).required.items():
        if name in weights:
            continue
        values = _normal(seed, name, shape) * 0.08
        if architecture == "gpt_neo" and "attn_q" in name:
            values = values / 8  # its scores are not divided by the root of a head's width
        if (is_looped or depth >= DEEP) and name.endswith(_LAST_OF_BRANCHES):
            # Otherwise random layers amplify rounding, most of all those that run several times.
            values = values / np.sqrt(depth)
        if architecture == "gemma3n" and depth >= DEEP and name.endswith(_BEHIND_BRANCHES):
            weights[name] = _f32(name, (values + 1) / np.sqrt(depth))
            continue
        if name.endswith("ssm_a"):
            values = -np.exp(values * 10)  # negative, so that states decay
            if architecture == "bailingmoe3":  # here it is a factor inside a sigmoid
                values = -values
        weights[name] = _f32(name, values + 1 if name.endswith(_NORMS) else values)
    return checkpoint


#: Number of layers from which branches are scaled down, as in the initialization of deep models.
DEEP = 16
_LAST_OF_BRANCHES = ("attn_output.weight", "ffn_down.weight")
_BEHIND_BRANCHES = ("post_attention_norm.weight", "post_ffw_norm.weight", "post_norm.weight")
_NORMS = (
    *("altup_correct_scale.weight", "norm.weight", "ffn_norm", "ffn_norm_exps.weight"),
    *("post_attention_norm", "post_ffw_norm"),
)


def _normal(seed, name, shape):
    """Normal numbers for the tensor *name*."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)


def seeing(decoder, windows):
    """The configuration *decoder* with other attention *windows*, one for each block."""
    blocks = []
    for (before, behind), window in zip(decoder.blocks, windows, strict=True):
        mixer = replace(before.mixers[0], window=window)
        blocks.append((replace(before, mixers=(mixer,)), behind))
    return replace(decoder, blocks=tuple(blocks))


SHORTEST = 32  # least width of a matrix that is encoded; those of gemma3n's streams have four


def in_encoding(checkpoint, name, *, rounded=False):
    """*checkpoint* with the matrices of its blocks in the encoding *name*.

    In Q4_K they are random codes, unless weights are *rounded*, which needs the compiled module. A
    matrix whose rows are not whole blocks is unchanged, as in quantizers.
    """
    expected = layout(config_from(checkpoint))
    block = types.by_name(name).block_size
    weights = dict(checkpoint.weights)
    for key, weight in checkpoint.weights.items():
        is_matrix = key.startswith("blk.") and len(weight.shape) > 1 and key not in expected.vectors
        if is_matrix and weight.shape[-1] % block == 0 and weight.shape[-1] >= SHORTEST:
            weights[key] = _encoded(weight, name, rounded)
    return replace(checkpoint, weights=weights)


def _encoded(weight, name, rounded):
    """*weight* in the encoding *name*, expert by expert if it has three dimensions."""
    quant = types.by_name(name)
    if len(weight.shape) == 3:
        if name == "I2_S":  # whose scale belongs to a tensor; no file has such experts
            name = "TQ2_0"
            quant = types.by_name("TQ2_0")
        parts = [_encoded(matrix, name, rounded) for matrix in weight.matrices()]
        data = np.concatenate([part.data for part in parts])
        return Weight(weight.name, weight.shape, quant, data)
    if name == "Q4_K" and not rounded:
        return Weight(weight.name, weight.shape, quant, _random_q4_k(weight))
    return quantize(weight.name, weight.data.view("<f4").reshape(weight.shape), quant)


def _random_q4_k(weight):
    """Valid blocks without a quantizer: small scales, random codes."""
    expert = int(weight.name.partition("[")[2].rstrip("]") or 0)
    rng = np.random.default_rng([len(weight.name), expert] if expert else len(weight.name))
    n_blocks = weight.shape[0] * weight.shape[1] // 256
    blocks = rng.integers(0, 256, (n_blocks, 144)).astype(np.uint8)
    scales = np.array([[4e-4, 3e-3]], dtype="<f2").view(np.uint8)
    blocks[:, :4] = scales
    return blocks.reshape(-1)


def _f32(name, values):
    """The F32 weight *name* with *values*."""
    values = np.asarray(values, dtype="<f4")
    return Weight(name, values.shape, F32, values.reshape(-1).view(np.uint8))


_BYTES = bytes([0xE6, 0x97, 0xA5, 0xC3, 0xA9]) + b"!.\n "  # the first five are "日" and "é"
TOKENS = (
    "<s>",
    "</s>",
    "<extra>",
    *string.ascii_letters,
    *(byte_spelling(bytes([byte])) for byte in _BYTES),
)


def letters(tokens=None, **more):
    """Metadata of a tokenizer with one token per letter and three special ones."""
    types = [3, 3, 3, *[1] * (VOCAB - 3)]
    own = {"pre": "gpt-2", "bos_token_id": 0, "eos_token_id": 1}
    return vocabulary(tokens or TOKENS, merges=[], token_types=types, **own, **more)


def taught(checkpoint, ids, rate=0.02):
    """*checkpoint* with an output matrix that favours the successors that tokens have in *ids*.

    A random model predicts English worse than guessing does, and ``verify`` refuses it.
    """
    model = load_model(checkpoint, ops=ReferenceOps())
    cache = Scheduler(model, context=KEYS["context_length"]).new_cache()
    hidden = dict(model.trace(ids, cache))["result_norm"]
    values = np.random.default_rng(1).standard_normal((VOCAB, DIM)) * 0.02
    np.add.at(values, ids[1:], rate * np.asarray(hidden)[:-1])
    weights = checkpoint.weights | {"output.weight": _f32("output.weight", values)}
    return replace(checkpoint, weights=weights)


@lru_cache
def _taught_llama():
    """The tiny LLaMA, taught the text that ``verify`` reads."""
    ids = [TOKENS.index(character) for character in TEXT if character in TOKENS]
    return taught(tiny("llama"), ids[: KEYS["context_length"]])


def write_model(path, checkpoint, tokens=TOKENS):
    """*checkpoint* as a file with a tokenizer of single letters."""
    metadata = dict(checkpoint.metadata) | letters(tokens, add_bos_token=True)
    tensors = [
        Tensor(weight.name, weight.shape, weight.quant.ggml_id, weight.data.tobytes())
        for weight in checkpoint.weights.values()
    ]
    return write_gguf(path, metadata, tensors)


def ternary_gguf(path):
    """A BitNet in I2_S as a file, wide enough for the kernels of other engines."""
    wide = {"embedding_length": 512, "feed_forward_length": 1024, "rope.dimension_count": 128}
    model = in_encoding(tiny("bitnet-b1.58", **wide), "I2_S")
    keys = {"bitnet-b1.58.vocab_size": VOCAB, "bitnet-b1.58.rope.freq_base": 500000.0}
    tensors = []
    for weight in model.weights.values():
        kind = weight.quant.ggml_id
        data = weight.data
        if weight.name == "token_embd.weight":
            kind, data = 1, data.view("<f4").astype("<f2")
        tensors.append(Tensor(weight.name, weight.shape, kind, data.tobytes()))
    return write_gguf(path, dict(model.metadata) | letters() | keys, tensors)


def tiny_gguf(path, *, tokenizer=True, **keys):
    """A LLaMA as a file; *keys* are metadata.

    With a tokenizer, of one token per letter, it has an output matrix of its own. Without a
    tokenizer its embedding is also its output matrix.
    """
    checkpoint = _taught_llama() if tokenizer else tiny("llama")
    metadata = dict(checkpoint.metadata)
    if tokenizer:
        metadata |= letters(add_bos_token=True)
    tensors = [
        Tensor(weight.name, weight.shape, 0, weight.data.tobytes())
        for weight in checkpoint.weights.values()
    ]
    return write_gguf(path, metadata | keys, tensors)

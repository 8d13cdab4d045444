"""Tiny random models of every family, as checkpoints in memory or GGUF files."""

import string
import zlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from builders import Tensor, vocabulary, write_gguf

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
VOCAB, DIM, LAYERS = 64, 256, 2
KEYS = {
    "block_count": LAYERS,
    "embedding_length": DIM,
    "feed_forward_length": 512,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "context_length": 64,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.sliding_window": 0,
}
FAMILIES = (
    "apertus",
    "arcee",
    "baichuan",
    "bitnet",
    "bitnet-b1.58",
    "biogpt",
    "bloom",
    "chatglm",
    "codeshell",
    "cohere2",
    "command-r",
    "ernie4_5",
    "exaone",
    "exaone4",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3",
    "glm4",
    "gpt2",
    "gpt_neo",
    "gptj",
    "gptneox",
    "granite",
    "helium",
    "hunyuan-dense",
    "hunyuan_vl",
    "hyperclovax",
    "internlm2",
    "jais",
    "jais2",
    "llama",
    "maincoder",
    "minicpm",
    "mistral3",
    "mpt",
    "nanbeige",
    "nanochat",
    "nemotron",
    "olmo",
    "olmo2",
    "openai-gpt",
    "opt",
    "orion",
    "paddleocr",
    "pangu-embedded",
    "persimmon",
    "phi2",
    "phi3",
    "plamo",
    "plamo3",
    "qwen",
    "qwen2",
    "qwen2vl",
    "qwen3",
    "qwen3vl",
    "refact",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder",
    "starcoder2",
    "vaultgemma",
    "xverse",
)

#: Families whose norms subtract means.
LAYER_NORMS = (
    *("bloom", "codeshell", "cohere2", "command-r", "falcon", "gpt2", "gptj", "gptneox", "mpt"),
    *("biogpt", "cohere2moe", "dbrx", "gpt_neo", "jais", "jais2", "openai-gpt", "persimmon"),
    *("nemotron", "olmo", "opt", "orion", "phi2", "stablelm", "starcoder", "starcoder2"),
)
#: Families that make vectors of texts, and have no head that writes.
ENCODERS = ("bert",)
#: Families whose networks have no gate.
UNGATED = (
    *("arcee", "bloom", "codeshell", "falcon", "gpt2", "gptj", "gptneox", "mpt", "nemotron"),
    *("apertus", "biogpt", "gpt_neo", "jais2", "nanochat", "openai-gpt", "persimmon"),
    *("opt", "phi2", "starcoder", "starcoder2"),
)
#: Families whose layers differ in shape.
LAYERED = (
    *("axk1", "deepseek2", "gemma4", "granite_swa", "minicpm3", "mistral4", "openelm", "youtu"),
)
#: Families with states of fixed size in some of their layers.
HYBRIDS = (
    *("falcon-h1", "granitehybrid", "lfm2", "lfm2moe", "lfm3"),
    *("mamba2", "nemotron_h", "nemotron_h_moe", "qwen35"),
)
#: Families whose feed-forward networks are experts.
MIXTURES = {
    "bailingmoe2": {
        "expert_count": 8,
        "expert_gating_func": 2,
        "expert_group_count": 4,
        "expert_group_used_count": 2,
        "expert_shared_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        "leading_dense_block_count": 1,
        "rope.dimension_count": 32,
    },
    "ernie4_5-moe": {
        "expert_shared_feed_forward_length": 256,
        "interleave_moe_layer_step": 1,
        "leading_dense_block_count": 1,
    },
    "glm4moe": {
        "expert_gating_func": 2,
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
        "rope.dimension_count": 32,
    },
    "gpt-oss": {"attention.sliding_window": 4},
    "granitemoe": {
        "residual_scale": 0.7,
        "logit_scale": 1.5,
        "attention.scale": 0.1,
        "expert_shared_feed_forward_length": 256,
    },
    "maple": {
        "attention.sliding_window": 16,
        "attention.sliding_window_pattern": [True, False],
        "rope.dimension_count": 32,
        "swiglu_clamp_exp": [7.0, 7.0],
    },
    "afmoe": {
        "attention.sliding_window": 4,
        "block_count": 5,
        "expert_gating_func": 2,
        "expert_shared_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        "leading_dense_block_count": 1,
    },
    "arctic": {},
    "aria_text": {"expert_shared_feed_forward_length": 256},
    "flex_olmo": {"expert_weights_norm": True},
    "flint": {
        "attention.sliding_window": 4,
        "attention.sliding_window_pattern": [True, False],
        "expert_shared_feed_forward_length": 256,
        "expert_weights_norm": True,
    },
    "cohere2moe": {
        "attention.sliding_window": 4,
        "attention.layer_norm_rms_epsilon": None,
        "expert_gating_func": 2,
        "expert_shared_count": 2,
        "leading_dense_block_count": 1,
        "logit_scale": 0.5,
    },
    "deepseek2-ocr": {"expert_shared_count": 2, "leading_dense_block_count": 1}
    | {"attention.head_count_kv": 4},
    "exaone-moe": {
        "attention.sliding_window": 4,
        "expert_gating_func": 2,
        "expert_shared_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        "leading_dense_block_count": 1,
    },
    "grok": {},
    "hy_v3": {
        "expert_shared_feed_forward_length": 512,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
    },
    "bailingmoe": {"expert_shared_count": 1, "expert_weights_norm": True}
    | {"rope.dimension_count": 64},
    "deepseek": {"expert_shared_count": 2, "leading_dense_block_count": 1},
    "dots1": {
        "expert_shared_count": 1,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "leading_dense_block_count": 1,
    },
    "hunyuan-moe": {"expert_shared_feed_forward_length": 256},
    "qwen3vlmoe": {},
    "dbrx": {"attention.clamp_kqv": 0.5},
    "mellum": {"attention.sliding_window": 4},
    "minimax-m2": {"expert_gating_func": 2, "rope.dimension_count": 32},
    "olmoe": {},
    "phimoe": {},
    "qwen2moe": {"expert_shared_feed_forward_length": 256},
    "qwen3next": {"expert_shared_feed_forward_length": 256},
    "qwen35moe": {"expert_shared_feed_forward_length": 256},
    "qwen3moe": {},
    "smallthinker": {"attention.sliding_window": 4096, "expert_gating_func": 2},
}
#: Keys of latent attention.
LATENT = {
    "attention.head_count_kv": 1,
    "attention.key_length": 256 + 32,
    "attention.key_length_mla": 256 + 32,
    "attention.kv_lora_rank": 256,
    "attention.q_lora_rank": 256,
    "attention.value_length": 256,
    "attention.value_length_mla": 64,
    "expert_gating_func": 2,
    "expert_group_count": 3,
    "expert_group_used_count": 2,
    "expert_shared_count": 1,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.8,
    "leading_dense_block_count": 1,
    "rope.dimension_count": 32,
}
EXPERTS = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 256}
MAMBA2 = {
    "ssm.conv_kernel": 4,
    "ssm.group_count": 2,
    "ssm.inner_size": 512,
    "ssm.state_size": 32,
    "ssm.time_step_rank": 8,
}
DELTA_NET = {
    "full_attention_interval": 2,
    "rope.dimension_count": 16,
    "ssm.conv_kernel": 4,
    "ssm.group_count": 2,
    "ssm.inner_size": 4 * 64,
    "ssm.state_size": 32,
    "ssm.time_step_rank": 4,
}


def _gemma4(more):
    """Keys of layers with and without a window by turns, the last two of which share theirs."""
    layers = more.get("block_count", 4)
    return {
        "attention.head_count_kv": [2, 1] * (layers // 2),
        "attention.key_length": 128,
        "attention.key_length_swa": 64,
        "attention.value_length": 128,
        "attention.value_length_swa": 64,
        "attention.shared_kv_layers": 2,
        "attention.sliding_window": 4,
        "attention.sliding_window_pattern": [True, False] * (layers // 2),
        "block_count": layers,
        "embedding_length_per_layer_input": 256,
        "feed_forward_length": [512] * (layers - 2) + [768] * 2,
        "final_logit_softcapping": 20.0,
        "rope.dimension_count_swa": 64,
        "rope.freq_base": 1e6,
    }


def metadata(architecture, **more):
    keys = KEYS | more
    if architecture in ("qwen35", "qwen35moe", "qwen3next"):
        keys = DELTA_NET | keys
    if architecture in ("falcon-h1", "granitehybrid", "mamba2", "nemotron_h", "nemotron_h_moe"):
        keys = MAMBA2 | keys
    if architecture in ("nemotron_h", "nemotron_h_moe"):  # a state, attention and a network in turn
        keys |= {"block_count": more.get("block_count", 3)}
        kinds = [layer % 3 for layer in range(keys["block_count"])]
        keys["attention.head_count_kv"] = [2 * (kind == 1) for kind in kinds]
        keys["feed_forward_length"] = [512 * (kind == 2) for kind in kinds]
    if architecture == "nemotron_h_moe":
        keys |= EXPERTS | {"expert_shared_feed_forward_length": 256, "moe_latent_size": 256}
        keys |= {"expert_weights_norm": True, "expert_weights_scale": 2.5} | more
    if architecture in ("granitehybrid", "lfm2", "lfm2moe", "lfm3"):
        kv_heads = [2 * (layer % 2) for layer in range(keys["block_count"])]
        keys["attention.head_count_kv"] = kv_heads
    if architecture == "nanbeige":
        keys = {"num_loops": 2} | keys
    if architecture in ("lfm2", "lfm2moe", "lfm3"):
        keys["shortconv.l_cache"] = 3
    if architecture == "lfm2moe":
        keys |= EXPERTS | {"expert_gating_func": 2, "leading_dense_block_count": 1}
    if architecture in MIXTURES:
        keys |= EXPERTS | {"feed_forward_length": 256} | MIXTURES[architecture] | more
    if architecture == "gemma4":
        keys = KEYS | _gemma4(more) | more
    if architecture in ("axk1", "deepseek2", "mistral4"):
        keys = KEYS | EXPERTS | LATENT | more
    if architecture in ("minicpm3", "youtu"):
        latent = {key: value for key, value in LATENT.items() if key.startswith(("att", "rope"))}
        keys = KEYS | latent | more
    if architecture == "vaultgemma":
        keys = {"attention.scale": 0.1} | keys
    if architecture == "mistral4":  # queries grow within the context
        keys |= {"attention.temperature_length": 8, "attention.temperature_scale": 0.3} | more
    if architecture in ENCODERS:
        keys |= {"attention.head_count_kv": 4, "attention.causal": False} | more
    if architecture in (*LAYER_NORMS, *ENCODERS):
        keys = {"attention.layer_norm_epsilon": 1e-5} | keys
    if architecture == "granite_swa":
        keys |= {"attention.sliding_window": 4, "attention.sliding_window_pattern": [False, True]}
        keys |= {"embedding_scale": 2.0, "residual_scale": 0.7, "logit_scale": 1.5} | more
    if architecture == "openelm":
        keys |= {
            "attention.head_count": [8, 4],
            "attention.head_count_kv": [2, 1],
            "attention.key_length": 64,
            "attention.value_length": 64,
            "feed_forward_length": [512, 256],
        } | more
    if architecture in ("hunyuan_vl", "paddleocr", "qwen2vl", "qwen3vl", "qwen3vlmoe"):
        keys = {"rope.dimension_sections": [11, 11, 10, 0]} | keys
    if architecture == "chatglm":
        keys = {"rope.dimension_count": 32} | keys
    if architecture in ("mpt", "jais"):
        keys = {"attention.max_alibi_bias": 8.0} | keys
    if architecture == "gptneox":
        keys = {"use_parallel_residual": True} | keys
    if architecture in ("cohere2", "command-r"):
        keys = {"logit_scale": 0.5} | keys
    if architecture in ("minicpm", "minicpm3"):
        scales = {"embedding_scale": 2.0, "residual_scale": 0.7, "logit_scale": 1.5}
        keys = scales | keys
    if architecture in ("cohere2", "gemma2", "gemma3") and "attention.sliding_window" not in more:
        keys["attention.sliding_window"] = 4
    if architecture == "mistral3":  # queries grow within the context
        own_keys = {"attention.temperature_scale": 0.3, "rope.scaling.original_context_length": 8}
        keys = own_keys | keys
    own = {f"{architecture}.{key}": value for key, value in keys.items()}
    if architecture == "apertus":  # these have no prefix
        layers = keys["block_count"]
        own |= {"xielu.alpha_n": [0.7] * layers, "xielu.alpha_p": [0.6] * layers}
        own |= {"xielu.beta": [0.5] * layers, "xielu.eps": [-1e-6] * layers}
    return {"general.architecture": architecture} | own


def tiny(architecture, *, seed=0, **more):
    """An F32 checkpoint; weights are random by the name of their tensor, norms near one."""
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
    if architecture == "bert":  # tokens have embeddings of a text if it has this table
        name = "token_types.weight"
        weights[name] = _f32(name, _normal(seed, name, (2, width)) * 0.3)
    if more.get("nextn_predict_layers"):  # a model drafts if it has this tensor
        name = f"blk.{more['block_count'] - 1}.nextn.eh_proj.weight"
        weights[name] = _f32(name, _normal(seed, name, (width, 2 * width)) * 0.08)
    keys = metadata(architecture, **more)
    if architecture in (
        "bailingmoe2",
        "axk1",
        "deepseek2",
        "mistral4",
        "ernie4_5-moe",
        "exaone-moe",
        "minimax-m2",
    ):  # whose choice may be corrected
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
    for name, shape in layout(config_from(checkpoint)).required.items():
        if name in weights:
            continue
        values = _normal(seed, name, shape) * 0.08
        if architecture == "gpt_neo" and "attn_q" in name:
            values = values / 8  # whose scores are not divided by the root of a head's width
        if name.endswith("ssm_a"):
            values = -np.exp(values * 10)  # below zero: a state is forgotten
        weights[name] = _f32(name, values + 1 if name.endswith(_NORMS) else values)
    return checkpoint


_NORMS = (
    *("norm.weight", "ffn_norm", "ffn_norm_exps.weight"),
    *("post_attention_norm", "post_ffw_norm"),
)


def _normal(seed, name, shape):
    return np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)


def seeing(decoder, windows):
    """*decoder* with other attention windows, one for each block."""
    blocks = []
    for (before, behind), window in zip(decoder.blocks, windows, strict=True):
        mixer = replace(before.mixers[0], window=window)
        blocks.append((replace(before, mixers=(mixer,)), behind))
    return replace(decoder, blocks=tuple(blocks))


def in_encoding(checkpoint, name, *, rounded=False):
    """*checkpoint* with the matrices of its blocks in the encoding *name*.

    Q4_K are random codes, unless weights are *rounded*, for which the compiled module is needed.
    """
    expected = layout(config_from(checkpoint))
    weights = {
        key: _encoded(weight, name, rounded)
        if key.startswith("blk.") and len(weight.shape) > 1 and key not in expected.vectors
        else weight
        for key, weight in checkpoint.weights.items()
    }
    return replace(checkpoint, weights=weights)


def _encoded(weight, name, rounded):
    quant = types.by_name(name)
    if len(weight.shape) == 3:
        parts = [_encoded(matrix, name, rounded) for matrix in weight.matrices()]
        if name == "I2_S":  # whose scale belongs to a tensor; no file has such experts
            name, quant = "TQ2_0", types.by_name("TQ2_0")
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
    values = np.asarray(values, dtype="<f4")
    return Weight(name, values.shape, F32, values.reshape(-1).view(np.uint8))


_BYTES = bytes([0xE6, 0x97, 0xA5, 0xC3, 0xA9]) + b"!.\n "  # the first three: one character
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
    """*checkpoint* with an output matrix that knows a little of which *ids* follow one another.

    A model of random numbers predicts English worse than guessing does, and verify refuses it.
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
        kind, data = weight.quant.ggml_id, weight.data
        if weight.name == "token_embd.weight":
            kind, data = 1, data.view("<f4").astype("<f2")
        tensors.append(Tensor(weight.name, weight.shape, kind, data.tobytes()))
    return write_gguf(path, dict(model.metadata) | letters() | keys, tensors)


def tiny_gguf(path, *, tokenizer=True, **keys):
    """A LLaMA as a file, with one token per letter; *keys* are metadata.

    With a tokenizer it has an output matrix of its own, without one that of the embedding.
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

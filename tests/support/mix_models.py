"""Models of zeros, whose tensors have the names and widths of a family.

These and the metadata decide which type llama-quantize gives to each tensor.
"""

import hashlib
from pathlib import Path

import numpy as np
from builders import Tensor, write_gguf
from tiny_keys import LATENT as LATENT_KEYS

from bitnet.convert.convert_options import MIXES, ConvertOptions
from bitnet.convert.mixes import types_of_mix
from bitnet.formats.checkpoint import Checkpoint
from bitnet.quants import types
from bitnet.quants.weight import Weight

ROWS = 2
F16 = types.by_name("F16")
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
FFN = ("ffn_gate", "ffn_up", "ffn_down")
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
FUSED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
LATENT = ("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_k_b", "attn_v_b", "attn_output")
BY_HEAD = ("attn_k_b", "attn_v_b")
STATES = ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_out", "ssm_conv1d")

OWN_KEYS = {
    "nanbeige": {"num_loops": 2},
    "falcon": {"attention.layer_norm_epsilon": 1e-5},
    "bailingmoe3": LATENT_KEYS
    | {"kda.gate_lower_bound": -5.0, "kda.head_dim": 32, "ssm.conv_kernel": 4},
    "deepseek2": LATENT_KEYS,
    "jais2": {"attention.layer_norm_epsilon": 1e-5},
    "qwen35": {
        "ssm.conv_kernel": 4,
        "ssm.group_count": 2,
        "ssm.inner_size": 256,
        "ssm.state_size": 32,
        "ssm.time_step_rank": 4,
        "rope.dimension_sections": [11, 11, 10, 0],
    },
}


def _zeros(name, shape):
    """The F16 weight *name* of zeros."""
    return Weight(name, shape, F16, np.zeros(2 * int(np.prod(shape)), np.uint8))


def model(
    architecture, blocks, *, heads=4, kv_heads=4, width=256, experts=0, tied=False, parts=None
):
    """A checkpoint of zeros; blocks have the matrices that the entries of *parts* name, in turn."""
    own = {
        "block_count": blocks,
        "context_length": 64,
        "embedding_length": width,
        "feed_forward_length": width,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": width // heads,
    }
    if experts:
        own |= {"expert_count": experts, "expert_used_count": 2, "expert_feed_forward_length": 256}
    own |= OWN_KEYS.get(architecture, {})
    keys = {"general.architecture": architecture}
    keys |= {f"{architecture}.{key}": value for key, value in own.items()}
    weights = [_zeros("token_embd.weight", (ROWS, width)), _zeros("output_norm.weight", (width,))]
    if not tied:
        weights.append(_zeros("output.weight", (ROWS, width)))
    for block in range(blocks):
        names = parts[block % len(parts)] if parts else (*ATTENTION, *FFN)
        for name in names:
            shape = (ROWS, width)
            if name in EXPERTS:
                shape = (experts, *shape)
            if name in BY_HEAD:
                shape = (heads, *shape)
            weights.append(_zeros(f"blk.{block}.{name}.weight", shape))
        weights.append(_zeros(f"blk.{block}.ffn_gate_inp.weight", (ROWS, width)))
        weights.append(_zeros(f"blk.{block}.attn_norm.weight", (width,)))
    path = Path(f"{architecture}.gguf")
    by_name = {weight.name: weight for weight in weights}
    return Checkpoint(path, architecture, keys, by_name, "half")


MODELS = {
    "llama of 20 blocks, four queries to a key": model("llama", 20, heads=8, kv_heads=2),
    "tied llama of 17 blocks": model("llama", 17, tied=True),
    "llama of 80 blocks, eight queries to a key": model("llama", 80, heads=8, kv_heads=1),
    "qwen2 of 80 blocks": model("qwen2", 80),
    "llama of 9 blocks with 8 experts": model(
        "llama", 9, kv_heads=1, experts=8, parts=[(*ATTENTION, *EXPERTS)]
    ),
    "qwen3moe of 18 blocks with 16 experts": model(
        "qwen3moe", 18, experts=16, parts=[(*ATTENTION, *EXPERTS)]
    ),
    "rows of 288": model("qwen2", 10, width=288),
    "tied rows of 288": model("qwen2", 3, width=288, tied=True),
    "rows of 80": model("llama", 3, width=80),
    "fused queries, keys and values": model("phi3", 16, parts=[FUSED]),
    "states between attention": model(
        "qwen35", 24, kv_heads=1, parts=[(*STATES, *FFN)] * 3 + [(*ATTENTION, *FFN)]
    ),
    "falcon of 34 blocks": model("falcon", 34, kv_heads=1, parts=[FUSED]),
    "tied falcon of 16 blocks": model("falcon", 16, tied=True, parts=[FUSED]),
    "jais2 of 68 blocks": model("jais2", 68),
    "llama-embed of 80 blocks, two queries to a key": model("llama-embed", 80, kv_heads=2),
    "llama of 80 blocks, nine queries to eight keys": model(
        "llama", 80, heads=9, kv_heads=8, width=288
    ),
    "blocks that run twice": model("nanbeige", 11),
    "bailingmoe3 of latent attention": model(
        "bailingmoe3", 8, experts=6, parts=[(*LATENT, *EXPERTS)]
    ),
    "deepseek2 of latent attention": model("deepseek2", 8, experts=6, parts=[(*LATENT, *EXPERTS)]),
}


def grid():
    """Every mix with further options of the conversion: without an importance matrix, and with.

    Q2_K_S needs one.
    """
    for mix in MIXES:
        if mix != "Q2_K_S":
            yield mix, {}
        yield mix, {"imatrix": Path("imatrix.gguf")}


def our_types(name, mix, own):
    """Lines ``NAME TYPE``, as ``bitnet convert`` chooses types for the model *name* of MODELS.

    *own* are further options of the conversion.
    """
    checkpoint = MODELS[name]
    chosen = types_of_mix(checkpoint, ConvertOptions(mix, **own), ())
    weights = checkpoint.weights
    return [f"{key} {chosen.get(key, weights[key].quant).name}" for key in sorted(weights)]


def digest(lines):
    """The beginning of SHA-256 of *lines*."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def write(path, checkpoint):
    """Write *checkpoint* to the GGUF file *path*."""
    tensors = [
        Tensor(weight.name, weight.shape, weight.quant.ggml_id, weight.data.tobytes())
        for weight in checkpoint.weights.values()
    ]
    return write_gguf(path, dict(checkpoint.metadata), tensors)

"""A tiny gpt-oss with its own chat template, special tokens, and a token for each byte."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from builders import Tensor, vocabulary, write_gguf
from tiny_keys import DIM
from tiny_models import tiny

from bitnet.quants import types
from bitnet.quants.registry import quantize
from bitnet.tokenizer.spec import byte_spelling

TEMPLATE = (Path(__file__).parents[1] / "fixtures" / "chat" / "gpt-oss.jinja").read_text("utf-8")
#: Special tokens of o200k_harmony that occur in conversations.
SPECIAL = (
    "<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>",
    "<|end|>", "<|message|>", "<|call|>",
)  # fmt: skip
TOKENS = [*(byte_spelling(bytes([byte])) for byte in range(256)), *SPECIAL, "ab"]


def gpt_oss_gguf(path):
    """The model as a file, its experts in MXFP4."""
    model = tiny("gpt-oss", context_length=4096)
    rows = np.random.default_rng(5).standard_normal((len(TOKENS), DIM)).astype(np.float32)
    embedding = quantize("token_embd.weight", rows, types.by_name("F32"))
    weights = {
        name: quantize(name, weight.data.view("<f4").reshape(weight.shape), types.by_name("MXFP4"))
        if len(weight.shape) == 3
        else weight
        for name, weight in model.weights.items()
    }
    weights |= {
        embedding.name: embedding,
        "output.weight": replace(embedding, name="output.weight"),
    }
    keys = vocabulary(
        TOKENS,
        merges=["a b"],
        token_types=[*[1] * 256, *[3] * len(SPECIAL), 1],
        pre="gpt-4o",
        bos_token_id=256,
        eos_token_id=258,
    )
    keys["tokenizer.chat_template"] = TEMPLATE
    tensors = [
        Tensor(weight.name, weight.shape, weight.quant.ggml_id, weight.data.tobytes())
        for weight in weights.values()
    ]
    return write_gguf(path, dict(model.metadata) | keys, tensors)

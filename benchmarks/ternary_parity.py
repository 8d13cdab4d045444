"""Compare every engine that runs BitNets on the same trained weights, those of ``bitnet-tiny``.

    python benchmarks/ternary_parity.py OUT.md

Needs PyTorch with transformers and ``ik-llama-cpp-python``, and BITNET_CPP_DIR with a build of
bitnet.cpp; the row of an engine that is missing, or refuses the model, says so. All get the tokens
of the same prompts. The table compares them with the float64 pass (the likeliest token and the KL
divergence of each position, and the greedy continuations) and with our compiled kernels (the KL
divergence).

ik_llama.cpp's IQ2_BN needs rows of 512 weights, and these have 256. It gets a model of the same
function that is twice as wide. The added weights are zeros. They halve the mean of squares in a
norm, so the norm's weights are divided by the square root of two, and its epsilon by two. Codes and
scales are unchanged, and so are the activations that are rounded to int8, except for the last bits
of a float32.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import bitnet
from bitnet.base import native
from bitnet.base.errors import BitnetError
from bitnet.convert.convert_options import ConvertOptions
from bitnet.convert.run import plan_conversion
from bitnet.crossval.compare import compare
from bitnet.crossval.float64 import Float64
from bitnet.crossval.ours import our_trace
from bitnet.crossval.plan import PROMPTS
from bitnet.crossval.references import BitnetCpp, IkLlamaCpp, LlamaCpp, Transformers
from bitnet.crossval.trace import Prompt, Question
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf_write import NewTensor, encode_value, raw_values, write_new
from bitnet.quants.registry import dequantize, unpack_ternary
from bitnet.quants.ternary import Ternary, pack_i2_s, pack_u8
from bitnet.shipped import SHIPPED

STEPS = 24
PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "attn_sub_norm": "self_attn.attn_sub_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_sub_norm": "mlp.ffn_sub_norm",
}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def folder_of(checkpoint, folder):
    """The model as a folder for transformers: packed codes, scales that multiply."""
    folder.mkdir()
    tensors = {}
    for name, weight in checkpoint.weights.items():
        words = name.split(".")
        is_in_block = words[0] == "blk"
        name = f"model.layers.{words[1]}.{PARTS[words[2]]}" if is_in_block else OUTER[words[0]]
        if weight.quant.is_ternary:
            ternary = unpack_ternary(weight)
            tensors[f"{name}.weight"] = pack_u8(ternary.codes)
            tensors[f"{name}.weight_scale"] = ternary.scales.reshape(1)
        else:
            tensors[f"{name}.weight"] = dequantize(weight)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    value = checkpoint.value
    integer = checkpoint.integer
    config = {
        "architectures": ["BitNetForCausalLM"],
        "dtype": "float32",
        "hidden_act": "relu2",
        "hidden_size": integer("embedding_length"),
        "intermediate_size": integer("feed_forward_length"),
        "max_position_embeddings": integer("context_length"),
        "model_type": "bitnet",
        "num_attention_heads": integer("attention.head_count"),
        "num_hidden_layers": integer("block_count"),
        "num_key_value_heads": integer("attention.head_count_kv"),
        "quantization_config": {
            "linear_class": "autobitlinear",
            "quant_method": "bitnet",
            "quantization_mode": "offline",
        },
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon", 0.0),
        "rope_theta": value("rope.freq_base", 0.0),
        "tie_word_embeddings": True,
        "vocab_size": checkpoint.weights["token_embd.weight"].shape[0],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_widened(checkpoint, path):
    """Write a model of the same function that is twice as wide to *path*, an I2_S file."""
    tensors = []
    for name, weight in checkpoint.weights.items():
        if weight.quant.is_ternary:
            ternary = unpack_ternary(weight)
            # Twice the rows and columns, the added ones zero.
            codes = np.pad(ternary.codes, [(0, size) for size in weight.shape])
            data = pack_i2_s(Ternary(codes, ternary.scales))
        elif len(weight.shape) == 1:
            values = np.pad(dequantize(weight) / np.float32(2**0.5), (0, weight.shape[0]))
            data = values.astype("<f4")
        else:
            data = np.pad(
                weight.data.view("<f2").reshape(weight.shape), ((0, 0), (0, weight.shape[1]))
            )
        rows = weight.shape[0] * (1 if name == "token_embd.weight" else 2)
        shape = (rows, *(2 * size for size in weight.shape[1:]))
        tensors.append(NewTensor(name, shape, weight.quant, lambda data=data: [data.tobytes()]))
    keys = raw_values(checkpoint.gguf)
    prefix = checkpoint.architecture
    for key in (
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
    ):
        keys[f"{prefix}.{key}"] = encode_value(2 * checkpoint.integer(key))
    epsilon = "attention.layer_norm_rms_epsilon"
    keys[f"{prefix}.{epsilon}"] = encode_value(checkpoint.value(epsilon, 0.0) / 2)
    write_new(path, keys, tensors)
    return path


def our_answer(checkpoint, question, level):
    """Our trace of *question* by the kernels of *level*, or by NumPy if it is empty."""
    os.environ["BITNET_BACKEND"] = "native" if level else "reference"
    if level and not native.module().set_kernel_level(level):
        raise SystemExit(f"this machine has no {level}")
    with bitnet.load(checkpoint, threads=1) as model:
        return our_trace(model, question)


def reference_answer(reference, checkpoint, question):
    """The trace of *reference*, or the message of its error."""
    try:
        return reference.trace(Question(checkpoint, question.prompts))
    except BitnetError as error:
        return error.message


def answers(checkpoint, question, work):
    """Label -> trace of each engine, or the message of its error; and the trace of our kernels."""
    levels = native.module().kernel_levels()
    traces = {
        f"ours, compiled, {level}": our_answer(checkpoint, question, level) for level in levels
    }
    best = traces[f"ours, compiled, {levels[-1]}"]
    traces["ours, NumPy float32"] = our_answer(checkpoint, question, "")
    folder = open_checkpoint(folder_of(checkpoint, work / "folder"))
    traces["transformers, int8 rounding"] = reference_answer(Transformers(), folder, question)
    traces["bitnet.cpp, I2_S"] = reference_answer(BitnetCpp(), checkpoint, question)
    wide = open_checkpoint(write_widened(checkpoint, work / "wide.gguf"))
    traces["bitnet.cpp, I2_S, widened"] = reference_answer(BitnetCpp(), wide, question)
    plan_conversion(wide.path, ConvertOptions("IQ2_BN")).write(work / "iq2_bn.gguf")
    packed = open_checkpoint(work / "iq2_bn.gguf")
    traces["ik_llama.cpp, IQ2_BN, widened"] = reference_answer(IkLlamaCpp(), packed, question)
    traces["ik_llama.cpp, F16 (activations not rounded)"] = reference_answer(
        IkLlamaCpp(), checkpoint, question
    )
    plan_conversion(checkpoint.path, ConvertOptions("TQ2_0")).write(work / "tq2_0.gguf")
    scaled = open_checkpoint(work / "tq2_0.gguf")
    traces["llama.cpp, TQ2_0"] = reference_answer(LlamaCpp(), scaled, question)
    return traces, best


def table(traces, best, exact):
    """Yield the head of the table, and a row of Markdown for each engine.

    *best* is the trace of our fastest kernels, *exact* that of the float64 pass.
    """
    yield (
        "| engine | the same likeliest token | mean KL from float64 (largest) | mean KL from ours "
        f"| greedy, {STEPS} tokens |"
    )
    yield "|---|---|---|---|---|"
    for label, trace in traces.items():
        if isinstance(trace, str):
            yield f"| {label} | none: {trace} | | | |"
            continue
        rows, continuations = compare(trace, exact)
        kl = [row.kl for row in rows]
        same = sum(row.agrees for row in rows)
        our_kl = np.mean([row.kl for row in compare(trace, best)[0]])
        n_equal = sum(row.agrees for row in continuations)
        yield (
            f"| {label} | {same} of {len(kl)} | {np.mean(kl):.1e} ({max(kl):.1e}) | {our_kl:.1e} | "
            f"{n_equal} of {len(continuations)} equal |"
        )


def main():
    """Run every engine, and write the table."""
    output = Path(sys.argv[1])
    checkpoint = open_checkpoint(SHIPPED["bitnet-tiny"].path)
    with bitnet.load(checkpoint, threads=1) as model:
        ids = {text: tuple(model.tokenizer.encode(text)) for text in PROMPTS[:6]}
    question = Question(checkpoint, tuple(Prompt(*pair, steps=STEPS) for pair in ids.items()))
    exact = Float64().trace(question)
    with tempfile.TemporaryDirectory() as work:
        traces, best = answers(checkpoint, question, Path(work))
    text = "\n".join(table(traces, best, exact)) + "\n"
    output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

"""Write a GGUF file with the shape of a published model and random weights.

    python benchmarks/synthetic.py OUT.gguf --vocabulary VOCAB.gguf [--type I2_S]
        [--shape 2b-4t] [--architecture NAME] [--layers N]

The speed of a ternary model does not depend on the values of its weights, so a benchmark needs only
the shape. Metadata keys are those of the published files (2B-4T has no ``tokenizer.ggml.pre``); the
vocabulary of every shape comes from any GGUF file that has LLaMA-3's. Another --architecture is for
engines that lack the real one: the same products with the norms of that architecture. Ternary
weights depend only on --seed, so files of different --type contain the same model; not so with
matrices of more than LARGEST weights, which repeat rows in some types. Mixtures of experts have the
types of the published files (--type Q4_K_M, MXFP4, TQ2_0). Only one tensor is in memory at a time.
"""

from __future__ import annotations

import argparse
import struct
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from synthetic_shapes import SHAPES, expert_keys, tensors

from bitnet.formats import gguf_header
from bitnet.formats.gguf import GGUF
from bitnet.formats.gguf_header import ARRAY, VALUE_TYPES
from bitnet.quants import registry, types
from bitnet.quants.scaled_blocks import SCALED_BLOCKS
from bitnet.quants.ternary import Ternary, pack_i2_s

ALIGNMENT = 32
# Values of general.file_type. I2_S and Q1_0 share a number: two forks of llama.cpp chose it.
FILE_TYPES = {"I2_S": 40, "TQ1_0": 36, "TQ2_0": 37, "F16": 1, "Q4_0": 2, "Q8_0": 7} | {
    "Q1_0": 40,
    "Q2_0": 41,
    "PQ2_0": 141,
    "PTQ1_0": 143,
    "Q4_K_M": 15,
    "MXFP4": 38,
}


def pack_q8_0(ternary):
    """*ternary* in blocks of 32 weights: a float16 scale, then the codes as int8."""
    codes = ternary.codes.reshape(-1, 32)
    return _behind_scales(ternary, codes.view(np.uint8))


def pack_q4_0(ternary):
    """*ternary* in Q4_0: code + 8 in four bits; high bits have the second half of a block."""
    codes = (ternary.codes.reshape(-1, 2, 16) + np.int8(8)).astype(np.uint8)
    return _behind_scales(ternary, codes[:, 0] | (codes[:, 1] << 4))


def _behind_scales(ternary, codes):
    """Bytes of blocks: the scale of *ternary* as float16, then the *codes* of the block."""
    scales = np.full((len(codes), 1), ternary.scales.item(), "<f2").view(np.uint8)
    return np.concatenate([scales, codes], axis=1).reshape(-1)


PACKERS = {
    "I2_S": pack_i2_s,
    **{name: layout.pack for name, layout in SCALED_BLOCKS.items()},
    "Q4_0": pack_q4_0,
    "Q8_0": pack_q8_0,
}
# Weights of a matrix in scaled blocks; a larger one repeats REPEATED_ROWS random rows.
LARGEST = 20_000_000
REPEATED_ROWS = 128
CHUNK_ROWS = 4096  # rows of the embedding that are in memory at once
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize + ': ' + message['content'] "
    "+ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)


def content(tensor, seed):
    """The bytes of *tensor* in pieces.

    They depend on its name and on *seed*, but repeated rows only on its width and encoding.
    """
    rng = np.random.default_rng([seed, *tensor.name.encode()])
    if tensor.name.endswith("ssm_a"):  # negative, so that the state decays
        yield -rng.uniform(0.1, 4, tensor.shape).astype("<f4")
        return
    if tensor.name.endswith("bias") and "ssm" not in tensor.name:  # ssm_dt.bias is positive, below
        yield rng.uniform(-0.1, 0.1, tensor.shape).astype("<f4")
        return
    # Routers, convolutions, and the gates of delta nets.
    if tensor.kind in ("F32", "BF16") and len(tensor.shape) == 2:
        values = rng.standard_normal(tensor.shape, dtype=np.float32) * np.float32(0.3)
        yield values if tensor.kind == "F32" else (values.view("<u4") >> 16).astype("<u2")
        return
    if len(tensor.shape) == 1:  # mostly norms
        yield rng.uniform(0.8, 1.2, tensor.shape).astype("<f4")
        return
    rows = int(np.prod(tensor.shape[:-1]))
    columns = tensor.shape[-1]
    if tensor.name == "token_embd.weight" and tensor.kind == "F16":
        for start in range(0, rows, CHUNK_ROWS):
            count = min(CHUNK_ROWS, rows - start)
            values = rng.standard_normal((count, columns), dtype=np.float32)
            yield (values * np.float32(0.02)).astype("<f2")
        return
    # Inputs of unit variance give outputs of unit variance: two thirds of the codes are not zero.
    # The scale is a float16, so that every encoding can represent it.
    scale = np.float16((columns * 2 / 3) ** -0.5)
    # Other encodings cannot represent ternary weights: they round normal random numbers.
    is_rounded = tensor.kind not in (*PACKERS, "F16")
    if is_rounded or (tensor.kind in SCALED_BLOCKS and rows * columns > LARGEST):
        # The same rows are repeated, so that a large model takes only a minute.
        for start in range(0, rows, REPEATED_ROWS):
            yield repeated(tensor.kind, min(REPEATED_ROWS, rows - start), columns, float(scale))
        return
    codes = rng.integers(-1, 2, (rows, columns), dtype=np.int8)
    if tensor.kind == "Q1_0":  # it has only two codes, without a zero
        codes = np.where(codes < 1, np.int8(-1), codes)
    if tensor.kind == "F16":
        yield codes.astype("<f2") * scale
    else:
        yield PACKERS[tensor.kind](Ternary(codes, np.full((1, 1), scale, dtype=np.float32)))


@lru_cache
def repeated(kind, rows, columns, scale):
    """Bytes of random rows of *kind*, in which each row is encoded on its own."""
    rng = np.random.default_rng(columns)
    if kind not in PACKERS:
        values = rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(scale)
        return registry.quantize("", values, types.by_name(kind)).data
    codes = rng.integers(-1, 2, (rows, columns), dtype=np.int8)
    if kind == "Q1_0":
        codes = np.where(codes < 1, np.int8(-1), codes)
    return PACKERS[kind](Ternary(codes, np.full((1, 1), scale, dtype=np.float32)))


def text(value):
    """*value* as a GGUF string: its length, then UTF-8."""
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def scalar(key, kind, value):
    """Bytes of a metadata *key* with a single *value* of the type *kind*."""
    names = [name for name, _, _ in VALUE_TYPES]
    number = names.index(kind)
    body = text(value) if kind == "string" else struct.pack("<" + VALUE_TYPES[number][1], value)
    return text(key) + struct.pack("<I", number) + body


def vocabulary_keys(path):
    """Bytes of the metadata keys with arrays of the vocabulary in *path*, and number of tokens."""
    with GGUF.open(path) as gguf:
        view = gguf.file_view()
        index = gguf_header.index(view, len(view), gguf.path.name)
        keys = {}
        for key in index.keys:
            if key.type == ARRAY and key.name.startswith(b"tokenizer.ggml."):
                head = struct.pack("<IIQ", ARRAY, key.item_type, key.length)
                keys[key.name] = text(key.name) + head + bytes(view[key.at : key.end])
        return list(keys.values()), len(gguf.metadata["tokenizer.ggml.tokens"])


def entry(key, value):
    """Bytes of a metadata *key*, whose type follows from its *value*."""
    if isinstance(value, list):
        item = 7 if isinstance(value[0], bool) else 4  # bool, uint32
        packed = struct.pack(f"<{len(value)}{'?' if item == 7 else 'I'}", *value)
        return text(key) + struct.pack("<IIQ", ARRAY, item, len(value)) + packed
    return scalar(key, "float32" if isinstance(value, float) else "uint32", value)


def metadata(kind, shape, *, layers, vocabulary):
    """Bytes of the keys other than the vocabulary's arrays, as in the published files."""
    architecture = shape.architecture
    # Ids of begin and end: LLaMA-3's, or the first two of a vocabulary that ends before these.
    ends = (128000, 128001) if vocabulary >= 128002 else (0, 1)
    own = {
        "vocab_size": vocabulary,
        "context_length": 4096,
        "embedding_length": shape.dim,
        "block_count": layers,
        "feed_forward_length": shape.ffn,
        "rope.dimension_count": shape.head_dim,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
    }
    own |= expert_keys(shape, layers)
    if shape.width != shape.dim or shape.experts:
        own |= {f"attention.{part}_length": shape.head_dim for part in ("key", "value")}
    if shape.period > 1 and not shape.experts:
        own |= {
            "full_attention_interval": shape.period,
            "rope.dimension_count": shape.head_dim // 4,
            "ssm.conv_kernel": 4,
            "ssm.group_count": shape.key_heads,
            "ssm.inner_size": shape.value_heads * shape.state,
            "ssm.state_size": shape.state,
            "ssm.time_step_rank": shape.value_heads,
        }
    if shape.embeds:
        own["pooling_type"] = 3  # the last token
    return [
        scalar("general.architecture", "string", architecture),
        scalar("general.name", "string", "synthetic"),
        *(entry(f"{architecture}.{key}", value) for key, value in own.items()),
        scalar(f"{architecture}.attention.layer_norm_rms_epsilon", "float32", 1e-5),
        scalar(f"{architecture}.rope.freq_base", "float32", 500000.0),
        scalar("general.file_type", "uint32", FILE_TYPES[kind]),
        scalar("general.quantization_version", "uint32", 2),
        scalar("tokenizer.ggml.model", "string", "gpt2"),
        scalar("tokenizer.ggml.bos_token_id", "uint32", ends[0]),
        scalar("tokenizer.ggml.eos_token_id", "uint32", ends[1]),
        scalar("tokenizer.ggml.padding_token_id", "uint32", ends[1]),
        scalar("tokenizer.ggml.add_bos_token", "bool", True),
        scalar("tokenizer.chat_template", "string", CHAT_TEMPLATE),
    ]


def padded(size):
    """*size* rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def write(
    path,
    vocabulary,
    *,
    kind="I2_S",
    shape=SHAPES["2b-4t"],
    layers=None,
    seed=0,
):
    """Write the file, with all *layers* of the *shape* by default."""
    layers = layers or shape.layers
    arrays, tokens = vocabulary_keys(vocabulary)
    tokens = max(tokens, shape.vocabulary)
    keys = metadata(kind, shape, layers=layers, vocabulary=tokens) + arrays
    entries = tensors(kind, shape, layers=layers, vocabulary=tokens)
    pieces = [b"GGUF", struct.pack("<IQQ", 3, len(entries), len(keys)), *keys]
    offset = 0
    for tensor in entries:
        dims = tensor.shape[::-1]
        number = types.by_name(tensor.kind).ggml_id
        pieces.append(text(tensor.name) + struct.pack("<I", len(dims)))
        pieces.append(struct.pack(f"<{len(dims)}QIQ", *dims, number, offset))
        offset += padded(tensor.size)
    header = b"".join(pieces)
    with Path(path).open("wb") as file:
        file.write(header + bytes(-len(header) % ALIGNMENT))
        for tensor in entries:
            for piece in content(tensor, seed):
                file.write(piece)
            file.write(bytes(padded(tensor.size) - tensor.size))


def main():
    """Write the file that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocabulary", type=Path, required=True, help="GGUF file with LLaMA-3's")
    parser.add_argument("--type", default="I2_S", choices=sorted(FILE_TYPES))
    parser.add_argument("--shape", default="2b-4t", choices=SHAPES)
    parser.add_argument("--architecture", help="another one, such as bitnet for llama.cpp")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    if options.type == "Q4_K_M" and not shape.experts:
        parser.error(f"--type Q4_K_M is of mixtures of experts, and {options.shape} is dense")
    write(
        options.out,
        options.vocabulary,
        kind=options.type,
        shape=replace(shape, architecture=options.architecture or shape.architecture),
        layers=options.layers,
        seed=options.seed,
    )


if __name__ == "__main__":
    main()

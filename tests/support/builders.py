"""Tiny GGUF files, built from their definition byte by byte: valid ones, and damaged ones."""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = range(10)
UINT64 = 10
INT64 = 11
FLOAT64 = 12

_CODES = {
    UINT8: "B",
    INT8: "b",
    UINT16: "H",
    INT16: "h",
    UINT32: "I",
    INT32: "i",
    FLOAT32: "f",
    BOOL: "?",
    UINT64: "Q",
    INT64: "q",
    FLOAT64: "d",
}


@dataclass(frozen=True)
class Typed:
    """A metadata value with its GGUF type spelled out; an array of it when *value* is a list."""

    type: int
    value: Any


@dataclass(frozen=True)
class Tensor:
    """A tensor: shape rows first, its encoding's id and its bytes."""

    name: str
    shape: tuple[int, ...]
    type: int
    data: bytes


def string(text):
    """*text* as a string of GGUF: the length in eight bytes, then UTF-8, or the given bytes."""
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _type_of(value):
    """Type id of a plain value."""
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return UINT32 if 0 <= value < 2**32 else INT64
    return {float: FLOAT32, str: STRING, bytes: STRING}[type(value)]


def _scalar(kind, value):
    """Bytes of a single *value* of the type id *kind*."""
    return string(value) if kind == STRING else struct.pack("<" + _CODES[kind], value)


def value_bytes(value):
    """Bytes of a metadata value as the file has them: the type id, then the value."""
    kind = value.type if isinstance(value, Typed) else None
    plain = value.value if isinstance(value, Typed) else value
    if isinstance(plain, (list, tuple)):
        if kind is None:
            kind = _type_of(plain[0])
            kind = INT32 if kind == UINT32 else kind
        items = b"".join(_scalar(kind, item) for item in plain)
        return struct.pack("<IIQ", ARRAY, kind, len(plain)) + items
    kind = _type_of(plain) if kind is None else kind
    return struct.pack("<I", kind) + _scalar(kind, plain)


def gguf_bytes(metadata=None, tensors=(), *, version=3, alignment=32):
    """A whole file.

    *metadata* maps keys to plain values (integers become uint32, in arrays int32; floats float32)
    or to :class:`Typed` ones. *alignment* is used, and not written into the metadata.
    """
    metadata = metadata or {}
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(string(key) + value_bytes(value) for key, value in metadata.items())
    data = bytearray()
    for tensor in tensors:
        data += b"\0" * (-len(data) % alignment)
        head += string(tensor.name) + struct.pack("<I", len(tensor.shape))
        head += b"".join(struct.pack("<Q", dim) for dim in reversed(tensor.shape))
        head += struct.pack("<IQ", tensor.type, len(data))
        data += tensor.data
    if tensors:
        head += b"\0" * (-len(head) % alignment)
        data += b"\0" * (-len(data) % alignment)
    return head + data


def write_gguf(path, metadata=None, tensors=(), **options):
    """Write :func:`gguf_bytes` to *path*, and return the path."""
    path = Path(path)
    path.write_bytes(gguf_bytes(metadata, tensors, **options))
    return path


def f32(name, shape, fill=1.0):
    """An F32 tensor with one value everywhere."""
    return Tensor(name, shape, 0, struct.pack("<f", fill) * math.prod(shape))


def i2_s(name, shape, codes=None, scale=1.0):
    """An I2_S tensor in the x86 layout; *codes* are 0, 1, 2 for -1, 0, +1, row by row."""
    n = math.prod(shape)
    codes = [i % 3 for i in range(n)] if codes is None else list(codes)
    # 32 bytes hold 128 weights: byte j has weights j, j + 32, j + 64 and j + 96, the first on top.
    packed = bytearray(n // 4)
    for i, code in enumerate(codes):
        block, within = divmod(i, 128)
        packed[block * 32 + within % 32] |= code << (6 - 2 * (within // 32))
    return Tensor(name, shape, 36, bytes(packed) + struct.pack("<f", scale) + b"\0" * 28)


def vocabulary(tokens, *, model="gpt2", merges=None, scores=None, token_types=None, **more):
    """Metadata of an embedded tokenizer; *more* are further ``tokenizer.ggml.*`` keys."""
    metadata = {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": Typed(STRING, list(tokens)),
    }
    if scores is not None:
        metadata["tokenizer.ggml.scores"] = Typed(FLOAT32, list(scores))
    if token_types is not None:
        metadata["tokenizer.ggml.token_type"] = Typed(INT32, list(token_types))
    if merges is not None:
        metadata["tokenizer.ggml.merges"] = Typed(STRING, list(merges))
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in more.items()}
    return metadata


def llama_metadata(architecture="llama", *, blocks=1, width=128, heads=4, kv_heads=2, context=256):
    """The keys that describe a small decoder."""
    return {
        "general.architecture": architecture,
        f"{architecture}.block_count": blocks,
        f"{architecture}.context_length": context,
        f"{architecture}.embedding_length": width,
        f"{architecture}.feed_forward_length": 2 * width,
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": kv_heads,
    }

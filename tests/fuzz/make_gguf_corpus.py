"""Writes the seeds of the GGUF fuzz corpus: ``python tests/fuzz/make_gguf_corpus.py``.

The other files of the folder, ``found-...``, were found by fuzzing.
"""

import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from builders import Tensor, Typed, f32, gguf_bytes, i2_s, llama_metadata, vocabulary

FOLDER = Path(__file__).parent / "corpus" / "gguf"
HEAD = b"GGUF" + struct.pack("<I", 3)
# Numbers of GGUF's value types, without 8 (text) and 9 (array).
PLAIN_TYPES = (0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12)
# Numbers of ggml's types, those of ik_llama.cpp from 135 on.
TQ1_0 = 34
TQ2_0 = 35
IQ2_BN = 135
IQ2_BN_R4 = 335


def u64(value):
    return struct.pack("<Q", value)


def key(payload, name=b"k"):
    """A file with one key: *payload* is the type of its value, and the value."""
    return HEAD + struct.pack("<QQ", 0, 1) + u64(len(name)) + name + payload


def tensor(payload):
    """A file with one tensor: *payload* is its rank, dimensions, type and offset."""
    return HEAD + struct.pack("<QQ", 1, 0) + u64(1) + b"t" + payload


def seeds():
    """Name and bytes of every seed."""
    tokens = vocabulary(["<s>", "a", "b", "ab", "\u0120c"], merges=["a b"], scores=[0.0] * 5)
    tokens["tokenizer.ggml.token_type"] = Typed(5, [3, 1, 1, 1, 1])
    model = gguf_bytes(
        {**llama_metadata("bitnet-b1.58"), **tokens},
        [
            f32("token_embd.weight", (5, 4)),
            i2_s("blk.0.attn_q.weight", (1, 128)),
            Tensor("tq1", (1, 256), TQ1_0, bytes(54)),
            Tensor("tq2", (1, 256), TQ2_0, bytes(66)),
            Tensor("bn", (1, 64), IQ2_BN, bytes(20)),
            Tensor("r4", (4, 64), IQ2_BN_R4, bytes(80)),
        ],
    )
    every_type = {f"t{kind}": Typed(kind, 1) for kind in PLAIN_TYPES}
    every_array = {f"a{kind}": Typed(kind, [1, 0]) for kind in PLAIN_TYPES}
    yield "model", model
    yield "model-cut", model[:-100]
    yield "model-header-cut", model[:300]
    yield "version-2", gguf_bytes({"k": 1}, version=2)
    yield "version-1", gguf_bytes({"k": 1}, version=1)
    yield "big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    yield "empty-header", gguf_bytes()
    yield "every-type", gguf_bytes({**every_type, "s": "text", "e": ""})
    yield "every-array", gguf_bytes({**every_array, "s": ["a", "", "\u00fc"]})
    yield "invalid-utf8", gguf_bytes({"k": b"\xff\x80", "a": [b"\xc3", b"\xed\xa0\x80"]})
    yield "alignment-64", gguf_bytes({"general.alignment": 64}, [f32("a", (3,))], alignment=64)
    yield "alignment-0", gguf_bytes({"general.alignment": 0})
    yield "key-twice", gguf_bytes({"aa": 1, "ab": 2}).replace(b"ab", b"aa")
    yield "tensor-twice", gguf_bytes({}, [f32("ta", (1,)), f32("tb", (1,))]).replace(b"tb", b"ta")
    yield "many-keys", HEAD + struct.pack("<QQ", 0, 2**63)
    yield "many-tensors", HEAD + struct.pack("<QQ", 2**63, 0)
    yield "name-too-long", key(b"", b"x" * 10)[:24] + u64(2**40)
    yield "value-type-13", key(struct.pack("<I", 13))
    yield "array-of-arrays", key(struct.pack("<IIQ", 9, 9, 1) + bytes(20))
    yield "array-count-wraps", key(struct.pack("<IIQ", 9, 4, 2**62) + bytes(20))
    yield "strings-count-wraps", key(struct.pack("<IIQ", 9, 8, 2**61) + bytes(20))
    yield "string-length-wraps", key(struct.pack("<IQ", 8, 2**64 - 1) + bytes(20))
    yield "five-dimensions", tensor(struct.pack("<I", 5) + bytes(60))
    yield "zero-dimension", tensor(struct.pack("<IQQ", 2, 4, 0) + bytes(12))
    yield "dimensions-overflow", tensor(struct.pack("<IQQQ", 3, 2**31, 2**31, 4) + bytes(12))
    yield "offset-far-out", tensor(struct.pack("<IQIQ", 1, 1, 0, 2**64 - 1) + bytes(64))
    yield "unknown-encoding", tensor(struct.pack("<IQIQ", 1, 1, 77, 0) + bytes(64))
    yield "largest-tensor", tensor(struct.pack("<IQIQ", 1, 2**63 - 1, 12, 0) + bytes(64))


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, raw in seeds():
        (FOLDER / f"{name}.gguf").write_bytes(raw)

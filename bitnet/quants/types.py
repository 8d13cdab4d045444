"""Every quantization type a GGUF file can name: ids, blocks and bytes, per dialect.

Three programs write GGUF files and number their types independently: llama.cpp, bitnet.cpp (a
fork of it) and ik_llama.cpp (another fork). Most ids agree; 36 to 39 do not:

    id   llama.cpp     bitnet.cpp   ik_llama.cpp
    36   (removed)     I2_S         I2_S
    37   (removed)     I8_S         -
    38   (removed)     TL1          -
    39   MXFP4         TL2          MXFP4

Hence a type is looked up by id *and* dialect, and :func:`resolve_dialect` finds the dialect.

PrismML's fork of llama.cpp has types of its own (142, 143). Its older files have blocks of 128
weights under 42, where llama.cpp's Q2_0 has 64; the sizes in the file tell the two apart
(:func:`resolve_q2_0`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, Literal, NamedTuple

from bitnet.base.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Dialect = Literal["llama.cpp", "bitnet.cpp", "ik_llama.cpp"]

LLAMA_CPP: Dialect = "llama.cpp"
BITNET_CPP: Dialect = "bitnet.cpp"
IK_LLAMA_CPP: Dialect = "ik_llama.cpp"

_TENSOR_SCALE_BYTES = 32  # tail of a tensor in I2_S, TL1 or TL2: one f32 scale, and padding

# Id of one-bit weights in early builds of PrismML's fork; in llama.cpp it is NVFP4's.
_EARLY_Q1_0 = 40

_ONLY_LLAMA = frozenset({40, 41, 42, 142, 143})
# ik_llama.cpp numbers its own types from 133 to 399 (its ``ggml/include/ggml.h``).
_ONLY_IK = frozenset(range(133, 400)) - _ONLY_LLAMA
_CONTESTED = frozenset({36, 37, 38, 39})

_TERNARY = frozenset(
    {"I2_S", "TL1", "TL2", "TQ1_0", "TQ2_0", "IQ1_BN", "IQ2_BN", "IQ2_BN_R4"}
    | {"Q1_0", "Q2_0", "Q2_0_G128", "PQ2_0", "PTQ1_0"}
)


@dataclass(frozen=True)
class QuantType:
    """A quantization type."""

    name: str  # in ggml's spelling: ``F16``, ``Q4_K``, ``I2_S``
    ggml_id: int  # number in the tensor directory
    block_size: int  # weights per block, along a row
    type_size: int  # bytes per block; 0 for an id unknown to the dialect
    row_bytes: int = 0  # bytes in front of each row (ik_llama.cpp's row scales)

    @property
    def known(self) -> bool:
        """True if the size of the type is known; other tensors can only be listed and copied."""
        return self.type_size > 0

    @property
    def is_ternary(self) -> bool:
        """True if the weights are -1, 0, +1 (in Q2_0 and PQ2_0 also 2) times a scale."""
        return self.name in _TERNARY

    def size_bytes(self, shape: Sequence[int]) -> int | None:
        """Bytes of a tensor of *shape* (rows first); ``None`` if *shape* cannot be encoded."""
        n = math.prod(shape)
        columns = shape[-1] if shape else 1
        rows = math.prod(shape[:-1])
        if not self.known or columns % self.block_size:
            return None
        if self.name in ("I2_S", "TL1"):
            return n // 4 + _TENSOR_SCALE_BYTES
        if self.name == "TL2":
            return _tl2_bytes(columns, rows)
        return n // self.block_size * self.type_size + rows * self.row_bytes


def _tl2_bytes(columns: int, rows: int) -> int | None:
    """Bytes of a TL2 tensor, or None if *columns* are too few.

    256 columns take two bits per weight; of the others, three weights take five bits. The codes are
    padded to 32 bytes, and the scale follows.
    """
    if columns < 256:
        return None
    size = (columns - 256) * rows // 3 * 5 // 8 + 256 * rows // 2 * 4 // 8
    return -(-size // 32) * 32 + _TENSOR_SCALE_BYTES


# Name, id, weights per block, bytes per block: ggml.h of llama.cpp, GGML_QUANT_SIZES of gguf-py.
_COMMON = tuple(
    starmap(QuantType, (
        ("F32", 0, 1, 4), ("F16", 1, 1, 2), ("BF16", 30, 1, 2), ("F64", 28, 1, 8),
        ("I8", 24, 1, 1), ("I16", 25, 1, 2), ("I32", 26, 1, 4), ("I64", 27, 1, 8),
        ("Q4_0", 2, 32, 18), ("Q4_1", 3, 32, 20), ("Q5_0", 6, 32, 22), ("Q5_1", 7, 32, 24),
        ("Q8_0", 8, 32, 34), ("Q8_1", 9, 32, 36), ("IQ4_NL", 20, 32, 18),
        ("Q2_K", 10, 256, 84), ("Q3_K", 11, 256, 110), ("Q4_K", 12, 256, 144),
        ("Q5_K", 13, 256, 176), ("Q6_K", 14, 256, 210), ("Q8_K", 15, 256, 292),
        ("IQ2_XXS", 16, 256, 66), ("IQ2_XS", 17, 256, 74), ("IQ3_XXS", 18, 256, 98),
        ("IQ1_S", 19, 256, 50), ("IQ3_S", 21, 256, 110), ("IQ2_S", 22, 256, 82),
        ("IQ4_XS", 23, 256, 136), ("IQ1_M", 29, 256, 56), ("TQ1_0", 34, 256, 54),
        ("TQ2_0", 35, 256, 66),
    ))
)  # fmt: skip

_I2_S = QuantType("I2_S", 36, 1, 1)
_MXFP4 = QuantType("MXFP4", 39, 32, 17)
_LLAMA = (
    _MXFP4,
    QuantType("NVFP4", 40, 64, 36),
    QuantType("Q1_0", 41, 128, 18),
    QuantType("Q2_0", 42, 64, 18),
    QuantType("PQ2_0", 142, 128, 34),
    QuantType("PTQ1_0", 143, 128, 28),
)

#: Blocks of 128 under the id of Q2_0.
Q2_0_G128 = QuantType("Q2_0_G128", 42, 128, 34)

_BITNET = (
    _I2_S,
    QuantType("I8_S", 37, 1, 1),
    QuantType("TL1", 38, 1, 1),
    QuantType("TL2", 39, 1, 1),
)

# Of ik_llama.cpp's own types those that are read; others have ids in the same range.
_IK = (
    _I2_S,
    _MXFP4,
    QuantType("IQ1_BN", 134, 64, 13, 2),
    QuantType("IQ2_BN", 135, 64, 16, 4),
    QuantType("IQ2_BN_R4", 335, 64, 16, 4),
)

_BY_ID: dict[Dialect, dict[int, QuantType]] = {
    dialect: {entry.ggml_id: entry for entry in (*_COMMON, *own)}
    for dialect, own in ((LLAMA_CPP, _LLAMA), (BITNET_CPP, _BITNET), (IK_LLAMA_CPP, _IK))
}
_BY_NAME = {entry.name: entry for entry in (*_COMMON, *_LLAMA, *_BITNET, *_IK, Q2_0_G128)}


def by_id(ggml_id: int, dialect: Dialect = LLAMA_CPP) -> QuantType:
    """The type with the id *ggml_id* in *dialect*; an unknown one is ``UNKNOWN_<id>``."""
    return _BY_ID[dialect].get(ggml_id) or QuantType(f"UNKNOWN_{ggml_id}", ggml_id, 1, 0)


def by_name(name: str) -> QuantType:
    """The type named *name*, in any dialect; it is not ``known`` if the name is unknown."""
    return _BY_NAME.get(name.upper()) or QuantType(name, -1, 1, 0)


class TensorEvidence(NamedTuple):
    """Evidence of the dialect from one entry of a tensor directory."""

    ggml_id: int  # number of the type
    shape: tuple[int, ...]  # rows first
    # bytes until the next tensor or the end of the file; ``None`` if the file's size is unknown
    room_bytes: int | None


def resolve_dialect(
    architecture: str, tensors: Iterable[TensorEvidence], *, alignment: int = 32
) -> Dialect:
    """Dialect of a file: the program whose type ids it uses.

    Ids that only one dialect has decide first, then the sizes of tensors with contested ids. Last,
    the architecture decides, since bitnet.cpp runs BitNet models and little else.
    """
    directory = list(tensors)
    ids = {entry.ggml_id for entry in directory}
    if ids & _ONLY_IK:
        return IK_LLAMA_CPP
    if ids & _ONLY_LLAMA or not ids & _CONTESTED:
        return LLAMA_CPP
    contested = [entry for entry in directory if entry.ggml_id in _CONTESTED]
    # llama.cpp has removed its types 36 to 38: a file with one of these ids is bitnet.cpp's.
    preferred = BITNET_CPP if architecture.startswith("bitnet") or 39 not in ids else LLAMA_CPP
    for dialect in (preferred, BITNET_CPP, LLAMA_CPP, IK_LLAMA_CPP):
        if all(_fits(entry, _BY_ID[dialect].get(entry.ggml_id), alignment) for entry in contested):
            return dialect
    return preferred


def resolve_q2_0(
    dialect: Dialect, tensors: Iterable[TensorEvidence], *, alignment: int = 32
) -> QuantType:
    """Layout of the tensors with the id of Q2_0, blocks of 64 or 128 weights, by their sizes.

    Sizes that fit both layouts are refused, and so are tensors with the id of NVFP4 that are
    one-bit weights of an early build of PrismML's fork.
    """
    directory = list(tensors)
    early = [entry for entry in directory if entry.ggml_id == _EARLY_Q1_0]
    if (
        dialect == LLAMA_CPP
        and early
        and not any(_fits(entry, by_id(40), alignment) for entry in early)
    ):
        raise Unsupported(
            "type id 40 is NVFP4, and the sizes of these tensors are not: early builds of "
            "PrismML's llama.cpp numbered their 1-bit weights so",
            hint="fetch the current file of this model, whose 1-bit weights have the id 41",
        )
    q2_0 = by_id(42)
    entries = [entry for entry in directory if entry.ggml_id == q2_0.ggml_id]
    kinds = (q2_0, Q2_0_G128)
    fitting = [kind for kind in kinds if all(_fits(entry, kind, alignment) for entry in entries)]
    if entries and len(fitting) == 2 and any(entry.room_bytes is not None for entry in entries):
        raise Unsupported(
            "the tensors of type id 42 are so small that their sizes do not tell whether blocks "
            "have 64 weights (Q2_0) or 128 (older files of PrismML's llama.cpp)",
            hint="convert the model to PQ2_0, whose id has one meaning",
        )
    return fitting[0] if fitting else q2_0


def _fits(entry: TensorEvidence, kind: QuantType | None, alignment: int) -> bool:
    """True if *entry*, read as *kind* and padded to *alignment*, ends where the next one starts."""
    size = kind.size_bytes(entry.shape) if kind is not None else None
    if size is None:
        return False
    room = entry.room_bytes
    return room is None or size <= room < size + alignment

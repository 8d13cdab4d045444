"""Encodings of one to two bits per weight whose blocks have a float16 scale each.

A weight is ``(code - 1) * scale``. Codes are digits of bytes:

    base 4   bits ``2 n``, ``2 n + 1`` of a byte are digit n; 3 means 2 in the types that allow it
    base 3   a byte is ``ceil(value * 256 / 3 ** count)``, so that multiplying by ``3 ** n`` in
             eight bits moves digit n to the top
    base 2   bit n of a byte is digit n: 0 and 1 are the codes 0 and 2

In TQ1_0, TQ2_0 and PTQ1_0 digit n of byte m is weight ``bytes * n + m`` of its part of the block,
so that a vector of bytes gives neighbouring weights; in the others weight ``digits * m + n``.

Sources: llama.cpp, ``ggml/src/ggml-quants.c`` and ``ggml-common.h`` (TQ1_0, TQ2_0, Q1_0, Q2_0);
PrismML's fork of it (PQ2_0, PTQ1_0). Q2_0_G128 is the layout that files of that fork had under the
number of Q2_0 before llama.cpp gave it blocks of 64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import InvalidFormat
from bitnet.quants.ternary import Ternary, codes_from_unsigned, split_digits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class CodeBytes:
    """Neighbouring bytes of a block with as many digits each."""

    start: int  # offset of the first byte in the block
    count: int  # number of bytes
    digits: int  # digits of a byte
    base: int  # of the digits
    strided: bool  # the first digits of all bytes come first, then the second ones

    @property
    def weights(self) -> int:
        """Number of weights."""
        return self.count * self.digits

    def codes(self, blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Codes of *blocks*, shape ``(blocks, weights)``."""
        packed = blocks[:, self.start : self.start + self.count]
        digits = split_digits(packed, self.base, self.digits)  # (blocks, bytes, digits)
        ordered = digits.swapaxes(1, 2) if self.strided else digits
        return ordered.reshape(len(blocks), self.weights)

    def pack(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Bytes of *codes*, shape ``(blocks, weights)``; the inverse of :meth:`codes`."""
        if self.strided:
            digits = codes.reshape(-1, self.digits, self.count).swapaxes(1, 2)
        else:
            digits = codes.reshape(-1, self.count, self.digits)
        if self.base == 3:
            places = 3 ** np.arange(self.digits - 1, -1, -1, dtype=np.uint32)
            value = (digits * places).sum(axis=2, dtype=np.uint32)
            most = 3**self.digits
            return ((value * 256 + most - 1) // most).astype(np.uint8)
        bits = digits >> 1 if self.base == 2 else digits
        shifts = np.arange(self.digits, dtype=np.uint8) * np.uint8(self.base // 2)
        packed: NDArray[np.uint8] = np.bitwise_or.reduce(bits << shifts, axis=2)
        return packed


@dataclass(frozen=True)
class ScaledBlocks:
    """Layout of an encoding whose blocks have a float16 scale each."""

    name: str  # of the quantization type
    weights: int  # weights of a block
    size: int  # bytes of a block
    scale_at: int  # offset of the scale in the block
    parts: tuple[CodeBytes, ...]  # the bytes with codes, in the order of the weights
    double: bool = False  # code 3 is a weight of twice the scale; otherwise it is invalid

    def unpack(self, packed: NDArray[np.uint8], shape: Sequence[int]) -> Ternary:
        """Codes and scales of a tensor of *shape* ``(rows, columns)``."""
        blocks = packed.reshape(-1, self.size)
        codes = np.concatenate([part.codes(blocks) for part in self.parts], axis=1)
        signed = codes_from_unsigned(codes, self.name, largest=3 if self.double else 2)
        return Ternary(signed.reshape(tuple(shape)), self.scales(packed, shape))

    def scales(self, packed: NDArray[np.uint8], shape: Sequence[int]) -> NDArray[np.float32]:
        """Scales of the blocks of a tensor, shape ``(rows, columns / weights)``."""
        stored = packed.reshape(-1, self.size)[:, self.scale_at : self.scale_at + 2]
        values = np.ascontiguousarray(stored).view("<f2").astype(np.float32)
        return values.reshape(shape[0], shape[1] // self.weights)

    def refusal(self, ternary: Ternary) -> str:
        """The weights of *ternary* that have no code here, in words; empty if all have one."""
        if not self.double and (ternary.codes > 1).any():
            return f"weights of twice their scale, which {self.name} has no code for"
        if self.parts[0].base == 2:
            rows = ternary.codes.shape[0]
            groups = ternary.scales.shape[1]
            zeros = (ternary.codes.reshape(rows, groups, -1) == 0).any(axis=2)
            if (zeros & (ternary.scales != 0)).any():
                return f"weights that are zero, which {self.name} has no code for"
        return ""

    def pack(self, ternary: Ternary) -> NDArray[np.uint8]:
        """Bytes of a tensor; scales are rounded to float16."""
        reason = self.refusal(ternary)
        if reason:
            raise InvalidFormat(f"there are {reason}", hint="choose PQ2_0 or Q2_0")
        codes = (ternary.codes.reshape(-1, self.weights) + np.int8(1)).astype(np.uint8)
        blocks = np.empty((len(codes), self.size), dtype=np.uint8)
        first = 0
        for part in self.parts:
            here = slice(part.start, part.start + part.count)
            blocks[:, here] = part.pack(codes[:, first : first + part.weights])
            first += part.weights
        rows, columns = ternary.codes.shape
        groups = columns // self.weights
        repeated = np.repeat(ternary.scales, groups // ternary.scales.shape[1], axis=1)
        scales = np.broadcast_to(repeated, (rows, groups)).astype("<f2")
        blocks[:, self.scale_at : self.scale_at + 2] = scales.reshape(-1, 1).view(np.uint8)
        return blocks.reshape(-1)


def _base4(start: int, count: int, *, strided: bool = False) -> CodeBytes:
    """*count* bytes, from *start* on, of four digits in base 4 each."""
    return CodeBytes(start, count, 4, 4, strided)


def _base3(start: int, count: int, digits: int = 5) -> CodeBytes:
    """*count* bytes, from *start* on, of *digits* digits in base 3; a byte has room for five."""
    return CodeBytes(start, count, digits, 3, strided=True)


#: The encodings by name.
SCALED_BLOCKS = {
    layout.name: layout
    for layout in (
        ScaledBlocks("TQ1_0", 256, 54, 52, (_base3(0, 32), _base3(32, 16), _base3(48, 4, 4))),
        ScaledBlocks(
            "TQ2_0", 256, 66, 64, (_base4(0, 32, strided=True), _base4(32, 32, strided=True))
        ),
        ScaledBlocks("Q1_0", 128, 18, 0, (CodeBytes(2, 16, 8, 2, strided=False),)),
        ScaledBlocks("Q2_0", 64, 18, 0, (_base4(2, 16),), double=True),
        ScaledBlocks("Q2_0_G128", 128, 34, 0, (_base4(2, 32),), double=True),
        ScaledBlocks("PQ2_0", 128, 34, 0, (_base4(2, 32),), double=True),
        ScaledBlocks("PTQ1_0", 128, 28, 26, (_base3(0, 16), _base3(16, 8), _base3(24, 2, 4))),
    )
}

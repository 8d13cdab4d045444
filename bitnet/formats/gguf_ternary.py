"""Counts of -1, 0, +1 and invalid codes in the ternary tensors of a GGUF file.

Every type here packs several codes into a byte, so it suffices to count bytes: 256 counts, then
the codes of each byte value.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.quants.scaled_blocks import SCALED_BLOCKS, split_digits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np

    from bitnet.formats.gguf import GGUF, TensorInfo

__all__ = ["TernaryCounts", "code_counts"]

_CHUNK_BYTES = 1 << 20
SAMPLE_BYTES = 1 << 18


@dataclass(frozen=True)
class TernaryCounts:
    """Code counts of one tensor.

    Attributes:
        name: the tensor.
        minus: weights that are -1.
        zero: weights that are 0.
        plus: weights that are +1.
        invalid: codes without a meaning.
        scale: the tensor's scale; ``None`` if the type has one per block or row.
        complete: all weights were counted, not only a sample.
        double: weights that are 2, which Q2_0 and PQ2_0 have a code for.
    """

    name: str
    minus: int
    zero: int
    plus: int
    invalid: int
    scale: float | None
    complete: bool
    double: int = 0

    @property
    def total(self) -> int:
        """Number of codes counted."""
        return self.minus + self.zero + self.plus + self.double + self.invalid


def code_counts(gguf: GGUF, *, full: bool = False) -> Iterator[TernaryCounts]:
    """Counts of every tensor of a type in :data:`READERS`, in file order.

    Args:
        gguf: the open file.
        full: count all weights; else a sample from each tensor's start, which reads at most
            256 KiB of it.
    """
    for info in gguf.tensors.values():
        reader = READERS.get(info.type.name)
        if reader is not None:
            yield reader(info, gguf.tensor_bytes(info.name), full)


def _histogram(raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Number of occurrences of each byte value in *raw*, shape ``(256,)``, int64."""
    import numpy as np

    counts = np.zeros(256, dtype=np.int64)
    flat = raw.reshape(-1)
    for start in range(0, flat.size, _CHUNK_BYTES):
        counts += np.bincount(flat[start : start + _CHUNK_BYTES], minlength=256)
    return counts


def _two_bits(byte: int) -> list[int]:
    return [byte >> shift & 3 for shift in (0, 2, 4, 6)]


def _count(
    info: TensorInfo,
    pieces: list[tuple[np.ndarray[Any, Any], Callable[[int], list[int]]]],
    *,
    complete: bool,
    scale: float | None = None,
    double: bool = False,
) -> TernaryCounts:
    codes = [0, 0, 0, 0]
    for raw, split in pieces:
        for byte, times in enumerate(_histogram(raw).tolist()):
            for code in split(byte) if times else ():
                codes[code] += times
    minus, zero, plus, last = codes
    twice, invalid = (last, 0) if double else (0, last)
    return TernaryCounts(info.name, minus, zero, plus, invalid, scale, complete, twice)


def _i2_s(info: TensorInfo, view: memoryview, full: bool) -> TernaryCounts:
    import numpy as np

    packed = len(view) - 32
    raw = np.asarray(view[: packed if full else min(packed, SAMPLE_BYTES)])
    (scale,) = struct.unpack_from("<f", view, packed)
    return _count(info, [(raw, _two_bits)], complete=raw.size == packed, scale=scale)


def _blocks(
    view: memoryview, full: bool, *, width: int, head: int = 0
) -> tuple[np.ndarray[Any, Any], bool]:
    """Rows of *width* bytes without the first *head* of each; and true if these are all."""
    import numpy as np

    rows = len(view) // width
    taken = rows if full else min(rows, max(1, SAMPLE_BYTES // width))
    raw = np.asarray(view[: taken * width]).reshape(taken, width)
    return raw[:, head:], taken == rows


def _count_scaled_blocks(info: TensorInfo, view: memoryview, full: bool) -> TernaryCounts:
    import numpy as np

    layout = SCALED_BLOCKS[info.type.name]
    raw, complete = _blocks(view, full, width=layout.size)
    pieces = []
    for part in layout.parts:
        every = split_digits(np.arange(256, dtype=np.uint8), part.base, part.digits).tolist()
        pieces.append((raw[:, part.start : part.start + part.count], every.__getitem__))
    return _count(info, pieces, complete=complete, double=layout.double)


def _iq2_bn(info: TensorInfo, view: memoryview, full: bool) -> TernaryCounts:
    # A row is its f32 scale and 16 bytes per 64 weights; _R4 interleaves four rows after their four
    # scales, which leaves the share and the positions of the scale bytes unchanged.
    rows = 4 if info.type.name.endswith("_R4") else 1
    width = rows * (4 + info.shape[-1] // 4)
    raw, complete = _blocks(view, full, width=width, head=rows * 4)
    return _count(info, [(raw, _two_bits)], complete=complete)


READERS: Mapping[str, Callable[[TensorInfo, memoryview, bool], TernaryCounts]] = {
    "I2_S": _i2_s,
    "IQ2_BN": _iq2_bn,
    "IQ2_BN_R4": _iq2_bn,
} | dict.fromkeys(SCALED_BLOCKS, _count_scaled_blocks)

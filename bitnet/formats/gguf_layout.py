"""Layout of the tensors of a GGUF file: the reader refuses what is found here, the audit lists it.

llama.cpp refuses such files, too: one bit of an offset lets two layers have the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet.formats.gguf_values import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from bitnet.quants.types import QuantType

__all__ = ["TensorInfo", "in_order", "layout_faults"]


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file.

    Attributes:
        name: its GGUF name.
        shape: rows first, as in NumPy; the file has the opposite order.
        type: quantization type.
        offset: of its first byte, from the start of its file.
        size_bytes: bytes it takes; for an unknown type, the room up to the next tensor.
        part: number of its file in a split model, from 0.
    """

    name: str
    shape: tuple[int, ...]
    type: QuantType
    offset: int
    size_bytes: int
    part: int = 0


def layout_faults(
    tensors: Iterable[TensorInfo], sizes: Mapping[str, int], alignment: int
) -> Iterator[tuple[str, str]]:
    """Kind and description of each tensor that is cut off, misaligned, or in another one.

    Args:
        tensors: of all files of the model.
        sizes: bytes of each file, by name.
        alignment: of tensors.
    """
    tensors = list(tensors)
    for part, (name, size) in enumerate(sizes.items()):
        for previous, info in in_order(tensors, part):
            end = info.offset + info.size_bytes
            if end > size:
                yield (
                    "truncated",
                    f"{name}: tensor {printable(info.name)} needs bytes "
                    f"{info.offset:,}..{end:,}, the file ends at {size:,}",
                )
            if info.offset % alignment:
                yield (
                    "unaligned",
                    f"tensor {printable(info.name)} starts at byte {info.offset:,}, "
                    f"not a multiple of the alignment {alignment}",
                )
            if previous is not None and info.offset < previous.offset + previous.size_bytes:
                shared = min(previous.offset + previous.size_bytes, end) - info.offset
                yield (
                    "tensor-overlap",
                    f"tensors {printable(previous.name)} and {printable(info.name)} share "
                    f"{shared:,} bytes from byte {info.offset:,}",
                )


def in_order(
    tensors: Iterable[TensorInfo], part: int
) -> Iterator[tuple[TensorInfo | None, TensorInfo]]:
    """Tensors of a file by offset, each with that of those before it that reaches furthest."""
    furthest: TensorInfo | None = None
    infos = [info for info in tensors if info.part == part and info.size_bytes]
    for info in sorted(infos, key=lambda info: (info.offset, info.size_bytes)):
        yield furthest, info
        end = info.offset + info.size_bytes
        if furthest is None or end > furthest.offset + furthest.size_bytes:
            furthest = info

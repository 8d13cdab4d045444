"""Contents of a GGUF file: metadata values, and tensors with the layout of their bytes.

Scalars are decoded at once, arrays when they are read. What is wrong with a layout is refused by
the reader and listed by the audit. llama.cpp refuses such files, too: one bit of an offset lets two
layers have the same weights.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, overload

from bitnet.base import native, terminal
from bitnet.base.errors import InvalidFormat
from bitnet.formats.gguf_index import ARRAY, STRING, VALUE_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np

    from bitnet.formats.gguf_index import KeyEntry
    from bitnet.quants.types import QuantType

_BOOL = 7
_U64 = struct.Struct("<Q")


def decode(view: memoryview, entry: KeyEntry) -> Any:
    """Value of *entry* in *view*, the file from its first byte: a scalar or an :class:`Array`.

    Bytes that are not UTF-8 become surrogates, so that encoding with ``surrogateescape`` restores
    them.
    """
    if entry.type == ARRAY:
        return Array(view[entry.at : entry.end], entry.item_type, entry.length)
    if entry.type == STRING:
        return bytes(view[entry.at + 8 : entry.end]).decode("utf-8", "surrogateescape")
    value = struct.unpack_from("<" + VALUE_TYPES[entry.type][1], view, entry.at)[0]
    return bool(value) if entry.type == _BOOL else value


def printable(text: str) -> str:
    """*text* with control characters escaped that could affect a terminal."""
    return text if terminal.decode_names(text).isprintable() else repr(text)[1:-1]


class Array:
    """An array in a file's metadata, a view into the file."""

    __slots__ = ("_starts", "_type", "item_type", "length", "raw")

    def __init__(self, raw: memoryview, item_type: int, length: int) -> None:
        # bytes of all elements as stored (strings: each after its 64-bit length); hash these to
        # identify an array
        self.raw = raw
        self._type = item_type
        self.item_type: str = VALUE_TYPES[item_type][0]  # ``string``, ``int32``, ``float32`` ...
        self.length = length
        self._starts: memoryview | None = None

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"<Array of {self.length:,} {self.item_type}>"

    @overload
    def __getitem__(self, at: int) -> Any: ...

    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...

    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(self.length))]
        if at < 0:
            at += self.length
        if not 0 <= at < self.length:
            raise IndexError(f"index {at} of an array of {self.length}")
        if self._type == STRING:
            return self.bytes_at(at).decode("utf-8", "surrogateescape")
        _, code, size = VALUE_TYPES[self._type]
        value = struct.unpack_from("<" + code, self.raw, at * size)[0]
        return bool(value) if self._type == _BOOL else value

    def __iter__(self) -> Iterator[Any]:
        if self._type == STRING:
            return iter(self.strings())
        values = (
            value for (value,) in struct.iter_unpack("<" + VALUE_TYPES[self._type][1], self.raw)
        )
        return map(bool, values) if self._type == _BOOL else values

    @property
    def starts(self) -> memoryview:
        """Offsets into :attr:`raw`, unsigned 64-bit, ``length + 1`` of them; for arrays of strings.

        String *i* is ``raw[starts[i] + 8 : starts[i + 1]]``.
        """
        if self._starts is None:
            self._expect_strings()
            module = native.module()
            offsets = (
                module.gguf_string_starts(self.raw, self.length)
                if module is not None
                else _string_starts(self.raw, self.length)
            )
            if offsets is None:
                raise _change_error()
            self._starts = memoryview(offsets).cast("B").cast("Q").toreadonly()
        return self._starts

    def bytes_at(self, at: int) -> bytes:
        """Bytes of string *at*, 0 or more; for arrays of strings."""
        starts = self.starts
        return bytes(self.raw[starts[at] + 8 : starts[at + 1]])

    def strings(self) -> list[str]:
        """All strings; bytes that are not UTF-8 become surrogates."""
        self._expect_strings()
        module = native.module()
        if module is not None:
            texts: list[str] | None = module.gguf_strings(self.raw, self.length)
            if texts is None:
                raise _change_error()
            return texts
        starts = self.starts.tolist()
        data = bytes(self.raw)
        return [
            data[start + 8 : end].decode("utf-8", "surrogateescape")
            for start, end in pairwise(starts)
        ]

    def numpy(self) -> np.ndarray[Any, Any]:
        """The numbers, shape ``(length,)``: a read-only view of the file (booleans are copied)."""
        import numpy as np

        if self._type == STRING:
            raise InvalidFormat("an array of strings where numbers are expected")
        _, code, size = VALUE_TYPES[self._type]
        kind = {"f": "f", "d": "f"}.get(code, "u" if code.isupper() else "i")
        values = np.frombuffer(self.raw, dtype=np.dtype(f"<{kind}{size}"))
        values.flags.writeable = False
        return values != 0 if self._type == _BOOL else values

    def _expect_strings(self) -> None:
        if self._type != STRING:
            raise InvalidFormat(f"an array of {self.item_type} where strings are expected")


def _string_starts(raw: memoryview, count: int) -> array[int] | None:
    """Python version of the native module's function of the same name."""
    starts = array("Q")
    at, size = 0, len(raw)
    for _ in range(count):
        starts.append(at)
        if size - at < 8:
            return None
        at += 8 + _U64.unpack_from(raw, at)[0]
        if at > size:
            return None
    starts.append(at)
    return starts


def _change_error() -> InvalidFormat:
    return InvalidFormat(
        "the file was changed while it was being read",
        hint="run the command again when nothing writes to the file",
    )


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file."""

    name: str  # its GGUF name
    shape: tuple[int, ...]  # rows first, as in NumPy; the file has the opposite order
    type: QuantType  # quantization type
    offset: int  # of its first byte, from the start of its file
    size_bytes: int  # bytes it takes; for an unknown type, the room up to the next tensor
    part: int = 0  # number of its file in a split model, from 0


def layout_faults(
    tensors: Iterable[TensorInfo], sizes: Mapping[str, int], alignment: int
) -> Iterator[tuple[str, str]]:
    """Kind and description of each tensor that is cut off, misaligned, or in another one.

    *sizes* are those of all files of the model, by name.
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

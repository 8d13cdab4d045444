"""Header of a GGUF file: metadata and tensor directory, with every length checked before use.

The compiled module skips and decodes arrays of strings, which have hundreds of thousands of items.
Scalars are decoded at once, arrays when they are read. :func:`layout_faults` finds tensors that
overlap or are cut off: a flipped bit in an offset gives two layers the same weights. The reader
refuses the first fault, as llama.cpp does, the audit lists all.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from array import array
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from bitnet.base import native, terminal
from bitnet.base.errors import InvalidFormat, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import numpy as np

    from bitnet.quants.types import QuantType

MAX_ENTRIES = 65536  # keys, and tensors: far more than any model has
MAX_NAME_BYTES = 65535  # the format's own limit for keys
MAX_DIMS = 4

STRING = 8
ARRAY = 9

# Name, struct code and bytes per metadata value type, in the order of their ids.
VALUE_TYPES: tuple[tuple[str, str, int], ...] = (
    ("uint8", "B", 1),
    ("int8", "b", 1),
    ("uint16", "H", 2),
    ("int16", "h", 2),
    ("uint32", "I", 4),
    ("int32", "i", 4),
    ("float32", "f", 4),
    ("bool", "?", 1),
    ("string", "", 0),
    ("array", "", 0),
    ("uint64", "Q", 8),
    ("int64", "q", 8),
    ("float64", "d", 8),
)

FIXED_BYTES = 24  # magic, version, numbers of tensors and keys: 4 + 4 + 8 + 8
_MIN_KEY_BYTES = 8 + 4 + 1  # length of the name, type, the smallest value
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8  # length of the name, number of dimensions, type, offset
_MAX_U64 = 2**64 - 1
_MAX_WEIGHTS = 2**63 - 1  # ggml counts them as int64

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_TENSORS = [struct.Struct(f"<{n}QIQ") for n in range(MAX_DIMS + 1)]  # shape, type, offset

Buffer = bytes | bytearray | memoryview
#: A function like :func:`skip_strings`.
Skip: TypeAlias = "Callable[[memoryview, int, int], tuple[int, int]]"


class NeedMoreBytes(InvalidFormat):
    """A prefix of a file ends before its header does.

    Attributes:
        needs: least number of bytes needed from the start of the file; the header may be longer
            still, so a reader that fetches ranges should double its range.
    """

    def __init__(self, needs: int) -> None:
        super().__init__(
            f"the header needs at least the first {needs:,} bytes",
            hint="read a longer prefix of the file",
        )
        self.needs = needs


class KeyEntry(NamedTuple):
    """A metadata key, with the place of its value."""

    name: bytes
    type: int  # index in VALUE_TYPES
    at: int  # offset of the value; for an array, of its first element
    end: int  # offset behind the value
    item_type: int  # of the elements of an array, else 0
    length: int  # number of elements of an array, else 0


class TensorEntry(NamedTuple):
    """An entry of the tensor directory."""

    name: bytes
    shape: tuple[int, ...]  # rows first; the file has the opposite order
    type: int  # ggml's number, whose meaning depends on the dialect
    offset: int  # from the start of the data, which follow the header


class Index(NamedTuple):
    """A whole header; *end* is the offset after the tensor directory."""

    keys: list[KeyEntry]
    tensors: list[TensorEntry]
    end: int


def skip_strings(data: memoryview, at: int, count: int) -> tuple[int, int]:
    """Skip up to *count* strings in *data* from offset *at* on.

    It stops early where a string, or the least that the strings left would take, does not fit.

    Returns:
        The offset after the strings skipped, and the number of strings left.
    """
    last = deque([(0, at)], maxlen=1)
    last.extend(enumerate(_string_ends(data, at, count), 1))
    skipped, end = last[0]
    return end, count - skipped


def _string_ends(data: memoryview, at: int, count: int) -> Iterator[int]:
    """Offset after each of *count* strings, up to where :func:`skip_strings` stops."""
    unpack = _U64.unpack_from
    available = len(data)
    for left in range(count, 0, -1):
        if left * 8 > available - at:  # a string takes at least the 8 bytes of its length
            return
        (size,) = unpack(data, at)
        if size > available - at - 8:
            return
        at += 8 + size
        yield at


def index(buffer: Buffer, total: int, label: str, skip: Skip | None = None) -> Index:
    """Index of the header in *buffer*, the first bytes of a file of *total* bytes.

    The caller checks magic and version. *label* names the file in errors; *skip* is used for
    strings instead of the compiled function. If *buffer* ends within the header, and the file does
    not, the error is :class:`NeedMoreBytes`.
    """
    module = native.module()
    skip = skip or (module.gguf_skip_strings if module else skip_strings)
    return _Walker(memoryview(buffer).cast("B"), total, label, skip).run()


class _Walker:
    """State of one walk: its position, and the current key or tensor."""

    def __init__(self, data: memoryview, total: int, label: str, skip_strings: Skip) -> None:
        self.data = data
        self.label = label
        self.skip_strings = skip_strings
        self.available = len(data)
        self.total = total
        self.at = 0
        self.section = "header"
        self.number = 0
        self.name = b""

    def run(self) -> Index:
        self.need(FIXED_BYTES)
        n_tensors, n_keys = struct.unpack_from("<QQ", self.data, 8)
        expected = f"announced, at most {MAX_ENTRIES:,} expected"
        if n_tensors > MAX_ENTRIES:
            self.fail(8, f"{n_tensors:,} tensors {expected}")
        if n_keys > MAX_ENTRIES:
            self.fail(16, f"{n_keys:,} metadata keys {expected}")
        self.at = FIXED_BYTES
        self.need(n_keys * _MIN_KEY_BYTES + n_tensors * _MIN_TENSOR_BYTES)
        keys = []
        self.section = "key"
        for self.number in range(n_keys):
            keys.append(self.key())
        tensors = []
        self.section = "tensor"
        for self.number in range(n_tensors):
            tensors.append(self.tensor())
        return Index(keys, tensors, self.at)

    @property
    def where(self) -> str:
        """Part of the header at which the walk is."""
        if self.section == "header":
            return f"{self.label}: header"
        name = self.name.decode("utf-8", "replace")
        return f"{self.label}: {self.section} {self.number}" + (f" ({name!r})" if name else "")

    def fail(self, at: int, problem: str) -> NoReturn:
        raise InvalidFormat(
            f"{self.where} at byte {at:,}: {problem}",
            hint="the file is damaged or not a GGUF file: fetch it again",
        )

    def need(self, n: int) -> None:
        """Refuse a file, or a prefix of one, that ends before the next *n* bytes."""
        if n > self.total - self.at:
            end = self.at + min(n, _MAX_U64)
            raise InvalidFormat(
                f"{self.where} needs bytes {self.at:,}..{end:,}, the file ends at {self.total:,}",
                hint="the file is incomplete or damaged: fetch it again",
            )
        if n > self.available - self.at:
            raise NeedMoreBytes(self.at + n)

    def skip(self, n: int) -> None:
        """Move behind the next *n* bytes."""
        self.need(n)
        self.at += n

    def take(self, form: struct.Struct) -> int:
        """The number at the current position, which the caller has checked; move behind it."""
        value: int = form.unpack_from(self.data, self.at)[0]
        self.at += form.size
        return value

    def read_name(self) -> bytes:
        self.name = b""
        self.need(8)
        size = self.take(_U64)
        if size > MAX_NAME_BYTES:
            problem = f"a name of {size:,} bytes, at most {MAX_NAME_BYTES:,} expected"
            self.fail(self.at - 8, problem)
        self.skip(size)
        self.name = bytes(self.data[self.at - size : self.at])
        return self.name

    def key(self) -> KeyEntry:
        name = self.read_name()
        self.need(4)
        at = self.at  # offset of the type that was read last, which an error names
        kind = self.take(_U32)
        item_type = length = 0
        if kind == ARRAY:
            self.need(12)
            at = self.at
            item_type = self.take(_U32)
            length = self.take(_U64)
            if item_type == ARRAY:
                raise Unsupported(
                    f"{self.where} at byte {at:,} is an array of arrays, which no model uses",
                    hint="write the file again with arrays of plain values",
                )
        # A scalar is handled as one element of its own type.
        element_type, count = (item_type, length) if kind == ARRAY else (kind, 1)
        if element_type >= len(VALUE_TYPES):
            expected = f"expected 0 to {len(VALUE_TYPES) - 1}"
            self.fail(at, f"value type {element_type}, {expected}")
        start = self.at
        element_bytes = VALUE_TYPES[element_type][2] or 8  # a string takes at least its length
        self.need(count * element_bytes)
        if element_type != STRING:
            self.at += count * element_bytes
            return KeyEntry(name, kind, start, self.at, item_type, length)
        self.at, left = self.skip_strings(self.data, self.at, count)
        if left:  # the rest does not fit, so one of these two checks raises
            self.need(left * 8)
            self.need(self.take(_U64))
        return KeyEntry(name, kind, start, self.at, item_type, length)

    def tensor(self) -> TensorEntry:
        name = self.read_name()
        self.need(4)
        n_dims = self.take(_U32)
        at = self.at
        if n_dims > MAX_DIMS:
            self.fail(at - 4, f"{n_dims} dimensions, at most {MAX_DIMS} expected")
        self.skip(8 * n_dims + 12)
        *dims, kind, offset = _TENSORS[n_dims].unpack_from(self.data, at)
        n_weights = 1
        for i, dim in enumerate(dims):
            if dim == 0:
                self.fail(at + 8 * i, f"dimension {i} is 0")
            if dim > _MAX_WEIGHTS // n_weights:
                problem = f"dimension {dim:,} makes the number of weights overflow"
                self.fail(at + 8 * i, problem)
            n_weights *= dim
        return TensorEntry(name, tuple(dims[::-1]), kind, offset)


def decode(view: memoryview, entry: KeyEntry) -> Any:
    """Value of *entry* in *view*, the file from its first byte: a scalar or an :class:`Array`.

    Bytes that are not UTF-8 become surrogates, so that encoding with ``surrogateescape`` restores
    them.
    """
    if entry.type == ARRAY:
        return Array(view[entry.at : entry.end], entry.item_type, entry.length)
    if entry.type == STRING:
        return bytes(view[entry.at + 8 : entry.end]).decode("utf-8", "surrogateescape")
    return struct.unpack_from("<" + VALUE_TYPES[entry.type][1], view, entry.at)[0]


def printable(text: str) -> str:
    """*text*, escaped if it has control characters, which could affect a terminal."""
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

    def __getitem__(self, at: int) -> Any:
        at = range(self.length)[at]
        if self._type == STRING:
            return self.bytes_at(at).decode("utf-8", "surrogateescape")
        return self.numpy()[at].item()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.strings() if self._type == STRING else self.numpy().tolist())

    @property
    def starts(self) -> memoryview:
        """Offsets into :attr:`raw`, unsigned 64-bit, ``length + 1`` of them; for arrays of strings.

        String *i* is ``raw[starts[i] + 8 : starts[i + 1]]``.
        """
        if self._starts is None:
            self._expect_strings()
            module = native.module()
            if module is not None:
                offsets = module.gguf_string_starts(self.raw, self.length)
            else:
                offsets = array("Q", [0, *_string_ends(self.raw, 0, self.length)])
            offsets = self._check_count(offsets, self.length + 1)
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
            strings = module.gguf_strings(self.raw, self.length)
            texts: list[str] = self._check_count(strings, self.length)
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
        code = "B" if self.item_type == "bool" else VALUE_TYPES[self._type][1]
        values = np.frombuffer(self.raw, dtype=np.dtype("<" + code))
        values.flags.writeable = False
        return values != 0 if self.item_type == "bool" else values

    def _expect_strings(self) -> None:
        if self._type != STRING:
            raise InvalidFormat(f"an array of {self.item_type} where strings are expected")

    def _check_count(self, items: Any, expected: int) -> Any:
        """*items*, if there are as many as *expected*: the file may change meanwhile."""
        if items is None or len(items) < expected:
            raise InvalidFormat(
                "the file was changed while it was being read",
                hint="run the command again when nothing writes to the file",
            )
        return items


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file."""

    name: str  # its GGUF name
    shape: tuple[int, ...]  # rows first, as in NumPy; the file has the opposite order
    type: QuantType  # quantization type
    offset: int  # of its first byte, from the start of its file
    size_bytes: int  # bytes it takes; for an unknown type, the room up to the next tensor
    part: int = 0  # number of its file in a split model, from 0

    @property
    def end(self) -> int:
        """Offset of the first byte behind it."""
        return self.offset + self.size_bytes


def layout_faults(
    tensors: Collection[TensorInfo], sizes: Mapping[str, int], alignments: Sequence[int]
) -> Iterator[tuple[str, str]]:
    """Kind and description of each fault: a tensor is cut off, misaligned, or overlaps another.

    *sizes* are the bytes of each file of the model by name, in the order of the parts, and
    *alignments* those of the tensors in each.
    """
    for part, (name, size) in enumerate(sizes.items()):
        alignment = alignments[part]
        furthest: TensorInfo | None = None  # of the tensors before, the one that ends last
        infos = [info for info in tensors if info.part == part and info.size_bytes]
        for info in sorted(infos, key=lambda info: (info.offset, info.size_bytes)):
            end = info.end
            furthest_end = furthest.end if furthest else 0
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
            if furthest is not None and info.offset < furthest_end:
                yield (
                    "tensor-overlap",
                    f"tensors {printable(furthest.name)} and {printable(info.name)} share "
                    f"{min(furthest_end, end) - info.offset:,} bytes from byte {info.offset:,}",
                )
            furthest = info if end > furthest_end else furthest

"""Index of a GGUF header, with every length, count and type checked before use.

The compiled module skips arrays of strings, which have hundreds of thousands of items.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeAlias

from bitnet.base import native
from bitnet.base.errors import InvalidFormat, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable


MAX_ENTRIES = 65536  # keys, and tensors: far more than any model has
MAX_NAME_BYTES = 65535  # the format's own limit for keys
MAX_DIMS = 4

STRING, ARRAY = 8, 9

# Name, struct code and bytes per metadata value type, in the order of their ids.
VALUE_TYPES: tuple[tuple[str, str, int], ...] = (
    ("uint8", "B", 1),
    ("int8", "b", 1),
    ("uint16", "H", 2),
    ("int16", "h", 2),
    ("uint32", "I", 4),
    ("int32", "i", 4),
    ("float32", "f", 4),
    ("bool", "B", 1),
    ("string", "", 0),
    ("array", "", 0),
    ("uint64", "Q", 8),
    ("int64", "q", 8),
    ("float64", "d", 8),
)

_HEADER_BYTES = 24
_MIN_KEY_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8
_MAX_U64 = 2**64 - 1

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

Buffer = bytes | bytearray | memoryview
Skip: TypeAlias = "Callable[[memoryview, int, int], tuple[int, int]]"


class NeedMoreBytes(InvalidFormat):
    """A prefix of a file ends before its header does.

    Attributes:
        needed: least number of bytes needed from the start of the file; the header may be longer
            still, so a reader that fetches ranges should double its range.
    """

    def __init__(self, needed: int) -> None:
        super().__init__(
            f"the header needs at least the first {needed:,} bytes",
            hint="read a longer prefix of the file",
        )
        self.needs = needed


class KeyEntry(NamedTuple):
    """A metadata key: *at* and *end* enclose its value, or the elements of its array."""

    name: bytes
    type: int
    at: int
    end: int
    item_type: int
    length: int


class TensorEntry(NamedTuple):
    """An entry of the tensor directory; *shape* has rows first, *offset* counts from the data."""

    name: bytes
    shape: tuple[int, ...]
    type: int
    offset: int


class Index(NamedTuple):
    """A whole header; *end* is the offset after the tensor directory."""

    keys: list[KeyEntry]
    tensors: list[TensorEntry]
    end: int


def index(buffer: Buffer, total: int, label: str) -> Index:
    """Index of *buffer*, the first bytes of the file *label* of *total* bytes.

    The caller checks magic and version.
    """
    module = native.module()
    return walk(buffer, total, label, module.gguf_skip_strings if module else skip_strings)


def skip_strings(data: memoryview, at: int, count: int) -> tuple[int, int]:
    """Offset behind those of *count* strings from *at* on that fit, and the number of the others.

    At any point the remaining ones need at least 8 bytes each.
    """
    unpack, have = _U64.unpack_from, len(data)
    for left in range(count, 0, -1):
        size = unpack(data, at)[0] if left * 8 <= have - at else _MAX_U64
        if size > have - at - 8:
            return at, left
        at += 8 + size
    return at, 0


def walk(buffer: Buffer, total: int, label: str, skip: Skip = skip_strings) -> Index:
    """:func:`index`, with the function that skips strings."""
    return _Walker(memoryview(buffer).cast("B"), total, label, skip).run()


class _Walker:
    """State of one walk: its position, and the current key or tensor."""

    def __init__(self, data: memoryview, total: int, label: str, skip_strings: Skip) -> None:
        self.data = data
        self.label = label
        self.skip_strings = skip_strings
        self.have = len(data)
        self.total = total
        self.at = 0
        self.section = "header"
        self.number = 0
        self.name = b""

    def run(self) -> Index:
        self.need(_HEADER_BYTES)
        n_tensors, n_keys = struct.unpack_from("<QQ", self.data, 8)
        most = f"announced, at most {MAX_ENTRIES:,} expected"
        if n_tensors > MAX_ENTRIES:
            self.fail(8, f"{n_tensors:,} tensors {most}")
        if n_keys > MAX_ENTRIES:
            self.fail(16, f"{n_keys:,} metadata keys {most}")
        self.at = _HEADER_BYTES
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
        if n > self.total - self.at:
            end = self.at + min(n, _MAX_U64)
            raise InvalidFormat(
                f"{self.where} needs bytes {self.at:,}..{end:,}, the file ends at {self.total:,}",
                hint="the file is incomplete or damaged: fetch it again",
            )
        if n > self.have - self.at:
            raise NeedMoreBytes(self.at + n)

    def skip(self, n: int) -> None:
        self.need(n)
        self.at += n

    def take(self, form: struct.Struct) -> int:
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
        kind, at = self.take(_U32), self.at - 4
        item_type = length = 0
        if kind == ARRAY:
            self.need(12)
            item_type, length, at = self.take(_U32), self.take(_U64), self.at - 12
            if item_type == ARRAY:
                raise Unsupported(
                    f"{self.where} at byte {at:,} is an array of arrays, which no model uses",
                    hint="write the file again with arrays of plain values",
                )
        if max(kind, item_type) >= len(VALUE_TYPES):
            known = f"expected 0 to {len(VALUE_TYPES) - 1}"
            self.fail(at, f"value type {max(kind, item_type)}, {known}")
        start = self.at
        of, count = (item_type, length) if kind == ARRAY else (kind, 1)
        size = VALUE_TYPES[of][2] or 8  # least bytes of each
        self.need(count * size)
        if of != STRING:
            self.at += count * size
            return KeyEntry(name, kind, start, self.at, item_type, length)
        self.at, left = self.skip_strings(self.data, self.at, count)
        if left:  # one of these fails
            self.need(left * 8)
            self.need(self.take(_U64))
        return KeyEntry(name, kind, start, self.at, item_type, length)

    def tensor(self) -> TensorEntry:
        name = self.read_name()
        self.need(4)
        n_dims = self.take(_U32)
        if n_dims > MAX_DIMS:
            self.fail(self.at - 4, f"{n_dims} dimensions, at most {MAX_DIMS} expected")
        self.need(8 * n_dims + 12)
        n = 1
        shape: list[int] = []
        for i in range(n_dims):
            dim = self.take(_U64)
            if dim == 0:
                self.fail(self.at - 8, f"dimension {i} is 0")
            if dim > (2**63 - 1) // n:
                problem = f"dimension {dim:,} makes the number of weights overflow"
                self.fail(self.at - 8, problem)
            n *= dim
            shape.insert(0, dim)
        return TensorEntry(name, tuple(shape), self.take(_U32), self.take(_U64))

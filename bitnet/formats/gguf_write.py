"""Write GGUF files: copies with corrected metadata, or files of new tensors.

In a copy only the header is written again. The data section is copied as one piece, so offsets,
padding and anything else in it are unchanged.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import os
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import IntegrityError, Unsupported, UsageError
from bitnet.base.files import open_file
from bitnet.base.outputs import OutputFile
from bitnet.formats import gguf_header
from bitnet.formats.gguf import GGUF, MAGIC
from bitnet.formats.gguf_header import ARRAY, STRING, VALUE_TYPES, Index, TensorEntry
from bitnet.formats.gguf_names import count_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bitnet.quants.types import QuantType

VERSION = 3
ALIGNMENT = 32
_CHUNK_BYTES = 8 << 20
_TYPE_IDS = {name: number for number, (name, _, _) in enumerate(VALUE_TYPES)}
_LAYOUT_KEYS = ("general.alignment", "split.")
_KEY = re.compile(r"[A-Za-z0-9._-]+")
_BOOLS = {"true": True, "false": False}
# Python reads more as numbers than people mean by them: ``1_7``, digits of other scripts, blanks.
_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_PADDED = re.compile(r"[+-]?0[0-9]")  # the beginning of a text of digits, such as 007
_LONGEST_INTEGER = 20  # characters of an integer of 64 bits with its sign


@dataclass(frozen=True)
class KeyChange:
    """A new value for a metadata key."""

    key: str  # the key
    type: str  # ``string``, ``uint32`` ...
    value: str | int | float | bool  # the new value
    old: Any = None  # the old value, ``None`` if the key is added

    def encode(self) -> bytes:
        """Type id and value as stored in a GGUF file."""
        return struct.pack("<I", _TYPE_IDS[self.type]) + _scalar(self.type, self.value)


def parse_change(text: str, metadata: Mapping[str, Any], types: Mapping[str, str]) -> KeyChange:
    """The change requested by ``key=value`` or ``key:type=value``.

    Without a type the key keeps its type; a new key gets the one that fits its value, as in
    :func:`encode_value`.
    """
    name, equals, value = text.partition("=")
    key, _, kind = name.partition(":")
    if not equals or not key:
        raise UsageError(
            f"--set expects key=value, got {text!r}",
            hint="for example: --set tokenizer.ggml.eos_token_id=128009",
        )
    if key not in metadata and not _KEY.fullmatch(key):
        raise UsageError(f"{key!r} is not a metadata key of letters, digits, '.', '_' and '-'")
    if key.startswith(_LAYOUT_KEYS):
        raise UsageError(f"{key} says how the file is laid out and cannot be changed")
    kind = kind or types.get(key) or _guess_type(value)
    if kind not in _TYPE_IDS or kind == "array":
        single_types = ", ".join(entry for entry in _TYPE_IDS if entry != "array")
        raise UsageError(
            f"{key}: no single value has the type {kind!r}", hint=f"use one of {single_types}"
        )
    try:
        change = KeyChange(key, kind, _read(kind, value), metadata.get(key))
        change.encode()
    except (KeyError, ValueError, OverflowError, struct.error):
        raise UsageError(f"{key}: {value!r} is not a valid {kind}") from None
    return change


def _guess_type(text: str) -> str:
    """Type of a value whose key has none: of true and false, of a number, or else of a text.

    A number is one as people write it, without the zeros before it that a number would lose.
    """
    if text in _BOOLS:
        return "bool"
    if _PADDED.match(text):
        return "string"
    if _INTEGER.fullmatch(text):
        # a longer one does not fit int64 either, and is refused as such
        return "int64" if len(text) > _LONGEST_INTEGER else _kind(int(text))
    return "float32" if _FLOAT.fullmatch(text) else "string"


def _read(kind: str, text: str) -> str | int | float | bool:
    """The value of the type *kind* in *text*; a KeyError or ValueError if it is not one."""
    if kind == "string":
        return text
    if kind == "bool":
        return _BOOLS[text]
    if kind in ("float32", "float64"):
        return _read_float(text)
    if not _INTEGER.fullmatch(text):
        raise ValueError("not an integer")
    return int(text)


def _read_float(text: str) -> float:
    """The number in *text*; one beyond the largest float is a ValueError."""
    if _NOT_FINITE.fullmatch(text):
        return float(text)
    if not _FLOAT.fullmatch(text) or math.isinf(float(text)):
        raise ValueError("not a float")
    return float(text)


def write_copy(
    source: Path,
    output: Path,
    *,
    changes: Iterable[str],
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[KeyChange]:
    """Write a copy of *source* with changed metadata to *output*; return the changes.

    The copy gets its name only when it is complete, on disk and verified: metadata as requested,
    tensor data with the same bytes. *source* is not split, *output* must not exist.
    """
    _check_output(output)
    with GGUF.open(source) as gguf:
        if len(gguf.paths) > 1:
            raise Unsupported(
                f"{source.name} is one of {len(gguf.paths)} parts",
                hint="join them first: llama-gguf-split --merge FIRST_PART OUT.gguf",
            )
        view = gguf.file_view()
        index = _index(gguf)
        types = {key.name.decode(): VALUE_TYPES[key.type][0] for key in index.keys}
        parsed = [parse_change(text, gguf.metadata, types) for text in changes]
        new_values = {change.key: change.encode() for change in parsed}
        if not new_values:
            raise UsageError(
                "nothing to change", hint="name a change: --set-pre NAME or --set KEY=VALUE"
            )
        if len(new_values) < len(parsed):
            keys = [change.key for change in parsed]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise UsageError(f"{twice} is set twice")
        values = raw_values(gguf) | new_values
        header = _header(values, index.tensors, version=gguf.version, alignment=gguf.alignment)
        data = view[gguf.data_offset :]
        chunks = (data[at : at + _CHUNK_BYTES] for at in range(0, len(data), _CHUNK_BYTES))
        with OutputFile(output).draft() as draft:
            _write(draft, [header, *chunks], len(header) + len(data), on_progress)
            _verify(draft, header, values, gguf)
    return parsed


def _check_output(output: Path) -> None:
    """Refuse an *output* that exists, or that would be opened as a part of a split model."""
    OutputFile(output).check()
    count = count_parts(output.name)
    if count > 1:
        raise UsageError(
            f"{output.name} is the name of one of {count:,} parts, and the file is the whole model",
            hint="name it without -00001-of-00002",
        )


def _verify(path: Path, header: bytes, values: Mapping[str, bytes], source: GGUF) -> None:
    """Read the copy back and compare it."""
    with open_file(path) as file:
        if file.read(len(header)) != header:
            raise IntegrityError(f"{path.name}: the header read back differs")
    with GGUF.open(path) as copy:
        if copy.file_view()[len(header) :] != source.file_view()[source.data_offset :]:
            raise IntegrityError(
                f"{path.name}: tensor data read back differs", hint="check the disk"
            )
        is_same_directory = _directory(copy) == _directory(source)
        if not is_same_directory or list(raw_values(copy).items()) != list(values.items()):
            raise IntegrityError(f"{path.name}: the header read back differs")


def _directory(gguf: GGUF) -> list[tuple[str, tuple[int, ...], QuantType]]:
    """Name, shape and type of each tensor of *gguf*, in file order."""
    return [(tensor.name, tensor.shape, tensor.type) for tensor in gguf.tensors.values()]


def _index(gguf: GGUF) -> Index:
    view = gguf.file_view()
    return gguf_header.index(view, len(view), gguf.path.name)


def raw_values(gguf: GGUF) -> dict[str, bytes]:
    """Type id and value of every key of *gguf* (its first part), as stored."""
    view = gguf.file_view()
    values = {}
    for key in _index(gguf).keys:
        head = struct.pack("<I", key.type)
        if key.type == ARRAY:
            head += struct.pack("<IQ", key.item_type, key.length)
        values[key.name.decode()] = head + bytes(view[key.at : key.end])
    return values


def _write(
    path: Path,
    pieces: Iterable[bytes | memoryview],
    total: int,
    on_progress: Callable[[int, int], None],
) -> None:
    """Write the *pieces*, of *total* bytes, and sync the file."""
    done = 0
    with path.open("xb") as file:
        for piece in pieces:
            done += file.write(piece)
            on_progress(done, total)
        file.flush()
        os.fsync(file.fileno())
    on_progress(total, total)


@dataclass(frozen=True)
class NewTensor:
    """A tensor to write."""

    name: str  # GGUF name
    shape: tuple[int, ...]  # rows first
    type: QuantType  # its encoding
    chunks: Callable[[], Iterable[bytes | memoryview]]  # yields its bytes in pieces

    @property
    def size_bytes(self) -> int:
        """Bytes it takes."""
        size = self.type.size_bytes(self.shape)
        if size is None:
            raise Unsupported(
                f"{self.name}: shape {self.shape} does not fill blocks of {self.type.name} "
                f"({self.type.block_size} weights)",
                hint="choose another encoding, such as F16",
            )
        return size


def encode_value(value: Any) -> bytes:
    """Type id and *value* as stored in a GGUF file.

    - An integer becomes uint32 if it fits, else int32 or int64; a float becomes float32.
    - A list becomes an array of one type: integers become int32 if all of them fit, else int64;
      integers among floats become float32. An empty list becomes an array of strings.
    - ``bytes`` become an array of uint8.

    Values that no type can store are refused.
    """
    if isinstance(value, bytes):
        return struct.pack("<IIQ", ARRAY, _TYPE_IDS["uint8"], len(value)) + value
    try:
        if not isinstance(value, list):
            kind = _kind(value)
            return struct.pack("<I", _TYPE_IDS[kind]) + _scalar(kind, value)
        kind = _kind_of_items(value)
        head = struct.pack("<IIQ", ARRAY, _TYPE_IDS[kind], len(value))
        return head + b"".join(_scalar(kind, item) for item in value)
    except (struct.error, OverflowError, TypeError, UnicodeEncodeError) as error:
        raise Unsupported(
            f"{value!r:.80} cannot be stored in a GGUF file", hint="run the model as it is"
        ) from error


def _kind_of_items(values: list[Any]) -> str:
    """Name of the GGUF type that fits all *values* of a list; TypeError if none does."""
    kinds = {_kind(value) for value in values}
    if not kinds:
        return "string"
    if kinds <= {"uint32", "int32", "int64"}:
        is_short = all(-(2**31) <= value < 2**31 for value in values)
        return "int32" if is_short else "int64"
    if kinds <= {"uint32", "int32", "int64", "float32"}:
        return "float32"
    if len(kinds) > 1:
        raise TypeError(f"items of {', '.join(sorted(kinds))}")
    return kinds.pop()


def write_new(
    output: Path,
    metadata: Mapping[str, bytes],
    tensors: Sequence[NewTensor],
    *,
    check: Callable[[Path], None] = lambda _path: None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Write a file; it gets its name only when it is complete and has passed *check*.

    *metadata* are values from :func:`encode_value`, *on_progress* gets the bytes written so far and
    in total.
    """
    _check_output(output)

    def pieces() -> Iterator[bytes | memoryview]:
        yield _header(metadata, _entries(tensors))
        for tensor in tensors:
            size = 0
            for chunk in tensor.chunks():
                size += memoryview(chunk).nbytes
                yield chunk
            assert size == tensor.size_bytes, tensor.name
            yield bytes(-size % ALIGNMENT)

    with OutputFile(output).draft() as draft:
        draft.parent.mkdir(parents=True, exist_ok=True)
        _write(draft, pieces(), file_size(metadata, tensors), on_progress)
        check(draft)


def file_size(metadata: Mapping[str, bytes], tensors: Sequence[NewTensor]) -> int:
    """Number of bytes that :func:`write_new` writes."""
    data = sum(_round_up(tensor.size_bytes) for tensor in tensors)
    return len(_header(metadata, _entries(tensors))) + data


def _entries(tensors: Sequence[NewTensor]) -> Iterator[TensorEntry]:
    """Entries of *tensors* in the directory of a file that has them one after the other."""
    offset = 0
    for tensor in tensors:
        yield TensorEntry(_raw(tensor.name), tensor.shape, tensor.type.ggml_id, offset)
        offset += _round_up(tensor.size_bytes)


def _header(
    metadata: Mapping[str, bytes],
    tensors: Iterable[TensorEntry],
    *,
    version: int = VERSION,
    alignment: int = ALIGNMENT,
) -> bytes:
    directory = [
        struct.pack("<Q", len(name))
        + name
        + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], type_id, offset)
        for name, shape, type_id, offset in tensors
    ]
    header = b"".join(
        [
            MAGIC + struct.pack("<IQQ", version, len(directory), len(metadata)),
            *(_string(key) + value for key, value in metadata.items()),
            *directory,
        ]
    )
    return header + bytes(-len(header) % alignment)


def _round_up(size: int) -> int:
    return size + -size % ALIGNMENT


def _kind(value: Any) -> str:
    """Name of the GGUF type that fits *value*, a single one; TypeError if none does."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        if 0 <= value < 2**32:
            return "uint32"
        return "int32" if -(2**31) <= value < 0 else "int64"
    if isinstance(value, float):
        return "float32"
    if isinstance(value, str):
        return "string"
    raise TypeError(f"{type(value).__name__} is not a type of GGUF")


def _scalar(kind: str, value: Any) -> bytes:
    number = _TYPE_IDS[kind]
    return _string(value) if number == STRING else struct.pack("<" + VALUE_TYPES[number][1], value)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(_raw(text))) + _raw(text)


def _raw(text: str) -> bytes:
    """The bytes of *text*, which has surrogates for those that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")

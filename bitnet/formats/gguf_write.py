"""Write GGUF files: copies with corrected metadata, or files of new tensors.

In a copy only the header is written again. The data section is copied as one piece, so offsets,
padding and anything else in it are unchanged. New tensors are written chunk by chunk::

    write_new(
        Path("model.gguf"),
        {"general.architecture": encode_value("llama")},
        [NewTensor("output_norm.weight", (64,), F32, lambda: [values.tobytes()])],
    )

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from bitnet.base.errors import IntegrityError, Unsupported, UsageError, from_os_error
from bitnet.formats import gguf_index
from bitnet.formats.gguf import GGUF, MAGIC
from bitnet.formats.gguf_index import ARRAY, STRING, VALUE_TYPES, Index, KeyEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bitnet.quants.types import QuantType

_CHUNK_BYTES = 8 << 20
_TYPE_IDS = {name: number for number, (name, _, _) in enumerate(VALUE_TYPES)}
_LAYOUT_KEYS = ("general.alignment", "split.")
_KEY = re.compile(r"[A-Za-z0-9._-]+")
_WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
class KeyChange:
    """A new value for a metadata key."""

    key: str  # the key
    type: str  # ``string``, ``uint32`` ...
    value: str | int | float | bool  # the new value
    old: Any = None  # the old value, ``None`` if the key is added

    def encode(self) -> bytes:
        """Type id and value as stored in a GGUF file."""
        number = _TYPE_IDS[self.type]
        head = struct.pack("<I", number)
        if number == STRING:
            return head + pack_string(str(self.value).encode("utf-8", "surrogateescape"))
        return head + struct.pack("<" + VALUE_TYPES[number][1], self.value)


def parse_change(text: str, metadata: Mapping[str, Any], types: Mapping[str, str]) -> KeyChange:
    """The change requested by ``key=value`` or ``key:type=value``.

    Without a type the key keeps its type; a new key gets ``bool`` for ``true`` and ``false``,
    ``uint32`` (``int64`` if that is too small) or ``float32`` for numbers, else ``string``.
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
    kind = kind or types.get(key) or _guess(value)
    if kind == "array":
        raise UsageError(f"{key} is an array; only single values can be set")
    if kind not in _TYPE_IDS:
        known = ", ".join(entry for entry in _TYPE_IDS if entry != "array")
        raise UsageError(f"{key}: no value type {kind!r}", hint=f"use one of {known}")
    change = KeyChange(key, kind, _value(key, kind, value), metadata.get(key))
    try:
        change.encode()
    except (struct.error, OverflowError):
        raise UsageError(f"{key}: {value} does not fit into {kind}") from None
    return change


def _guess(value: str) -> str:
    if value in _WORDS:
        return "bool"
    try:
        number = int(value)
    except ValueError:
        pass
    else:
        return "uint32" if 0 <= number < 2**32 else "int64"
    try:
        float(value)
    except ValueError:
        return "string"
    return "float32"


def _value(key: str, kind: str, text: str) -> str | int | float | bool:
    if kind == "string":
        return text
    try:
        if kind == "bool":
            return _WORDS[text]
        return float(text) if kind.startswith("float") else int(text)
    except (KeyError, ValueError):
        raise UsageError(f"{key}: {text!r} is not a valid {kind}") from None


def write_copy(
    source: Path,
    output: Path,
    *,
    changes: Iterable[str],
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[KeyChange]:
    """Write a copy of *source* with changed metadata to *output*; return the changes.

    The copy gets its name only when it is complete, on disk and verified: metadata as requested,
    tensor data with the same SHA-256.

    *source* is not split, *output* must not exist. *on_progress* is called with the bytes
    written so far and in total.
    """
    refuse_existing(output)
    with GGUF.open(source) as gguf:
        if len(gguf.paths) > 1:
            raise Unsupported(
                f"{source.name} is one of {len(gguf.paths)} parts",
                hint="join them first: llama-gguf-split --merge FIRST_PART OUT.gguf",
            )
        view = gguf.file_view()
        index = gguf_index.index(view, len(view))
        assert isinstance(index, Index)
        types = {key.name.decode(): VALUE_TYPES[key.type][0] for key in index.keys}
        parsed = [parse_change(text, gguf.metadata, types) for text in changes]
        _check(parsed)
        header = _header_of_copy(view, index, parsed, gguf.alignment)
        with new_file(output) as draft:
            digest = _write(draft, header, view[gguf.data_offset :], on_progress)
            _verify(draft, gguf, parsed, data_offset=len(header), digest=digest)
    return parsed


def _check(changes: list[KeyChange]) -> None:
    if not changes:
        raise UsageError(
            "nothing to change", hint="name a change: --set-pre NAME or --set KEY=VALUE"
        )
    keys = [change.key for change in changes]
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(f"{key} is set twice")


def pack_string(raw: bytes) -> bytes:
    """*raw* as a string in a GGUF file."""
    return struct.pack("<Q", len(raw)) + raw


def pack_tensor(name: bytes, shape: Sequence[int], type_id: int, offset: int) -> bytes:
    """The entry of a tensor in the header; *shape* has rows first."""
    dims = shape[::-1]
    return (
        pack_string(name)
        + struct.pack("<I", len(dims))
        + struct.pack(f"<{len(dims)}QIQ", *dims, type_id, offset)
    )


def _header_of_copy(
    view: memoryview, index: Index, changes: list[KeyChange], alignment: int
) -> bytes:
    """Header with *changes* in place of the old values, padded to the alignment."""
    by_key = {change.key.encode("utf-8", "surrogateescape"): change for change in changes}
    known = {key.name for key in index.keys}
    added = [change for raw, change in by_key.items() if raw not in known]
    version = bytes(view[4:8])
    counts = struct.pack("<QQ", len(index.tensors), len(index.keys) + len(added))
    pieces = [MAGIC, version, counts]
    for key in index.keys:
        change = by_key.get(key.name)
        pieces.append(pack_string(key.name))
        pieces.append(change.encode() if change else _as_it_was(view, key))
    pieces += [pack_string(change.key.encode()) + change.encode() for change in added]
    for tensor in index.tensors:
        pieces.append(pack_tensor(tensor.name, tensor.shape, tensor.type, tensor.offset))
    header = b"".join(pieces)
    return header + bytes(-len(header) % alignment)


def _as_it_was(view: memoryview, key: KeyEntry) -> bytes:
    head = struct.pack("<I", key.type)
    if key.type == ARRAY:
        head += struct.pack("<IQ", key.item_type, key.length)
    return head + bytes(view[key.at : key.end])


def _write(
    path: Path, header: bytes, data: memoryview, on_progress: Callable[[int, int], None]
) -> bytes:
    """Write the file and sync it; the SHA-256 of *data*."""
    digest = hashlib.sha256()
    with path.open("xb") as file:
        file.write(header)
        for start in range(0, len(data), _CHUNK_BYTES):
            chunk = data[start : start + _CHUNK_BYTES]
            digest.update(chunk)
            file.write(chunk)
            on_progress(len(header) + start + len(chunk), len(header) + len(data))
        file.flush()
        os.fsync(file.fileno())
    on_progress(len(header) + len(data), len(header) + len(data))
    return digest.digest()


def _verify(
    path: Path, source: GGUF, changes: list[KeyChange], *, data_offset: int, digest: bytes
) -> None:
    """Read the copy back and compare it."""
    with path.open("rb") as file:
        file.seek(data_offset)
        if _hash(file) != digest:
            raise IntegrityError(
                f"{path.name}: tensor data read back differs", hint="check the disk"
            )
    with GGUF.open(path) as copy:
        shapes = [(info.name, info.shape, info.type) for info in copy.tensors.values()]
        same = shapes == [(info.name, info.shape, info.type) for info in source.tensors.values()]
        changed = {change.key: change for change in changes}
        keys = list(dict.fromkeys([*source.metadata, *changed]))
        view = copy.file_view()
        index = gguf_index.index(view, len(view))
        assert isinstance(index, Index)
        raw = {key.name.decode(): _as_it_was(view, key) for key in index.keys}
        same = same and list(copy.metadata) == keys
        same = same and all(raw[key] == change.encode() for key, change in changed.items())
        if not same:
            raise IntegrityError(f"{path.name}: the header read back differs")


def _hash(file: BinaryIO) -> bytes:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.digest()


def raw_values(gguf: GGUF) -> dict[str, bytes]:
    """Type id and value of every key of *gguf* (its first part), as stored."""
    view = gguf.file_view()
    index = gguf_index.index(view, len(view))
    assert isinstance(index, Index)
    return {
        key.name.decode("utf-8", "surrogateescape"): _as_it_was(view, key) for key in index.keys
    }


@contextmanager
def new_file(output: Path) -> Iterator[Path]:
    """A file to write and check that becomes *output* when the block ends without an error."""
    draft = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        yield draft
        _publish(draft, output)
    except OSError as error:
        raise from_os_error(error, output) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _publish(partial: Path, output: Path) -> None:
    """Rename the copy, never replacing a file that was created meanwhile."""
    try:
        os.link(partial, output)
    except FileExistsError:
        raise _exists(output) from None
    except OSError:  # a file system without hard links
        if output.exists():
            raise _exists(output) from None
        partial.rename(output)


def refuse_existing(output: Path) -> None:
    """Refuse to replace *output*."""
    if output.exists():
        raise _exists(output)


def _exists(output: Path) -> UsageError:
    return UsageError(f"{output} exists and is not overwritten", hint="name another --output")


VERSION = 3
ALIGNMENT = 32


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

    Integers become uint32 where they fit, else int32 or int64, in arrays int32; floats float32;
    ``bytes`` an array of uint8. Items of a list have one type; an empty list is one of strings.
    """
    if isinstance(value, bytes):
        return struct.pack("<IIQ", ARRAY, _TYPE_IDS["uint8"], len(value)) + value
    if not isinstance(value, list):
        kind = _kind(value)
        return struct.pack("<I", _TYPE_IDS[kind]) + _scalar(kind, value)
    kind = _kind(value[0]) if value else "string"
    if kind == "uint32":
        kind = "int32"
    head = struct.pack("<IIQ", ARRAY, _TYPE_IDS[kind], len(value))
    return head + b"".join(_scalar(kind, item) for item in value)


def write_new(
    output: Path,
    metadata: Mapping[str, bytes],
    tensors: Sequence[NewTensor],
    *,
    check: Callable[[Path], None] = lambda _path: None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Write a file; it gets its name only when it is complete and has passed *check*.

    *metadata* are values from :func:`encode_value`. *check* is called with the finished file
    before it gets its name, and raises to discard it; *on_progress* with the bytes written so
    far and in total.
    """
    refuse_existing(output)
    header = _header(metadata, tensors)
    total = file_size(metadata, tensors)
    with new_file(output) as draft:
        output.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("xb") as file:
            done = file.write(header)
            for tensor in tensors:
                start = done
                for chunk in tensor.chunks():
                    done += file.write(chunk)
                    on_progress(done, total)
                assert done - start == tensor.size_bytes, tensor.name
                done += file.write(bytes(-done % ALIGNMENT))
            file.flush()
            os.fsync(file.fileno())
        check(draft)


def file_size(metadata: Mapping[str, bytes], tensors: Sequence[NewTensor]) -> int:
    """Number of bytes that :func:`write_new` writes."""
    return len(_header(metadata, tensors)) + sum(_round_up(one.size_bytes) for one in tensors)


def _header(metadata: Mapping[str, bytes], tensors: Sequence[NewTensor]) -> bytes:
    pieces = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    pieces += [_string(key) + value for key, value in metadata.items()]
    offset = 0
    for tensor in tensors:
        pieces.append(pack_tensor(_raw(tensor.name), tensor.shape, tensor.type.ggml_id, offset))
        offset += _round_up(tensor.size_bytes)
    header = b"".join(pieces)
    return header + bytes(-len(header) % ALIGNMENT)


def _round_up(size: int) -> int:
    return size + -size % ALIGNMENT


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "uint32" if 0 <= value < 2**32 else "int32" if -(2**31) <= value < 0 else "int64"
    return "float32" if isinstance(value, float) else "string"


def _scalar(kind: str, value: Any) -> bytes:
    number = _TYPE_IDS[kind]
    return _string(value) if number == STRING else struct.pack("<" + VALUE_TYPES[number][1], value)


def _string(text: str) -> bytes:
    return pack_string(_raw(text))


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")

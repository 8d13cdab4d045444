"""Write GGUF files from new tensors, chunk by chunk, in one step.

    write_new(
        Path("model.gguf"),
        {"general.architecture": encode_value("llama")},
        [NewTensor("output_norm.weight", (64,), F32, lambda: [values.tobytes()])],
    )

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import Unsupported
from bitnet.formats.gguf import MAGIC
from bitnet.formats.gguf_index import ARRAY, STRING, VALUE_TYPES
from bitnet.formats.gguf_write import new_file, pack_string, pack_tensor, refuse_existing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from bitnet.quants.types import QuantType

__all__ = ["NewTensor", "encode_value", "file_size", "write_new"]

VERSION = 3
ALIGNMENT = 32
_TYPE_IDS = {name: number for number, (name, _, _) in enumerate(VALUE_TYPES)}


@dataclass(frozen=True)
class NewTensor:
    """A tensor to write.

    Attributes:
        name: GGUF name.
        shape: rows first.
        type: its encoding.
        chunks: yields its bytes in pieces.
    """

    name: str
    shape: tuple[int, ...]
    type: QuantType
    chunks: Callable[[], Iterable[bytes | memoryview]]

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

    Args:
        output: the file, which must not exist.
        metadata: values from :func:`encode_value`.
        tensors: in the order of the file.
        check: called with the finished file before it gets its name; raises to discard it.
        on_progress: called with the bytes written so far and in total.
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

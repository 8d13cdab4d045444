"""Safetensors files, read in place: eight bytes of header length, a JSON directory, the tensors.

    tensors = read_folder(Path("model"))            # one file, or the shards of an index
    tensors["model.norm.weight"].data               # a view into the mapped file

Every offset is checked before it is used. Format: huggingface/safetensors, ``README.md``.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.errors import NotFound
from bitnet.formats.json_file import damaged, parse_json, read_json
from bitnet.formats.mapped_file import MappedFile

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Tensor", "read_file", "read_folder", "recognises"]

INDEX = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own library
_ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}


@dataclass(frozen=True, eq=False)
class Tensor:
    """One tensor.

    Attributes:
        dtype: in the format's spelling: ``F32``, ``BF16``, ``U8``.
        shape: rows first.
        data: its bytes, one-dimensional uint8, a view into the mapped file.
    """

    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


def recognises(path: Path) -> bool:
    """True if *path* is a safetensors file, or a folder that contains some."""
    if path.is_dir():
        return any(path.glob("*.safetensors")) or (path / INDEX).exists()
    with path.open("rb") as file:
        head = file.read(9)
    return len(head) == 9 and head[8:] == b"{" and head[4:8] == b"\0\0\0\0"


def read_folder(folder: Path) -> dict[str, Tensor]:
    """All tensors of the model in *folder*, by name.

    Raises:
        NotFound: the folder contains no safetensors file, or a shard of the index is missing.
        InvalidFormat: a file or the index is damaged.
    """
    tensors: dict[str, Tensor] = {}
    for path in _files(folder):
        tensors.update(read_file(path))
    return tensors


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one file, by name.

    Raises:
        NotFound: the file does not exist.
        InvalidFormat: it is damaged or truncated.
        IntegrityError: it changed while its header was being read.
    """
    mapped = MappedFile.open(path)
    view = memoryview(mapped)
    if len(view) < 8:
        raise damaged(path, "it ends before its header")
    (length,) = struct.unpack_from("<Q", view)
    if length > min(_MAX_HEADER_BYTES, len(view) - 8):
        raise damaged(path, f"its header of {length:,} bytes does not fit {len(view):,} bytes")
    directory = parse_json(bytes(view[8 : 8 + length]), path, dict)
    mapped.check()
    data = np.frombuffer(view[8 + length :], dtype=np.uint8)
    return {
        name: _tensor(name, entry, data, path)
        for name, entry in directory.items()
        if name != "__metadata__"
    }


def _files(folder: Path) -> list[Path]:
    if not (folder / INDEX).exists():
        single = folder / "model.safetensors"
        found = [single] if single.exists() else sorted(folder.glob("*.safetensors"))
        if not found:
            raise NotFound(f"{folder} holds no safetensors file", hint="check the path")
        return found
    shards = read_json(folder / INDEX, dict).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise damaged(folder / INDEX, "it has no weight_map")
    names = sorted({str(name) for name in shards.values()})
    for name in names:
        # An index is untrusted: it may name files of this folder only.
        if "/" in name or "\\" in name or not (folder / name).is_file():
            raise NotFound(
                f"{folder / INDEX} names {name!r}, which is not in the folder",
                hint="fetch the missing shard",
            )
    return [folder / name for name in names]


def _tensor(name: str, entry: Any, data: NDArray[np.uint8], path: Path) -> Tensor:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        start, stop = entry["data_offsets"]
        size = math.prod(shape) * _ITEM_BYTES[dtype]
    except (KeyError, TypeError, ValueError):
        raise damaged(path, f"its entry for {name} makes no sense") from None
    if not all(type(item) is int and item >= 0 for item in (*shape, start, stop)):
        raise damaged(path, f"its entry for {name} makes no sense")
    if stop - start != size or stop > len(data):
        raise damaged(
            path,
            f"tensor {name} of {size:,} bytes is at {start:,}..{stop:,} of {len(data):,}",
        )
    return Tensor(dtype, shape, data[start:stop])

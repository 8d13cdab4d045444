"""Safetensors files, read in place: eight bytes of header length, a JSON directory, the tensors.

    tensors = read_folder(Inventory(Path("model")))  # one file, or the shards of an index
    tensors["model.norm.weight"].data                # a view into the mapped file

Every offset is checked before it is used; the tensors of a file must follow each other without gap
or overlap up to its end, as in the format's own library.
Format: huggingface/safetensors, ``README.md``.
"""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat, NotFound, Unsupported
from bitnet.base.files import open_file
from bitnet.formats.checkpoint import damage_error, parse_json
from bitnet.formats.mapped_file import begins_as_safetensors
from bitnet.formats.other_folders import ADAPTER_WEIGHTS
from bitnet.quants.types import QuantType, by_name
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.formats.checkpoint import Inventory

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own library
_MOST_DIMENSIONS = 8
# All types of the format's library 0.8.
_ITEM_BITS = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
}
_NAME_OF_TYPE = re.compile("[A-Z][A-Z0-9_]{1,19}")


def recognises(path: Path) -> bool:
    """True if *path* is a safetensors file, or a folder that contains some."""
    if path.is_dir():
        return any(path.glob("*.safetensors")) or (path / INDEX).exists()
    with open_file(path) as file:
        return begins_as_safetensors(file.read(9))


def read_folder(files: Inventory) -> dict[str, Weight]:
    """All tensors of the model of *files*, by name."""
    tensors: dict[str, Weight] = {}
    file_of: dict[str, str] = {}
    names, index = _names(files)
    for file in names:
        for name, tensor in read_file(files, file).items():
            if name in tensors:
                raise damage_error(files.path(file), f"{name} is in {file_of[name]}, too")
            tensors[name] = tensor
            file_of[name] = file
    # Tensors that the index does not list are read too, as transformers reads every shard whole.
    for name, listed in (index or {}).items():
        actual = file_of.get(name, "no file")
        if actual != listed:
            problem = f"it says that {name} is in {listed}, it is in {actual}"
            raise damage_error(files.path(INDEX), problem)
    return tensors


def read_file(files: Inventory, name: str) -> dict[str, Weight]:
    """The tensors of the file *name*, by name."""
    mapped = files.map(name)
    path = files.path(name)
    view = memoryview(mapped)
    if len(view) < 8:
        raise damage_error(path, "it ends before its header")
    (length,) = struct.unpack_from("<Q", view)
    if length > min(_MAX_HEADER_BYTES, len(view) - 8):
        raise damage_error(path, f"its header of {length:,} bytes does not fit {len(view):,} bytes")
    directory = parse_json(bytes(view[8 : 8 + length]), path, dict, unique=True)
    mapped.check()
    data = np.frombuffer(view[8 + length :], dtype=np.uint8)
    directory.pop("__metadata__", None)
    extents = {name: _extent(name, entry, path) for name, entry in directory.items()}
    _check_layout(extents, len(data), path)
    return {
        name: Weight(
            name,
            tuple(entry["shape"]),
            _type_of(entry["dtype"]),
            data[slice(*extents[name])],
            rounds_input=False,
        )
        for name, entry in directory.items()
    }


def _type_of(dtype: str) -> QuantType:
    """The type *dtype*; one without a decoder gets a type that is refused when it is used."""
    return by_name(dtype) if dtype in ("F32", "F16", "BF16") else QuantType(dtype, -1, 1, 0)


def _names(files: Inventory) -> tuple[list[str], dict[str, str] | None]:
    """Names of the tensor files, and the index: the file of each tensor, or None without one."""
    folder = files.root
    if INDEX not in files:
        if SINGLE in files:
            return [SINGLE], None
        candidates = sorted(path.name for path in folder.glob("*.safetensors"))
        candidates = [name for name in candidates if name != ADAPTER_WEIGHTS]
        if not candidates:
            raise NotFound(f"{folder} holds no safetensors file", hint="check the path")
        if len(candidates) > 1:
            raise InvalidFormat(
                f"{folder} holds {len(candidates)} safetensors files, and neither {INDEX} nor a "
                f"file {SINGLE} says which are the model",
                hint=f"fetch {INDEX}, or remove the others",
            )
        return candidates, None
    index = files.json(INDEX, dict).get("weight_map")
    are_names = isinstance(index, dict) and all(isinstance(name, str) for name in index.values())
    if not isinstance(index, dict) or not index or not are_names:
        raise damage_error(folder / INDEX, "it has no weight_map")
    names = sorted(set(index.values()))
    if SINGLE in files and names != [SINGLE]:
        raise InvalidFormat(
            f"{folder} holds {SINGLE}, and {INDEX} names other files: either may be the model",
            hint=f"remove {INDEX} and its shards, or {SINGLE}",
        )
    for name in names:
        # An index is untrusted: it may name files of this folder only.
        if "/" in name or "\\" in name or name not in files or not (folder / name).is_file():
            raise NotFound(
                f"{folder / INDEX} names {name!r}, which is not in the folder",
                hint="fetch the missing shard",
            )
    return names, index


def _extent(name: str, entry: Any, path: Path) -> tuple[int, int]:
    """Offsets of the first byte of a tensor and of the first one behind it."""
    try:
        shape, (start, stop) = entry["shape"], entry["data_offsets"]
        dtype = entry["dtype"]
        numbers = [*shape, start, stop]
    except (KeyError, TypeError, ValueError):
        raise damage_error(path, f"its entry for {name} is not valid") from None
    is_shape = isinstance(shape, list) and len(shape) <= _MOST_DIMENSIONS
    are_sizes = all(type(item) is int and 0 <= item < 1 << 63 for item in numbers)
    is_type = isinstance(dtype, str) and _NAME_OF_TYPE.fullmatch(dtype)
    if not is_shape or not are_sizes or not is_type:
        raise damage_error(path, f"its entry for {name} is not valid")
    if dtype not in _ITEM_BITS:
        raise Unsupported(
            f"{path.parent.name}/{path.name}: the tensor {name} is {dtype}, a type "
            f"that is not known; known are {', '.join(_ITEM_BITS)}",
            hint="fetch the file again, or a folder of plain weights: F32, F16 or BF16",
        )
    # Rows are packed without padding; the last byte of a tensor is full.
    size, odd_bits = divmod(math.prod(shape) * _ITEM_BITS[dtype], 8)
    if odd_bits:
        raise damage_error(path, f"tensor {name} of shape {shape} in {dtype} ends within a byte")
    if stop - start != size:
        raise damage_error(
            path, f"tensor {name} of {size:,} bytes is said to be at {start:,}..{stop:,}"
        )
    return start, stop


def _check_layout(extents: dict[str, tuple[int, int]], size: int, path: Path) -> None:
    """Check that the tensors fill the *size* bytes behind the header, without gap or overlap."""
    end = 0
    for name, (start, stop) in sorted(extents.items(), key=lambda entry: entry[1]):
        if start != end:
            problem = "overlaps the one before it" if start < end else "leaves a gap before it"
            raise damage_error(path, f"tensor {name} at {start:,}..{stop:,} {problem}")
        end = stop
    if end != size:
        raise damage_error(path, f"its tensors end at byte {end:,} of {size:,}")

"""A GGUF file as a :class:`Checkpoint`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import Unsupported
from bitnet.families.family import WINDOWS, of_gguf
from bitnet.families.rules import without
from bitnet.formats.checkpoint import Checkpoint, has_input_norms
from bitnet.formats.gguf import GGUF, MAGIC
from bitnet.formats.inventory import Inventory
from bitnet.quants import registry
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from bitnet.families.family import Family
    from bitnet.families.keys import RopeStyle

__all__ = ["INPUTS", "effective_keys", "find_ignored_keys", "open_gguf", "recognises"]

#: The key, and its only value, of BitNets that neither architecture nor encoding tells from others.
INPUTS = ("quantize.activations", "int8 per token")


def recognises(path: Path) -> bool:
    """True if the file starts like GGUF; a file shorter than four bytes is a truncated one."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return MAGIC.startswith(file.read(len(MAGIC)))


def open_gguf(path: Path, ignore_keys: Collection[str] = ()) -> Checkpoint:
    """The model in the file at *path*.

    Args:
        path: the file.
        ignore_keys: keys to ignore, with or without the architecture prefix.
    """
    gguf = GGUF.open(path)
    family = of_gguf(gguf.architecture)
    style: RopeStyle = family.gguf_rope_style if family else "half"
    metadata = without(gguf.metadata, ignore_keys) if ignore_keys else gguf.metadata
    ignored = {key: gguf.metadata[key] for key in gguf.metadata.keys() - metadata.keys()}
    ignored |= find_ignored_keys(metadata, gguf.architecture)
    metadata = effective_keys(metadata, gguf.architecture)
    rounds = _rounds_inputs(gguf, metadata, family)
    weights = {
        name: Weight(
            name,
            info.shape,
            info.type,
            np.frombuffer(gguf.tensor_bytes(name), dtype=np.uint8),
            rounds_input=rounds or info.type.name not in registry.OF_ANY_MODEL,
        )
        for name, info in gguf.tensors.items()
    }
    return Checkpoint(
        gguf.path,
        gguf.architecture,
        metadata,
        weights,
        style,
        gguf=gguf,
        ignored=ignored,
        rounds_inputs=rounds,
        inventory=Inventory.of_mapped(gguf.files),
    )


def effective_keys(metadata: Mapping[str, Any], architecture: str) -> Mapping[str, Any]:
    """*metadata* without the keys that llama.cpp does not read for *architecture*.

    A GGUF file means what llama.cpp makes of it, and it was converted and tested there.
    """
    family = of_gguf(architecture)
    if family is None or family.llama_cpp is None:
        return metadata
    names = family.llama_cpp.ignores
    layers = family.llama_cpp.window_layers
    if layers and metadata.get(f"{architecture}.block_count") != layers:
        names += WINDOWS
    ignored = {f"{architecture}.{name}" for name in names}
    return {key: value for key, value in metadata.items() if key not in ignored}


def find_ignored_keys(metadata: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """Keys that :func:`effective_keys` leaves out although they say something else, with values."""
    left = metadata.keys() - effective_keys(metadata, architecture).keys()
    window = f"{architecture}.{WINDOWS[0]}"
    length = metadata.get(f"{architecture}.context_length")
    if isinstance(metadata.get(window), int) and isinstance(length, int):
        left -= {window} if metadata[window] >= length else set()
    return {key: metadata[key] for key in sorted(left) if metadata[key]}


def _rounds_inputs(gguf: GGUF, metadata: Mapping[str, Any], family: Family | None) -> bool:
    """True if the model was trained with inputs of ternary layers rounded to int8 per token.

    That follows from its architecture, norms before every projection, a quantization type that
    only BitNet models have, or the key that ``convert`` writes into such files.
    """
    key, per_token = INPUTS
    if metadata.get(key, per_token) != per_token:
        raise Unsupported(
            f"{gguf.path.name}: {key} is {metadata[key]!r}, expected {per_token!r}",
            hint=f"leave the key out with --ignore-key {key}, and ternary layers take floats",
        )
    return (
        key in metadata
        or (family is not None and family.rounds_inputs)
        or has_input_norms(gguf.tensors)
        or any(
            info.type.is_ternary and info.type.name not in registry.OF_ANY_MODEL
            for info in gguf.tensors.values()
        )
    )

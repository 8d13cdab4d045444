"""A GGUF file as a :class:`Checkpoint`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.families.family import of_gguf
from bitnet.families.rules import without
from bitnet.formats.checkpoint import Checkpoint
from bitnet.formats.gguf import GGUF, MAGIC
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from bitnet.formats.checkpoint import RopeStyle

__all__ = ["open_gguf", "recognises"]


def recognises(path: Path) -> bool:
    """True for a file that starts like GGUF; one that ends before four bytes is a truncated one."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return MAGIC.startswith(file.read(len(MAGIC)))


def open_gguf(path: Path, ignore_keys: Collection[str] = ()) -> Checkpoint:
    """The model in the file at *path*, with its own keys and names.

    Args:
        path: the file.
        ignore_keys: keys to leave out, with or without the architecture before them.

    Raises:
        InvalidFormat: a damaged file.
        Unsupported: a version that is not read.
    """
    gguf = GGUF.open(path)
    weights = {
        name: Weight(
            name, info.shape, info.type, np.frombuffer(gguf.tensor_bytes(name), dtype=np.uint8)
        )
        for name, info in gguf.tensors.items()
    }
    family = of_gguf(gguf.architecture)
    style: RopeStyle = family.gguf_rope_style if family else "half"
    metadata: Mapping[str, Any] = gguf.metadata
    if ignore_keys:
        metadata = without(metadata, ignore_keys)
    ignored = {key: gguf.metadata[key] for key in gguf.metadata.keys() - metadata.keys()}
    return Checkpoint(
        gguf.path, gguf.architecture, metadata, weights, style, gguf=gguf, ignored=ignored
    )

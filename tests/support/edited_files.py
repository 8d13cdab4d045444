"""Copies of GGUF files with one key or the head changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from builders import Tensor, Typed, write_gguf

from bitnet.formats.containers import open_gguf
from bitnet.formats.gguf_header import Array

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def without_each_key(source: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Each key of its architecture in the file *source*, and a copy in *folder* without it."""
    metadata, tensors = contents_of(source)
    architecture = metadata["general.architecture"]
    for number, key in enumerate(sorted(metadata)):
        if key.startswith(f"{architecture}."):
            rest = {name: value for name, value in metadata.items() if name != key}
            yield key, write_gguf(folder / f"{number}.gguf", rest, tensors)


def with_each_key_changed(source: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Each key of its architecture in *source* with numbers or booleans, and a copy with others.

    The copies are in *folder*. Numbers become 0, or 1 if they were 0.
    """
    metadata, tensors = contents_of(source)
    architecture = metadata["general.architecture"]
    for number, key in enumerate(sorted(metadata)):
        changed = _changed(metadata[key])
        if key.startswith(f"{architecture}.") and changed is not None:
            yield key, write_gguf(folder / f"{number}.gguf", metadata | {key: changed}, tensors)


def _changed(value: Any) -> Any:
    """Another value than *value*; ``None`` for texts and empty arrays."""
    if isinstance(value, Typed):
        items = [_changed(item) for item in value.value]
        return Typed(value.type, items) if items and None not in items else None
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return type(value)(0 if value else 1)
    return None


def with_head(source: Path, target: Path, *, tied: bool) -> Path:
    """A copy of *source* whose head is its embedding, which is stored once more if not *tied*."""
    metadata, tensors = contents_of(source)
    tensors = [tensor for tensor in tensors if tensor.name != "output.weight"]
    if not tied:
        embedding = next(tensor for tensor in tensors if tensor.name == "token_embd.weight")
        tensors.append(replace(embedding, name="output.weight"))
    return write_gguf(target, metadata, tensors)


def contents_of(source: Path) -> tuple[dict[str, Any], list[Tensor]]:
    """Metadata and tensors of the file *source*, as :func:`write_gguf` takes them."""
    checkpoint = open_gguf(source)
    metadata = {
        key: Typed(value._type, list(value)) if isinstance(value, Array) else value
        for key, value in checkpoint.metadata.items()
    }
    tensors = [
        Tensor(weight.name, weight.shape, weight.quant.ggml_id, weight.data.tobytes())
        for weight in checkpoint.weights.values()
    ]
    return metadata, tensors

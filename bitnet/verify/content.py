"""Content of a model regardless of its layout: tensors, values by key, lists.

Two files with the same content are the same model: only the order of keys and tensors, alignment,
padding and the split into several files are disregarded.

| | GGUF | folder with safetensors |
|---|---|---|
| tensors | by name, as encoded | by name, as stored |
| values | every key but the layout's | `config.json`, `generation_config.json`, tokenizer files |
| lists | arrays | tokens, scores and merges of `tokenizer.json` |
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.errors import InvalidFormat, from_os_error
from bitnet.formats import safetensors
from bitnet.formats.gguf import Array
from bitnet.formats.json_file import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from bitnet.formats.checkpoint import Checkpoint

__all__ = ["Content", "Items", "StoredTensor", "content_of", "section_of"]

# Keys about layout, not content.
_LAYOUT = frozenset({"general.alignment", "split.no", "split.count", "split.tensors.count"})
_TEMPLATES = "tokenizer.chat_template"


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """One tensor as stored.

    Attributes:
        shape: rows first.
        encoding: name of its quantization type: ``Q4_1``, ``BF16``.
        data: all of its bytes.
    """

    shape: tuple[int, ...]
    encoding: str
    data: memoryview


@dataclass(frozen=True, eq=False)
class Items:
    """A list.

    Attributes:
        kind: type of the items: ``string``, ``float32``, ``int32``.
        raw: the items one after the other; strings after their 64-bit length.
        starts: offsets into *raw*, one more than items.
    """

    kind: str
    raw: memoryview
    starts: Sequence[int]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def between(self, start: int, stop: int) -> memoryview:
        """Bytes of items *start* up to *stop*."""
        return self.raw[self.starts[start] : self.starts[min(stop, len(self))]]

    def text(self, at: int) -> str:
        """Item *at*, as text."""
        raw = bytes(self.between(at, at + 1))
        if self.kind == "string":
            return repr(raw[8:].decode("utf-8", "backslashreplace"))
        return str(np.frombuffer(raw, self.kind)[0])

    def texts(self) -> list[str]:
        """All strings."""
        raw = bytes(self.raw)
        return [
            raw[start + 8 : end].decode("utf-8", "surrogateescape")
            for start, end in pairwise(self.starts)
        ]

    def numbers(self) -> list[int]:
        """All numbers."""
        found: list[int] = np.frombuffer(self.raw, self.kind).tolist()
        return found

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Items:
        """A list of strings."""
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        parts = [struct.pack("<Q", len(text)) + text for text in encoded]
        starts = list(accumulate(map(len, parts), initial=0))
        return cls("string", memoryview(b"".join(parts)), starts)

    @classmethod
    def of_numbers(cls, kind: str, raw: memoryview) -> Items:
        """A list of numbers of the NumPy type *kind*."""
        size = 1 if kind == "bool" else np.dtype(kind).itemsize
        return cls(kind, raw, range(0, len(raw) + size, size))


@dataclass(frozen=True, eq=False)
class Content:
    """Content of a model, by name."""

    tensors: Mapping[str, StoredTensor]
    values: Mapping[str, Any]
    lists: Mapping[str, Items]


def section_of(key: str) -> str:
    """Section of *key*: ``metadata``, ``tokenizer`` or ``template``."""
    if key.startswith(_TEMPLATES):
        return "template"
    return "tokenizer" if key.startswith("tokenizer.") else "metadata"


def content_of(checkpoint: Checkpoint) -> Content:
    """Content of *checkpoint*; tensors are views into the mapped files.

    Raises:
        InvalidFormat: a file next to the weights is damaged.
    """
    if checkpoint.path.is_dir():
        try:
            return _of_folder(checkpoint.path)
        except RecursionError:
            raise InvalidFormat(f"{checkpoint.path}: a JSON file nests too deeply") from None
    tensors = {
        name: StoredTensor(weight.shape, weight.quant.name.removesuffix("_ARM"), weight.data.data)
        for name, weight in checkpoint.weights.items()
    }
    values: dict[str, Any] = {}
    lists: dict[str, Items] = {}
    for key, value in checkpoint.metadata.items():
        if key in _LAYOUT:
            continue
        if isinstance(value, Array) and len(value):
            lists[key] = _items(value)
        elif isinstance(value, Array):
            values[key] = [value.item_type]
        else:
            values[key] = value
    return Content(tensors, values, lists)


def _items(array: Array) -> Items:
    if array.item_type == "string":
        return Items("string", array.raw, array.starts)
    return Items.of_numbers(array.item_type, array.raw)


def _of_folder(folder: Path) -> Content:
    tensors = {
        name: StoredTensor(tensor.shape, tensor.dtype, tensor.data.data)
        for name, tensor in safetensors.read_folder(folder).items()
    }
    values: dict[str, Any] = {}
    lists: dict[str, Items] = {}
    for name, prefix in (
        ("config.json", "config."),
        ("generation_config.json", "generation."),
        ("tokenizer_config.json", "tokenizer.config."),
        ("special_tokens_map.json", "tokenizer.special."),
    ):
        if (folder / name).is_file():
            values |= _flat(read_json(folder / name, dict), prefix)
    template = values.pop("tokenizer.config.chat_template", None)
    if template is not None:
        values[_TEMPLATES] = template
    for name, key in (
        ("chat_template.jinja", f"{_TEMPLATES}.jinja"),
        ("tokenizer.model", "tokenizer.model"),
        ("tekken.json", "tokenizer.tekken"),
    ):
        if (folder / name).is_file():
            values[key] = hashlib.sha256(_read(folder / name)).hexdigest()
    if (folder / "tokenizer.json").is_file():
        found, long = _of_tokenizer(read_json(folder / "tokenizer.json", dict))
        values |= found
        lists |= long
    return Content(tensors, values, lists)


def _of_tokenizer(file: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Items]]:
    """Values and lists of a ``tokenizer.json``; a vocabulary is listed by id."""
    lists: dict[str, Items] = {}
    model = dict(file["model"]) if isinstance(file.get("model"), dict) else {}
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if isinstance(vocabulary, dict) and all(map(_is_id, vocabulary.values())):
        model.pop("vocab")
        by_id = sorted(vocabulary.items(), key=lambda entry: entry[1])
        ids = np.array([id for _, id in by_id], dtype="<i8")
        lists["tokenizer.tokens"] = Items.of_texts(text for text, _ in by_id)
        lists["tokenizer.ids"] = Items.of_numbers("int64", memoryview(ids.tobytes()))
    if isinstance(merges, list):
        model.pop("merges")
        lists["tokenizer.merges"] = Items.of_texts(
            " ".join(map(str, merge)) if isinstance(merge, list) else str(merge) for merge in merges
        )
    added = file.get("added_tokens")
    rest = {key: value for key, value in file.items() if key not in ("model", "added_tokens")}
    values = _flat(rest | {"model": model}, "tokenizer.")
    for entry in added if isinstance(added, list) else ():
        id = entry.get("id") if isinstance(entry, dict) else None
        values[f"tokenizer.added.{id}"] = entry
    return values, lists


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _flat(found: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Nested objects as one dotted key per value."""
    flat: dict[str, Any] = {}
    for key, value in found.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise from_os_error(error, path) from error

"""Content of a model regardless of its layout: tensors, values by key, lists.

Two files with the same content are the same model: they differ at most in the order of keys and
tensors, alignment, padding, and the split into several files.

| | GGUF | folder with safetensors |
|---|---|---|
| tensors | by name, as encoded | by name, as stored |
| values | every key but the layout's | every file that may be read: JSON by key, others by digest |
| lists | arrays | tokens and merges of `tokenizer.json` |
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass
from itertools import accumulate, product
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat
from bitnet.formats import safetensors
from bitnet.formats.checkpoint import find_repeated_keys
from bitnet.formats.gguf_header import Array
from bitnet.tokenizer.load import read_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bitnet.formats.checkpoint import Checkpoint, Inventory
    from bitnet.quants.weight import Weight

# Keys about layout, not content.
_LAYOUT = frozenset({"general.alignment", "split.no", "split.count", "split.tensors.count"})
_TEMPLATES = ("tokenizer.chat_template", 'tokenizer_config.json["chat_template"', "chat_template.")
_OF_TOKENIZER = (
    "tokenizer",
    "special_tokens_map.",
    "added_tokens.",
    "tekken.",
    "vocab.",
    "merges.",
)

_DIGITS = 8  # hexadecimal digits of the digest of a row or column: 32 bits
_NAMED = 4  # most differing items that a message lists


def key_in(name: str, *path: str | int) -> str:
    """Key of the value at *path* in the JSON file *name*; no two values of files share one."""
    return name + json.dumps(path, separators=(",", ":"))


VOCAB = key_in("tokenizer.json", "model", "vocab")
MERGES = key_in("tokenizer.json", "model", "merges")
_IDS = key_in("tokenizer.json", "model", "vocab", "ids")
MERGE_PAIRS = key_in("tokenizer.json", "model", "merges", "pairs")


@dataclass(frozen=True, eq=False)
class Items:
    """The items of a list in a model's files, as bytes."""

    kind: str  # type of the items: ``string``, ``float32``, ``int32``
    raw: memoryview  # the items one after the other; strings after their 64-bit length
    starts: Sequence[int]  # offsets into *raw*, one more than items

    def __len__(self) -> int:
        return len(self.starts) - 1

    def between(self, start: int, stop: int) -> memoryview:
        """Bytes of the items from *start* to *stop* (exclusive)."""
        return self.raw[self.starts[start] : self.starts[min(stop, len(self))]]

    def text(self, at: int) -> str:
        """Item *at*, as text."""
        raw = bytes(self.between(at, at + 1))
        if self.kind == "string":
            return repr(raw[8:].decode("utf-8", "backslashreplace"))
        return str(np.frombuffer(raw, self.kind)[0])

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
    """Content of a model."""

    tensors: Mapping[str, Weight]  # by name
    values: Mapping[str, Any]  # by key
    lists: Mapping[str, Items]  # long lists, such as tokens and merges, by key


def section_of(key: str) -> str:
    """Section of *key*: ``metadata``, ``tokenizer`` or ``template``."""
    if key.startswith(_TEMPLATES):
        return "template"
    return "tokenizer" if key.startswith(_OF_TOKENIZER) else "metadata"


def content_of(checkpoint: Checkpoint) -> Content:
    """Content of *checkpoint*; tensors are views into the mapped files."""
    if checkpoint.path.is_dir():
        try:
            return _of_folder(read_files(checkpoint))
        except RecursionError:
            raise InvalidFormat(f"{checkpoint.path}: a JSON file nests too deeply") from None
    values: dict[str, Any] = {}
    lists: dict[str, Items] = {}
    # All keys that the file has, also those that are ignored.
    metadata = checkpoint.metadata if checkpoint.gguf is None else checkpoint.gguf.metadata
    for key, value in metadata.items():
        if key in _LAYOUT:
            continue
        if not isinstance(value, Array):
            values[key] = value
        elif not len(value):
            values[key] = [value.item_type]  # the content of an empty array is its type
        elif value.item_type == "string":
            lists[key] = Items("string", value.raw, value.starts)
        else:
            lists[key] = Items.of_numbers(value.item_type, value.raw)
    return Content(checkpoint.weights, values, lists)


def _of_folder(files: Inventory) -> Content:
    """Content of a folder with safetensors."""
    tensors = safetensors.read_folder(files)
    values: dict[str, Any] = {}
    lists: dict[str, Items] = {}
    for name in files.names:
        if name == "tokenizer.json":
            value, lists = _split_lists(files.json(name, dict))
            values |= dict(_flat(name, value))
        elif name.endswith(".json") and name != safetensors.INDEX:
            values |= dict(_flat(name, files.value(name)))
        elif name.endswith(".safetensors") or name == safetensors.INDEX:
            continue  # their content is the tensors, the rest is layout
        else:
            values[name] = files.sha256[name]
        if name.endswith(".json") and (repeated := find_repeated_keys(files.read(name))):
            values[f"{name} repeated"] = repeated  # other readers may take the first of two
    return Content(tensors, values, lists)


def _split_lists(file: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Items]]:
    """The ``tokenizer.json`` *file* without vocabulary and merges, and these two as lists.

    Tokens are in the order of their ids, which are a list, too. A vocabulary or merges in another
    form than usual stay where they are.
    """
    model = file.get("model")
    if not isinstance(model, dict):
        return file, {}
    lists: dict[str, Items] = {}
    vocabulary = model.get("vocab")
    merges = model.get("merges")
    remaining = {key: value for key, value in model.items() if key not in ("vocab", "merges")}
    if isinstance(vocabulary, dict) and all(
        type(id) is int and 0 <= id < 1 << 63 for id in vocabulary.values()
    ):
        by_id = sorted(vocabulary.items(), key=lambda entry: (entry[1], entry[0]))
        ids = np.array([id for _, id in by_id], dtype="<i8")
        lists[VOCAB] = Items.of_texts(text for text, _ in by_id)
        lists[_IDS] = Items.of_numbers("int64", memoryview(ids.tobytes()))
    elif "vocab" in model:
        remaining["vocab"] = vocabulary
    if isinstance(merges, list) and all(isinstance(merge, str) for merge in merges):
        lists[MERGES] = Items.of_texts(merges)
    elif isinstance(merges, list) and all(map(_is_pair, merges)):
        lists[MERGE_PAIRS] = Items.of_texts(map(" ".join, merges))
    elif "merges" in model:
        remaining["merges"] = merges
    return file | {"model": remaining}, lists


def _is_pair(merge: Any) -> bool:
    """True if *merge* is two texts without spaces, which can be joined by a space without loss."""
    texts = isinstance(merge, list) and len(merge) == 2
    return texts and all(isinstance(part, str) and " " not in part for part in merge)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Key (:func:`key_in`) and value of each leaf of the JSON file *name*.

    Each object in a list of objects is one value.
    """
    pending: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict) and value:
            pending += [((*path, key), entry) for key, entry in value.items()]
        elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            yield from ((key_in(name, *path, at), entry) for at, entry in enumerate(value))
        else:
            yield key_in(name, *path), value


# --- where two lists differ ----------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """Short digests of the rows and columns of a square that the items of a list fill.

    A differing item shows in its row and in its column, so two short lists of digests name one item
    in 262,144 without storing any. They only locate; a full SHA-256 establishes equality.
    """

    length: int
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, items: Items) -> Grid:
        """The grid of *items*."""
        side = _side(len(items))
        columns = tuple(
            _short_digest(
                b"".join(items.between(at, at + 1) for at in range(first, len(items), side))
            )
            for first in range(min(side, len(items)))
        )
        return cls(len(items), _rows(items, side), columns)

    @classmethod
    def parse(cls, length: int, rows: str, columns: str) -> Grid:
        """The grid that :meth:`facts` describes, read from a file; ValueError if it is not one."""
        parts = [
            tuple(text[at : at + _DIGITS] for at in range(0, len(text), _DIGITS))
            for text in (rows, columns)
        ]
        side = _side(parse_size(length))
        sizes = [-(-length // side), min(side, length)]
        if list(map(len, parts)) != sizes or len(rows + columns) != _DIGITS * sum(sizes):
            raise ValueError("not the digests of so many items")
        bytes.fromhex(rows + columns)  # raises ValueError for other characters
        return cls(length, *parts)

    def facts(self) -> dict[str, Any]:
        """The grid as JSON values."""
        rows = "".join(self.rows)
        columns = "".join(self.columns)
        return {"length": self.length, "rows": rows, "columns": columns}

    def overlap(self, items: Items) -> float:
        """Share of the rows that *items*, a list of the same length, has: 0 to 1."""
        equal = sum(map(str.__eq__, self.rows, _rows(items, _side(self.length))))
        return equal / len(self.rows) if self.rows else 0.0

    def locate(self, items: Items) -> str:
        """Text about where *items* differ from the list of this grid; they must differ."""
        side = _side(self.length)
        if self.length != len(items):
            equal = [a == b for a, b in zip(self.rows, _rows(items, side), strict=False)]
            first = min((row for row, same in enumerate(equal) if not same), default=len(equal))
            where = f"different from item {first * side:,} on"
            return f"{len(items):,} items instead of {self.length:,}, {where}"
        now = Grid.of(items)
        rows = _unequal(self.rows, now.rows)
        columns = _unequal(self.columns, now.columns)
        places = [row * side + column for row, column in product(rows, columns)]
        named = [f"{at:,} {items.text(at)}" for at in places if at < len(items)]
        if not named:  # the short digests of two rows collide
            return "an item differs"
        ending = f" and {len(named) - _NAMED:,} more" if len(named) > _NAMED else ""
        text = ", ".join(named[:_NAMED]) + ending
        if len(rows) == 1 or len(columns) == 1:
            return f"{'item' if len(named) == 1 else f'{len(named):,} items'}: {text}"
        table = f"{len(rows):,} rows and {len(columns):,} columns, of {side:,} each"
        return f"items in {table}: among {text}"


def _unequal(before: tuple[str, ...], now: tuple[str, ...]) -> list[int]:
    """Indices at which two lists of digests differ."""
    return [at for at, (was, digest) in enumerate(zip(before, now, strict=True)) if was != digest]


def _rows(items: Items, side: int) -> tuple[str, ...]:
    """Short digest of each row of *side* items."""
    starts = range(0, len(items), side)
    return tuple(_short_digest(items.between(at, at + side)) for at in starts)


def _short_digest(raw: bytes | memoryview) -> str:
    return hashlib.sha256(raw).hexdigest()[:_DIGITS]


def parse_size(value: object) -> int:
    """*value*, read from a file, if it is a number of items; else a ``ValueError``."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of items")
    return value


def _side(length: int) -> int:
    """Number of items in a row: the side of the smallest square that holds *length* items."""
    return max(1, math.isqrt(max(0, length - 1)) + 1)

"""GGUF files: metadata, tensor directory and tensor bytes, read in place.

    with GGUF.open("model.gguf") as gguf:
        gguf.metadata["general.architecture"]
        gguf.tensors["token_embd.weight"].shape      # rows first
        gguf.tensor_bytes("token_embd.weight")       # a view into the mapped file

A model split into ``name-00001-of-00003.gguf`` and so on is opened through any of its parts.
Versions 2 and 3, little-endian; other files that start with ``GGUF`` are recognised and refused by
name. Only names and scalars are copied: memory is bounded by the size of the header.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, NotFound, Unsupported
from bitnet.formats import gguf_header, mapped_file
from bitnet.formats.gguf_header import (
    NeedMoreBytes,
    TensorEntry,
    TensorInfo,
    decode,
    layout_faults,
    printable,
)
from bitnet.formats.gguf_names import PART, count_parts
from bitnet.formats.mapped_file import MappedFile
from bitnet.quants import types
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    import os
    from collections.abc import Container, Mapping

    from bitnet.quants.types import Dialect

logger = logging.getLogger(__name__)

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 30
_UNKNOWN_SIZE = 2**63 - 1  # of a file of which only a prefix is available
_REFETCH = "the file is incomplete or damaged: fetch it again"


@dataclass(frozen=True)
class _Part:
    """One file of a model, parsed."""

    label: str  # its name, for messages
    view: memoryview  # its bytes, or the prefix of them that is available
    size: int  # bytes of the whole file; _UNKNOWN_SIZE if only a prefix is available
    version: int  # of the format, 2 or 3
    alignment: int  # of tensors, in bytes
    metadata: dict[str, Any]  # scalars decoded, arrays as ``Array``
    entries: list[TensorEntry]  # the tensor directory
    data_offset: int  # of the first byte behind header and padding, where tensor data starts


class GGUF:
    """An open GGUF file, or all files of a split one; a context manager.

    Views stay valid after :meth:`close`; the mapping is freed with the last one.
    """

    def __init__(self, path: Path, parts: list[_Part], maps: list[MappedFile]) -> None:
        first = parts[0]
        self.path = path  # the file, the first one of a split model
        self.version: int = first.version  # 2 or 3
        self.alignment: int = first.alignment  # of the tensor data, in bytes, in the first file
        # of each file: llama-gguf-split names that of the model in the first one only
        self.part_alignments: list[int] = [part.alignment for part in parts]
        # scalars decoded, arrays as ``Array``
        self.metadata: Mapping[str, Any] = MappingProxyType(first.metadata)
        architecture = first.metadata.get("general.architecture", "")
        # ``general.architecture``, empty when the file has none
        self.architecture: str = architecture if isinstance(architecture, str) else ""
        self.data_offset: int = first.data_offset  # where tensor data starts (in the first file)
        has_sizes = all(part.size != _UNKNOWN_SIZE for part in parts)
        # bytes of all files together; ``None`` if only a prefix is available
        self.size: int | None = sum(part.size for part in parts) if has_sizes else None
        rooms = [_room(part) for part in parts]
        evidence = [
            types.TensorEvidence(entry.type, entry.shape, room[entry.offset])
            for part, room in zip(parts, rooms, strict=True)
            for entry in part.entries
        ]
        # the program whose type ids the file uses
        self.dialect: Dialect = types.resolve_dialect(
            self.architecture, evidence, alignment=self.alignment
        )
        try:
            q2_0 = types.resolve_q2_0(self.dialect, evidence, alignment=self.alignment)
        except Unsupported as error:
            raise Unsupported(f"{first.label}: {error.message}", hint=error.hint) from error
        directory = _directory(parts, rooms, self.dialect, q2_0)
        # the directory, in file order
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(directory)
        self.part_sizes: dict[str, int] = {part.label: part.size for part in parts}  # by file name
        self._views = [part.view for part in parts]
        self._maps = maps

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, check_layout: bool = True) -> GGUF:
        """Open the file at *path*, and with it all parts of a split model.

        With *check_layout*, tensors that are cut off, misaligned, or overlap are refused.
        """
        paths = part_paths(Path(path))
        maps: list[MappedFile] = []
        parts = []
        try:
            for number, name in enumerate(paths):
                mapped = MappedFile.open(name)
                maps.append(mapped)
                parts.append(_parse(memoryview(mapped), len(mapped), name.name))
                _check_split(parts[-1], number, len(paths))
            opened = cls(paths[0], parts, maps)
            total = opened.metadata.get("split.tensors.count")
            if len(paths) > 1 and isinstance(total, int) and total != len(opened.tensors):
                raise InvalidFormat(
                    f"{paths[0].name}: {total} tensors announced, its parts hold "
                    f"{len(opened.tensors)}",
                    hint="fetch the parts again: they do not belong together",
                )
            if check_layout:
                opened.check_layout()
            for mapped in maps:
                mapped.check()
            logger.debug(
                "%s: model type %s, dialect %s, %d tensors in %d files",
                opened.path.name,
                opened.architecture or "unknown (no general.architecture)",
                opened.dialect,
                len(opened.tensors),
                len(parts),
            )
        except BaseException:
            parts.clear()
            _close(maps)
            raise
        return opened

    @classmethod
    def parse(
        cls, buffer: gguf_header.Buffer, *, size: int | None = None, label: str = "GGUF header"
    ) -> GGUF:
        """Read the header at the start of *buffer*, which may hold only a prefix of the file.

        *size* is the size of the whole file in bytes, if known; *label* names it in messages.
        """
        view = memoryview(buffer).cast("B")
        total = _UNKNOWN_SIZE if size is None else max(size, len(view))
        return cls(Path(label), [_parse(view, total, label)], [])

    def __enter__(self) -> GGUF:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GGUF {self.path.name}: {self.architecture or '?'}, {len(self.tensors)} tensors>"

    def close(self) -> None:
        """Unmap the file, or leave that to the last view in use."""
        self._views = []
        maps = self._maps
        self._maps = []
        try:
            for mapped in maps:
                mapped.check_reads()
        finally:
            _close(maps)

    @property
    def paths(self) -> list[Path]:
        """The files, one unless the model is split."""
        return [self.path.with_name(label) for label in self.part_sizes]

    @property
    def files(self) -> list[MappedFile]:
        """The mapped files; empty after :meth:`close`, and if only a header was parsed."""
        return list(self._maps)

    def file_view(self, part: int = 0) -> memoryview:
        """All bytes of a file (or of the prefix given to :meth:`parse`), without a copy."""
        if not self._views:
            raise InvalidFormat(f"{self.path.name} is closed")
        return self._views[part]

    def tensor_bytes(self, name: str) -> memoryview:
        """Bytes of tensor *name* as stored in the file, without a copy."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise NotFound(f"{self.path.name} has no tensor {name!r}")
        view = self.file_view(tensor.part)
        end = tensor.offset + tensor.size_bytes
        if end > len(view):
            label, size = list(self.part_sizes.items())[tensor.part]
            ends = f"the file ends at {size:,}"
            hint = _REFETCH
            if end <= size:
                ends = f"only the first {len(view):,} are here"
                hint = ""
            raise InvalidFormat(
                f"{label}: tensor {printable(name)} needs bytes {tensor.offset:,}..{end:,}, {ends}",
                hint=hint,
            )
        return view[tensor.offset : end]

    def weight(self, name: str, rounds_input: bool = True) -> Weight:
        """Tensor *name*, a view into the mapped file; *rounds_input* is the field of the result."""
        import numpy as np

        tensor = self.tensors[name]
        data = np.frombuffer(self.tensor_bytes(name), dtype=np.uint8)
        return Weight(name, tensor.shape, tensor.type, data, rounds_input=rounds_input)

    def check_layout(self) -> None:
        """Check that every tensor lies inside its file, aligned and apart from all others."""
        for _, fault in layout_faults(self.tensors.values(), self.part_sizes, self.part_alignments):
            raise InvalidFormat(fault, hint=_REFETCH)


def _close(maps: list[MappedFile]) -> None:
    while maps:
        with suppress(BufferError):  # a view is still in use: the mapping is freed with it
            maps.pop().close()


def _parse(view: memoryview, total: int, label: str) -> _Part:
    """Header of one file whose first bytes are *view*."""
    version = _version(view, total, label)
    header = gguf_header.index(view, total, label)
    metadata: dict[str, Any] = {}
    for entry in header.keys:
        metadata[_new_name(entry.name, metadata, "key", label)] = decode(view, entry)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    valid = type(alignment) is int and 0 < alignment <= _MAX_ALIGNMENT
    if not valid or alignment & (alignment - 1):
        raise InvalidFormat(
            f"{label}: general.alignment is {alignment!r}, expected a power of two", hint=_REFETCH
        )
    return _Part(
        label=label,
        view=view,
        size=total,
        version=version,
        alignment=alignment,
        metadata=metadata,
        entries=header.tensors,
        data_offset=-(-header.end // alignment) * alignment,
    )


def _version(view: memoryview, total: int, label: str) -> int:
    """Version of the format, 2 or 3."""
    if view[:4] != MAGIC[: len(view)]:
        raise mapped_file.other_kind(bytes(view[:32]), label)
    if len(view) < 8:
        if total > len(view):
            raise NeedMoreBytes(gguf_header.FIXED_BYTES)
        if not view:
            raise mapped_file.empty(label)
        raise InvalidFormat(f"{label} ends after {len(view)} bytes", hint=_REFETCH)
    version = int.from_bytes(view[4:8], "little")
    if version in (2, 3):
        return version
    if version and not version & 0xFFFF:  # a small number with its bytes in the opposite order
        raise Unsupported(
            f"{label} is a big-endian GGUF file; only little-endian files are read",
            hint="convert it with gguf-py: gguf-convert-endian FILE little",
        )
    raise Unsupported(
        f"{label} is GGUF version {version}; versions 2 and 3 are read",
        hint="fetch a current file, or write it again with the llama.cpp that reads it",
    )


def _new_name(raw: bytes, names: Container[str], kind: str, label: str) -> str:
    """Decode the name *raw* of a key or tensor; refuse one that *names* has already."""
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidFormat(
            f"{label}: the name of a {kind} is not UTF-8: {raw[:40]!r}", hint=_REFETCH
        ) from None
    if name in names:
        raise InvalidFormat(f"{label}: {kind} {name!r} is there twice", hint=_REFETCH)
    return name


def _room(part: _Part) -> dict[int, int | None]:
    """Bytes from each offset in use to the next one, or to the end of the file."""
    offsets = sorted({entry.offset for entry in part.entries})
    room: dict[int, int | None] = {here: following - here for here, following in pairwise(offsets)}
    if offsets:
        last = offsets[-1]
        has_size = part.size != _UNKNOWN_SIZE
        room[last] = max(0, part.size - part.data_offset - last) if has_size else None
    return room


def _directory(
    parts: list[_Part], rooms: list[dict[int, int | None]], dialect: Dialect, q2_0: types.QuantType
) -> dict[str, TensorInfo]:
    """All tensors by name; *q2_0* is the type that the file means by the id of Q2_0."""
    tensors: dict[str, TensorInfo] = {}
    for number, (part, room) in enumerate(zip(parts, rooms, strict=True)):
        for entry in part.entries:
            name = _new_name(entry.name, tensors, "tensor", part.label)
            kind = types.by_id(entry.type, dialect)
            kind = q2_0 if kind.name == "Q2_0" else kind
            size = kind.size_bytes(entry.shape) if kind.known else room[entry.offset] or 0
            if size is None:
                raise InvalidFormat(
                    f"{part.label}: tensor {printable(name)} of shape {entry.shape} cannot be "
                    f"{kind.name}, which takes rows of a multiple of {kind.block_size} weights",
                    hint=_REFETCH,
                )
            offset = part.data_offset + entry.offset
            tensors[name] = TensorInfo(name, entry.shape, kind, offset, size, number)
    return tensors


def part_paths(path: Path) -> list[Path]:
    """All files of the model to which *path* belongs, none of which may be missing."""
    match = PART.fullmatch(path.name)
    if match is None:
        return [path]
    count = count_parts(path.name)
    if count == 1:
        return [path]
    paths = [
        path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf")
        for number in range(1, count + 1)
    ]
    missing = [part.name for part in paths if not part.exists()]
    if missing:
        listed = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise NotFound(
            f"{path.name} is one of {count} parts, {len(missing)} of them missing: {listed}",
            hint=f"put all parts into {path.parent}",
        )
    return paths


def _check_split(part: _Part, number: int, count: int) -> None:
    """Compare a part's metadata with its file name."""
    stated = part.metadata.get("split.no", 0), part.metadata.get("split.count", 0)
    if stated != (number, count) and not (count == 1 and stated[1] in (0, 1)):
        stated_number, stated_count = (f"{value!r:.40}" for value in stated)
        raise InvalidFormat(
            f"{part.label} says it is part {stated_number} (from 0) of {stated_count}, "
            f"its name says {number} of {count}",
            hint="fetch the parts again, and name them model-00001-of-00003.gguf and so on",
        )

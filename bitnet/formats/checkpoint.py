"""A model on disk: its files, and its GGUF keys and tensors in any container, still encoded.

Files are read through an :class:`Inventory`, so a model is identified by the bytes that were read.
A :class:`Checkpoint`, which :func:`bitnet.formats.containers.open_checkpoint` opens, is passed to
everything that reads the model: tokenizer, configuration, weights, narration, checks::

    checkpoint.architecture                          # "llama"
    checkpoint.value("block_count")                  # the key llama.block_count
    checkpoint.weights["blk.0.attn_q.weight"]        # a Weight: a view into the mapped file
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bitnet.base.errors import IntegrityError, InvalidFormat, from_os_error
from bitnet.base.files import digest_of, open_file
from bitnet.families.keys import COMPARE, Keys, contradiction
from bitnet.formats.mapped_file import MappedFile
from bitnet.quants import registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from bitnet.families.blocks import KVType
    from bitnet.formats.gguf import GGUF
    from bitnet.quants.weight import Weight

T = TypeVar("T", dict, list)  # type: ignore[type-arg]


_MOST_FILES = 10_000  # in the folder of a model, with those that links lead to
_MOST_LEVELS = 100  # of nested objects and arrays: published files have fewer than 20
_LARGE = 1 << 20  # bytes: larger files stay mapped and take no memory of their own


def parse_json(raw: bytes, path: Path, kind: type[T], *, unique: bool = False) -> T:
    """The JSON object or array (*kind*) in *raw*, the content or a part of the file *path*.

    With *unique*, keys that an object has twice are refused. Otherwise the last one counts, as in
    transformers: some published ``config.json`` has such a key.
    """
    try:
        content = json.loads(raw)
        if unique and (repeated := find_repeated_keys(raw)):
            raise ValueError(f"the key {repeated[0][0][:80]!r} is there twice")
        if _is_deeper(content, _MOST_LEVELS):
            raise ValueError(f"it has more than {_MOST_LEVELS} levels")
    except (ValueError, RecursionError) as error:
        raise damage_error(path, f"it is not valid JSON: {error}") from None
    if not isinstance(content, kind):
        raise damage_error(path, f"it is not a JSON {'array' if kind is list else 'object'}")
    return content


def _is_deeper(content: Any, levels: int) -> bool:
    """True if objects and arrays of *content* are nested in more than so many *levels*.

    Functions that walk through *content* call themselves once for each level.
    """
    level = [content]
    for _ in range(levels + 1):
        level = [value for value in level if isinstance(value, dict | list)]
        if not level:
            return False
        tables = (table.values() if isinstance(table, dict) else table for table in level)
        level = [value for values in tables for value in values]
    return True


def find_repeated_keys(raw: bytes) -> list[tuple[str, Any]]:
    """Key and value of each entry of the JSON text *raw* whose object has the key again later."""
    overwritten: list[tuple[str, Any]] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        by_key = dict(pairs)
        if len(by_key) != len(pairs):
            last = {key: at for at, (key, _) in enumerate(pairs)}
            overwritten.extend(pair for at, pair in enumerate(pairs) if last[pair[0]] != at)
        return by_key

    json.loads(raw, object_pairs_hook=collect)
    return overwritten


def damage_error(path: Path, why: str) -> InvalidFormat:
    """The error about the file *path*, which is damaged."""
    where = f"{resolve_unnamed(path.parent).name}/{path.name}"
    return InvalidFormat(f"{where}: {why}", hint="the file is damaged: fetch it again")


def resolve_unnamed(path: Path) -> Path:
    """*path*, or its absolute form if it has no name, such as ``.`` and ``..``."""
    if path.name not in ("", ".."):
        return path
    try:
        return path.resolve()
    except OSError:  # the working folder was removed
        return path


class Inventory:
    """Files of one model, by their names relative to *root*, as they were when they were read."""

    def __init__(self, root: Path) -> None:
        self.root: Path = resolve_unnamed(root)  # messages have its name
        self.root_as_given: Path = root
        # content and status of each file that was read
        self._opened: dict[str, tuple[bytes | MappedFile, os.stat_result]] = {}
        self._digests: dict[str, str] = {}  # SHA-256 of files that were read

    @classmethod
    def of_mapped(cls, files: Iterable[MappedFile]) -> Inventory:
        """Inventory of the open *files* of one folder."""
        files = list(files)
        inventory = cls(files[0].path.parent)
        for file in files:
            inventory._opened[file.path.name] = file, file.status
        return inventory

    @property
    def names(self) -> list[str]:
        """Names of the files that were read, sorted."""
        return sorted(self._opened)

    @property
    def paths(self) -> list[Path]:
        """Paths of the files that were read, sorted."""
        return [self.root / name for name in self.names]

    def path(self, name: str) -> Path:
        """Path of the file *name*."""
        if name in self._opened:  # it was there, even with a backslash in its name
            return self.root / name
        parts = name.replace("\\", "/").split("/")
        if Path(name).is_absolute() or {"", ".", ".."} & set(parts):
            raise InvalidFormat(
                f"{self.root.name}: {name!r} is outside of the folder", hint=COMPARE
            )
        if "\0" in name or not _is_encodable(name):
            raise InvalidFormat(
                f"{self.root.name}: {name!r} is not the name of a file", hint=COMPARE
            )
        return self.root / name

    def __contains__(self, name: str) -> bool:
        """True if there is something called *name* in the folder."""
        try:
            self.path(name).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise from_os_error(error, self.root / name) from error
        return True

    def read(self, name: str) -> bytes:
        """Content of the file *name*."""
        if name not in self._opened:
            path = self.path(name)
            try:
                with open_file(path) as file:
                    status = os.fstat(file.fileno())
                    if status.st_size <= _LARGE:
                        self._opened[name] = file.read(), status
                        return bytes(self._opened[name][0])
                return bytes(self.map(name))
            except OSError as error:
                raise from_os_error(error, path) from error
        return bytes(self._opened[name][0])

    def json(self, name: str, kind: type[T]) -> T:
        """The JSON object or array in the file *name*."""
        return parse_json(self.read(name), self.path(name), kind)

    def value(self, name: str) -> dict[str, Any] | list[Any]:
        """The JSON object or array in the file *name*, whichever it is."""
        first = self.read(name).lstrip()[:1]
        return self.json(name, list) if first == b"[" else self.json(name, dict)

    def map(self, name: str) -> MappedFile:
        """The file *name*, mapped once."""
        opened = self._opened.get(name)
        if opened is not None and isinstance(opened[0], MappedFile):
            return opened[0]
        mapped = MappedFile.open(self.path(name))
        self._opened[name] = mapped, mapped.status
        return mapped

    @property
    def sha256(self) -> dict[str, str]:
        """SHA-256 of each file that was read so far, of the bytes that were read."""
        for name in self._opened.keys() - self._digests.keys():
            self._digests[name] = hashlib.sha256(self._opened[name][0]).hexdigest()
        return {name: self._digests[name] for name in self.names}

    @property
    def digest(self) -> str:
        """SHA-256 of the file; of several, over their names and digests."""
        if len(self._opened) == 1:
            return next(iter(self.sha256.values()))
        return hashlib.sha256(json.dumps(self.sha256, sort_keys=True).encode()).hexdigest()

    @property
    def unread(self) -> list[str]:
        """Files below the folder that no reader asked for, hidden ones left out, sorted.

        Folders that links lead to are part of it, as they are for readers.
        """
        names = (path.relative_to(self.root) for path in _files_below(self.root))
        return sorted(
            name.as_posix()
            for name in names
            if name.as_posix() not in self._opened
            and not any(part.startswith(".") for part in name.parts)
        )

    @property
    def hidden(self) -> list[str]:
        """Hidden files and folders below the folder, without those in hidden folders, sorted."""
        outermost = set()
        for path in _files_below(self.root):
            parts = path.relative_to(self.root).parts
            hidden = [at for at, part in enumerate(parts) if part.startswith(".")]
            if hidden:
                outermost.add("/".join(parts[: hidden[0] + 1]))
        return sorted(outermost)

    def unread_sha256(self, names: Iterable[str]) -> dict[str, str]:
        """SHA-256 of each of *names*, files that no reader asked for."""
        return {name: digest_of(self.path(name)) for name in names}

    def check(self) -> None:
        """Check that each name still belongs to the file that was read."""
        for name, (content, status) in self._opened.items():
            if isinstance(content, MappedFile):
                content.check()
            path = self.root / name
            try:
                now: os.stat_result | None = path.stat()
            except OSError:
                now = None
            if now is None or _identity(now) != _identity(status):
                raise IntegrityError(
                    f"{path} is not the file any more that was read: it was replaced",
                    hint="run the same command again",
                )


def _is_encodable(name: str) -> bool:
    """True if the system can have a file of this *name*."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def _files_below(folder: Path) -> Iterator[Path]:
    """Everything below *folder* but folders; a link back to a folder above counts as a file."""

    def fail(error: OSError) -> None:
        raise from_os_error(error, error.filename or folder) from error

    count = 0
    for folder_path, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        count += len(folders) + len(files)
        if count > _MOST_FILES:
            raise InvalidFormat(
                f"{folder} has more than {_MOST_FILES:,} files and folders",
                hint="a model is a folder of its own: move it, or the links to other folders",
            )
        above = {parent.resolve() for parent in (Path(folder_path), *Path(folder_path).parents)}
        loops = [name for name in folders if (Path(folder_path) / name).resolve() in above]
        folders[:] = [name for name in folders if name not in loops]
        yield from (Path(folder_path) / name for name in (*files, *loops))


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class Prompts:
    """Prefixes that a model expects before texts it embeds or scores."""

    texts: Mapping[str, str] = field(default_factory=dict)  # by name
    default: str = ""  # name of the default prefix; empty: none


def has_input_norms(names: Iterable[str]) -> bool:
    """True if there is a norm before every projection, as in BitNet's embedding models."""
    return any(name.endswith("_norm_in.weight") for name in names)


@dataclass(frozen=True, eq=False)
class Checkpoint(Keys):
    """A model on disk."""

    weights: Mapping[str, Weight]  # by GGUF name, in file order
    gguf: GGUF | None = None  # the open file, if the container is GGUF
    opened_s: float = 0.0  # seconds it took to open
    # keys that were ignored, on request or because llama.cpp ignores them, with their values
    ignored: Mapping[str, Any] = field(default_factory=dict)
    # tokens of a text to embed that its settings keep; ``None``: they have no limit
    text_limit: int | None = None
    # prefixes that the model expects before texts it embeds or scores
    prompts: Prompts = field(default_factory=Prompts)
    # a BitNet model: ternary layers round a token's input to int8, whatever their quantization type
    rounds_inputs: bool = False
    # the files that were read
    inventory: Inventory = field(default_factory=lambda: Inventory(Path()))
    # names of matrices that adapters change; ``NAME.lora_a`` and ``NAME.lora_b`` are among the
    # weights
    adapted: frozenset[str] = frozenset()
    # names of tensors that are not the model's own but an adapter's, or changed by one
    replaced: frozenset[str] = frozenset()
    kv_type: KVType = "f16"  # form of the keys and values that it is run with

    def numbers(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        """The tensor *name* decoded; ``None`` if it does not exist."""
        weight = self.weights.get(name)
        if weight is not None and weight.shape != shape:
            raise contradiction(self, f"{name} has shape {weight.shape}, expected {shape}")
        return None if weight is None else registry.dequantize(weight)

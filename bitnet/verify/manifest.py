"""The files that a signed statement names, compared with those of a model, in both directions.

The package model-signing lists files in two ways: each file with its digest, or each part of a
file, a shard, with the digest of that part. Digests are SHA-256 or BLAKE2b; its third algorithm,
BLAKE3, is refused: Python's hashlib does not have it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, Unsupported, from_os_error
from bitnet.base.files import open_file
from bitnet.base.trust import is_plain_text, path_problem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from io import BufferedReader

    from bitnet.formats.checkpoint import Inventory

_TITLES = {"sha256": "SHA-256", "blake2b": "BLAKE2b"}
_DIGEST_BYTES = {"sha256": 32, "blake2b": 64}
_CHUNK_BYTES = 1 << 20
ALONE = "."  # name, in a statement, of the only file of a model


@dataclass(frozen=True)
class FilePart:
    """A part of a file, with its digest."""

    start: int  # offset of the first byte
    stop: int | None  # offset behind the last byte; None: the end of the file
    algorithm: str  # a key of _TITLES
    digest: str  # lower-case hexadecimal


@dataclass(frozen=True)
class FileManifest:
    """Files of a model with the digests of their parts."""

    source: str  # name of the statement's file, for messages
    files: Mapping[str, Sequence[FilePart]]  # by name in the folder; ALONE for a single file
    left_out: frozenset[str] = frozenset()  # files and folders that the signer left out
    is_sharded: bool = False  # the statement lists shards, not whole files

    @classmethod
    def parse(cls, predicate: Mapping[str, Any], source: str) -> FileManifest:
        """The manifest in the *predicate* of a statement of model-signing.

        An invalid predicate raises ``ValueError``, ``TypeError``, ``KeyError`` or
        ``AttributeError``, digests of another algorithm :class:`Unsupported`.
        """
        serialization = predicate["serialization"]
        method = serialization["method"]
        if method not in ("files", "shards"):
            raise ValueError(f"its files are named by the method {method!r}")
        files: dict[str, list[FilePart]] = {}
        for resource in predicate["resources"]:
            name, part = _parse_resource(resource, is_shard=method == "shards")
            files.setdefault(name, []).append(part)
        if not files:
            raise ValueError("it names no file")
        for name, parts in files.items():
            _check_parts(name, parts, is_shards=method == "shards")
        left_out = frozenset(str(path) for path in serialization.get("ignore_paths", ()))
        return cls(source, files, left_out, is_sharded=method == "shards")

    @property
    def titles(self) -> str:
        """Names of the digest algorithms, for messages."""
        algorithms = {part.algorithm for parts in self.files.values() for part in parts}
        return " and ".join(_TITLES[name] for name in sorted(algorithms))

    def covers(self, name: str, folder: Path) -> bool:
        """True if the statement names the file *name* in *folder*, or the signer left it out."""
        path = Path(name)
        places = {path.as_posix(), *(parent.as_posix() for parent in path.parents)}
        if name in self.files or not places.isdisjoint(self.left_out):
            return True
        # An empty file has no shard, so a statement by shards cannot name it.
        return self.is_sharded and (folder / name).stat().st_size == 0

    def differences(
        self, model: Path, files: Inventory, *, rewritten: Collection[str] = ()
    ) -> list[str]:
        """Messages about differences between the files of *model* and the statement.

        Each of *files*, which were read, must be named, with its digests. If *model* is a folder,
        each named file must exist; if it is a file, the statement may name others beside it. The
        bytes of *rewritten* files, whose content was compared in another way, may differ.
        """
        # Names of the files on disk, by their names in the statement.
        names = {name: name for name in files.names}
        if not model.is_dir() and len(names) == 1 and set(self.files) == {ALONE}:
            names = {ALONE: model.name}
        elif model.is_dir():
            names |= {name: name for name in self.files}
        texts = []
        for name, file in sorted(names.items()):
            if name not in self.files:
                texts.append(f"{file}: {self.source} says nothing of it")
            elif name == ALONE and model.is_dir():
                texts.append(f"{self.source} is of a single file, not of a folder")
            # The bytes of a rewritten file may differ, but it must still exist.
            elif file not in rewritten or file not in files:
                texts += self._difference(file, self.files[name], files)
        return texts

    def _difference(self, name: str, parts: Sequence[FilePart], files: Inventory) -> Iterator[str]:
        """A message about the first difference of the file *name* from *parts*, or none."""
        path = files.path(name)
        try:
            size = path.stat().st_size
            if parts[-1].stop not in (None, size):
                yield f"{name} has {size:,} bytes, {self.source} says {parts[-1].stop:,}"
                return
            with open_file(path) as file:
                digests = [_digest(file, part) for part in parts]
        except (FileNotFoundError, NotADirectoryError):
            yield f"{name} is gone, {self.source} names it"
            return
        except OSError as error:
            raise from_os_error(error, path) from error
        for part, digest in zip(parts, digests, strict=True):
            if digest != part.digest:
                title = _TITLES[part.algorithm]
                yield f"{title} of {name} is {digest}, {self.source} says {part.digest}"
                return


def name_problem(name: object) -> str:
    """Reason why a statement cannot name a file *name*; empty if it can."""
    if not is_plain_text(name):
        return "it is not a text of one line in UTF-8"
    return path_problem(str(name))


def _parse_resource(resource: Mapping[str, Any], *, is_shard: bool) -> tuple[str, FilePart]:
    """Name of the file of *resource*, and the part that it describes."""
    name = resource["name"]
    algorithm = resource["algorithm"]
    digest = resource["digest"]
    start = 0
    stop = None
    if is_shard:
        algorithm = algorithm.partition("-sharded-")[0]  # sha256-sharded-SIZE
        shard = name.rsplit(":", 2)  # FILE:START:STOP
        if len(shard) != 3 or not (shard[1].isdecimal() and shard[2].isdecimal()):
            raise ValueError(f"{resource['name']!r} is not a part of a file")
        name = shard[0]
        start = int(shard[1])
        stop = int(shard[2])
    if name != ALONE and (problem := name_problem(name)):
        raise ValueError(f"it names a file {name!r}: {problem}")
    if algorithm not in _TITLES:
        raise Unsupported(
            f"the digests are {algorithm!r}, this version computes {', '.join(_TITLES)}",
            hint="verify it with the tool that wrote it: model_signing verify --help",
        )
    if len(bytes.fromhex(digest)) != _DIGEST_BYTES[algorithm]:
        raise ValueError(f"{digest!r} is not a digest {algorithm}")
    return name, FilePart(start, stop, algorithm, digest.lower())


def _check_parts(name: str, parts: list[FilePart], *, is_shards: bool) -> None:
    """Sort *parts*, and check that they cover the file *name* without gaps or overlaps."""
    parts.sort(key=lambda part: part.start)
    if not is_shards:
        if len(parts) != 1:
            raise ValueError(f"it names {name!r} twice")
        return
    at = 0
    for part in parts:
        if part.start != at or part.stop is None or part.stop <= at:
            raise ValueError(f"the parts of {name!r} are not the whole file")
        at = part.stop


def _digest(file: BufferedReader, part: FilePart) -> str:
    """Digest of *part* of *file*, hexadecimal."""
    digest = hashlib.new(part.algorithm)
    file.seek(part.start)
    left = part.stop - part.start if part.stop is not None else None
    while chunk := file.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES)):
        digest.update(chunk)
        if left is not None:
            left -= len(chunk)
    return digest.hexdigest()


def refuse_names(names: Collection[str]) -> None:
    """Refuse files that no statement can name; called before a statement is written."""
    for name in names:
        if name != ALONE and (problem := name_problem(name)):
            raise InvalidFormat(
                f"a bundle cannot name the file {name!r}: {problem}", hint="rename it, or move it"
            )

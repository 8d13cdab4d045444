"""Entries of the cache folder, found by listing it; and checks of single entries."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from bitnet.base import locks
from bitnet.base.errors import BitnetError, InvalidFormat, from_os_error
from bitnet.base.files import open_file, sha256_of
from bitnet.store import Store, tree
from bitnet.store.partial import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
    from pathlib import Path

    from bitnet.store import Pin

Kind = Literal["tokenizer", "model", "compiled", "exact-head", "prompt", "partial", "leftover"]

# Unfinished files, also of other tools, and marks of superseded files.
_LEFTOVER_SUFFIXES = (".part", ".tmp", ".incomplete", ".downloadInProgress", tree.SUPERSEDED)
# Files that test whether locks work, and notes of files that are being placed.
_LEFTOVER_PREFIXES = (".lock-", tree.PLACING)
_PARTIAL = re.compile(r".+?\.partial(\..+)?", re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """A file of the cache with its companions."""

    kind: Kind  # ``leftover``: an unfinished file of another tool, a lock, a note or a mark
    key: str  # ``llama3-128k``, ``org--repo/revision/file``, a digest
    path: Path  # the file
    size_bytes: int  # of the file and its companions
    last_used_s: float  # last read or write, since the epoch, as far as the disk records it
    owner: str = ""  # holder of its lock, such as ``process 123 on host``
    companions: tuple[Path, ...] = ()  # files that are removed with it
    users: tuple[str, ...] = ()  # known paths of projects that are the same file
    inode: tuple[int, int] = (0, 0)  # device and inode number; hard links of one file share them
    links: int = 1  # number of hard links of the file
    origin: Pin | None = None  # where a file of the store is from, if that is recorded
    names: tuple[Pin, ...] = ()  # every recorded name of a file of the store
    # what a partial file is fetched for: repository, revision and file, or an address and its key
    requested: tuple[str, ...] = ()

    @property
    def is_stored(self) -> bool:
        """True if it is a file of the store, to which others are links."""
        return self.path.parent.parent.name == "sha256"

    @property
    def keys(self) -> set[str]:
        """Every key that means this entry: that of the listing, of each name, and its digest."""
        keys = {self.key, *(name.key for name in self.names)}
        if self.is_stored:
            keys.add(self.path.name)
        return keys - {""}

    def facts(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return {
            "kind": self.kind,
            "key": self.key,
            "path": str(self.path),
            "size_bytes": self.size_bytes,
            "last_used_s": self.last_used_s,
            "owner": self.owner or None,
            "links": self.links,
            "users": list(self.users),
            "repository": self.origin.repository if self.origin is not None else None,
            "file": self.origin.file if self.origin is not None else None,
        }

    def holders(self, everything: Iterable[Entry]) -> list[str]:
        """Paths that hold this file of the store on the disk: of projects and of the cache."""
        ours = [e.path for e in everything if e.inode == self.inode and e.path != self.path]
        return [*self.users, *map(str, ours)]


def entries(root: Path) -> list[Entry]:
    """Every entry of the cache, grouped by folder; empty if there is no cache yet."""
    all_entries: list[Entry] = _store_entries(root)
    for folder, names in _folders(root):
        # The record of a partial file belongs to the entry of that file.
        records = {f"{name}.json" for name in names if _PARTIAL.fullmatch(name)} & names
        for name in sorted(names - records):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                companions = [f"{name}.json"] if f"{name}.json" in records else []
                all_entries.append(_entry(root, folder / name, companions))
    return all_entries


def _folders(root: Path) -> Iterator[tuple[Path, set[str]]]:
    """Folders of the cache, without links, and the names of the files and links in each.

    Of the store, these are only the folders of partial files: :class:`bitnet.store.Store` lists the
    others.
    """
    waiting = [
        tree.partial_folder(tree.store_folder(root)) if area == "store" else root / area
        for area in tree.AREAS[::-1]
    ]
    while waiting:
        folder = waiting.pop()
        try:
            if not stat.S_ISDIR(folder.lstat().st_mode):
                continue
            items = list(os.scandir(folder))
            inner = [item.name for item in items if item.is_dir(follow_symlinks=False)]
            files = {i.name for i in items if i.is_file() or (i.is_symlink() and not i.is_dir())}
        except FileNotFoundError:
            continue
        except OSError as error:
            raise from_os_error(error, folder, in_cache=True) from error
        yield folder, files
        # Leave temporary files of pip out: the download that made them, or the next, removes them.
        inner = [name for name in inner if not name.startswith(".pip-")]
        waiting += [folder / name for name in sorted(inner, reverse=True)]


def _entry(root: Path, path: Path, companions: list[str]) -> Entry:
    """The entry of the file *path*; *companions* are names of files beside it."""
    area, *inner = path.relative_to(root).parts
    files = [path, *(path.with_name(name) for name in companions)]
    statuses = [file.lstat() for file in files]
    kind = _kind(area, inner)
    requested = name_of(path) if kind == "partial" else ()
    return Entry(
        kind=kind,
        key=path.stem if kind in ("compiled", "exact-head", "prompt") else _key(area, inner),
        path=path,
        size_bytes=sum(status.st_size for status in statuses),
        last_used_s=max(statuses[0].st_atime, statuses[0].st_mtime),
        owner=next(map(locks.holder_of, filter(locks.is_held, locks_for(path))), ""),
        companions=tuple(files[1:]),
        inode=(statuses[0].st_dev, statuses[0].st_ino),
        links=statuses[0].st_nlink,
        requested=tuple(requested),
    )


def _store_entries(root: Path) -> list[Entry]:
    """Files of the store, each with its records."""
    store = Store(root)
    blobs = list(store.blobs())
    if not blobs:
        return []
    names = list(store.index)
    users = store.users()
    blob_entries: list[Entry] = []
    for blob in blobs:
        ours = [name for name in names if name.sha256 == blob.sha256 and name.kind != "version"]
        # A tokenizer that is also part of a model counts as a model: `cache clean` removes it only
        # with --models.
        ours.sort(key=lambda name: name.kind == "tokenizer")
        record = ours[0] if ours else None
        with contextlib.suppress(FileNotFoundError):
            entry = replace(
                _entry(root, blob.path, []),
                kind="tokenizer" if record and record.kind == "tokenizer" else "model",
                key=record.key if record and record.key else blob.sha256,
                companions=(store.verified.file_for(blob.path),),
                users=tuple(users.get(blob.sha256, ())),
                origin=record,
                names=tuple(ours),
            )
            blob_entries.append(entry)
    return blob_entries


def _kind(area: str, inner: list[str]) -> Kind:
    """Kind of the file whose path in the folder *area* has the parts *inner*."""
    name = inner[-1]
    if name.endswith((".lock", *_LEFTOVER_SUFFIXES)) or name.startswith(_LEFTOVER_PREFIXES):
        return "leftover"
    if _PARTIAL.fullmatch(name):
        return "partial"
    if area == "tokenizers":
        return "compiled" if inner[0] == tree.COMPILED and len(inner) > 1 else "tokenizer"
    if area == "prompts":
        return "prompt"
    return "exact-head" if area == "exact-heads" else "model"


def _key(area: str, inner: list[str]) -> str:
    """Key of the file *inner* in *area*, as for :func:`_kind`; of a partial download, its name."""
    if area == "store":  # partial downloads
        return inner[-1].partition(".partial")[0]
    if area == "tokenizers":
        return inner[0] if len(inner) > 1 else ""
    return "/".join(inner)


def file_ids(root: Path, everything: Iterable[Entry]) -> dict[Path, Hashable]:
    """Identity of the file behind each entry of the cache, by the path of the entry.

    A link, a reflink or a copy of a file of the store has the identity of that file: its digest.
    """
    everything = list(everything)
    stored = [entry for entry in everything if entry.is_stored]
    digests = {entry.inode: entry.path.name for entry in stored if any(entry.inode)}
    placed_digests = {
        record.path: record.sha256
        for record in Store(root).verified
        if record.placed and record.sha256 in digests.values() and record.is_unchanged
    }
    ids: dict[Path, Hashable] = {}
    for entry in everything:
        own_id = entry.inode if any(entry.inode) else entry.path
        fallback = placed_digests.get(os.path.abspath(entry.path), own_id)  # noqa: PTH100
        ids[entry.path] = digests.get(entry.inode, fallback)
    ids.update({entry.path: entry.path.name for entry in stored})
    return ids


def locks_for(path: Path) -> list[Path]:
    """Lock files of *path*: of its transfer, and of the commands that need it."""
    if path.name.endswith(".lock"):
        return [path]
    store = path.parents[2]
    if path.parents[1].name == "partial":
        return [path.parent.with_name(f"{path.parent.name}.lock")]
    if path.parents[1].name == "sha256":
        return [tree.transfer_lock(store, path.name), tree.claim_path(store, path.name)]
    return []


@dataclass(frozen=True)
class EntryCheck:
    """Result of checking one entry; *problem* is empty if it is intact."""

    entry: Entry
    check: str  # what was checked: ``SHA-256``, ``JSON``, ``GGUF``, ``checksums`` or ``file``
    problem: str = ""

    def facts(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            **self.entry.facts(),
            "check": self.check,
            "intact": not self.problem,
            "problem": self.problem or None,
        }

    def __str__(self) -> str:
        text = f"{self.check}: {self.entry.path}"
        return f"✗ Invalid {text}: {self.problem}" if self.problem else f"✓ Valid {text}"


def verify(
    entry: Entry,
    *,
    read_gguf: Callable[[Path], object] | None = None,
    prompt_problem: Callable[[Path], str] | None = None,
    expected: Mapping[str, str] | None = None,
) -> EntryCheck:
    """Check the file of *entry*.

    *expected* has the SHA-256 of files by path. The suffix of the file, or the kind of the entry,
    selects a further check. *read_gguf* reads a model; *prompt_problem* returns the problem of a
    stored prompt, or an empty text.
    """
    path = entry.path
    digest = (expected or {}).get(str(path))
    whole = "SHA-256" if digest else "file"
    check = {".json": "JSON", ".gguf": "GGUF"}.get(path.suffix, whole)
    check_prompt = prompt_problem if entry.kind == "prompt" else None
    if check_prompt is not None:
        check = "checksums"
    try:
        if not path.stat().st_size:
            return EntryCheck(entry, check, "the file is empty")
        if digest and (actual := sha256_of(path)) != digest:
            return EntryCheck(entry, "SHA-256", f"expected {digest}, found {actual}")
        problem = ""
        if check == "JSON":
            problem = _json_problem(path)
        elif check == "GGUF":
            problem = _gguf_problem(path, read_gguf)
        elif check_prompt is not None:
            problem = check_prompt(path)
    except OSError as error:
        return EntryCheck(entry, check, from_os_error(error, path).message)
    except InvalidFormat as error:  # not a regular file
        return EntryCheck(entry, check, error.message)
    return EntryCheck(entry, check, problem)


def _json_problem(path: Path) -> str:
    """Reason why *path* is not JSON, or not a tokenizer if its name says so; empty if it is."""
    try:
        with open_file(path) as file:
            value = json.load(file)
    except json.JSONDecodeError as error:
        return f"{error.msg} at line {error.lineno} column {error.colno}"
    except (ValueError, RecursionError) as error:  # not UTF-8; thousands of digits; too deep
        return str(error)
    if path.name == "tokenizer.json" and not (isinstance(value, dict) and "model" in value):
        return 'no "model" in it: not a tokenizer'
    return ""


def _gguf_problem(path: Path, read_gguf: Callable[[Path], object] | None) -> str:
    """Reason why *path* is not a GGUF file that *read_gguf* accepts; empty if it is."""
    with open_file(path) as file:
        magic = file.read(4)
    if magic != b"GGUF":
        return f"starts with {magic!r} instead of b'GGUF'"
    if read_gguf is not None:
        try:
            read_gguf(path)
        except BitnetError as error:
            return error.message
    return ""

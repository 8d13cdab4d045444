"""The cache folder: what is in it, whether it is intact, and how it is emptied.

    <cache>/tokenizers/<key>/tokenizer.json            published, verified; key: llama3-128k ...
    <cache>/tokenizers/<key>/tokenizer.json.lock       kernel lock, its owner written inside
    <cache>/tokenizers/<key>/tokenizer.json.partial    resumable; .partial.json: of what
    <cache>/tokenizers/compiled/<sha256>.tok           memory-mapped form, rebuilt when missing
    <cache>/models/<org>--<repo>/<revision>/<file>
    <cache>/reports/

Nothing here is an index: the folder itself is the truth, and any file or folder in it may be
deleted at any time without breaking anything but speed. Whatever lies outside the three folders is
not ours and is never touched; links are never followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bitnet.errors import BitnetError, NotFound, PermissionDenied, UsageError, from_os_error
from bitnet.options import option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = [
    "Entry",
    "Plan",
    "Selection",
    "Verdict",
    "entries",
    "parse_age",
    "plan",
    "prune",
    "refuse_unless_cache",
    "verify",
]

Kind = Literal["tokenizer", "model", "compiled", "report", "partial", "leftover"]

AREAS = ("tokenizers", "models", "reports")
TAG = "CACHEDIR.TAG"
TAG_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"  # https://bford.info/cachedir/
_OURS = {*AREAS, TAG, "README.md", ".gitignore", ".DS_Store", "Thumbs.db"}
_LEFTOVER_SUFFIXES = (".part", ".tmp", ".incomplete", ".downloadInProgress")
_PARTIAL = re.compile(r"(?P<file>.+?)\.partial(\..+)?", re.DOTALL)
_AGE = re.compile(r"(?P<count>\d+(\.\d+)?)(?P<unit>[smhdw])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True)
class Entry:
    """One file of the cache with what belongs to it.

    Attributes:
        kind: what it is; ``leftover`` is an unfinished file of another tool or a lock of nobody.
        key: ``llama3-128k``, ``org--repo/revision/file``, the SHA-256 of a compiled tokenizer.
        path: the file.
        size_bytes: of the file and its companions.
        last_used_s: seconds since the epoch of the last read or write, as far as the disk knows.
        owner: who holds its lock right now, such as ``process 123 on host``; empty when nobody.
        companions: files that go when it goes.
    """

    kind: Kind
    key: str
    path: Path
    size_bytes: int
    last_used_s: float
    owner: str = ""
    companions: tuple[Path, ...] = ()

    def facts(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return {
            "kind": self.kind,
            "key": self.key,
            "path": str(self.path),
            "size_bytes": self.size_bytes,
            "last_used_s": self.last_used_s,
            "owner": self.owner or None,
        }


@dataclass(frozen=True)
class Verdict:
    """What a look at the bytes of one entry found; *problem* is empty when it is intact."""

    entry: Entry
    check: str
    problem: str = ""

    @property
    def intact(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem

    def __str__(self) -> str:
        if self.intact:
            return f"✓ Valid {self.check}: {self.entry.path}"
        return f"✗ Invalid {self.check}: {self.entry.path}: {self.problem}"


@dataclass(frozen=True)
class Selection:
    """Which entries ``clean-cache`` removes; without any of these, all but the models."""

    older_than: str = option(
        "", "only what was not used for this long: 30d, 12h, 2w", metavar="AGE"
    )
    keep: int = option(0, "never remove the N most recently used files", metavar="N")
    key: str = option("", "only this entry, as cache.list names it", metavar="KEY")
    tokenizers_only: bool = option(False, "leave everything but tokenizers alone")
    models: bool = option(False, "also remove downloaded models")


@dataclass(frozen=True)
class Plan:
    """What would be removed from *root*; *busy* entries are left because somebody holds them."""

    root: Path
    remove: tuple[Entry, ...]
    busy: tuple[Entry, ...]

    @property
    def size_bytes(self) -> int:
        """What removing it all frees."""
        return sum(entry.size_bytes for entry in self.remove)


# --- looking ---------------------------------------------------------------------------------


def entries(root: Path) -> list[Entry]:
    """Everything in the cache, grouped by folder; empty when there is no cache yet.

    Raises:
        PermissionDenied: a folder of the cache cannot be read.
    """
    found: list[Entry] = []
    for folder in _folders(root):
        names = {entry.name: entry for entry in _files(folder)}
        companions = {lock for name in names for lock in _companions_of(name, names)}
        for name in sorted(names.keys() - companions):
            with contextlib.suppress(FileNotFoundError):  # removed while we look
                found.append(_entry(root, folder / name, sorted(_companions_of(name, names))))
    return found


def _folders(root: Path) -> Iterator[Path]:
    """The folders of the cache that may hold files, links left out."""
    waiting = [root / area for area in reversed(AREAS)]
    while waiting:
        folder = waiting.pop()
        try:
            if not stat.S_ISDIR(folder.lstat().st_mode):
                continue
            yield folder
            inner = [item.name for item in os.scandir(folder) if item.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            continue
        except OSError as error:
            raise from_os_error(error, folder) from error
        waiting += [folder / name for name in sorted(inner, reverse=True)]


def _files(folder: Path) -> list[os.DirEntry[str]]:
    """Files and links to files in *folder*."""
    try:
        with os.scandir(folder) as items:
            return [item for item in items if item.is_file()]
    except FileNotFoundError:
        return []


def _companions_of(name: str, names: Iterable[str]) -> set[str]:
    """Which of *names* mean nothing without *name*: its lock, the sidecar of a partial file."""
    if name.endswith(".lock"):
        return set()
    wanted = {f"{name}.lock"} | ({f"{name}.json"} if _PARTIAL.fullmatch(name) else set())
    return wanted.intersection(names)


def _entry(root: Path, path: Path, companions: list[str]) -> Entry:
    area, *inner = path.relative_to(root).parts
    whole = [path, *(path.with_name(name) for name in companions)]
    sizes = [file.lstat() for file in whole]
    kind = _kind(area, inner)
    return Entry(
        kind=kind,
        key=path.stem if kind == "compiled" else _key(area, inner),
        path=path,
        size_bytes=sum(size.st_size for size in sizes),
        last_used_s=max(sizes[0].st_atime, sizes[0].st_mtime),
        owner=next(filter(None, map(_owner, _locks_for(path))), ""),
        companions=tuple(whole[1:]),
    )


def _kind(area: str, inner: list[str]) -> Kind:
    name = inner[-1]
    if name.endswith((".lock", *_LEFTOVER_SUFFIXES)):
        return "leftover"
    if _PARTIAL.fullmatch(name):
        return "partial"
    if area == "tokenizers":
        return "compiled" if inner[0] == "compiled" and len(inner) > 1 else "tokenizer"
    return "model" if area == "models" else "report"


def _key(area: str, inner: list[str]) -> str:
    if area == "tokenizers":
        return inner[0] if len(inner) > 1 else ""
    return "/".join(inner)


def _locks_for(path: Path) -> Iterator[Path]:
    """Lock files that guard *path*: its own, and that of the file it is a part of."""
    name = path.name
    if name.endswith(".lock"):
        yield path
        return
    yield path.with_name(f"{name}.lock")
    partial = _PARTIAL.fullmatch(name)
    while partial and name:
        # A writer's own partial file may carry its name: tokenizer.json.<writer>.partial
        name = name.rpartition(".")[0]
        yield path.with_name(f"{name}.lock")


def _owner(lock_path: Path) -> str:
    """Who holds *lock_path*; empty when nobody does. Never creates the file."""
    if not lock_path.is_file():
        return ""
    with _held(lock_path) as held:
        if held:
            return ""
    try:
        record = json.loads(lock_path.read_text())
        return f"process {int(record['pid'])} on {record['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


@contextlib.contextmanager
def _held(lock_path: Path) -> Iterator[bool]:
    """Hold the lock at *lock_path* if that is possible at once; says whether it was."""
    import filelock

    lock = filelock.FileLock(lock_path)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        yield False
        return
    except OSError:  # read-only, or a file system that has no locks
        yield True
        return
    try:
        yield True
    finally:
        lock.release()


# --- checking --------------------------------------------------------------------------------


def verify(
    entry: Entry,
    *,
    read_gguf: Callable[[Path], object] | None = None,
    expected: Mapping[str, str] | None = None,
) -> Verdict:
    """Whether the bytes of *entry* are what its name promises.

    Args:
        entry: any entry but a partial file or a leftover.
        read_gguf: walks a whole GGUF file and raises a ``BitnetError`` where it is damaged.
        expected: SHA-256 by path, for files whose digest is known.
    """
    path = entry.path
    check = {".json": "JSON", ".gguf": "GGUF"}.get(path.suffix, "file")
    try:
        if not path.stat().st_size:
            return Verdict(entry, check, "the file is empty")
        digest = (expected or {}).get(str(path))
        if digest and (found := _sha256(path)) != digest:
            return Verdict(entry, "SHA-256", f"expected {digest}, found {found}")
        problem = ""
        if check == "JSON":
            problem = _json_problem(path)
        elif check == "GGUF":
            problem = _gguf_problem(path, read_gguf)
    except OSError as error:
        return Verdict(entry, check, from_os_error(error, path).message)
    return Verdict(entry, check, problem)


def _sha256(path: Path) -> str:
    state = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            state.update(chunk)
    return state.hexdigest()


def _json_problem(path: Path) -> str:
    try:
        value = json.loads(path.read_bytes())
    except json.JSONDecodeError as error:
        return f"{error.msg} at line {error.lineno} column {error.colno}"
    except (UnicodeDecodeError, RecursionError) as error:
        return str(error)
    if path.name == "tokenizer.json" and not (isinstance(value, dict) and "model" in value):
        return 'no "model" in it: not a tokenizer'
    return ""


def _gguf_problem(path: Path, read_gguf: Callable[[Path], object] | None) -> str:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        return f"starts with {magic!r} instead of b'GGUF'"
    if read_gguf is not None:
        try:
            read_gguf(path)
        except BitnetError as error:
            return error.message
    return ""


# --- emptying --------------------------------------------------------------------------------


def parse_age(text: str) -> float:
    """Seconds in ``30d``, ``12h``, ``90m``, ``2w`` or ``45s``.

    Raises:
        UsageError: it is none of these.
    """
    match = _AGE.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(
            f"--older-than expects a number and a unit, got {text!r}",
            hint="for example 30d; the units are s, m, h, d, w",
        )
    return float(match["count"]) * _UNIT_S[match["unit"]]


def plan(root: Path, selection: Selection, *, now_s: float | None = None) -> Plan:
    """What *selection* would remove; nothing is touched yet.

    Raises:
        UsageError: the selection makes no sense, or *root* is not a cache of ours.
        NotFound: there is no entry with that key.
    """
    refuse_unless_cache(root)
    if selection.keep < 0:
        raise UsageError(f"--keep expects a number of files, 0 or more, got {selection.keep}")
    if selection.tokenizers_only and selection.models:
        raise UsageError("--tokenizers-only and --models exclude each other")
    age_s = parse_age(selection.older_than) if selection.older_than else None
    now_s = time.time() if now_s is None else now_s
    chosen = [entry for entry in entries(root) if _in_scope(root, entry, selection)]
    if selection.key:
        known = sorted({entry.key for entry in chosen if entry.key})
        chosen = [entry for entry in chosen if _has_key(entry, selection.key)]
        if not chosen:
            raise NotFound(
                f"nothing in {root} has the key {selection.key!r}",
                hint=f"keys are: {', '.join(known)}" if known else "inv cache.list shows the keys",
            )
    published = [entry for entry in chosen if entry.kind not in ("partial", "leftover")]
    newest = sorted(published, key=lambda entry: entry.last_used_s, reverse=True)
    kept = {entry.path for entry in newest[: selection.keep]}
    chosen = [
        entry
        for entry in chosen
        if entry.path not in kept and (age_s is None or now_s - entry.last_used_s > age_s)
    ]
    return Plan(
        root,
        remove=tuple(entry for entry in chosen if not entry.owner),
        busy=tuple(entry for entry in chosen if entry.owner),
    )


def _in_scope(root: Path, entry: Entry, selection: Selection) -> bool:
    area = entry.path.relative_to(root).parts[0]
    if selection.tokenizers_only:
        return area == "tokenizers"
    return area != "models" or selection.models


def _has_key(entry: Entry, key: str) -> bool:
    wanted = key.replace("/", "--", 1) if key.count("/") == 1 else key  # org/repo as people write
    return entry.key in (key, wanted) or entry.key.startswith((f"{key}/", f"{wanted}/"))


def refuse_unless_cache(root: Path) -> None:
    """Make sure that *root* is a cache folder of ours before anything in it is removed.

    It is when it carries our ``CACHEDIR.TAG``, or when it holds nothing but what we put there.

    Raises:
        UsageError: it is the home folder, a folder above it, or something else altogether.
        PermissionDenied: it cannot be read.
    """
    real = root.resolve()
    home = Path.home().resolve()
    if real == home or real in home.parents:
        raise UsageError(
            f"{root} is not a cache folder: refusing to remove anything in it",
            hint="give the cache folder: --cache-dir DIR",
        )
    try:
        names = {item.name for item in real.iterdir()}
        tag = (real / TAG).read_bytes() if TAG in names else b""
    except FileNotFoundError:
        return
    except PermissionError as error:
        raise PermissionDenied(f"cannot read {root}: {error.strerror}") from error
    except OSError as error:
        raise from_os_error(error, root) from error
    strange = sorted(names - _OURS)
    if strange and not (tag.startswith(TAG_SIGNATURE) and b"bitnet" in tag):
        raise UsageError(
            f"{root} does not look like a cache folder of bitnet: it also holds {strange[0]!r}: "
            "refusing to remove anything in it",
            hint="give the cache folder: --cache-dir DIR",
        )


def prune(planned: Plan) -> Plan:
    """Remove what was planned; gives back what was removed and what turned out to be busy.

    Somebody may have taken a lock, or removed a file, since the plan was made; both are fine.

    Raises:
        PermissionDenied: a file cannot be removed.
    """
    removed: list[Entry] = []
    busy = list(planned.busy)
    for entry in planned.remove:
        with contextlib.ExitStack() as stack:
            locks = [path for path in _locks_for(entry.path) if path.is_file()]
            if not all(stack.enter_context(_held(path)) for path in locks):
                busy.append(entry)
                continue
            _remove(planned.root, entry)
            removed.append(entry)
    return Plan(planned.root, tuple(removed), tuple(busy))


def _remove(root: Path, entry: Entry) -> None:
    """Delete the files of *entry*, then the folders that this left empty."""
    if root.resolve() not in entry.path.parent.resolve().parents:
        raise UsageError(f"{entry.path} has been moved out of {root}: refusing to remove it")
    try:
        for path in (entry.path, *entry.companions):
            # Windows cannot delete the lock file that is held while its entry goes.
            held = os.name == "nt" and path.suffix == ".lock"
            with contextlib.suppress(PermissionError) if held else contextlib.nullcontext():
                path.unlink(missing_ok=True)
    except OSError as error:
        raise from_os_error(error, error.filename or entry.path) from error
    for folder in entry.path.parents:
        if folder.parent in (root, folder):
            return
        try:
            folder.rmdir()
        except OSError:  # not empty, or not ours to remove
            return

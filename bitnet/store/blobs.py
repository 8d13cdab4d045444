"""The cache folder, and the files of its store by digest: find, add, and link them into projects.

``CACHEDIR.TAG`` marks a folder as this program's cache.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bitnet.base import settings
from bitnet.base.errors import (
    BitnetError,
    HashMismatch,
    InvalidFormat,
    NoSpace,
    PermissionDenied,
    from_os_error,
)
from bitnet.base.files import digest_of, keep, open_file, sha256_of
from bitnet.base.trust import SHA256, open_folder
from bitnet.store import hugging_face, links, tree
from bitnet.store.partial import Partial, Version
from bitnet.store.placing import ABANDONED_S, placing
from bitnet.store.records import Blob, Pin, complete_pin, from_record, to_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

T = TypeVar("T")

TAG = "CACHEDIR.TAG"
SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"  # https://bford.info/cachedir/
_TEXT = SIGNATURE + b"\n# Cache of bitnet; any file in it may be deleted at any time.\n"
_BESIDE = {*tree.AREAS, TAG, "README.md", ".gitignore", ".DS_Store", "Thumbs.db"}
# Two changes within one tick of a file system's clock leave the same time; FAT counts in steps of
# two seconds. A file changed less than this ago may change again without showing it.
SETTLED_S = 3.0


def make_cache(root: Path) -> None:
    """Create the cache folder *root* and its ``store``; a new or empty one is marked as ours.

    Another may be a project's, and backups would leave it out.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        is_new = _is_default(root) or all(item.name == TAG for item in root.iterdir())
        if is_new and not has_tag(root):
            with suppress(PermissionError):
                (root / TAG).write_bytes(_TEXT)
        tree.partial_folder(tree.store_folder(root)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, error.filename or root, in_cache=True) from error


def keep_in_cache(path: Path, *parts: bytes | memoryview) -> str:
    """Write *parts* to *path* in a cache, as :func:`bitnet.base.files.keep`."""
    areas = (folder for folder in path.parents if folder.name in tree.AREAS)
    try:
        make_cache(next(areas).parent)
    except BitnetError as error:
        return error.message
    return keep(path, *parts)


def has_tag(folder: Path) -> bool:
    """True if *folder* carries this program's tag, and not only some cache's."""
    try:
        with open_file(folder / TAG) as file:
            content = file.read()
    except OSError:
        return False
    return content.startswith(SIGNATURE) and b"bitnet" in content


def tag_problem(root: Path) -> str:
    """The reason why *root* is not certainly a cache of ours; empty if it is, or is not there.

    A tag can be copied into a project, so nothing else may lie beside the folders of a cache.
    """
    if _is_default(root) or not root.exists():
        return ""
    if strange := sorted({item.name for item in root.iterdir()} - _BESIDE):
        return f"it also holds {strange[0]!r}"
    return "" if has_tag(root) else f"it has no {TAG} of bitnet"


def _is_default(root: Path) -> bool:
    """True if *root* is the default place of the cache."""
    return settings.cache_dir_override() is None and root == settings.cache_dir()


class RecordFolder(Generic[T]):
    """Records by name in *folder*, a JSON file for each; one that is not readable is not there."""

    def __init__(
        self, folder: Path, read: Callable[[Any], T], write: Callable[[T], dict[str, Any]]
    ) -> None:
        self._folder = folder
        self._read = read
        self._write = write

    def __iter__(self) -> Iterator[T]:
        """Every readable record."""
        yield from filter(None, map(self._open, self._paths()))

    def find(self, *name: str | Path) -> T | None:
        """Record of *name*, such as a path; or a repository, revision and file."""
        return self._open(self.file_for(*name))

    def write(self, record: T, *name: str | Path) -> None:
        """Record the meaning of *name*; without permission nothing happens."""
        if self.find(*name) != record:
            keep_in_cache(self.file_for(*name), json.dumps(self._write(record)).encode())

    def forget(self, *name: str | Path) -> None:
        """Drop the record of *name*."""
        with suppress(OSError):
            self.file_for(*name).unlink()

    def forget_if(self, is_gone: Callable[[T], bool]) -> None:
        """Drop every record for which *is_gone* returns true."""
        for path in self._paths():
            record = self._open(path)
            if record is not None and is_gone(record):
                with suppress(OSError):
                    path.unlink()

    def _paths(self) -> list[Path]:
        """Paths of the records; drafts that killed processes left are removed."""
        paths: list[Path] = []
        with suppress(OSError):
            for path in sorted(self._folder.iterdir()):
                if not path.name.startswith("."):
                    paths.append(path)
                elif time.time() - path.lstat().st_mtime > ABANDONED_S:
                    path.unlink()
        return paths

    def file_for(self, *name: str | Path) -> Path:
        """Path of the record of *name*."""
        key = hashlib.sha256(json.dumps([*map(str, name)]).encode()).hexdigest()
        return self._folder / f"{key[:32]}.json"

    def _open(self, path: Path) -> T | None:
        try:
            with open_file(path) as file:
                return self._read(json.load(file))
        except (OSError, ValueError, TypeError, RecursionError, InvalidFormat):
            return None


@dataclass(frozen=True)
class Verified:
    """A file at the time its digest was computed."""

    path: str  # absolute
    sha256: str  # hexadecimal
    size: int  # bytes
    mtime_ns: int  # modification time
    inode: int  # its number on its file system
    placed: bool = False  # this program placed it there; else it was only read
    ctime_ns: int = 0  # of the last change of any kind; 0 when that was only a moment before

    @property
    def is_unchanged(self) -> bool:
        """True if the file is still the one that was read."""
        with suppress(OSError, ValueError):
            status = os.stat(self.path)  # noqa: PTH116
            found = status.st_size, status.st_mtime_ns, status.st_ino
            return found == (self.size, self.mtime_ns, self.inode)
        return False

    @property
    def is_untouched(self) -> bool:
        """True if, in addition, no link was made to it and no time was set."""
        with suppress(OSError, ValueError):
            changed = os.stat(self.path).st_ctime_ns  # noqa: PTH116
            return self.is_unchanged and self.ctime_ns == changed > 0
        return False


class VerifiedFiles(RecordFolder[Verified]):
    """Records by path."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _parse, asdict)

    def file_for(self, *name: str | Path) -> Path:
        """Path of the record of a path; links are not resolved, a name is a name."""
        return super().file_for(*map(os.path.abspath, name))

    def remember(self, path: Path, sha256: str, *, placed: bool = False) -> None:
        """Record that *path*, now *placed* by us, has this digest, unless it was just changed."""
        try:
            status = path.stat()
        except OSError:
            return
        if not 0 <= status.st_mtime <= time.time() - SETTLED_S:
            self.forget(path)
            return
        earlier = self.find(path)
        placed = placed or (earlier is not None and earlier.placed and earlier.sha256 == sha256)
        state = status.st_size, status.st_mtime_ns, status.st_ino
        settled = 0 <= status.st_ctime <= time.time() - SETTLED_S
        changed = status.st_ctime_ns if settled else 0
        record = Verified(os.path.abspath(path), sha256, *state, placed, changed)  # noqa: PTH100
        self.write(record, path)

    def sweep(self) -> None:
        """Drop the records of files that are gone."""
        for record in self:
            if not os.path.lexists(record.path):
                self.forget(record.path)


def _parse(values: Any) -> Verified:
    """The record of *values*, a JSON object; ValueError or TypeError if it is none."""
    record = Verified(**values)
    kinds = [type(value) for value in asdict(record).values()]
    if kinds != [str, str, int, int, int, bool, int]:
        raise ValueError("not the record of a file")
    return record


logger = logging.getLogger(__name__)


class Store:
    """The files in the cache folder *root*; with *rehash* they are read again to trust them."""

    def __init__(self, root: Path, *, rehash: bool = False) -> None:
        self.root = root
        self.rehash = rehash
        self.folder = tree.store_folder(root)
        self.verified = VerifiedFiles(tree.digests_folder(self.folder))
        # records of the names that were looked up, one file for each
        self.index = RecordFolder(
            tree.names_folder(self.folder), partial(from_record, where="index"), to_record
        )

    def path_of(self, sha256: str) -> Path:
        """Path of the file with this digest, existing or not."""
        return tree.blob_path(self.folder, sha256)

    def find(self, sha256: str) -> Blob | None:
        """The file with this digest; one that was changed, through a link to it, is removed."""
        path = self.path_of(sha256)
        if not path.is_file():
            return None
        if self.is_intact(path, sha256):
            return Blob(sha256, path.stat().st_size, path)
        logger.warning("%s has been changed, through a link to it, and is removed", path)
        with suppress(OSError):
            links.remove(path)
        return None

    def record_name(self, pin: Pin, *name: str) -> None:
        """Record that *name* means *pin*, with what is known of the same file already."""
        old = self.index.find(*name)
        if old is not None and old.sha256 == pin.sha256:
            pin = complete_pin(pin, old)
        elif old is not None and self.path_of(old.sha256).is_file():
            # The mark comes first: a process that is killed now leaves it for the next one.
            problem = keep_in_cache(self._mark_of(old.sha256))
            if problem:
                logger.warning("%s keeps its name for the version before: %s", name[-1], problem)
                return
        self.index.write(pin, *name)

    def list_superseded(self) -> dict[str, Path]:
        """Marks of versions that their name left, by digest."""
        marks = tree.partial_folder(self.folder).glob(f"*{tree.SUPERSEDED}")
        by_digest = {mark.name.removesuffix(tree.SUPERSEDED): mark for mark in marks}
        return {digest: mark for digest, mark in by_digest.items() if SHA256.fullmatch(digest)}

    def _mark_of(self, sha256: str) -> Path:
        return tree.mark_path(self.folder, sha256)

    def blobs(self) -> Iterator[Blob]:
        """Every file of the store, by its name; nothing is read, and links are left out."""
        with suppress(OSError):
            for path in sorted(tree.blob_folder(self.folder).glob("??/*")):
                with suppress(OSError):
                    is_link = path.is_symlink() or path.parent.is_symlink()
                    if not is_link and path.is_file() and SHA256.fullmatch(path.name):
                        yield Blob(path.name, path.stat().st_size, path)

    def digests(self) -> dict[str, str]:
        """SHA-256 of the files in this cache, and of placed ones, by path, as recorded."""
        known = {str(blob.path): blob.sha256 for blob in self.blobs()}
        return known | {record.path: record.sha256 for record in self.verified if record.placed}

    def users(self) -> dict[str, list[str]]:
        """Known paths of projects' files that are in the store, by digest."""
        found: dict[str, list[str]] = {}
        for record in self.verified:
            if not record.path.startswith(f"{self.root}{os.sep}") and record.is_unchanged:
                found.setdefault(record.sha256, []).append(record.path)
        return found

    def digest_of(self, path: Path) -> str:
        """SHA-256 of *path*, computed only if the file has changed since the last time."""
        record = None if self.rehash else self.verified.find(path)
        if record is not None and record.is_unchanged:
            return record.sha256
        digest = digest_of(path)
        self.verified.remember(path, digest)
        return digest

    def is_intact(self, path: Path, sha256: str, size: int | None = None) -> bool:
        """True if *path* is a file with this digest; its size is checked first."""
        try:
            if not path.is_file() or (size is not None and path.stat().st_size != size):
                return False
        except OSError as error:
            raise from_os_error(error, path) from error
        return self.digest_of(path) == sha256

    def publish(self, partial: Partial, sha256: str) -> Blob:
        """Move the finished *partial* with this digest to its path in the store."""
        path = self.path_of(sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        size = partial.done.total
        partial.publish(path)
        self._seal(path, sha256)
        return Blob(sha256, size, path)

    def put(
        self,
        chunks: Iterable[bytes],
        expected: Blob,
        name: str,
        *,
        alone: bool,
        ready: Callable[[], None] = lambda: None,
    ) -> Blob:
        """Store a file made of *chunks*, if it is the *expected* one; *name* is its file name.

        *alone*: no other process does the same. *ready* is called before it becomes visible.
        """
        sha256 = expected.sha256
        size = expected.size
        version = Version("", size=size, sha256=sha256)
        folder = tree.transfer_folder(self.folder, sha256)
        partial = Partial.begin(folder, name, version, alone=alone, fresh=True)
        try:
            digest = hashlib.sha256()
            count = 0
            for chunk in chunks:
                partial.write(count, chunk)
                digest.update(chunk)
                partial.done.add(count, count + len(chunk))
                count += len(chunk)
                partial.flush_behind()
            if (count, digest.hexdigest()) != (size, sha256):
                raise HashMismatch(
                    f"{name}: expected {size:,} bytes with sha256 {sha256}, "
                    f"found {count:,} bytes with {digest.hexdigest()}"
                )
            ready()
            return self.publish(partial, sha256)
        finally:
            partial.discard()

    def adopt(self, file: Path, sha256: str) -> Blob | None:
        """Add *file*, which stays as it is, from elsewhere; ``None`` if it has not this digest."""
        try:
            if not file.is_file() or sha256_of(file) != sha256:
                return None
            make_cache(self.root)
            path = self.path_of(sha256)
            (how,) = self.place_all([(Blob(sha256, file.stat().st_size, file.resolve()), path)])
        except (OSError, BitnetError) as error:
            logger.debug("%s is not taken in: %s", file, error)
            return None
        logger.info("%s is taken in as a %s", file, how)
        if how != "hard link":
            self._seal(path, sha256)
        return Blob(sha256, path.stat().st_size, path)

    def find_anywhere(
        self, sha256: str, size: int | None, target: Path | None, *places: Path
    ) -> Blob | None:
        """The file with this digest: at *target*, here, or taken in from *places* or a cache."""
        if target is not None and self.is_intact(target, sha256, size):
            return Blob(sha256, target.stat().st_size, target)
        if (blob := self.find(sha256)) is not None:
            return blob
        candidates = [*places, *hugging_face.blobs_with(sha256)]
        adopted = (self.adopt(place, sha256) for place in candidates)
        return next(filter(None, adopted), None)

    def place(self, blob: Blob, target: Path, root: Path | None = None) -> None:
        """Make *target* the file *blob*, replacing an existing file, as :meth:`place_all`."""
        self.place_all([(blob, target)], root)

    def place_all(self, items: Sequence[tuple[Blob, Path]], root: Path | None = None) -> list[str]:
        """Make each target its file, below *root*, its own folder by default; how each was made.

        All are prepared beside their targets, then renamed in order. What is last in *items* is
        removed first if it exists, and appears last: it stands for all.
        """
        prepared: list[links.Prepared] = []
        if not items:
            return []
        target = items[0][1]
        with ExitStack() as stack:
            stack.enter_context(placing(self.folder, [target for _, target in items]))
            folders = {
                folder: stack.enter_context(open_folder(root or folder, folder))
                for folder in {target.parent for _, target in items}
            }
            try:
                for blob, target in items:
                    prepared.append(links.Prepared(blob.path, target, folders[target.parent]))
                if len(prepared) > 1 and prepared[-1].how:
                    prepared[-1].remove_target()
                for placement, (blob, target) in zip(prepared, items, strict=True):
                    placement.commit()
                    if placement.how:
                        logger.info("%s: %s of %s", target, placement.how, blob.path)
                    self.verified.remember(target, blob.sha256, placed=True)
            except OSError as error:
                problem = from_os_error(error, target)
                if isinstance(problem, NoSpace | PermissionDenied):
                    problem = type(problem)(problem.message, hint="choose another folder: --output")
                raise problem from error
            finally:
                for placement in prepared:
                    placement.discard()
        return [placement.how for placement in prepared]

    def may_replace(self, path: Path) -> bool:
        """True if *path* is as this program put it there, or the store has its content."""
        record = self.verified.find(path)
        if record is not None and record.placed and record.is_unchanged:
            return True
        return path.is_file() and self.path_of(self.digest_of(path)).is_file()

    def drop(self, blob: Blob) -> None:
        """Remove *blob* from the store, such as a package whose content was extracted."""
        with suppress(OSError):
            links.remove(blob.path)
        self.verified.forget(blob.path)

    def _seal(self, path: Path, sha256: str) -> None:
        """Record a digest that was just computed, so that later changes of *path* show."""
        with suppress(OSError):  # where the file system has permissions
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)
        with suppress(OSError):
            os.utime(path, (time.time(), time.time() - 2 * SETTLED_S))
        self.verified.remember(path, sha256)

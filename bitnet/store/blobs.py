"""The files of a store by digest: find, add, and put them into their places."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import stat
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet.base import locks, settings
from bitnet.base.errors import (
    BitnetError,
    HashMismatch,
    NoSpace,
    PermissionDenied,
    UsageError,
    from_os_error,
)
from bitnet.base.files import digest_of, sha256_of
from bitnet.base.trust import SHA256, open_folder
from bitnet.store import digests, hugging_face, links, tree
from bitnet.store.claims import Claims
from bitnet.store.digests import RecordFolder, VerifiedFiles
from bitnet.store.partial import Partial, Version, sweep
from bitnet.store.placing import ABANDONED_S, placing, sweep_beside, sweep_placings
from bitnet.store.records import Blob, Pin, complete_pin, from_record, relative, to_record
from bitnet.store.root import keep_in_cache, make_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

logger = logging.getLogger(__name__)


class Store:
    """The files in the cache folder *root*; with *rehash* every digest is computed again."""

    def __init__(self, root: Path, *, rehash: bool = False) -> None:
        self.root = root
        self.rehash = rehash
        self.folder = tree.store_folder(root)
        self.verified = VerifiedFiles(tree.digests_folder(self.folder))
        # pins of files, by their names; one record for each
        self.index = RecordFolder(
            tree.names_folder(self.folder), partial(from_record, where="index"), to_record
        )

    def prepare(self) -> None:
        """Create the cache folder, and remove what killed processes left of placed files.

        A cache that cannot be written is used all the same; a transfer into it reports that.
        """
        try:
            make_cache(self.root)
        except BitnetError as error:
            logger.debug("the cache is only read: %s", error.message)
        sweep_placings(self.folder)

    @contextmanager
    def claiming(self, sha256s: Iterable[str] = ()) -> Iterator[Claims]:
        """Claims that last as long as the block, at first on the files with these digests."""
        with Claims(self.folder) as claims:
            for sha256 in sha256s:
                claims.add(sha256)
            yield claims

    # --- find -------------------------------------------------------------------------------------

    def path_of(self, sha256: str) -> Path:
        """Path of the file with this digest, existing or not."""
        return tree.blob_path(self.folder, sha256)

    def find(self, sha256: str, claims: Claims | None = None) -> Blob | None:
        """The file with this digest, or None; a file that was changed, through a link, is removed.

        With *claims*, it is claimed first, so that no removal deletes it meanwhile.
        """
        if claims is not None:
            claims.add(sha256)
        path = self.path_of(sha256)
        if not path.is_file():
            return None
        if self.is_intact(path, sha256):
            return Blob(sha256, path.stat().st_size, path)
        logger.warning("%s has been changed, through a link to it, and is removed", path)
        with suppress(OSError):
            links.remove(path)
        return None

    def find_anywhere(
        self,
        sha256: str,
        size: int | None,
        target: Path | None,
        *places: Path,
        claims: Claims | None = None,
    ) -> Blob | None:
        """File with this digest, at *target*, in this store, or adopted from elsewhere; or None.

        It is adopted from the first of *places* and of Hugging Face's blobs that is intact.
        """
        if claims is not None:
            claims.add(sha256)
        if target is not None and self.is_intact(target, sha256, size):
            return Blob(sha256, target.stat().st_size, target)
        if (blob := self.find(sha256)) is not None:
            return blob
        for candidate in (*places, *hugging_face.blobs_with(sha256)):
            blob = self.adopt(candidate, sha256)
            if blob is not None:
                return blob
        return None

    def pin_of(self, *name: str) -> Pin | None:
        """The pin recorded for *name*: a repository, revision and file, or a version's key."""
        return self.index.find(*name)

    def place_of(self, path: Path | None) -> str | None:
        """*path* relative to the cache folder; None if it is outside."""
        return relative(path, self.root) if path is not None else None

    def blob_at(self, path: Path) -> Blob:
        """The file at *path*, wherever it is."""
        return Blob(self.digest_of(path), path.stat().st_size, path)

    def record_name(self, pin: Pin, *name: str) -> None:
        """Record that *name* means *pin*, completed by the present record of the same bytes.

        If *name* meant other bytes of this store until now, these are marked as superseded, so that
        a command removes them if nothing else needs them. If the mark cannot be written, *name*
        keeps its meaning.
        """
        old = self.index.find(*name)
        if old is not None and old.sha256 == pin.sha256:
            pin = complete_pin(pin, old)
        elif old is not None and self.path_of(old.sha256).is_file():
            # The mark is written first, so that it exists even if this process is killed now.
            problem = keep_in_cache(self._mark_of(old.sha256))
            if problem:
                logger.warning("%s still means the version before: %s", name[-1], problem)
                return
        self.index.write(pin, *name)

    def record_version(self, pin: Pin, key: str) -> None:
        """Record the bytes received for the version *key*, if no server named their digest."""
        self.index.write(pin, key)

    def list_superseded(self) -> dict[str, Path]:
        """Marks of :meth:`record_name` on superseded files, by digest."""
        marks = tree.partial_folder(self.folder).glob(f"*{tree.SUPERSEDED}")
        by_digest = {mark.name.removesuffix(tree.SUPERSEDED): mark for mark in marks}
        return {digest: mark for digest, mark in by_digest.items() if SHA256.fullmatch(digest)}

    def _mark_of(self, sha256: str) -> Path:
        return tree.mark_path(self.folder, sha256)

    def blobs(self) -> Iterator[Blob]:
        """Every file of the store except links, with the digest in its name; none is read."""
        with suppress(OSError):
            for path in sorted(tree.blob_folder(self.folder).glob("??/*")):
                with suppress(OSError):
                    is_link = path.is_symlink() or path.parent.is_symlink()
                    if not is_link and path.is_file() and SHA256.fullmatch(path.name):
                        yield Blob(path.name, path.stat().st_size, path)

    def digests(self) -> dict[str, str]:
        """SHA-256 of the files in this cache, and of placed ones, by path, as recorded."""
        stored = {str(blob.path): blob.sha256 for blob in self.blobs()}
        return stored | {record.path: record.sha256 for record in self.verified if record.placed}

    def users(self) -> dict[str, list[str]]:
        """Recorded paths outside of this cache whose files are unchanged, by digest."""
        paths: dict[str, list[str]] = {}
        for record in self.verified:
            if not record.path.startswith(f"{self.root}{os.sep}") and record.is_unchanged:
                paths.setdefault(record.sha256, []).append(record.path)
        return paths

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

    # --- add --------------------------------------------------------------------------------------

    @contextmanager
    def hold_transfer(
        self,
        key: str,
        *,
        what: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[locks.Lock]:
        """Hold the lock for fetching *key*; *what* is its name in messages of waiting processes.

        First, partial files that were not resumed for weeks are removed.
        """
        make_cache(self.root)
        sweep(tree.partial_folder(self.folder))
        with locks.hold(
            tree.transfer_lock(self.folder, key),
            timeout_s=settings.lock_timeout(),
            what=what,
            clock=clock,
            sleep=sleep,
        ) as lock:
            yield lock

    def begin(
        self,
        version: Version,
        file: str,
        *,
        alone: bool,
        fresh: bool,
        source_name: Sequence[str] = (),
    ) -> Partial:
        """A partial *file* for *version*, as :meth:`bitnet.store.partial.Partial.begin`."""
        folder = tree.transfer_folder(self.folder, version.key)
        return Partial.begin(
            folder, file, version, alone=alone, fresh=fresh, source_name=source_name
        )

    def publish(
        self,
        partial: Partial,
        sha256: str,
        claims: Claims | None = None,
        *,
        replaces: bool = False,
    ) -> Blob:
        """Move the finished *partial* with this digest into the store; it is claimed first.

        An intact file that is there already stays, unless *replaces*: if it were replaced, its hard
        links in projects would keep the old file, and the disk would hold the same bytes twice.
        """
        if claims is not None:
            claims.add(sha256)
        path = self.path_of(sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not replaces and (here := self.find(sha256)) is not None:
            return here  # the caller discards the partial file
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
        claims: Claims | None = None,
    ) -> Blob:
        """Store a file made of *chunks*, if it is the *expected* one; *name* is its file name.

        *alone*: locks work, and no other process stores this file meanwhile. *ready* is called
        before it becomes visible.
        """
        sha256 = expected.sha256
        size = expected.size
        version = Version("", size=size, sha256=sha256)
        partial = self.begin(version, name, alone=alone, fresh=True)
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
            return self.publish(partial, sha256, claims)
        finally:
            partial.discard()

    def adopt(self, file: Path, sha256: str) -> Blob | None:
        """Add *file*, which stays where it is, to the store; None if it lacks this digest."""
        try:
            if not file.is_file() or sha256_of(file) != sha256:
                return None
            make_cache(self.root)
            path = self.path_of(sha256)
            outside = Blob(sha256, file.stat().st_size, file.resolve())  # it may be a link
            (how,) = self.place_all([(outside, path)])
        except (OSError, BitnetError) as error:
            logger.debug("%s is not taken in: %s", file, error)
            return None
        # *how* is empty if *path* was a hard link to *file* already.
        logger.info("%s is taken in as a %s", file, how or "hard link")
        if how in ("reflink", "copy"):  # else *path* is *file*, whose mode and time must stay
            self._seal(path, sha256)
        return Blob(sha256, path.stat().st_size, path)

    # --- place ------------------------------------------------------------------------------------

    def place(self, blob: Blob, target: Path, root: Path | None = None) -> None:
        """Make *target* the file *blob*, replacing an existing file, as :meth:`place_all`."""
        self.place_all([(blob, target)], root)

    def place_all(self, items: Sequence[tuple[Blob, Path]], root: Path | None = None) -> list[str]:
        """Put each file at its target; return how each was made, as ``Prepared.how``.

        Targets are below *root*, by default the target's own folder; a link that leaves *root* is
        refused. All files are prepared beside their targets, then renamed in order. An existing
        last target is removed before that: the last file only exists while all others do.
        """
        prepared: list[links.Prepared] = []
        if not items:
            return []
        target = items[0][1]  # for the error message; the loops below set the current one
        with ExitStack() as stack:
            stack.enter_context(placing(self.folder, [target for _, target in items]))
            folders = {
                folder: stack.enter_context(open_folder(root or folder, folder))
                for folder in {target.parent for _, target in items}
            }
            try:
                for blob, target in items:
                    self._seal_if_unshared(blob)
                    folder = folders[target.parent]
                    may_be_edited = self.folder not in target.parents
                    prepared.append(
                        links.Prepared(blob.path, target, folder, may_be_edited=may_be_edited)
                    )
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

    def place_together(
        self, items: Sequence[tuple[Blob, Path]], root: Path, *, force: bool = False
    ) -> list[Path]:
        """Put each file into its place below *root*, all of them or none; return what has changed.

        A missing folder appears complete or not at all. In an existing one, the file that makes it
        a model is removed first and added last. A file that was not put there by this program is
        refused, unless *force*.
        """
        root = root.absolute()
        todo = []
        for blob, target in items:
            if blob.path == target or self.is_intact(target, blob.sha256, blob.size):
                continue
            may_replace = force or self.may_replace(target)
            if os.path.lexists(target) and not may_replace:
                raise UsageError(
                    f"{target} is another file than the one asked for, and was not put there by "
                    "this program; it stays",
                    hint="move it away and run the command again; download-model and tokenizer "
                    "replace it with --force, and put theirs elsewhere with --output DIR",
                )
            todo.append((blob, target))
            sweep_beside(target)

        # Last are the files without which a folder is not a complete model.
        todo.sort(key=lambda item: (item[1].name == "config.json", "-00001-of-" in item[1].name))
        folder = common_folder([target for _, target in todo]) if len(todo) > 1 else None
        if folder is None or os.path.lexists(folder) or folder in (root, *root.parents):
            self.place_all(todo, root)
        else:
            self._place_folder(todo, folder, root)
        return [target for _, target in todo]

    def _place_folder(self, todo: list[tuple[Blob, Path]], folder: Path, root: Path) -> None:
        """Create the missing *folder* with all of its files, in one step."""
        unplaced = folder.with_name(links.fresh_name(f".{folder.name}"))
        unplaced_items = [
            (blob, unplaced / target.absolute().relative_to(folder)) for blob, target in todo
        ]
        unplaced_paths = [path for _, path in unplaced_items]
        try:
            if folder.parent.is_dir():
                self._sweep_folders(folder)
            note = placing(self.folder, unplaced_paths, unplaced)
            with note, open_folder(root, folder.parent) as fd:
                try:
                    self.place_all(unplaced_items, root)
                    if fd is None:
                        unplaced.rename(folder)
                    else:
                        os.rename(unplaced.name, folder.name, src_dir_fd=fd, dst_dir_fd=fd)
                except OSError:
                    if not folder.is_dir():
                        raise
                    self.place_all(todo, root)  # another process was faster
                finally:
                    for path in unplaced_paths:
                        self.verified.forget(path)
                    shutil.rmtree(unplaced, ignore_errors=True)
        except OSError as error:
            raise from_os_error(error, folder) from error
        for blob, target in todo:
            self.verified.remember(target, blob.sha256, placed=True)

    def _sweep_folders(self, folder: Path) -> None:
        """Remove what killed processes left of *folder*, if all of it is also in the store."""
        stem = re.escape(links.short_name(f".{folder.name}"))
        name = re.compile(stem + r"\.partial\.\d+-[0-9a-f]{8}")
        for unfinished in folder.parent.iterdir():
            if not name.fullmatch(unfinished.name):
                continue
            with suppress(OSError):  # removed meanwhile, or not to be read: it stays
                if time.time() - unfinished.lstat().st_mtime < ABANDONED_S:
                    continue
                inner = unfinished.rglob("*")
                files = [path for path in inner if not path.is_dir() or path.is_symlink()]
                if all(path.is_file() and self.may_replace(path) for path in files):
                    shutil.rmtree(unfinished, ignore_errors=True)

    def may_replace(self, path: Path) -> bool:
        """True if *path* is as this program put it there, or the store has the same bytes."""
        record = self.verified.find(path)
        if record is not None and record.placed and record.is_unchanged:
            return True
        return path.is_file() and self.path_of(self.digest_of(path)).is_file()

    def drop(self, blob: Blob) -> None:
        """Remove *blob* from the store, such as a package whose content was extracted."""
        with suppress(OSError):
            links.remove(blob.path)
        self.verified.forget(blob.path)

    def _seal_if_unshared(self, blob: Blob) -> None:
        """Seal a stored file that a killed run left writable, and that no other program has.

        A writable file may be another program's, and a small one is copied into projects then.
        """
        with suppress(OSError):
            status = blob.path.stat()
            is_stored = self.folder in blob.path.parents
            if is_stored and status.st_nlink == 1 and status.st_mode & 0o222:
                self._seal(blob.path, blob.sha256)

    def _seal(self, path: Path, sha256: str) -> None:
        """Make the stored file *path* read-only, and record its digest, which was just computed."""
        with suppress(OSError):  # a file system without permissions
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)
        # Set the time back: only a time that is old enough shows every later change.
        with suppress(OSError):
            os.utime(path, (time.time(), time.time() - 2 * digests.SETTLED_S))
        self.verified.remember(path, sha256)


def common_folder(targets: Sequence[Path]) -> Path:
    """The innermost folder that contains all of *targets*."""
    return Path(os.path.commonpath([target.absolute().parent for target in targets]))

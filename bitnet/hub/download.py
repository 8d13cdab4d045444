"""Download one file into the store: complete and verified, or not at all.

    HEAD  ->  in the store?  ->  lock  ->  there now?  ->  partial file  ->  space  ->  GET
          ->  size and SHA-256  ->  the caller's check  ->  fsync  ->  rename

Bytes fetched before a failure stay in the store as ``<file>.partial``; the next run resumes it in
place (:mod:`bitnet.store.partial`).
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bitnet import locks
from bitnet.cache.prune import space_hint
from bitnet.errors import (
    BitnetError,
    HashMismatch,
    InvalidFormat,
    NetworkError,
    NoSpace,
    PermissionDenied,
    UpstreamChanged,
    from_os_error,
)
from bitnet.files import check_writable, free_space, git_oid
from bitnet.hub.repository import FileFacts, head
from bitnet.hub.transfer import Replaced, Transfer
from bitnet.progress import Mode, Progress, human_size
from bitnet.store import Blob, Name, Partial, Store
from bitnet.store.partial import clear, sweep
from bitnet.store.tag import make_cache
from bitnet.trust import shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bitnet.hub.session import HubSession

    Report = Callable[[int, int | None], None]

__all__ = ["Fetched", "fetch", "require_folder"]

logger = logging.getLogger(__name__)

LOCK_REPORT_S = 1.0
FACTS_ATTEMPTS = 3  # before another server is asked
ROUNDS = 3  # give up on a file that is replaced, or deleted under us, this often
HEADROOM_BYTES = 16_000_000  # disk space left free for everything else
_POINTER = b"version https://git-lfs.github.com/spec/"
_LARGEST_POINTER = 1024  # bytes, by the specification


@dataclass(frozen=True)
class Fetched:
    """A fetched file.

    Attributes:
        path: where it is.
        sha256: hexadecimal, of the bytes on disk.
        size: bytes.
        etag: strong ETag, if the server was asked and sent one.
        commit: commit of the repository, likewise.
        cached: it was there already; nothing was transferred.
        unchecked: its expected digest is unknown.
    """

    path: Path
    sha256: str
    size: int
    etag: str | None
    commit: str | None
    cached: bool
    unchecked: bool = False


@dataclass(frozen=True)
class _Order:
    """The file to fetch; *sha256* and *size* are the expected values, if known."""

    url: str
    name: str
    sha256: str | None
    size: int | None
    check: Callable[[Path], None] | None
    force: bool
    changed_hint: str
    mirrors: tuple[str, ...] = ()


def fetch(
    url: str,
    store: Store,
    *,
    session: HubSession,
    name: str,
    sha256: str | None = None,
    size: int | None = None,
    check: Callable[[Path], None] | None = None,
    force: bool = False,
    progress: Mode = "auto",
    changed_hint: str = "",
    beside: Path | None = None,
    mirrors: tuple[str, ...] = (),
) -> Fetched:
    """The file at *url*, in *store*; transferred only if the store does not have its digest.

    Args:
        url: address of the file.
        store: destination.
        session: connections to use.
        name: name in messages and of the partial file.
        sha256: expected digest, hexadecimal; ``None`` accepts what the server announces.
        size: expected bytes.
        check: called with the finished file before it gets its name; raises to refuse it.
        force: transfer it even if the store has it.
        progress: how to show progress, see :class:`bitnet.progress.Progress`.
        changed_hint: hint for the case that the server has another file than expected.
        beside: a local file that may be the expected one; then nothing is transferred.
        mirrors: further addresses, which are used if its digest is known.

    Raises:
        Offline: it is not in the store and the network is switched off.
        UpstreamChanged: the server has another file than the pinned one.
        HashMismatch: the received bytes are wrong.
        InvalidFormat: the file is empty.
        NetworkError: the server cannot be reached, or the transfer keeps failing.
        AuthError: access is refused.
        NotFound: the file does not exist.
        NoSpace: the disk is full; received bytes are kept.
        PermissionDenied: the store is not writable.
        CacheBusy: another process has been fetching it for too long.
    """
    order = _Order(url, name, sha256, size, check, force, changed_hint, mirrors)
    try:
        fresh = False
        if sha256 is not None and not force and (blob := store.find(sha256)) is not None:
            _tidy(store, sha256)
            return _found(blob, None)
        for _ in range(ROUNDS):
            facts = _facts(order, session)
            before = _state(store, facts)
            blob = None if force or fresh else _held(store, facts, beside)
            if blob is not None:
                _tidy(store, facts.key)
                return _found(blob, facts)
            try:
                return _locked(order, facts, store, session, before, progress, fresh=fresh)
            except Replaced:
                logger.warning("%s changed on the server, starting over", name)
            except _Damaged as damage:
                logger.warning("%s: %s, starting over", name, damage)
                order = replace(order, mirrors=())
            fresh = True
    except OSError as error:
        raise from_os_error(error, error.filename or store.folder, in_cache=True) from error
    raise NetworkError(
        f"{shown(url)}: the server announces one file and sends another",
        hint="try again later, or another mirror with --base-url=URL",
    )


def require_folder(folder: Path) -> None:
    """Create *folder*, and check that it is writable, before anything is fetched.

    Raises:
        PermissionDenied: it cannot be created or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise PermissionDenied(
            f"{error.strerror} (os error {error.errno}): cannot make {folder}",
            hint="a file is where the folder belongs: choose another with --output",
        ) from error
    except OSError as error:
        raise from_os_error(error, folder) from error
    check_writable(folder)


def _found(blob: Blob, facts: FileFacts | None) -> Fetched:
    etag, commit = (facts.etag, facts.commit) if facts is not None else (None, None)
    return Fetched(blob.path, blob.sha256, blob.size, etag, commit, cached=True)


def _tidy(store: Store, key: str) -> None:
    """Delete partial files of a version that is in the store, if no process uses them."""
    folder = store.folder / "partial" / key
    if folder.is_dir():
        with (
            suppress(BitnetError, OSError),
            locks.hold(folder.with_name(f"{key}.lock"), timeout_s=0) as lock,
        ):
            clear(folder, alone=lock.is_kernel)


def _held(store: Store, facts: FileFacts, beside: Path | None = None) -> Blob | None:
    """The version described by *facts*, if it is *beside*, in the store, or in another cache."""
    digest = facts.sha256
    if digest is None:  # the server names no digest: use what came for this version before
        known = store.names.find(facts.key) if facts.is_bound else None
        digest = known.sha256 if known is not None else None
    if digest is None:
        return None
    if beside is not None and store.is_intact(beside, digest, facts.size):
        return Blob(beside, digest, beside.stat().st_size)
    return store.find(digest) or store.find_elsewhere(digest)


def _state(store: Store, facts: FileFacts) -> tuple[int, int] | None:
    """State of this version in the store, which changes when it is replaced; ``None``: absent."""
    known = store.names.find(facts.key)
    digest = facts.sha256 or (known.sha256 if known is not None else None)
    if digest is None:
        return None
    try:
        status = store.path_of(digest).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _locked(
    order: _Order,
    facts: FileFacts,
    store: Store,
    session: HubSession,
    before: tuple[int, int] | None,
    progress: Mode,
    *,
    fresh: bool,
) -> Fetched:
    """The file, fetched by this process or by the holder of the lock."""
    make_cache(store.root)
    folder = store.folder / "partial"
    folder.mkdir(exist_ok=True)
    sweep(folder)
    with locks.hold(
        folder / f"{facts.key}.lock",
        timeout_s=session.options.lock_s,
        what=order.name,
        clock=session.clock,
        sleep=session.sleep,
    ) as lock:
        if _state(store, facts) != before and (blob := _held(store, facts)) is not None:
            return _found(blob, facts)  # another process fetched it while we waited
        with Progress(order.name, mode=progress, clock=session.clock) as bar:
            return _transfer(order, facts, store, session, bar, lock=lock, fresh=fresh)


def _transfer(
    order: _Order,
    facts: FileFacts,
    store: Store,
    session: HubSession,
    bar: Progress,
    *,
    lock: locks.Lock,
    fresh: bool,
) -> Fetched:
    folder = store.folder / "partial" / facts.key
    file = order.name.rpartition("/")[2]
    partial = Partial.begin(folder, file, facts, alone=lock.is_kernel, fresh=fresh)
    try:
        _need_space(order, facts, partial, store)
        if partial.resumed:
            logger.info("%s: resuming at %s", order.name, human_size(partial.resumed))
            bar.begin_at(partial.resumed, facts.size)
        report = _reporter(bar, lock, session.clock)
        known = facts.sha256 is not None
        mirrors = [url for url in order.mirrors if known and url != facts.url]
        digest = Transfer(session, facts, partial, name=file, report=report, mirrors=mirrors).run()
    except Replaced:
        partial.discard()
        raise
    except BaseException:  # broken transfer, full disk, Ctrl-C: the next run resumes
        partial.leave()
        if partial.is_left:
            logger.warning(
                "%s: %s are kept, the same command continues there",
                order.name,
                human_size(partial.done.total),
            )
        raise
    try:
        size = partial.done.total
        mixed = bool(partial.resumed or order.mirrors)
        _verify(order, facts, digest, partial, mixed=mixed)
        if order.check is not None:
            order.check(partial.path)
        blob = store.publish(partial, digest)
    except FileNotFoundError:
        raise _Damaged("it was deleted while it was being fetched") from None
    finally:
        partial.discard()  # nothing is left of it once it is published
    if facts.sha256 is None and facts.is_bound:
        name = Name(shown(order.url), "", file, facts.commit, digest, size, kind="version")
        store.names.write(name, facts.key)
    return Fetched(blob.path, digest, size, facts.etag, facts.commit, cached=False)


def _facts(order: _Order, session: HubSession) -> FileFacts:
    """The server's description of the file, if it is the expected one.

    Raises:
        UpstreamChanged: it is a different file.
    """
    facts = _asked(order, session)
    for name, expected, found in (
        ("SHA-256", order.sha256, facts.sha256),
        ("size", order.size, facts.size),
    ):
        if expected is not None and found is not None and expected != found:
            raise UpstreamChanged(
                f"{shown(order.url)} has been replaced on the server: {name} {found}, "
                f"expected {expected}",
                hint=order.changed_hint or "accept the new file with: bitnet sync --update",
            )
    return replace(
        facts,
        size=facts.size if facts.size is not None else order.size,
        sha256=facts.sha256 or order.sha256,
    )


def _asked(order: _Order, session: HubSession) -> FileFacts:
    """Description of a file by the first server that answers."""
    *others, last = (order.url, *order.mirrors)
    for url in others:
        with suppress(NetworkError):
            return head(url, session=session, attempts=FACTS_ATTEMPTS)
        logger.warning("%s does not answer, another server is asked", shown(url))
    return head(last, session=session)


def _verify(order: _Order, facts: FileFacts, digest: str, partial: Partial, *, mixed: bool) -> None:
    """Refuse bytes that are not the expected file.

    Raises:
        _Damaged: they differ, and some come from an earlier run or a mirror.
        HashMismatch: they differ.
        InvalidFormat: the file is empty, or only points at the file.
    """
    expected, size = facts.sha256, partial.done.total
    wrong = ""
    if order.size is not None and size != order.size:
        wrong = f"{size:,} bytes came, expected {order.size:,}"
    elif expected is not None and digest != expected:
        wrong = f"SHA-256 {digest}, expected {expected}"
    elif expected is None and facts.git_oid and facts.git_oid != git_oid(partial.path):
        wrong = f"other bytes than those of the git object {facts.git_oid}"
    if wrong and mixed:
        what = "what a mirror sent" if order.mirrors else "what an earlier run left"
        raise _Damaged(f"{what} is damaged ({wrong})")
    if not (size or order.size == 0):
        kind = "tokenizer " if "tokenizer" in order.name else ""
        raise InvalidFormat(
            f"Downloaded {kind}file is empty: {shown(order.url)}",
            hint="the file on the server is empty: try another source or mirror",
        )
    if wrong:
        raise HashMismatch(
            f"{shown(order.url)}: {wrong}; nothing was kept",
            hint="try again; if it stays so, the server or a proxy alters the file: use a mirror",
        )
    if size < _LARGEST_POINTER and partial.path.read_bytes().startswith(_POINTER):
        raise InvalidFormat(
            f"{shown(order.url)} is a pointer of Git LFS and not the file itself",
            hint="this server or copy lacks the large files: use the hub or another mirror",
        )


class _Damaged(Exception):
    """The fetched bytes are unusable; fetching from the beginning may help."""


def _need_space(order: _Order, facts: FileFacts, partial: Partial, store: Store) -> None:
    """Refuse a file whose missing bytes do not fit on the disk."""
    if facts.size is None:
        return
    missing = facts.size - partial.done.total
    free = free_space(partial.path.parent)
    if missing and missing + HEADROOM_BYTES > free:
        raise NoSpace(
            f"No space left on device (os error {errno.ENOSPC}): {order.name} needs "
            f"{human_size(missing)} more and {human_size(HEADROOM_BYTES)} to spare, "
            f"{human_size(free)} are free in {partial.path.parent}",
            hint=space_hint(store.root, missing + HEADROOM_BYTES - free),
        )


def _reporter(bar: Progress, lock: locks.Lock, clock: Callable[[], float]) -> Report:
    """Reporter for the bar, for every byte, and for waiting processes, once a second."""
    said = clock()

    def report(done: int, total: int | None) -> None:
        nonlocal said
        bar.reach(done, total)
        if clock() - said >= LOCK_REPORT_S:
            said = clock()
            share = f" of {human_size(total)}" if total else ""
            lock.report(f"{human_size(done)}{share}")

    return report

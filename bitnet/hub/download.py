"""One file, once: whole and verified at its place, or not there at all.

    hit?  ->  lock  ->  hit now?  ->  offline?  ->  HEAD  ->  space  ->  copy a leftover  ->  GET
          ->  size and SHA-256  ->  the caller's check  ->  fsync  ->  rename

A file at the destination is replaced only by one that passed everything. What was fetched before a
failure stays behind as ``<file>.partial``; the next run continues it (:mod:`bitnet.hub.partial`).
"""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bitnet import locks
from bitnet.errors import (
    HashMismatch,
    InvalidFormat,
    NetworkError,
    NoSpace,
    Offline,
    PermissionDenied,
    UpstreamChanged,
    from_os_error,
)
from bitnet.files import free_space, sha256_of
from bitnet.hub.partial import Partial, find_leftover, sweep
from bitnet.hub.repository import FileFacts, head
from bitnet.hub.session import HubSession, shown
from bitnet.hub.transfer import Replaced, Transfer
from bitnet.progress import Mode, Progress, human_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bitnet.hub.options import FetchOptions

    Report = Callable[[int, int | None], None]

__all__ = ["Downloaded", "download"]

logger = logging.getLogger(__name__)

LOCK_REPORT_S = 1.0
ROUNDS = 3  # a file that is replaced, or deleted under us, this often is not fetched
HEADROOM_BYTES = 16_000_000  # what a disk keeps free for everything else


@dataclass(frozen=True)
class Downloaded:
    """A file in its place.

    Attributes:
        path: where it is.
        sha256: hexadecimal, of the bytes on disk.
        size: bytes.
        etag: strong ETag, when it was fetched now and the server gave one.
        commit: commit of the repository, likewise.
        cached: it was there already; nothing was fetched.
    """

    path: Path
    sha256: str
    size: int
    etag: str | None
    commit: str | None
    cached: bool


@dataclass(frozen=True)
class _Order:
    """What is to be fetched; *sha256* and *size* are what it must be, if that is known."""

    url: str
    destination: Path
    sha256: str | None
    size: int | None
    check: Callable[[Path], None] | None
    force: bool
    label: str


def download(
    url: str,
    destination: Path,
    *,
    sha256: str | None = None,
    size: int | None = None,
    options: FetchOptions | None = None,
    progress: Mode = "auto",
    label: str = "",
    check: Callable[[Path], None] | None = None,
    force: bool = False,
    session: HubSession | None = None,
) -> Downloaded:
    """Make *destination* the file at *url*.

    Args:
        url: address of the file, see :func:`bitnet.hub.repository.file_url`.
        destination: where it goes; missing folders are made.
        sha256: what it must be, hexadecimal; ``None`` accepts what the server announces.
        size: bytes it must have.
        options: how to fetch.
        progress: how to show progress, see :class:`bitnet.progress.Progress`.
        label: what to call it; the name of *destination* when empty.
        check: called with the finished file before it gets its name; raises to refuse it.
        force: fetch it even if it is there.
        session: connections to use; otherwise one of its own.

    Raises:
        Offline: it is not there and the network is switched off.
        UpstreamChanged: the server has another file than the pinned one.
        HashMismatch: the bytes that came are not the right ones.
        InvalidFormat: the file is empty.
        NetworkError: the server cannot be reached, or the transfer keeps breaking.
        AuthError: access is refused.
        NotFound: there is no such file.
        NoSpace: it does not fit on the disk; what was fetched is kept.
        PermissionDenied: the destination cannot be written.
        CacheBusy: another process has been fetching it for too long.
    """
    digest = sha256.lower() if sha256 else None
    order = _Order(url, destination, digest, size, check, force, label or destination.name)
    try:
        before = _version(destination)
        found = _hit(order)
        if found is not None:
            return found
        if session is not None:
            return _locked(order, before, session, progress)
        with HubSession(options) as own:
            return _locked(order, before, own, progress)
    except OSError as error:
        raise from_os_error(error, error.filename or destination) from error


def _hit(order: _Order) -> Downloaded | None:
    """The file at the destination, if it is the right one."""
    path = order.destination
    if order.force or not path.is_file():
        return None
    size = path.stat().st_size
    if order.size is not None and size != order.size:
        logger.info("%s has %s bytes, expected %s: fetching it", path, f"{size:,}", order.size)
        return None
    digest = sha256_of(path)
    if order.sha256 not in (None, digest) or not size:
        logger.info("%s is not the file that is wanted: fetching it", path)
        return None
    return Downloaded(path, digest, size, None, None, cached=True)


def _version(path: Path) -> tuple[int, int] | None:
    """What changes when *path* is published anew; ``None`` when it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _locked(
    order: _Order, before: tuple[int, int] | None, session: HubSession, progress: Mode
) -> Downloaded:
    """The file, fetched by this process or by the one that holds the lock."""
    path = order.destination
    if session.options.is_offline:
        raise Offline(
            f"offline: {path} is not there (or not the file that is wanted), and the network is "
            "switched off",
            hint=f"unset BITNET_OFFLINE and HF_HUB_OFFLINE, leave --offline away, or copy "
            f"{shown(order.url)} there from another machine",
        )
    _make_folder(path.parent)
    with locks.hold(
        path.with_name(f"{path.name}.lock"),
        timeout_s=session.options.lock_timeout,
        what=order.label,
        clock=session.clock,
        sleep=session.sleep,
    ) as lock:
        forced = order.force and _version(path) == before
        found = None if forced else _hit(replace(order, force=False))
        if found is not None:
            return found  # somebody else fetched it while we waited
        with Progress(order.label, mode=progress, clock=session.clock) as bar:
            return _fetch(order, session, _reporter(bar, lock, session.clock))


def _fetch(order: _Order, session: HubSession, report: Report) -> Downloaded:
    """The file, fetched; from the beginning when what is left of it proves wrong."""
    fresh = False
    for _ in range(ROUNDS):
        facts = _facts(order, session)
        _need_space(order, facts)
        try:
            return _fetch_once(order, facts, session, report, fresh=fresh)
        except Replaced:
            logger.warning("%s changed on the server, starting over", order.label)
        except _Damaged as damage:
            logger.warning("%s: %s, starting over", order.label, damage)
        fresh = True
    raise NetworkError(
        f"{shown(order.url)}: the server announces one file and sends another",
        hint="try again later, or another mirror with --base-url=URL",
    )


def _fetch_once(
    order: _Order, facts: FileFacts, session: HubSession, report: Report, *, fresh: bool
) -> Downloaded:
    partial = Partial(order.destination, facts)
    try:
        leftover = None if fresh else find_leftover(order.destination, facts)
        resumed = partial.copy_from(*leftover) if leftover is not None else 0
        if resumed:
            logger.info("%s: resuming at %s", order.label, human_size(resumed))
        digest = Transfer(session, facts, partial, report=report).run()
    except Replaced:
        partial.discard()
        raise
    except BaseException:  # a broken transfer, a full disk, Ctrl-C: the next run continues
        partial.leave()
        raise
    try:
        size = partial.done.total
        _verify(order, facts, digest, size, resumed=bool(resumed))
        if order.check is not None:
            order.check(partial.path)
        partial.publish()
    except FileNotFoundError:
        raise _Damaged("somebody deleted it while it was being fetched") from None
    finally:
        partial.discard()  # nothing is left of it once it is published
    sweep(order.destination)
    return Downloaded(order.destination, digest, size, facts.etag, facts.commit, cached=False)


def _facts(order: _Order, session: HubSession) -> FileFacts:
    """What the server says about the file, if that is the file that is wanted.

    Raises:
        UpstreamChanged: it is another one.
    """
    facts = head(order.url, session=session)
    for name, wanted, found in (
        ("SHA-256", order.sha256, facts.sha256),
        ("size", order.size, facts.size),
    ):
        if wanted is not None and found is not None and wanted != found:
            raise UpstreamChanged(
                f"{shown(order.url)} has been replaced on the server: {name} {found}, "
                f"expected {wanted}",
                hint="accept the new file with: bitnet sync --update",
            )
    return replace(facts, size=facts.size if facts.size is not None else order.size)


def _verify(order: _Order, facts: FileFacts, digest: str, size: int, *, resumed: bool) -> None:
    """Refuse bytes that are not the file.

    Raises:
        _Damaged: they are not, and some come from an earlier run.
        HashMismatch: they are not.
        InvalidFormat: there are none.
    """
    wanted = order.sha256 or facts.sha256
    wrong = ""
    if order.size is not None and size != order.size:
        wrong = f"{size:,} bytes came, expected {order.size:,}"
    elif wanted is not None and digest != wanted:
        wrong = f"SHA-256 {digest}, expected {wanted}"
    if wrong and resumed:
        raise _Damaged(f"what an earlier run left is damaged ({wrong})")
    if not size:
        kind = "tokenizer " if "tokenizer" in order.destination.name else ""
        raise InvalidFormat(
            f"Downloaded {kind}file is empty: {shown(order.url)}",
            hint="the file on the server is empty: try another source or mirror",
        )
    if wrong:
        raise HashMismatch(
            f"{shown(order.url)}: {wrong}; nothing was kept",
            hint="try again; if it stays so, the server or a proxy alters the file: use a mirror",
        )


class _Damaged(Exception):
    """What was fetched cannot be used, and fetching it from the beginning may help."""


def _need_space(order: _Order, facts: FileFacts) -> None:
    if facts.size is None:
        return
    free = free_space(order.destination.parent)
    if facts.size + HEADROOM_BYTES > free:
        raise NoSpace(
            f"No space left on device (os error {errno.ENOSPC}): {order.destination} needs "
            f"{human_size(facts.size)} and {human_size(HEADROOM_BYTES)} to spare, "
            f"{human_size(free)} are free",
            hint="free some space: bitnet clean-cache, or choose another disk: --cache-dir DIR",
        )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PermissionDenied(
            f"{os.strerror(error.errno or 0)} (os error {error.errno}): cannot make {folder}",
            hint="choose a folder you may write to: --cache-dir DIR or BITNET_CACHE_DIR",
        ) from error


def _reporter(bar: Progress, lock: locks.Lock, clock: Callable[[], float]) -> Report:
    """Tells the bar about every byte, and those who wait for the lock once a second."""
    said = clock()

    def report(done: int, total: int | None) -> None:
        nonlocal said
        bar.reach(done, total)
        if clock() - said >= LOCK_REPORT_S:
            said = clock()
            share = f" of {human_size(total)}" if total else ""
            lock.report(f"{human_size(done)}{share}")

    return report

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

from bitnet.base import locks
from bitnet.base.errors import (
    BitnetError,
    HashMismatch,
    InvalidFormat,
    NetworkError,
    NoSpace,
    PermissionDenied,
    UpstreamChanged,
    from_os_error,
)
from bitnet.base.files import check_writable, free_space, git_oid
from bitnet.base.progress import Mode, Progress, human_size
from bitnet.base.trust import redact_url
from bitnet.cache.prune import space_hint
from bitnet.hub.repository import head
from bitnet.hub.transfer import Replaced, Transfer
from bitnet.store import Artifact, Partial, Store
from bitnet.store.partial import clear, sweep
from bitnet.store.tag import make_cache

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bitnet.hub.session import HubSession
    from bitnet.store import Version

    Report = Callable[[int, int | None], None]

logger = logging.getLogger(__name__)

LOCK_REPORT_S = 1.0
FACTS_ATTEMPTS = 3  # before another server is asked
ROUNDS = 3  # give up on a file that is replaced, or deleted under us, this often
HEADROOM_BYTES = 16_000_000  # disk space left free for everything else
_POINTER = b"version https://git-lfs.github.com/spec/"
_LARGEST_POINTER = 1024  # bytes, by the specification


@dataclass(frozen=True)
class Download:
    """A file to fetch.

    Attributes:
        url: its address.
        name: its name in messages and of the partial file.
        sha256: expected digest, hexadecimal; ``None`` accepts what the server announces.
        size: expected bytes.
        check: called with the finished file before it gets its name; raises to refuse it.
        force: transfer it even if the store has it.
        changed_hint: hint for the case that the server has another file than expected.
        beside: a local file that may be the expected one; then nothing is transferred.
        mirrors: further addresses, which are used if its digest is known.
    """

    url: str
    name: str
    sha256: str | None = None
    size: int | None = None
    check: Callable[[Path], None] | None = None
    force: bool = False
    changed_hint: str = ""
    beside: Path | None = None
    mirrors: tuple[str, ...] = ()


def fetch(
    request: Download, store: Store, *, session: HubSession, progress: Mode = "auto"
) -> Artifact:
    """The file of *request*, in *store*; transferred only if the store does not have its digest.

    Its revision is the ETag, if the server was asked and sent a strong one.
    """
    sha256 = request.sha256
    try:
        fresh = False
        if sha256 is not None and not request.force and (blob := store.find(sha256)) is not None:
            _tidy(store, sha256)
            return _as_cached(blob, None)
        for _ in range(ROUNDS):
            facts = _facts(request, session)
            before = _state(store, facts)
            again = request.force or fresh
            blob = None if again else _find_version(store, facts, request.beside)
            if blob is not None:
                _tidy(store, facts.key)
                return _as_cached(blob, facts)
            try:
                return _lock_entry(request, facts, store, session, before, progress, fresh=fresh)
            except Replaced:
                logger.warning("%s changed on the server, starting over", request.name)
            except _Damaged as damage:
                logger.warning("%s: %s, starting over", request.name, damage)
                request = replace(request, mirrors=())
            fresh = True
    except OSError as error:
        raise from_os_error(error, error.filename or store.folder, in_cache=True) from error
    raise NetworkError(
        f"{redact_url(request.url)}: the server announces one file and sends another",
        hint="try again later, or another mirror with --base-url=URL",
    )


def require_folder(folder: Path) -> None:
    """Create *folder*, and check that it is writable, before anything is fetched."""
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


def _as_cached(blob: Artifact, facts: Version | None) -> Artifact:
    if facts is None:
        return blob
    return replace(blob, revision=facts.etag or "", commit=facts.commit)


def _tidy(store: Store, key: str) -> None:
    """Delete partial files of a version that is in the store, if no process uses them."""
    folder = store.folder / "partial" / key
    if folder.is_dir():
        with (
            suppress(BitnetError, OSError),
            locks.hold(folder.with_name(f"{key}.lock"), timeout_s=0) as lock,
        ):
            clear(folder, alone=lock.is_kernel)


def _find_version(store: Store, facts: Version, beside: Path | None = None) -> Artifact | None:
    """The version described by *facts*, if it is *beside*, in the store, or in another cache."""
    digest = facts.sha256
    if digest is None:  # the server names no digest: use what came for this version before
        known = store.index.find(facts.key) if facts.is_bound else None
        digest = known.sha256 if known is not None else None
    if digest is None:
        return None
    if beside is not None and store.is_intact(beside, digest, facts.size):
        return Artifact(sha256=digest, size=beside.stat().st_size, path=beside)
    return store.find(digest) or store.find_elsewhere(digest)


def _state(store: Store, facts: Version) -> tuple[int, int] | None:
    """State of this version in the store, which changes when it is replaced; ``None``: absent."""
    known = store.index.find(facts.key)
    digest = facts.sha256 or (known.sha256 if known is not None else None)
    if digest is None:
        return None
    try:
        status = store.path_of(digest).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _lock_entry(
    request: Download,
    facts: Version,
    store: Store,
    session: HubSession,
    before: tuple[int, int] | None,
    progress: Mode,
    *,
    fresh: bool,
) -> Artifact:
    """The file, fetched by this process or by the holder of the lock."""
    make_cache(store.root)
    folder = store.folder / "partial"
    folder.mkdir(exist_ok=True)
    sweep(folder)
    with locks.hold(
        folder / f"{facts.key}.lock",
        timeout_s=session.options.lock_s,
        what=request.name,
        clock=session.clock,
        sleep=session.sleep,
    ) as lock:
        if _state(store, facts) != before and (blob := _find_version(store, facts)) is not None:
            return _as_cached(blob, facts)  # another process fetched it while we waited
        with Progress(request.name, mode=progress, clock=session.clock) as bar:
            return _transfer(request, facts, store, session, bar, lock=lock, fresh=fresh)


def _transfer(
    request: Download,
    facts: Version,
    store: Store,
    session: HubSession,
    bar: Progress,
    *,
    lock: locks.Lock,
    fresh: bool,
) -> Artifact:
    folder = store.folder / "partial" / facts.key
    file = request.name.rpartition("/")[2]
    partial = Partial.begin(folder, file, facts, alone=lock.is_kernel, fresh=fresh)
    try:
        _need_space(request, facts, partial, store)
        if partial.resumed:
            logger.info("%s: resuming at %s", request.name, human_size(partial.resumed))
            bar.begin_at(partial.resumed, facts.size)
        report = _reporter(bar, lock, session.clock)
        known = facts.sha256 is not None
        mirrors = [url for url in request.mirrors if known and url != facts.url]
        digest = Transfer(session, facts, partial, name=file, report=report, mirrors=mirrors).run()
    except Replaced:
        partial.discard()
        raise
    except BaseException:  # broken transfer, full disk, Ctrl-C: the next run resumes
        partial.leave()
        if partial.is_left:
            logger.warning(
                "%s: %s are kept, the same command continues there",
                request.name,
                human_size(partial.done.total),
            )
        raise
    try:
        size = partial.done.total
        mixed = bool(partial.resumed or request.mirrors)
        _verify(request, facts, digest, partial, mixed=mixed)
        if request.check is not None:
            request.check(partial.path)
        blob = store.publish(partial, digest)
    except FileNotFoundError:
        raise _Damaged("it was deleted while it was being fetched") from None
    finally:
        partial.discard()  # nothing is left of it once it is published
    if facts.sha256 is None and facts.is_bound:
        etag = facts.etag or "unknown"
        version = Artifact(
            "version", redact_url(request.url), etag, file, facts.commit, digest, size
        )
        store.index.write(version, facts.key)
    return replace(_as_cached(blob, facts), cached=False)


def _facts(request: Download, session: HubSession) -> Version:
    """The server's description of the file, if it is the expected one."""
    facts = _ask_servers(request, session)
    for name, expected, actual in (
        ("SHA-256", request.sha256, facts.sha256),
        ("size", request.size, facts.size),
    ):
        if expected is not None and actual is not None and expected != actual:
            raise UpstreamChanged(
                f"{redact_url(request.url)} has been replaced on the server: {name} {actual}, "
                f"expected {expected}",
                hint=request.changed_hint or "accept the new file with: bitnet sync --update",
            )
    return replace(
        facts,
        size=facts.size if facts.size is not None else request.size,
        sha256=facts.sha256 or request.sha256,
    )


def _ask_servers(request: Download, session: HubSession) -> Version:
    """Description of a file by the first server that answers."""
    *others, last = (request.url, *request.mirrors)
    for url in others:
        with suppress(NetworkError):
            return head(url, session=session, attempts=FACTS_ATTEMPTS)
        logger.warning("%s does not answer, another server is asked", redact_url(url))
    return head(last, session=session)


def _verify(
    request: Download, facts: Version, digest: str, partial: Partial, *, mixed: bool
) -> None:
    """Refuse bytes that are not the expected file."""
    expected, size = facts.sha256, partial.done.total
    wrong = ""
    if request.size is not None and size != request.size:
        wrong = f"{size:,} bytes came, expected {request.size:,}"
    elif expected is not None and digest != expected:
        wrong = f"SHA-256 {digest}, expected {expected}"
    elif expected is None and facts.git_oid and facts.git_oid != git_oid(partial.path):
        wrong = f"other bytes than those of the git object {facts.git_oid}"
    if wrong and mixed:
        what = "what a mirror sent" if request.mirrors else "what an earlier run left"
        raise _Damaged(f"{what} is damaged ({wrong})")
    if not (size or request.size == 0):
        kind = "tokenizer " if "tokenizer" in request.name else ""
        raise InvalidFormat(
            f"Downloaded {kind}file is empty: {redact_url(request.url)}",
            hint="the file on the server is empty: try another source or mirror",
        )
    if wrong:
        raise HashMismatch(
            f"{redact_url(request.url)}: {wrong}; nothing was kept",
            hint="try again; if it stays so, the server or a proxy alters the file: use a mirror",
        )
    if size < _LARGEST_POINTER and partial.path.read_bytes().startswith(_POINTER):
        raise InvalidFormat(
            f"{redact_url(request.url)} is a pointer of Git LFS and not the file itself",
            hint="this server or copy lacks the large files: use the hub or another mirror",
        )


class _Damaged(Exception):
    """The fetched bytes are unusable; fetching from the beginning may help."""


def _need_space(request: Download, facts: Version, partial: Partial, store: Store) -> None:
    """Refuse a file whose missing bytes do not fit on the disk."""
    if facts.size is None:
        return
    missing = facts.size - partial.done.total
    free = free_space(partial.path.parent)
    if missing and missing + HEADROOM_BYTES > free:
        raise NoSpace(
            f"No space left on device (os error {errno.ENOSPC}): {request.name} needs "
            f"{human_size(missing)} more and {human_size(HEADROOM_BYTES)} to spare, "
            f"{human_size(free)} are free in {partial.path.parent}",
            hint=space_hint(store.root, missing + HEADROOM_BYTES - free),
        )


def _reporter(bar: Progress, lock: locks.Lock, clock: Callable[[], float]) -> Report:
    """Reporter for the bar, for every byte, and for waiting processes, once a second."""
    last_report_s = clock()

    def report(done: int, total: int | None) -> None:
        nonlocal last_report_s
        bar.reach(done, total)
        if clock() - last_report_s >= LOCK_REPORT_S:
            last_report_s = clock()
            share = f" of {human_size(total)}" if total else ""
            lock.report(f"{human_size(done)}{share}")

    return report

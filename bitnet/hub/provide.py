"""Provide files: one, a folder, or what a lock file pins, by the same five steps.

    resolve  ->  obtain all  ->  check all  ->  place all  ->  pin all

Orders are resolved (:mod:`bitnet.hub.orders`), :func:`bitnet.hub.fetch.obtain` brings each file
into the store, and the rest is here. If a step before ``place all`` fails, no visible file has
changed: obtained files stay in the store, and the next run continues. A tokenizer is also linked
into ``<cache>/tokenizers/<key>/``, where discovery looks for it.
"""

from __future__ import annotations

import atexit
import logging
import shutil
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from bitnet.base.errors import (
    AuthError,
    BitnetError,
    NetworkError,
    PermissionDenied,
    from_os_error,
)
from bitnet.base.files import OUTPUT_HINT, device_of, require_space
from bitnet.base.trust import place_problem, refuse_links
from bitnet.cache.prune import drop_superseded
from bitnet.hub.fetch import obtain
from bitnet.hub.orders import order_of
from bitnet.hub.repository import read_card
from bitnet.sources import Source
from bitnet.store.blobs import common_folder
from bitnet.store.records import Pin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bitnet.hub.orders import FileOrder, Obtained
    from bitnet.hub.project import Project
    from bitnet.store import Blob, Store
    from bitnet.store.claims import Claims

logger = logging.getLogger(__name__)

MOST_STARTS = 3  # of the files of a repository that changes while they come


def fetch_source(
    source: Source,
    project: Project,
    *,
    target: Path | None = None,
    check: Callable[[Path, int], None] | None = None,
) -> Obtained:
    """Provide the file of *source* at *target*, by default at its usual path.

    *check* reads a tokenizer, given its number of ids, or raises.
    """
    order = order_of(source, project, target=target, check=check)
    # A tokenizer or a package may be placed outside of the project, a model may not.
    root = target.parent if target is not None and order.kind != "model" else None
    return provide([order], project, root=root)[0]


def provide(
    orders: Sequence[FileOrder],
    project: Project,
    *,
    root: Path | None = None,
    skip_gated: bool = False,
    add_to_store: Callable[[], object] = lambda: None,
) -> list[Obtained]:
    """Provide the files of *orders*: all of them, or none.

    No path may leave *root*, the project's folder by default, through a link. With *skip_gated*
    the files of a repository that refuses access are left out. *add_to_store* is called before the
    store is searched; the import of a bundle adds all of its files there.
    """
    # Refuse before downloading: a name that cannot be pinned, a link that leads out, a full disk.
    root = root if root is not None else project.folder
    _refuse_places(orders, project, root)
    _require_space(orders, project)
    store = project.store
    store.prepare()

    # Claim the bytes before they are searched for, and until they are placed: otherwise a removal
    # could delete them in between.
    expected = [order.source.sha256 for order in orders if order.source.sha256 is not None]
    with store.claiming(expected) as claims:
        add_to_store()
        files = _obtain_all(orders, project, claims, skip_gated=skip_gated)

        # A tokenizer is checked when it is fetched; one found elsewhere may not have been.
        for file in files:
            if file.cached and file.order.check is not None and not file.order.was_checked:
                file.order.check(file.blob.path)

        # A name is recorded before its link exists: a link without a name could not be removed.
        for file in files:
            _record_name(file, store)
        files = _place(files, project, root, claims)

    files = _pin(files, project)
    for file in files:
        if file.fetched and not file.pin.verified:
            text = "%s is not verified by a digest: no server announced one; it has SHA-256 %s"
            logger.warning(text, file.pin.file, file.pin.sha256)

    # Superseded versions are removed last, when nothing needs them any more.
    drop_superseded(project.cache)
    return files


# --- before anything is fetched -------------------------------------------------------------------


def _refuse_places(orders: Sequence[FileOrder], project: Project, root: Path) -> None:
    """Refuse targets that a lock file could not name, or that leave *root* through a link."""
    for order in orders:
        source = order.source
        name = order.kind, source.repo, source.revision, source.file
        place = project.place_of(order.target)
        size = source.size or 0
        # With any digest: the file's own need not be known yet.
        project.refuse_unpinnable(Pin(*name, None, "0" * 64, size, source.licence, place))
        if order.target is not None:
            refuse_links(root, order.target.parent)


def _require_space(orders: Sequence[FileOrder], project: Project) -> None:
    """Refuse files of known size whose targets are on another disk with too little space.

    On the disk of the store, a target is a link and takes no space.
    """
    cache_device = device_of(project.cache)
    sizes: dict[int, int] = {}
    folders: dict[int, Path] = {}
    for order in orders:
        size = order.source.size
        target = order.target
        if not size or target is None or target.exists():
            continue
        device = device_of(target.parent)
        if device != cache_device:
            sizes[device] = sizes.get(device, 0) + size
            folders[device] = target.parent
    for device, size in sizes.items():
        require_space(folders[device], size, "the copy of the model", OUTPUT_HINT)


def _obtain_all(
    orders: Sequence[FileOrder], project: Project, claims: Claims, *, skip_gated: bool
) -> list[Obtained]:
    """The files of *orders*, several at once; with *skip_gated* without refused repositories."""
    targets = [order.target for order in orders if order.target is not None]
    folder = common_folder(targets) if targets else project.folder
    if len(targets) > 1 and not folder.is_dir():
        # `obtain` creates the folder to test it; a missing one must appear with all of its files.
        folder = folder.parent
    refused: set[str] = set()

    def obtain_one(order: FileOrder) -> Obtained | None:
        try:
            return obtain(order, project, claims, folder)
        except AuthError:
            if not skip_gated:
                raise
            refused.add(order.source.repo)
            return None

    fetched: set[tuple[str, str]] = set()  # repository and name
    for _ in range(MOST_STARTS):
        results = project.at_once([partial(obtain_one, order) for order in orders])
        files = [file for file in results if file is not None]
        files = [file for file in files if file.order.source.repo not in refused]
        mixed = _find_mixed(files)
        if not mixed:
            return [replace(file, fetched=file.fetched or _name(file) in fetched) for file in files]
        fetched.update(_name(file) for file in files if file.fetched)
        logger.warning(
            "%s changed on the server while its files came: they are asked for again", mixed
        )
    raise NetworkError(
        f"{mixed} changed on the server each time that its files came",
        hint="try again later, or name a commit: --rev COMMIT",
    )


def _name(file: Obtained) -> tuple[str, str]:
    """Repository and name of *file*."""
    return file.order.source.repo, file.order.source.file


def _find_mixed(files: Iterable[Obtained]) -> str:
    """The repository of which *files* of two commits were fetched; empty if there is none."""
    commits: dict[tuple[str, str], str] = {}
    for file in files:
        source = file.order.source
        if not file.fetched or file.order.pinned is not None or not file.pin.commit:
            continue
        if commits.setdefault((source.repo, source.revision), file.pin.commit) != file.pin.commit:
            return source.repo
    return ""


# --- place ----------------------------------------------------------------------------------------


def _place(files: list[Obtained], project: Project, root: Path, claims: Claims) -> list[Obtained]:
    """Put *files* and what belongs to them into their places; return the files as placed."""
    store = project.store
    items = [(file.blob, file.order.target) for file in files if file.is_as_ordered]
    placed = [(blob, target) for blob, target in items if target is not None]
    try:
        changed = store.place_together(placed, root, force=project.force)
        files = [replace(file, is_placed=file.order.target in changed) for file in files]
        for file in files:
            _place_beside(file, store, claims)
    except PermissionDenied:
        places = [store.place_of(file.order.target or file.order.entry) for file in files]
        if None in places:  # outside of the cache, where the user expects the file
            raise
        return _place_for_now(files, project)  # the cache is read-only
    return files


def _place_for_now(files: list[Obtained], project: Project) -> list[Obtained]:
    """*files* of a read-only cache, linked into a folder that is removed when this process ends.

    A single model needs no link: it is read where it is in the store. Several files, and those of a
    tokenizer, must be in one folder under their names.
    """
    if len(files) == 1 and files[0].order.kind == "model":
        order = replace(files[0].order, target=None)
        return [replace(files[0], order=order)]
    folder = Path(mkdtemp(prefix="bitnet-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    placed = []
    for file in files:
        order = file.order
        path = order.target or order.entry or file.blob.path
        link = folder / path.absolute().relative_to(project.cache.absolute())
        try:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.blob.path.absolute())
        except OSError as error:
            raise from_os_error(error, link) from error
        placed.append(replace(file, order=replace(order, target=link)))
    logger.info("the cache is only read: links to its files are in %s", folder)
    return placed


def _record_name(file: Obtained, store: Store) -> None:
    """Record in the store that the name of *file* means its bytes.

    This does not depend on a transfer: the bytes may be here already, under another name. A name
    without a record is missing from lists, and removing the other name would remove its bytes.
    """
    order = file.order
    pin = file.pin
    source = order.source
    if not file.is_as_ordered or not store.path_of(pin.sha256).is_file():
        return
    name = source.index_name
    commit = pin.commit or source.commit
    record = store.pin_of(*name)

    is_other = record is not None and record.sha256 != pin.sha256
    is_here = record is not None and store.path_of(record.sha256).is_file()
    if is_other and is_here and order.pinned is not None and commit and not source.url:
        # Record the pinned file under its commit: the name with the branch keeps the file that the
        # branch meant when the server was asked last.
        pin = replace(pin, revision=commit)
        name = pin.index_name

    place = store.place_of(order.entry or order.target)
    store.record_name(replace(pin, commit=commit, place=place), *name)


def _place_beside(file: Obtained, store: Store, claims: Claims) -> None:
    """Link the entry in the cache to *file*, and put notices and terms beside its target."""
    order = file.order
    blob = file.blob
    if order.entry is not None and blob.path != order.entry:
        # If the caller asked for another path, an entry that exists is not replaced.
        if order.target is None or not order.entry.exists():
            store.place(store.find(blob.sha256) or blob, order.entry, store.root)
        if file.fetched and order.check is not None:  # only the order for a tokenizer has one
            logger.info("Successfully downloaded tokenizer: %s", order.entry)
    if order.source.notices and order.target is not None:
        for name, notice in notices(order.source, store, claims).items():
            if not (order.target.parent / name).exists():
                store.place(notice, order.target.parent / name)


def notices(model: Source, store: Store, claims: Claims | None = None) -> dict[str, Blob]:
    """Files in *store* that belong beside *model*, such as notices and terms, by name."""
    names = [package.file_name for package in model.notices]
    pins = {name: store.pin_of(model.repo, model.revision, name) for name in names}
    blobs = {name: store.find(pin.sha256, claims) for name, pin in pins.items() if pin}
    return {name: blob for name, blob in blobs.items() if blob is not None}


# --- pin ------------------------------------------------------------------------------------------


def _pin(files: list[Obtained], project: Project) -> list[Obtained]:
    """Write *files* into the lock file; return them with the pins that were written."""
    licence_of = cache(partial(_licence, project))  # one request for each repository
    pinned = []
    for file in files:
        order = file.order
        commit = file.pin.commit or (order.pinned.commit if order.pinned is not None else None)
        pin = replace(file.pin, commit=commit, place=project.place_of(order.target))
        url = file.licence_url
        # The hub is not asked about a file that the lock file pinned already.
        is_settled = not file.is_as_ordered or (file.cached and order.pinned is not None)
        is_asked = order.kind == "model" and not (order.source.url or project.is_offline)
        if is_asked and not (pin.licence or is_settled):
            licence, url = licence_of(pin.repo, pin.revision)
            pin = replace(pin, licence=licence)
        pinned.append(replace(file, pin=pin, licence_url=url))
    pins = [file.pin for file in pinned if file.is_as_ordered and _may_be_pinned(file, project)]
    project.pin(*pins)
    return pinned


def _may_be_pinned(file: Obtained, project: Project) -> bool:
    """False for a file outside of the project whose usual path in it must not be used.

    ``sync`` puts a file without a place at that path.
    """
    order = file.order
    is_inside = order.kind != "model" or project.place_of(order.target) is not None
    usual_place = project.place_of(order.default)
    return is_inside or usual_place is None or not place_problem(usual_place)


def _licence(project: Project, repo: str, revision: str) -> tuple[str, str]:
    """The licence that the page of *repo* names, and its address; empty if unknown."""
    retries = min(project.options.retries or 3, 3)  # few: the licence is only informative
    try:
        with project.connect(Source(repo, repo), retries=retries) as session:
            facts = read_card(repo, revision, session)
    except BitnetError as error:
        logger.debug("licence of %s is not known: %s", repo, error)
        return "", ""
    return facts.licence, facts.licence_url

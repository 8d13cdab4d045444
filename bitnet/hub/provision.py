"""Provide the files of a project: found on disk, or fetched once and pinned.

A tokenizer is linked into ``<cache>/tokenizers/<key>/tokenizer.json``, where discovery looks; two
sources can share one key without being confused. A model is linked to its place in the project.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from bitnet import sources
from bitnet.errors import BitnetError, UsageError
from bitnet.files import path_of
from bitnet.hub import lockfile
from bitnet.hub.download import Fetched
from bitnet.hub.lockfile import Locked
from bitnet.hub.mirrors import with_mirror
from bitnet.hub.origin import Origin
from bitnet.hub.placing import common_folder, place_all
from bitnet.hub.project import Provided
from bitnet.hub.provide import HubFile, Want, obtain, provide
from bitnet.hub.repository import file_url, model_facts
from bitnet.hub.together import at_once
from bitnet.invocation import word
from bitnet.store import Blob, model_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bitnet.hub.project import Project
    from bitnet.sources import Source

    VocabularyCheck = Callable[[Path, int], None]

__all__ = [
    "model_path",
    "provide_model",
    "provide_models",
    "provide_tokenizer",
    "tokenizer_entry",
]

logger = logging.getLogger(__name__)


# --- tokenizers ------------------------------------------------------------------------------


def tokenizer_entry(source: Source, cache: Path) -> Path:
    """Path of the tokenizer of *source* in the cache."""
    return cache / "tokenizers" / source.cache_key / Path(source.file).name


def provide_tokenizer(
    source: Source, project: Project, *, check: VocabularyCheck, target: Path | None = None
) -> Provided:
    """The tokenizer of *source*, in the cache or at *target*.

    A file fetched from the same source before is used without a connection. A cached file with
    unexpected content is replaced, with a warning.

    Args:
        source: the tokenizer.
        project: folders and options.
        check: accepts a file and the number of ids it must have, or raises.
        target: place for it, if given.

    Raises:
        Offline: it is not in the cache, and the network is switched off.
        TokenMissing: the source requires a token and there is none; no connection was opened.
        UpstreamChanged: the server's file is not the one in the lock file.
        VocabMismatch: the server's file has another vocabulary.
        UsageError: another file is at *target*, which this program did not put there.
    """
    entry = tokenizer_entry(source, project.cache)
    pinned = project.pinned(("tokenizer", source.repo, source.revision, source.file))
    want = _tokenizer_want(source, project, entry, pinned, check)
    _say_what_changed(entry, source, project, check)
    if target is None and want.sha256 is None and _was_put_there(entry, source, project, check):
        found = Origin.of(entry)
        return Provided(entry, found.sha256, found.size, None, True, source.licence_line)
    is_new = project.store.names.find(source.repo, source.revision, source.file) is None
    got = provide(want, project, target, ours=_is_pinned_to(pinned, target, project))
    if target is None or not entry.exists():
        project.store.place(_blob(got, project), entry)
    if got.cached and is_new:
        check(target or entry, source.vocab_size)
    if not got.cached:
        logger.info("Successfully downloaded tokenizer: %s", entry)
    path = lockfile.relative(target, project.folder) if target is not None else None
    project.pin(_locked("tokenizer", source, got, path))
    return Provided(
        target or entry, got.sha256, got.size, got.commit, got.cached, source.licence_line
    )


def _tokenizer_want(
    source: Source,
    project: Project,
    entry: Path,
    pinned: Locked | None,
    check: VocabularyCheck,
) -> Want:
    def announce() -> None:
        sources.require_token(source)
        logger.info("Can download compatible tokenizer from: %s", source.repo)
        logger.info("Downloading tokenizer for repo: %s", source.repo)

    sha256 = pinned.sha256 if pinned is not None else source.sha256
    if sha256 is None and not project.update:
        sha256 = _known_before(entry, source)
    return Want(
        HubFile(source.repo, source.revision, source.file, _commit(pinned)),
        sha256=sha256,
        size=pinned.size if pinned is not None else source.size,
        kind="tokenizer",
        key=source.cache_key,
        command=_command(source),
        lasts=True,
        pinned=pinned is not None,
        places=(entry,),
        check=lambda path: check(path, source.vocab_size),
        announce=announce,
    )


def _command(source: Source) -> str:
    """The command that fetches *source*, which may be registered under another name."""
    known = [name for name, other in sources.TOKENIZERS.items() if other.repo == source.repo]
    if known:
        return f"bitnet tokenizer --source {known[0]}"
    return "bitnet pre-download-tokenizers --model-dir DIR"


def _known_before(entry: Path, source: Source) -> str | None:
    """Digest recorded next to *entry* by an earlier version, if it is right."""
    origin = Origin.read(entry)
    if origin is None or (origin.repo, origin.revision) != (source.repo, source.revision):
        return None
    return origin.sha256 if entry.is_file() and Origin.of(entry).sha256 == origin.sha256 else None


def _was_put_there(entry: Path, source: Source, project: Project, check: VocabularyCheck) -> bool:
    """True if *entry* is a usable file from elsewhere, such as another machine."""
    if project.force or project.update or not entry.is_file():
        return False
    record = project.store.verified.record_of(entry)
    if (record is not None and record.placed) or Origin.read(entry) is not None:
        return False
    try:
        check(entry, source.vocab_size)
    except BitnetError as error:
        logger.warning("cached tokenizer is not usable, fetching it once more: %s", error)
        return False
    return True


def _say_what_changed(
    entry: Path, source: Source, project: Project, check: VocabularyCheck
) -> None:
    """Warn that *entry* has unexpected content and is replaced."""
    record = project.store.verified.record_of(entry)
    if record is None or not record.placed or not entry.is_file():
        return
    if project.store.digest_of(entry) == record.sha256:
        return
    try:
        check(entry, source.vocab_size)
    except BitnetError as error:
        logger.warning("cached tokenizer is not usable, fetching it once more: %s", error)
    else:
        logger.warning("%s has changed since it was checked, fetching it once more", entry)


# --- models ----------------------------------------------------------------------------------


def model_path(project: Project, repo: str, file: str, revision: str = "main") -> Path:
    """Default path of *file* of *repo* for ``download-model``.

    That is ``models/ORG-REPO/FILE``, or ``models/ORG--REPO@REVISION/FILE`` if the lock file has
    another file at that path: of another revision, or of a repository with a similar name.
    """
    plain = project.folder / "models" / repo.replace("/", "-") / path_of(file)
    entries = lockfile.read(project.lock_path)
    ours = lockfile.find(entries, ("model", repo, revision, file))
    there = _at(entries, plain, project)
    if there is None or there == ours or (ours is not None and there.sha256 == ours.sha256):
        return plain
    folder = f"{repo.replace('/', '--')}@{quote(revision, safe='')}"
    return project.folder / "models" / folder / path_of(file)


def _at(entries: list[Locked], path: Path, project: Project) -> Locked | None:
    """Lock file entry of the file at *path*."""
    where = lockfile.relative(path, project.folder)
    return next((entry for entry in entries if where is not None and entry.path == where), None)


@dataclass(frozen=True)
class _Order:
    """A model file to provide, and its place."""

    source: Source
    path: Path
    pinned: Locked | None
    want: Want


def provide_model(source: Source, project: Project, *, target: Path | None = None) -> Provided:
    """Provide the model file of *source* at *target*, or below ``models``.

    An existing file with the digest of *source* or of the lock file is used without a
    connection.

    Raises:
        Offline: it is not here, and the network is switched off.
        UpstreamChanged: the server's file is not the one in the lock file.
        UsageError: *source* and the lock file have different digests, or another file is at
            *target*, which this program did not put there.
    """
    return provide_models([(source, target)], project)[0]


def provide_models(
    sources: Sequence[tuple[Source, Path | None]], project: Project
) -> list[Provided]:
    """Provide model files as by :func:`provide_model`: all of them, or none.

    Several are fetched at once, within the limits of *project*. When all are complete they are put
    into their places, and then into the lock file.

    Raises:
        BitnetError: the first failure; fetched files stay in the store.
    """
    orders = [_order(source, target, project) for source, target in sources]
    places = [order.path for order in orders]
    folder = common_folder(places) if len(places) > 1 else None
    got = at_once([partial(_obtained, order, project, folder) for order in orders], project.limits)
    checked = [(one, order) for one, order in zip(got, orders, strict=True) if not one.unchecked]
    place_all(
        [(one, o.path, _is_pinned_to(o.pinned, o.path, project)) for one, o in checked], project
    )
    described = [_described(order, one, project) for order, one in zip(orders, got, strict=True)]
    project.pin(
        *(
            _locked("model", source, one, lockfile.relative(order.path, project.folder))
            for source, one, order in zip(described, got, orders, strict=True)
            if not one.unchecked
        )
    )
    return [
        Provided(
            order.path,
            one.sha256,
            one.size,
            one.commit or (order.pinned.commit if order.pinned is not None else None),
            one.cached,
            source.licence_line,
        )
        for source, one, order in zip(described, got, orders, strict=True)
    ]


def _order(source: Source, target: Path | None, project: Project) -> _Order:
    """The order for *source*, after checks for conflicts."""
    file_url(source.repo, source.revision, source.file, project.options)  # refuses bad names
    path = target or model_path(project, source.repo, source.file, source.revision)
    pinned = project.pinned(("model", source.repo, source.revision, source.file))
    if pinned is not None and not source.licence:
        source = replace(source, licence=pinned.licence, licence_url=source.page)
    if pinned is not None and source.sha256 not in (None, pinned.sha256):
        raise UsageError(
            f"--sha256 is {source.sha256}, {lockfile.NAME} has {pinned.sha256} for "
            f"{source.repo}/{source.file}",
            hint="leave --sha256 out, or accept the file on the server: bitnet sync --update",
        )
    expected = pinned.sha256 if pinned is not None else source.sha256
    _refuse_shared(path, source, project, expected)
    command = f"bitnet download-model {source.repo} --file {word(source.file)}"
    want = Want(
        HubFile(source.repo, source.revision, source.file, _commit(pinned)),
        sha256=expected,
        size=pinned.size if pinned is not None else source.size,
        key=model_key(source.repo, source.revision, source.file),
        command="bitnet sync --update" if project.update else command,
        pinned=pinned is not None,
        places=(model_path(project, source.repo, source.file, source.revision),),
        announce=lambda: sources.require_token(source),
        changed_hint="" if pinned is not None else _OWN_DIGEST,
    )
    return _Order(source, path, pinned, want)


def _obtained(order: _Order, project: Project, folder: Path | None) -> Fetched:
    """The file of *order*: in its place, in the store, or just fetched."""
    want, path, source = order.want, order.path, order.source
    if not want.sha256 and project.options.is_offline and not project.update and path.exists():
        known = project.store.names.find(source.repo, source.revision, source.file)
        if not project.force and (known is None or not project.store.is_intact(path, known.sha256)):
            logger.warning(
                "%s is used unchecked: its digest is not known, and we are offline", path
            )
            found = Origin.of(path)
            return Fetched(path, found.sha256, found.size, None, None, True, unchecked=True)
    return obtain(want, project, path, folder=folder)


def _described(order: _Order, got: Fetched, project: Project) -> Source:
    """The source of *order* with its licence, if known."""
    if got.unchecked or (got.cached and order.pinned is not None):
        return order.source
    return _with_licence(order.source, project)


_OWN_DIGEST = (
    "if --sha256 is right, this server has another file: do not use it, try another source; "
    "if the digest was mistyped, copy it again from where the model's author publishes it"
)


def _refuse_shared(path: Path, source: Source, project: Project, sha256: str | None) -> None:
    """Refuse a *path* that the lock file assigns to another file."""
    there = _at(lockfile.read(project.lock_path), path, project)
    ours = ("model", source.repo, source.revision, source.file)
    if there is None or there.key == ours or there.sha256 == sha256 or project.force:
        return
    raise UsageError(
        f"{path} belongs to {there.repo}/{there.file} ({there.revision}) in {lockfile.NAME}, "
        f"{source.repo}/{source.file} ({source.revision}) cannot go there too",
        hint="choose another folder with --output, or replace it with --force",
    )


def _with_licence(source: Source, project: Project) -> Source:
    """*source* with the licence named on its page, if the server has pages."""
    if source.licence or project.options.is_offline:
        return source
    options = with_mirror(project.options, source.repo, project.folder)
    options = replace(options, retries=min(options.retries or 3, 3))  # only informative
    try:
        facts = model_facts(source.repo, source.revision, options)
    except BitnetError as error:
        logger.debug("licence of %s is not known: %s", source.repo, error)
        return source
    page = facts.licence_link or source.page
    return replace(source, licence=facts.licence or "", licence_url=page)


# --- both ------------------------------------------------------------------------------------


def _is_pinned_to(pinned: Locked | None, target: Path | None, project: Project) -> bool:
    """True if the lock file assigns the file to *target*: then it is repaired there."""
    if pinned is None or pinned.path is None or target is None:
        return False
    return pinned.path == lockfile.relative(target, project.folder)


def _commit(pinned: Locked | None) -> str | None:
    """The pinned commit, to fetch instead of a branch that may have moved."""
    return None if pinned is None else pinned.commit or pinned.revision


def _blob(got: Fetched, project: Project) -> Blob:
    """The file in the store, or where it was found."""
    return project.store.find(got.sha256) or Blob(got.path, got.sha256, got.size)


def _locked(kind: lockfile.Kind, source: Source, got: Fetched, path: str | None) -> Locked:
    return Locked(
        kind=kind,
        repo=source.repo,
        revision=source.revision,
        file=source.file,
        commit=got.commit,
        sha256=got.sha256,
        size=got.size,
        licence=source.licence,
        path=path,
    )

"""Files a project needs, in their place: found on disk, or fetched once and pinned.

A tokenizer goes through ``<cache>/tokenizers/<key>/tokenizer.json``. Beside it,
``tokenizer.json.origin`` says where it came from and which bytes were checked, so that a later run
knows without a connection that the file is the one asked for: two sources can share one key, and
neither is handed out for the other. A model goes straight to its place.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet import sources
from bitnet.errors import BitnetError, HashMismatch, NotFound, UpstreamChanged, UsageError
from bitnet.files import matches, path_of, place
from bitnet.hub import lockfile
from bitnet.hub.download import download
from bitnet.hub.lockfile import Locked
from bitnet.hub.mirrors import with_mirror
from bitnet.hub.origin import Origin
from bitnet.hub.project import Provided
from bitnet.hub.repository import file_url, head, model_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.hub.download import Downloaded
    from bitnet.hub.project import Project
    from bitnet.sources import Source

    VocabularyCheck = Callable[[Path, int], None]

__all__ = ["model_path", "provide_model", "provide_tokenizer", "tokenizer_entry"]

logger = logging.getLogger(__name__)


# --- tokenizers ------------------------------------------------------------------------------


def tokenizer_entry(source: Source, cache: Path) -> Path:
    """Where the cache keeps the tokenizer of *source*."""
    return cache / "tokenizers" / source.cache_key / Path(source.file).name


def provide_tokenizer(
    source: Source, project: Project, *, check: VocabularyCheck, target: Path | None = None
) -> Provided:
    """The tokenizer of *source* in the cache, and at *target* if that is given.

    A cached file from the same source is used without a connection. One that is not what it should
    be is fetched once more, and the log says so.

    Args:
        source: which tokenizer.
        project: where and how.
        check: accepts a file and the number of ids it must have, or raises.
        target: where a person wants it.

    Raises:
        Offline: not in the cache, and the network is switched off.
        TokenMissing: the source wants a token and there is none; no connection was opened.
        UpstreamChanged: the server's file is not the one in the lock file.
        VocabMismatch: the server's file has another vocabulary.
    """
    entry = tokenizer_entry(source, project.cache)
    pinned = project.pinned(("tokenizer", source.repo, source.revision, source.file))
    if project.update:
        pinned = None
    fresh = project.force or project.update
    origin = None if fresh else _cached(entry, source, pinned, check)
    cached = origin is not None
    if origin is None:
        project.require_connection(entry, f"bitnet tokenizer --source {source.name}")
        sources.require_token(source)
        logger.info("Can download compatible tokenizer from: %s", source.repo)
        logger.info("Downloading tokenizer for repo: %s", source.repo)
        got = _fetch(
            replace(source, sha256=pinned.sha256 if pinned else source.sha256),
            project,
            entry,
            pinned=pinned,
            check=lambda path: check(path, source.vocab_size),
            replaces=entry.is_file() and not project.update,
        )
        origin = Origin(source.repo, source.revision, source.file, got.commit, got.sha256, got.size)
        cached = got.cached
        if not cached or got.commit:  # else another process has fetched it and writes the record
            origin.write(entry)
        logger.info("Successfully downloaded tokenizer: %s", entry)
    if target is not None:
        place(entry, target)
    if origin.repo:
        pin = _locked("tokenizer", replace(origin, revision=source.revision), source.licence)
        path = lockfile.relative(target, project.folder) if target is not None else None
        project.pin(replace(pin, path=path))
    return Provided(
        target or entry, origin.sha256, origin.size, origin.commit, cached, source.licence_line
    )


def _cached(
    entry: Path, source: Source, pinned: Locked | None, check: VocabularyCheck
) -> Origin | None:
    """Where the cached *entry* came from, if it is what *source* and *pinned* ask for."""
    if not entry.is_file():
        return None
    origin = Origin.read(entry)
    if origin is not None and origin.repo != source.repo:
        logger.info("%s is from %s, not from %s", entry, origin.repo, source.repo)
        return None
    if origin is not None and pinned is None and origin.revision != source.revision:
        logger.info("%s is of %s, not of %s", entry, origin.revision, source.revision)
        return None
    found = Origin.of(entry)
    if origin is None or found.sha256 != origin.sha256:
        try:
            check(entry, source.vocab_size)
        except BitnetError as error:
            logger.warning("cached tokenizer is not usable, fetching it once more: %s", error)
            return None
    if origin is not None and found.sha256 != origin.sha256:
        logger.warning("%s has changed since it was checked, fetching it once more", entry)
        return None
    if pinned is not None and found.sha256 != pinned.sha256:
        logger.info("%s is not the file pinned in %s", entry, lockfile.NAME)
        return None
    return origin or found  # without a record, somebody put it there


# --- models ----------------------------------------------------------------------------------


def model_path(project: Project, repo: str, file: str) -> Path:
    """Where ``download-model`` puts *file* of *repo* unless told otherwise."""
    return project.folder / "models" / repo.replace("/", "-") / path_of(file)


def provide_model(source: Source, project: Project, *, target: Path | None = None) -> Provided:
    """The model file of *source* at *target*, or below ``models``.

    A file that is there with the digest of *source* or of the lock file is used without a
    connection.

    Raises:
        Offline: not there, and the network is switched off.
        UpstreamChanged: the server's file is not the one in the lock file.
        UsageError: *source* and the lock file name different digests.
    """
    file_url(source.repo, source.revision, source.file, project.options)  # refuses bad names
    path = target or model_path(project, source.repo, source.file)
    pinned = project.pinned(("model", source.repo, source.revision, source.file))
    if project.update:
        pinned = None
    if pinned is not None and not source.licence:
        source = replace(source, licence=pinned.licence, licence_url=source.page)
    if pinned is not None and source.sha256 not in (None, pinned.sha256):
        raise UsageError(
            f"--sha256 is {source.sha256}, {lockfile.NAME} has {pinned.sha256} for "
            f"{source.repo}/{source.file}",
            hint="leave --sha256 out, or accept the file on the server: bitnet sync --update",
        )
    wanted = pinned.sha256 if pinned is not None else source.sha256
    there = path.exists() and not project.force
    if there and wanted and matches(path, sha256=wanted):
        origin = _origin(source, pinned.commit if pinned else None, wanted, path)
        return _model(source, project, path, origin, cached=True)
    if there and not wanted and project.options.is_offline and not project.update:
        logger.warning("%s is used unchecked: its digest is not known, and we are offline", path)
        found = Origin.of(path)
        return Provided(path, found.sha256, found.size, None, True, source.licence_line)
    command = f"bitnet download-model --id {source.repo} --file {source.file}"
    project.require_connection(path, "bitnet sync --update" if project.update else command)
    sources.require_token(source)
    got = _fetch(replace(source, sha256=wanted), project, path, pinned=pinned)
    source = _with_licence(source, project)
    origin = _origin(source, got.commit, got.sha256, path)
    return _model(source, project, path, origin, cached=got.cached)


def _with_licence(source: Source, project: Project) -> Source:
    """*source* with the licence its page names, as far as the server knows pages."""
    if source.licence:
        return source
    options = with_mirror(project.options, source.repo, project.folder)
    try:
        facts = model_facts(source.repo, source.revision, options)
    except BitnetError as error:
        logger.debug("licence of %s is not known: %s", source.repo, error)
        return source
    page = facts.licence_link or source.page
    return replace(source, licence=facts.licence or "", licence_url=page)


def _model(
    source: Source, project: Project, path: Path, origin: Origin, *, cached: bool
) -> Provided:
    entry = _locked("model", origin, source.licence)
    project.pin(replace(entry, path=lockfile.relative(path, project.folder)))
    return Provided(path, origin.sha256, origin.size, origin.commit, cached, source.licence_line)


def _origin(source: Source, commit: str | None, sha256: str, path: Path) -> Origin:
    size = path.stat().st_size
    return Origin(source.repo, source.revision, source.file, commit, sha256, size)


def _locked(kind: lockfile.Kind, origin: Origin, licence: str) -> Locked:
    return Locked(
        kind=kind,
        repo=origin.repo,
        revision=origin.revision,
        file=origin.file,
        commit=origin.commit,
        sha256=origin.sha256,
        size=origin.size,
        licence=licence,
    )


def _fetch(
    source: Source,
    project: Project,
    destination: Path,
    *,
    pinned: Locked | None,
    check: Callable[[Path], None] | None = None,
    replaces: bool = False,
) -> Downloaded:
    """Download the file of *source*, at the pinned commit where there is one."""
    options = with_mirror(project.options, source.repo, project.folder)
    revision = pinned.commit or pinned.revision if pinned is not None else source.revision
    url = file_url(source.repo, revision, source.file, options)
    sha256, force = source.sha256, project.force or replaces
    commit = pinned.commit if pinned is not None else None
    if pinned is None and destination.exists() and not force:
        # What is there stays if it is what the server has; an unknown digest means fetching.
        facts = head(url, options)
        sha256, commit = sha256 or facts.sha256, facts.commit
        force = sha256 is None
    try:
        got = download(
            url,
            destination,
            sha256=sha256,
            size=pinned.size if pinned is not None else source.size,
            options=options,
            progress=project.progress,
            label=source.file,
            check=check,
            force=force,
        )
        return replace(got, commit=got.commit or commit)
    except HashMismatch as error:
        if pinned is None:
            raise
        raise UpstreamChanged(
            f"{source.repo}/{source.file} ({pinned.revision}) is not what {lockfile.NAME} pins "
            f"(sha256 {pinned.sha256}, {pinned.size:,} bytes): {error.message}",
            hint="keep the old file, or accept the new one: bitnet sync --update",
        ) from error
    except NotFound as error:
        if pinned is None or pinned.commit is None:
            raise
        raise NotFound(
            f"{error.message}; {lockfile.NAME} pins commit {pinned.commit}",
            hint="accept what the server has: bitnet sync --update",
        ) from error

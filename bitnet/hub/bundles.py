"""Bundles: collect files that are here for one, and take in the files of one.

Only local files are bundled, and no connection is opened. Their names are included, so that a name
has the same meaning on the other machine.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bitnet import sources
from bitnet.base.errors import BitnetError, InvalidFormat, NotFound, Offline, UsageError
from bitnet.base.files import path_of, write_text
from bitnet.hub.models import list_models, provide, provide_here, remember
from bitnet.hub.orders import FileOrder, tokenizer_command, tokenizer_entry
from bitnet.hub.provision import notices, provide_all
from bitnet.hub.ref import Ref, parse
from bitnet.hub.repository import file_url
from bitnet.sources import Source
from bitnet.store.bundle import Bundle, read_bundle, unpack
from bitnet.store.records import LOCK_FILE, Artifact, lock_text, parse_lock, read_lock, relative

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from bitnet.hub.project import Project
    from bitnet.store.bundle import Report

logger = logging.getLogger(__name__)

_TOKENIZER = re.compile(r"tokenizers/[A-Za-z0-9][A-Za-z0-9_.@-]*/[^/]+")


@dataclass
class Collection:
    """The files of *project* for a bundle, added one by one; *files* has those, by name."""

    project: Project
    files: dict[tuple[str, ...], Artifact] = field(default_factory=dict)
    _models: list[dict[str, Any]] = field(default_factory=list)

    def add_model(self, text: str) -> Path:
        """Add the model *text* with its notices; return its path."""
        model = parse(text)
        if model.path is not None or model.url:
            raise UsageError(
                f"{text!r} is not the name of a model; a bundle holds models by name",
                hint="`bitnet models` lists the names; a file of your own is copied as it is",
            )
        if model.shipped:
            raise UsageError(
                f"{text} is part of this program: every installation has it",
                hint="leave it out of the bundle",
            )
        try:
            files = provide_here(model, self.project)
        except Offline:
            hint = f"fetch it first: {model.command}"
            raise NotFound(f"{text} is not on this machine", hint=hint) from None
        for file in files:
            self._add(file)
        if model.packaged:
            self._add_notices(model.packaged, files[0])
        else:
            self._means(model.repo, model.revision, model.file, [file.file for file in files])
        return provide(model, self.project, fetch=False)

    def add_tokenizer(self, tokenizer: Source) -> None:
        """Add the file of *tokenizer*."""
        store, entry = self.project.store, tokenizer_entry(tokenizer, self.project.cache)
        name = tokenizer.repo, tokenizer.revision, tokenizer.file
        record = store.index.find(*name) or Artifact("tokenizer", *name)
        blob = store.find(record.sha256) if record.sha256 else None
        path = blob.path if blob is not None else entry
        if not path.is_file():
            raise NotFound(
                f"the tokenizer {tokenizer.repo}/{tokenizer.file} is not on this machine",
                hint=f"fetch it first: {tokenizer_command(tokenizer)}",
            )
        self._add(replace(record, place=relative(entry, self.project.cache), path=path))

    def add_cached_tokenizer(self, path: Path) -> None:
        """Add the tokenizer at *path*, if it is one that the cache keeps for models."""
        if path.parent.parent != self.project.cache / "tokenizers":
            return
        place, digest = relative(path, self.project.cache), self.project.store.digest_of(path)
        for record in self.project.store.index:
            if (record.kind, record.place, record.sha256) == ("tokenizer", place, digest):
                self._add(replace(record, path=path))
                return
        logger.warning("%s is not in the bundle: where it is from is not known", path)

    def add_locked(self, entries: Iterable[Artifact]) -> list[Path]:
        """Add the files that a lock file pins; return the project's paths of its models."""
        folders: dict[tuple[str, str], list[str]] = {}
        models: list[Path] = []
        for entry in entries:
            self._add_pinned(entry)
            place = self.project.folder / path_of(entry.place) if entry.place is not None else None
            if place is not None and place.suffix == ".gguf" and place.is_file():
                models.append(place)
            if entry.kind == "model":
                folders.setdefault((entry.repo, entry.revision), []).append(entry.file)
        for (repo, revision), files in folders.items():
            if "config.json" in files and any(file.endswith(".safetensors") for file in files):
                self._means(repo, revision, "", files)
        return models

    def contents(self, attestations: dict[str, str]) -> Bundle:
        """All files added, and their entries in the lock file."""
        digests = {file.sha256 for file in self.files.values()}
        pinned = [entry for entry in self.project.pins() if entry.sha256 in digests]
        lock = lock_text(pinned) if pinned else None
        return Bundle(tuple(self.files.values()), tuple(self._models), lock, attestations)

    def _add_pinned(self, entry: Artifact) -> None:
        store = self.project.store
        target = self.project.folder / path_of(entry.place) if entry.place is not None else None
        blob = store.find_anywhere(entry.sha256, entry.size, target)
        if blob is None:
            raise NotFound(
                f"{entry.repo}/{entry.file}, which {LOCK_FILE} pins, is not on this machine",
                hint="fetch it first: bitnet sync",
            )
        place = None
        if entry.kind == "tokenizer":
            record = store.index.find(*entry.index_name)
            keys = (s.cache_key for s in sources.TOKENIZERS.values() if s.repo == entry.repo)
            usual = f"tokenizers/{next(keys, '')}/{path_of(entry.file).name}"
            place = record.place if record is not None and record.place is not None else usual
        self._add(replace(entry, path=blob.path, place=place))
        if entry.kind == "package" and entry.repo in sources.PACKAGED:
            self._add_notices(entry.repo, replace(entry, place=None))

    def _add_notices(self, name: str, model: Artifact) -> None:
        for file, blob in notices(sources.PACKAGED[name], self.project.store).items():
            self._add(replace(model, file=file, path=blob.path))

    def _means(self, repo: str, revision: str, asked: str, files: list[str]) -> None:
        """Record the *files* that a model name means."""
        meaning = {"repo": repo, "revision": revision, "asked": asked, "files": sorted(files)}
        if meaning not in self._models:
            self._models.append(meaning)

    def _add(self, file: Artifact) -> None:
        """Add *file* with the digest of the content at its path, and the commit that is known."""
        sha256, size = self.project.store.digest_of(file.path), file.path.stat().st_size
        record = self.project.store.index.find(*file.index_name)
        commit = record.commit if record is not None and record.sha256 == sha256 else file.commit
        place = file.place if file.kind == "tokenizer" else None
        file = replace(file, commit=commit, sha256=sha256, size=size, place=place, licence="")
        self.files[file.index_name] = file


def import_bundle(
    path: Path,
    project: Project,
    *,
    check: Callable[[str, str], object],
    into: Path | None,
    report: Report,
) -> tuple[Bundle, set[str], dict[str, Path]]:
    """Put the files of the bundle at *path* into the store and record their names.

    The names come last: until then nothing of the bundle is visible. With ``force`` of *project*,
    names that mean another file on this machine are replaced. *check* reads the text of an
    attestation, given a name for messages, or raises. *into* is the folder of a project that
    receives the lock file; it must not have a different one. Returns the bundle, the digests that
    are new to the store, and the paths of the models that are now available, by name.
    """
    bundle = read_bundle(path)
    models = _check_names(bundle)
    for digest, text in bundle.attestations.items():
        check(text, f"{path}: attestation of {digest}")
    lock = _lock_for(into, bundle, force=project.force) if into is not None else None
    fresh: list[str] = []
    files = [file for file in bundle.files if not _is_other(file, project)]
    provide_all(
        [_order(file, project) for file in files],
        replace(project, records=False, force=False),
        root=project.cache,
        obtain=lambda: fresh.extend(unpack(bundle, project.store, report=report)),
    )
    for file in files:
        project.store.index.write(file, *file.index_name)
    for model, names in models:
        remember(model, project, names)
    if into is not None and lock is not None:
        write_text(into / LOCK_FILE, lock)
    return bundle, set(fresh), _usable(bundle, project)


def _usable(bundle: Bundle, project: Project) -> dict[str, Path]:
    """Paths of the models of *bundle* that can be used by name."""
    paths = {}
    for row in list_models(project.store):
        if row.path is None or row.path.name not in bundle.blobs:
            continue
        with suppress(NotFound, Offline):  # only a part of a model, such as one file of a folder
            paths[row.name] = provide(parse(row.name), project, fetch=False)
    return paths


def _check_names(bundle: Bundle) -> list[tuple[Ref, list[str]]]:
    """Model names of *bundle* and their files; every name is checked, as paths are made of it."""
    models = []
    try:
        for file in bundle.files:
            if file.kind == "version":
                raise InvalidFormat(f"not a kind of file: {file.kind!r}")
            if file.kind != "package":
                file_url(file.repo, file.revision, file.file)
            if file.kind == "tokenizer" and not _TOKENIZER.fullmatch(file.place or ""):
                raise InvalidFormat(f"not a place of a tokenizer: {file.place!r}")
        for meaning in bundle.models:
            repo, revision, files = meaning["repo"], meaning["revision"], meaning["files"]
            for name in files:
                file_url(repo, revision, name)
            models.append((Ref("", repo=repo, revision=revision, file=meaning["asked"]), files))
    except BitnetError as error:
        raise InvalidFormat(f"{bundle.path}: its list is damaged: {error.message}") from error
    return models


def _lock_for(into: Path, bundle: Bundle, *, force: bool) -> str:
    """Text of the lock file for *into*."""
    if bundle.lock is None:
        raise UsageError(
            f"{bundle.path} has no lock file that says where its files belong",
            hint="leave --project out: the models can be used by name",
        )
    pinned = parse_lock(bundle.lock.encode(), bundle.path)
    there = read_lock(into / LOCK_FILE)
    if there and not force and {*there} != {*pinned}:
        raise UsageError(
            f"{into / LOCK_FILE} pins other files than {bundle.path}; it stays",
            hint="choose another folder with --project, or replace it with --force",
        )
    return lock_text(pinned)


def _is_other(file: Artifact, project: Project) -> bool:
    """True if the name of *file* means another file on this machine, which stays; says so."""
    store, name = project.store, file.index_name
    record = store.index.find(*name)
    if record is None or record.sha256 == file.sha256 or project.force:
        return False
    if store.find(record.sha256) is None:
        return False
    logger.warning("%s %s %s is another file on this machine, and stays it without --force", *name)
    return True


def _order(file: Artifact, project: Project) -> FileOrder:
    """The order for *file*: the cache's entry of a tokenizer, else only the store."""
    source = Source(file.repo, file.repo, file.file, file.revision, file.sha256, file.size)
    entry = project.cache / path_of(file.place) if file.place is not None else None
    if entry is not None and entry.exists() and not project.force:
        entry = None
    return FileOrder(source, file.kind, place=file.place, entry=entry)

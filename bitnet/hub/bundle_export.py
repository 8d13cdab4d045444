"""Content of a bundle: models and tokenizers by name, or the files that a lock file pins.

Only local files are bundled; no connection is opened. Their names are included, so that a name has
the same meaning on the other machine.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bitnet import sources
from bitnet.errors import NotFound, Offline, UsageError
from bitnet.files import path_of
from bitnet.hub import lockfile, named
from bitnet.hub.package_index import PACKAGED
from bitnet.hub.ref import parse
from bitnet.hub.wheels import notices
from bitnet.store import Blob, Name, model_key
from bitnet.store.bundle import Contents

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bitnet.hub.lockfile import Locked
    from bitnet.hub.named import Fits
    from bitnet.hub.project import Project

__all__ = ["Chosen"]

logger = logging.getLogger(__name__)


@dataclass
class Chosen:
    """The files for a bundle, added one by one.

    Attributes:
        project: the working folder and the cache; offline.
        paths: one path of each file, by digest.
    """

    project: Project
    paths: dict[str, Path] = field(default_factory=dict)
    _names: dict[tuple[str, str, str], Name] = field(default_factory=dict)
    _models: list[dict[str, Any]] = field(default_factory=list)

    def add_model(self, text: str, fits: Fits) -> Path:
        """Add the model *text* with its notices; return its path.

        Raises:
            NotFound: it is not on this machine.
            UsageError: *text* is a path, or matches several models.
        """
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
            path = named.provide(model, self.project, fetch=False, announce=logger.info, fits=fits)
        except Offline:
            raise NotFound(
                f"{text} is not on this machine", hint=f"fetch it first: {model.command}"
            ) from None
        if model.packaged:
            self._add_packaged(model.packaged)
            return path
        files = named.files_here(model, self.project, fits)
        for file in files:
            place = model.folder(self.project.cache) / path_of(file)
            identity = model.repo, model.revision, file
            self._add(Name(*identity, None, "", 0, "model", model_key(*identity)), place)
        self._means(model.repo, model.revision, model.file, files)
        return path

    def add_tokenizer(self, repo: str, file: str, key: str, revision: str = "main") -> None:
        """Add the tokenizer *file* of *repo*, which the cache keeps under *key*.

        Raises:
            NotFound: it is not on this machine.
        """
        store = self.project.store
        known = store.names.find(repo, revision, file)
        blob = store.find(known.sha256) if known is not None else None
        place = self.project.cache / "tokenizers" / key / path_of(file).name
        if blob is None and not place.is_file():
            source = next((n for n, s in sources.TOKENIZERS.items() if s.repo == repo), "mirror")
            raise NotFound(
                f"the tokenizer {repo}/{file} is not on this machine",
                hint=f"fetch it first: bitnet tokenizer --source {source}",
            )
        name = Name(repo, revision, file, None, "", 0, "tokenizer", key)
        self._add(name, blob.path if blob is not None else place)

    def add_cached_tokenizer(self, path: Path) -> None:
        """Add the tokenizer at *path*, if it is one that the cache keeps for models."""
        if path.parent.parent != self.project.cache / "tokenizers":
            return
        key, digest = path.parent.name, self.project.store.digest_of(path)
        for name in self.project.store.names.of(digest):
            if name.kind == "tokenizer" and name.key == key:
                self.add_tokenizer(name.repo, name.file, key, name.revision)
                return
        logger.warning("%s is not in the bundle: where it is from is not known", path)

    def add_locked(self, entries: Iterable[Locked]) -> list[Path]:
        """Add the files that a lock file pins; return the project's paths of its models.

        Raises:
            NotFound: one of them is not on this machine.
        """
        folders: dict[tuple[str, str], list[str]] = {}
        models: list[Path] = []
        for entry in entries:
            self._add_pinned(entry)
            place = self.project.folder / path_of(entry.path) if entry.path is not None else None
            if place is not None and place.suffix == ".gguf" and place.is_file():
                models.append(place)
            if entry.kind == "model":
                folders.setdefault((entry.repo, entry.revision), []).append(entry.file)
        for (repo, revision), files in folders.items():
            if "config.json" in files and any(file.endswith(".safetensors") for file in files):
                self._means(repo, revision, "", files)
        return models

    def contents(self, attestations: dict[str, bytes]) -> Contents:
        """All files added, and their entries in the lock file."""
        blobs = {
            sha256: Blob(path, sha256, path.stat().st_size) for sha256, path in self.paths.items()
        }
        entries = lockfile.read(self.project.lock_path)
        pinned = [entry for entry in entries if entry.sha256 in blobs]
        lock = lockfile.text_of_entries(pinned).encode() if pinned else None
        return Contents(blobs, tuple(self._names.values()), tuple(self._models), lock, attestations)

    def _add_pinned(self, entry: Locked) -> None:
        if entry.kind == "package" and entry.repo in PACKAGED:
            self._add_packaged(entry.repo)
            return
        store = self.project.store
        blob = store.find(entry.sha256)
        place = self.project.folder / path_of(entry.path) if entry.path is not None else None
        if blob is not None:
            place = blob.path
        if place is None or not store.is_intact(place, entry.sha256, entry.size):
            raise NotFound(
                f"{entry.repo}/{entry.file}, which {lockfile.NAME} pins, is not on this machine",
                hint="fetch it first: bitnet sync",
            )
        known = store.names.find(entry.repo, entry.revision, entry.file)
        key = known.key if known is not None else _key_of(entry)
        identity = entry.repo, entry.revision, entry.file
        self._add(Name(*identity, entry.commit, "", 0, entry.kind, key), place)

    def _add_packaged(self, id: str) -> None:
        model, store = PACKAGED[id], self.project.store
        here = self.project.folder / "models" / model.id / model.file
        blob = store.find(model.sha256) or store.find_elsewhere(model.sha256, here)
        if blob is None:
            raise NotFound(
                f"{model.id} is not on this machine",
                hint=f"fetch it first: bitnet download-model {model.id}",
            )
        for file, found in {model.file: blob, **notices(model, store)}.items():
            identity = model.id, model.version, file
            key = f"package--{'/'.join(identity)}"
            self._add(Name(*identity, None, "", 0, "package", key), found.path)

    def _means(self, repo: str, revision: str, asked: str, files: list[str]) -> None:
        """Record the *files* that a model name means."""
        one = {"repo": repo, "revision": revision, "asked": asked, "files": sorted(files)}
        if one not in self._models:
            self._models.append(one)

    def _add(self, name: Name, path: Path) -> None:
        """Add the file at *path* as *name*, with its commit if the store knows it."""
        sha256 = self.project.store.digest_of(path)
        identity = name.repo, name.revision, name.file
        known = self.project.store.names.find(*identity)
        commit = known.commit if known is not None and known.sha256 == sha256 else name.commit
        size = path.stat().st_size
        self.paths.setdefault(sha256, path)
        self._names[identity] = replace(name, commit=commit, sha256=sha256, size=size)


def _key_of(entry: Locked) -> str:
    if entry.kind == "tokenizer":
        known = (s for s in sources.TOKENIZERS.values() if s.repo == entry.repo)
        return next((source.cache_key for source in known), "")
    return model_key(entry.repo, entry.revision, entry.file)

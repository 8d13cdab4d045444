"""Models by name: list those that can be run, compare fetched ones with the hub, remove one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet import sources
from bitnet.base import locks
from bitnet.base.errors import NotFound, UsageError, from_os_error
from bitnet.base.files import git_oid
from bitnet.base.findings import Finding
from bitnet.base.invocation import word
from bitnet.base.progress import human_size
from bitnet.hub.ref import names
from bitnet.hub.repository import file_url, head
from bitnet.hub.session import HubSession
from bitnet.shipped import SHIPPED
from bitnet.store import Artifact, Store, links

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bitnet.hub.project import Project
    from bitnet.hub.ref import Ref


@dataclass(frozen=True)
class KnownModel:
    """A model and its metadata, known without reading it."""

    name: str  # MODEL argument of commands
    file: str  # file name of its weights
    size_bytes: int | None  # of all files, ``None`` if unknown
    family: str  # architecture, empty if unknown
    licence: str  # name of the terms, empty if unknown
    path: Path | None  # its weights in the store (the first file), ``None`` if they are not here


def list_models(store: Store) -> list[KnownModel]:
    """This package's models, the registry's in its order, then other fetched ones by name."""
    fetched: dict[str, list[Artifact]] = {}
    for name in store.index:
        is_weights = name.file.endswith((".gguf", ".safetensors"))
        if name.kind == "model" and is_weights and store.path_of(name.sha256).is_file():
            fetched.setdefault(_model_argument(name), []).append(name)
    found = [_registry_model(name, store) for name in names()]
    registered = {_hub_name(source) for source in sources.MODELS.values()}
    return found + [
        _model_in_store(called, parts, store)
        for called, parts in sorted(fetched.items())
        if called not in registered
    ]


def _registry_model(name: str, store: Store) -> KnownModel:
    own = SHIPPED.get(name)
    if own is not None:
        return KnownModel(name, own.file, own.size, own.family, own.licence, own.path)
    source = sources.PACKAGED.get(name) or sources.MODELS[name]
    known = store.index.find(*source.index_name)
    digest, size = (known.sha256, known.size) if known else (source.sha256, source.size)
    path = store.path_of(digest) if digest else None
    here = path if path is not None and path.is_file() else None
    return KnownModel(name, source.file, size, source.family, source.licence, here)


def _model_in_store(called: str, parts: list[Artifact], store: Store) -> KnownModel:
    first = min(parts, key=lambda name: name.file)
    size = sum(name.size for name in parts)
    return KnownModel(called, first.file, size, "", "", store.path_of(first.sha256))


def _model_argument(name: Artifact) -> str:
    """MODEL argument for *name*; a folder with safetensors is one model."""
    if "://" in name.repo:
        return name.repo
    revision = "" if name.revision == "main" else f"@{name.revision}"
    file = f":{name.file}" if name.file.endswith(".gguf") else ""
    return f"hf:{name.repo}{revision}{file}"


def _hub_name(source: sources.Source) -> str:
    return f"hf:{source.repo}:{source.file}"


def compare_with_hub(ref: Ref, project: Project) -> Iterator[Finding]:
    """A finding for each file of the repository *ref* in the cache, which is read whole."""
    if not ref.repo:
        owner = sources.PACKAGED.get(ref.packaged)
        why = f"; it is pinned to SHA-256 {owner.sha256}" if owner is not None else ""
        raise UsageError(
            f"{ref.text!r} is not a repository on the hub{why}",
            hint="`bitnet cache verify` without a name checks every file by its recorded digest",
        )
    artifacts = [
        artifact
        for artifact in project.store.index
        if (artifact.repo, artifact.revision) == (ref.repo, ref.revision)
        and artifact.kind in ("model", "tokenizer")
        and ref.file in ("", artifact.file)
    ]
    if not artifacts:
        raise NotFound(
            f"the cache has no file of {ref.repo} at {ref.revision}",
            hint="`bitnet cache list` lists what is there",
        )
    options = project.options_for(ref.repo)
    with HubSession(options, limits=project.limits) as session:
        for artifact in sorted(artifacts, key=lambda entry: entry.file):
            yield _compare(artifact, project, session)


def _compare(artifact: Artifact, project: Project, session: HubSession) -> Finding:
    again = f"bitnet download-model {artifact.repo} --file {word(artifact.file)} --force"
    path = project.store.path_of(artifact.sha256)
    if not path.is_file():
        return Finding("failed", artifact.file, "it is not in the cache any more", again)
    revision = artifact.commit or artifact.revision
    url = file_url(artifact.repo, revision, artifact.file, session.options)
    try:
        facts = head(url, session=session)
    except NotFound as error:
        return Finding.of(artifact.file, error)
    digest = project.store.digest_of(path)
    if facts.sha256 is not None and facts.sha256 != digest:
        text = f"SHA-256 {digest}, the hub has {facts.sha256} at {revision}"
    elif facts.sha256 is None and facts.git_oid is None:
        text = f"the hub names no digest of it at {revision}"
        return Finding("skipped", artifact.file, text, "compare it with another server: --base-url")
    elif facts.git_oid is not None and facts.git_oid != git_oid(path):
        text = f"git object {git_oid(path)}, the hub has {facts.git_oid} at {revision}"
    elif digest != artifact.sha256:
        text = f"SHA-256 {digest}, fetched was {artifact.sha256}"
    else:
        return Finding("ok", artifact.file, f"SHA-256 {digest} is the hub's at {revision}")
    return Finding("failed", artifact.file, text, again)


@dataclass(frozen=True)
class ModelRemoval:
    """Files of one model, and the holders of each besides the cache."""

    store: Store  # the cache's store
    folder: Path  # links to the files, in the cache
    blobs: tuple[Artifact, ...]  # the files
    identities: tuple[tuple[str, ...], ...]  # their names in the store's index
    # paths of projects, by digest; other names on the disk count as ``N links``
    holders: dict[str, list[str]]

    @property
    def size_bytes(self) -> int:
        """Bytes that are freed."""
        return sum(blob.size for blob in self.blobs if not self.holders[blob.sha256])

    def apply(self) -> None:
        """Remove the files, their links in the cache, and their names."""
        try:
            with locks.hold(self.store.in_use, timeout_s=0, what="the cache"):
                digests = {blob.sha256 for blob in self.blobs}
                for path in sorted(self.folder.rglob("*"), reverse=True):
                    if path.is_dir():
                        with suppress(OSError):
                            path.rmdir()  # unless it is not empty
                    elif path.name == ".files.json" or self.store.digest_of(path) in digests:
                        links.remove(path)
                with suppress(OSError):
                    self.folder.rmdir()
                for identity in self.identities:
                    self.store.index.forget(*identity)
                for blob in self.blobs:
                    if not self.store.index.of(blob.sha256):
                        self.store.drop(blob)
                self.store.verified.sweep()
        except OSError as error:
            raise from_os_error(error, error.filename or self.folder, in_cache=True) from error

    def facts(self) -> dict[str, Any]:
        """The removal as JSON values."""
        files = [
            {"path": str(b.path), "size_bytes": b.size, "held_by": self.holders[b.sha256]}
            for b in self.blobs
        ]
        return {"size_bytes": self.size_bytes, "files": files}

    def lines(self, verb: str) -> list[str]:
        """The removal as text; *verb* is ``would remove`` or ``removed``."""
        held = [
            f"still on the disk: {', '.join(self.holders[blob.sha256])}"
            for blob in self.blobs
            if self.holders[blob.sha256]
        ]
        files = [f"{verb} {blob.path} ({human_size(blob.size)})" for blob in self.blobs]
        return [*files, *held, f"{verb} {len(files)} files, {human_size(self.size_bytes)} freed"]


def removal_of(ref: Ref, project: Project) -> ModelRemoval:
    """Plan to remove the model *ref* from the cache."""
    if ref.path is not None or ref.shipped:
        raise UsageError(
            f"{ref.text} is not a model in the cache",
            hint="`bitnet models` lists the names; a file of your own is removed as any other",
        )
    store = project.store
    owner = ref.packaged or ref.repo
    names = [
        name
        for name in store.index
        if name.repo == owner
        and (ref.packaged or name.revision == ref.revision)
        and ref.file in ("", name.file)
    ]
    blobs = {name.sha256: blob for name in names if (blob := store.find(name.sha256)) is not None}
    if not blobs:
        raise NotFound(f"{ref.text} is not in the cache", hint="`bitnet models` lists what is here")
    users, folder = store.users(), ref.folder(project.cache)
    holders = {}
    for sha256, blob in blobs.items():
        others = blob.path.stat().st_nlink - 1 - len(users.get(sha256, ()))
        ours = sum(path.samefile(blob.path) for path in folder.rglob("*") if path.is_file())
        more = max(0, others - ours)
        holders[sha256] = users.get(sha256, []) + ([f"{more} links"] if more else [])
    identities = tuple((name.repo, name.revision, name.file) for name in names)
    return ModelRemoval(store, folder, tuple(blobs.values()), identities, holders)

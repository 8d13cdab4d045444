"""Models by name: list those that can be run, compare fetched ones with the hub, remove one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet import sources
from bitnet.base import locks
from bitnet.base.errors import NotFound, UsageError, from_os_error
from bitnet.base.files import git_oid
from bitnet.base.findings import Finding
from bitnet.base.invocation import word
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
    rows = [
        KnownModel(name, own.file, own.size, own.family, own.licence, own.path)
        for name, own in SHIPPED.items()
    ]
    for name in names()[len(rows) :]:
        source = sources.PACKAGED.get(name) or sources.MODELS[name]
        known = store.index.find(*source.index_name)
        digest, size = (known.sha256, known.size) if known else (source.sha256, source.size)
        path = store.path_of(digest) if digest else None
        here = path if path is not None and path.is_file() else None
        rows.append(KnownModel(name, source.file, size, source.family, source.licence, here))
    fetched: dict[str, list[Artifact]] = {}
    for artifact in store.index:
        file = artifact.file
        is_model = artifact.kind == "model" and file.endswith((".gguf", ".safetensors"))
        if is_model and store.path_of(artifact.sha256).is_file():
            # A folder with safetensors is one model.
            part = f":{file}" if file.endswith(".gguf") and "://" not in artifact.repo else ""
            fetched.setdefault(f"{artifact.repository}{part}", []).append(artifact)
    for source in sources.MODELS.values():
        fetched.pop(f"hf:{source.repo}:{source.file}", None)
    for name, parts in sorted(fetched.items()):
        first = min(parts, key=lambda part: part.file)
        size, path = sum(part.size for part in parts), store.path_of(first.sha256)
        rows.append(KnownModel(name, first.file, size, "", "", path))
    return rows


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
        facts = head(url, session)
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


def remove_model(ref: Ref, project: Project, *, dry_run: bool) -> list[tuple[Artifact, list[str]]]:
    """Files of the model *ref* in the cache, now removed, and what else holds each on the disk.

    Holders are paths of projects, and ``N links`` for other names. *dry_run* removes nothing.
    """
    if ref.path is not None or ref.shipped:
        raise UsageError(
            f"{ref.text} is not a model in the cache",
            hint="`bitnet models` lists the names; a file of your own is removed as any other",
        )
    store, folder = project.store, ref.folder(project.cache)
    artifacts = [
        artifact
        for artifact in store.index
        if artifact.repo == (ref.packaged or ref.repo)
        and (ref.packaged or artifact.revision == ref.revision)
        and ref.file in ("", artifact.file)
    ]
    found = {artifact.sha256: store.find(artifact.sha256) for artifact in artifacts}
    blobs = [blob for blob in found.values() if blob is not None]
    if not blobs:
        raise NotFound(f"{ref.text} is not in the cache", hint="`bitnet models` lists what is here")
    held, users = [], store.users()
    for blob in blobs:
        paths = users.get(blob.sha256, [])
        ours = sum(path.samefile(blob.path) for path in folder.rglob("*") if path.is_file())
        more = blob.path.stat().st_nlink - 1 - len(paths) - ours
        held.append((blob, paths + ([f"{more} links"] if more > 0 else [])))
    if not dry_run:
        try:
            with locks.hold(store.in_use, timeout_s=0, what="the cache"):
                _remove(folder, artifacts, blobs, store)
        except OSError as error:
            raise from_os_error(error, error.filename or folder, in_cache=True) from error
    return held


def _remove(folder: Path, artifacts: list[Artifact], blobs: list[Artifact], store: Store) -> None:
    """Remove *blobs*, their links in *folder*, and the names in *artifacts*."""
    digests = {blob.sha256 for blob in blobs}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            with suppress(OSError):
                path.rmdir()  # unless it is not empty
        elif path.name == ".files.json" or store.digest_of(path) in digests:
            links.remove(path)
    with suppress(OSError):
        folder.rmdir()
    for artifact in artifacts:
        store.index.forget(*artifact.index_name)
    for blob in blobs:
        if not store.index.of(blob.sha256):
            store.drop(blob)
    store.verified.sweep()

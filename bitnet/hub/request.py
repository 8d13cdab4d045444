"""Resolve the options of ``download-model`` to files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet import sources
from bitnet.errors import NotFound, Offline, UsageError
from bitnet.files import path_of
from bitnet.hub import lockfile
from bitnet.hub.candidates import candidates, choose, is_pattern, models_in, selected
from bitnet.hub.mirrors import with_mirror
from bitnet.hub.options import FileSelection
from bitnet.hub.orders import model_path
from bitnet.hub.package_index import PACKAGED
from bitnet.hub.provision import provide_models, provide_packaged
from bitnet.hub.ref import parse
from bitnet.hub.repository import list_files, some_of
from bitnet.shipped import SHIPPED
from bitnet.sources import Source
from bitnet.trust import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.hub.candidates import RepoModel
    from bitnet.hub.project import Project, Provided

    Pick = Callable[[str, list[RepoModel]], RepoModel | None]

__all__ = ["ModelRequest", "provide", "resolve"]

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class ModelRequest:
    """Options of ``download-model`` that select files.

    Attributes:
        id: repository, registered name, or packaged model.
        file: path in the repository, pattern, or empty.
        revision: branch, tag or commit.
        sha256: digest the file must have, or empty.
        out: folder for the files.
        select: selected files, instead of a model.
    """

    id: str
    file: str = ""
    revision: str = "main"
    sha256: str = ""
    out: Path | None = None
    select: FileSelection = field(default_factory=FileSelection)

    def parsed(self) -> ModelRequest:
        """The request with repository, revision and file of what *id* may spell in one word."""
        if REPOSITORY.fullmatch(self.id):
            return self
        ref = parse(self.id)
        if not ref.repo or self.id in sources.MODELS:
            return self
        revision = self.revision if self.revision != "main" else ref.revision
        return replace(self, id=ref.repo, file=self.file or ref.file, revision=revision)


def provide(
    request: ModelRequest,
    project: Project,
    *,
    fits: Callable[[int], bool | None],
    pick: Pick = lambda _repo, _found: None,
) -> list[Provided]:
    """Provide the files of *request*.

    Raises:
        UsageError: the request matches several models, or is contradictory.
        BitnetError: as :func:`~bitnet.hub.provision.provide_models`.
    """
    request = request.parsed()
    if request.sha256 and not _SHA256.fullmatch(request.sha256):
        raise UsageError(f"--sha256 expects 64 hexadecimal digits, got {request.sha256!r}")
    if request.select and (request.file or request.id in PACKAGED):
        raise UsageError(
            "--include and --exclude choose files of a repository, without --file",
            hint="leave --file out, or leave --include and --exclude out",
        )
    packaged = PACKAGED.get(request.id)
    if packaged is not None:
        _refuse_other(request, packaged.file, packaged.version, packaged.sha256)
        target = request.out / packaged.file if request.out else None
        return [provide_packaged(packaged, project, target=target)]
    sources = resolve(request, project, fits=fits, pick=pick)
    if request.sha256 and len(sources) > 1:
        raise UsageError(f"--sha256 is of one file, {request.file!r} means {len(sources)}")
    digest = request.sha256.lower() or None
    # Parts of one model go side by side; other files keep their folders.
    is_split = all(source.file.endswith(".gguf") for source in sources) and not request.select
    flat = is_split or len(sources) == 1
    return provide_models(
        [
            (
                replace(source, sha256=digest or source.sha256),
                request.out / _below(source.file, flat=flat) if request.out else None,
            )
            for source in sources
        ],
        project,
        root=request.out,
    )


def _below(file: str, *, flat: bool) -> Path:
    """Path of *file* in the folder of --output."""
    return Path(path_of(file).name) if flat else path_of(file)


def resolve(
    request: ModelRequest,
    project: Project,
    *,
    fits: Callable[[int], bool | None],
    pick: Pick = lambda _repo, _found: None,
) -> list[Source]:
    """Files on the hub that *request* means: one, or all parts of a split model.

    A plain file name is used unchanged; a pattern needs the hub's list of files.

    Raises:
        UsageError: several models match; lists them.
        NotFound: no file matches.
        Offline: the list is needed and the network is switched off.
    """
    request = request.parsed()
    if request.id in SHIPPED:
        raise UsageError(
            f"{request.id} is part of this program and needs no download",
            hint=f"bitnet inspect-gguf {request.id}",
        )
    known = sources.model_source(request.id)
    repo = known.repo if known else request.id
    if "/" not in repo:
        names = ", ".join([*PACKAGED, *sources.MODELS])
        raise UsageError(
            f"--id expects ORG/REPO or a known name, got {request.id!r}",
            hint=f"known names: {names}",
        )
    file = request.file or (known.file if known and not request.select else "")
    base = known or Source(repo, repo)
    if not is_pattern(file):
        return [replace(base, file=file, revision=request.revision)]
    options = with_mirror(project.options, repo, project.folder)
    if options.is_offline:
        raise Offline(
            f"offline: the list of files of {repo} is needed to find {file or '*.gguf'!r}",
            hint=_known_files(project, repo) or "name the file: --file FILE",
        )
    files = list_files(repo, request.revision, options)
    if request.select:
        paths = selected(files, request.select.include, request.select.exclude)
    else:
        found = candidates(files, file) if file else models_in(files, "")
        chosen = pick(repo, found) if len(found) > 1 else None
        paths = list((chosen or choose(repo, found, file, fits=fits, files=files)).files)
    if not paths:
        raise NotFound(
            f"no file of {repo} is left by --include and --exclude",
            hint=f"it has {some_of(entry.path for entry in files)}",
        )
    sizes = {file.path: file.size for file in files}
    return [replace(base, file=path, revision=request.revision, size=sizes[path]) for path in paths]


def _known_files(project: Project, repo: str) -> str:
    """Local files of *repo*, as a hint."""
    pinned = [entry for entry in lockfile.read(project.lock_path) if entry.repo == repo]
    here = [entry.file for entry in pinned if model_path(project, repo, entry.file).exists()]
    return f"already here: {', '.join(f'--file {file}' for file in here)}" if here else ""


def _refuse_other(request: ModelRequest, file: str, version: str, sha256: str) -> None:
    if request.file not in ("", file):
        raise UsageError(f"{request.id} has one file, {file}, not {request.file!r}")
    if request.revision not in ("", "main", version):
        raise UsageError(
            f"{request.id} is pinned to version {version}, --rev is {request.revision!r}",
            hint="leave --rev out: packaged models are pinned already",
        )
    if request.sha256 and request.sha256.lower() != sha256:
        raise UsageError(
            f"--sha256 is {request.sha256}, {request.id} is pinned to {sha256}",
            hint="leave --sha256 out: packaged models are pinned already",
        )

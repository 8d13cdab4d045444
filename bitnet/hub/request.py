"""What ``download-model`` is asked for, resolved to files."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bitnet import sources
from bitnet.errors import Offline, UsageError
from bitnet.files import path_of
from bitnet.hub import lockfile
from bitnet.hub.candidates import candidates, choose, is_pattern
from bitnet.hub.mirrors import with_mirror
from bitnet.hub.package_index import PACKAGED
from bitnet.hub.packaged import provide_packaged
from bitnet.hub.provision import model_path, provide_model
from bitnet.hub.repository import list_files
from bitnet.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bitnet.hub.project import Project, Provided

__all__ = ["ModelRequest", "provide", "resolve"]

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class ModelRequest:
    """The options of ``download-model`` that say what.

    Attributes:
        id: repository, registered name, or packaged model.
        file: path in the repository, pattern, or empty.
        revision: branch, tag or commit.
        sha256: digest the file must have, or empty.
        out: folder for the file.
    """

    id: str
    file: str = ""
    revision: str = "main"
    sha256: str = ""
    out: Path | None = None


def provide(
    request: ModelRequest, project: Project, *, fits: Callable[[int], bool | None]
) -> list[Provided]:
    """The files of *request* in their places.

    Raises:
        UsageError: the request fits several models, or does not make sense.
        BitnetError: as :func:`~bitnet.hub.provision.provide_model`.
    """
    if request.sha256 and not _SHA256.fullmatch(request.sha256):
        raise UsageError(f"--sha256 expects 64 hexadecimal digits, got {request.sha256!r}")
    packaged = PACKAGED.get(request.id)
    if packaged is not None:
        _refuse_other(request, packaged.file, packaged.version, packaged.sha256)
        target = request.out / packaged.file if request.out else None
        return [provide_packaged(packaged, project, target=target)]
    wanted = resolve(request, project, fits=fits)
    if request.sha256 and len(wanted) > 1:
        raise UsageError(f"--sha256 is of one file, {request.file!r} means {len(wanted)}")
    digest = request.sha256.lower() or None
    return [
        provide_model(
            replace(source, sha256=digest or source.sha256),
            project,
            target=request.out / path_of(source.file).name if request.out else None,
        )
        for source in wanted
    ]


def resolve(
    request: ModelRequest, project: Project, *, fits: Callable[[int], bool | None]
) -> list[Source]:
    """The files on the hub that *request* means: one, or all parts of a split model.

    A plain file name is taken as it is; a pattern needs the list of files from the hub.

    Raises:
        UsageError: several models fit; lists them.
        NotFound: no file fits.
        Offline: the list is needed and the network is switched off.
    """
    known = sources.model_source(request.id)
    repo = known.repo if known else request.id
    if "/" not in repo:
        names = ", ".join([*PACKAGED, *sources.MODELS])
        raise UsageError(
            f"--id expects ORG/REPO or a known name, got {request.id!r}",
            hint=f"known names: {names}",
        )
    file = request.file or (known.file if known else "")
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
    chosen = choose(repo, candidates(files, file), file, fits=fits, files=files)
    return [replace(base, file=path, revision=request.revision) for path in chosen.files]


def _known_files(project: Project, repo: str) -> str:
    """What is already here of *repo*, as a hint."""
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

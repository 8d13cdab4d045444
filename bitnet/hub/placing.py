"""Put files into their places: one, or a whole folder at once.

A missing folder is created next to its place and renamed, so that it appears complete or not at
all. In an existing one, the file that makes it a model is removed first and added last.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from bitnet.errors import UsageError, from_os_error
from bitnet.store import Blob, links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.hub.download import Fetched
    from bitnet.hub.project import Project

__all__ = ["common_folder", "place_all"]

_ABANDONED_S = 900.0  # age at which an unfinished folder counts as abandoned


def common_folder(paths: Sequence[Path]) -> Path:
    """Folder that contains all of *paths*, or its parent if it does not exist yet."""
    folder = _folder_of(paths)
    return folder if folder.is_dir() else folder.parent


def place_all(items: Sequence[tuple[Fetched, Path, bool]], project: Project) -> list[Fetched]:
    """Put each file into its place: all of them, or none.

    Args:
        items: the file, its place, and true if a file there may be replaced.
        project: where the store is.

    Raises:
        UsageError: another file is in one of the places, which this program did not put there.
        NoSpace: there is not enough room for a copy.
        PermissionDenied: a folder is not writable.
    """
    store = project.store
    todo: list[tuple[Blob, Path]] = []
    for got, target, ours in items:
        blob = Blob(got.path, got.sha256, got.size)
        if got.path == target or store.is_intact(target, blob.sha256, blob.size):
            continue
        may_replace = ours or project.force or project.update or store.is_ours(target)
        if not may_replace and target.exists():
            raise UsageError(
                f"{target} is another file than the one asked for, and was not put there by this "
                "program; it stays",
                hint="move it away, replace it with --force, or choose another folder",
            )
        todo.append((blob, target))
    folder = _folder_of([target for _, target in todo]) if len(todo) > 1 else None
    if folder is not None and not folder.exists() and not folder.is_symlink():
        _place_folder(todo, folder, project)
    else:
        _place_into(todo, project)
    return [replace(got, path=target) for got, target, _ in items]


def _place_folder(todo: list[tuple[Blob, Path]], folder: Path, project: Project) -> None:
    """Create *folder* with all of its files."""
    begun = f".{folder.name}.partial-"
    fresh = folder.with_name(f"{begun}{os.getpid()}-{token_hex(4)}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in folder.parent.iterdir():
            if left.name.startswith(begun) and time.time() - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left, ignore_errors=True)
        try:
            for blob, target in todo:
                project.store.place(blob, fresh / target.absolute().relative_to(folder))
            fresh.rename(folder)
        finally:
            for _, target in todo:
                project.store.verified.forget(fresh / target.absolute().relative_to(folder))
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        if folder.is_dir():  # another process was faster
            _place_into(todo, project)
            return
        raise from_os_error(error, folder) from error
    for blob, target in todo:
        project.store.verified.remember(target, blob.sha256, placed=True)


def _place_into(todo: list[tuple[Blob, Path]], project: Project) -> None:
    """Put files into folders that may have others."""
    ordered = sorted(todo, key=lambda item: _rank(item[1]))
    if len(ordered) > 1:
        _, entry = ordered[-1]
        with suppress(OSError):
            links.remove(entry)
    for blob, target in ordered:
        project.store.place(blob, target)


def _rank(path: Path) -> tuple[bool, bool]:
    """Sort key: last are the files without which a folder is not a complete model."""
    return path.name == "config.json", "-00001-of-" in path.name


def _folder_of(paths: Sequence[Path]) -> Path:
    return Path(os.path.commonpath([path.absolute().parent for path in paths]))

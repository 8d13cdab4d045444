"""Put files into their places: one, or a whole folder at once.

A missing folder is created next to its place and renamed, so that it appears complete or not at
all. In an existing one, the file that makes it a model is removed first and added last.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet.base.errors import UsageError, from_os_error
from bitnet.base.trust import open_folder
from bitnet.store.links import fresh_name, short_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.hub.project import Project
    from bitnet.store import Artifact

_ABANDONED_S = 900.0  # age at which an unfinished folder counts as abandoned


def common_folder(targets: Sequence[Path]) -> Path:
    """Folder that contains all of *targets*, or its parent if it does not exist yet."""
    folder = _folder_of(targets)
    return folder if folder.is_dir() else folder.parent


def place_all(
    items: Sequence[tuple[Artifact, Path]], project: Project, root: Path | None = None
) -> None:
    """Put each file into its place: all of them, or none.

    Args:
        items: the file and its place.
        project: where the store is.
        root: a folder that no place may leave through a link; the project's by default.

    Raises:
        UsageError: another file is in one of the places, which this program did not put there; or
            a place leaves *root*.
        NoSpace: there is not enough room for a copy.
        PermissionDenied: a folder is not writable.
    """
    store, todo = project.store, []
    root = (root if root is not None else project.folder).absolute()
    for blob, target in items:
        if blob.path == target or store.is_intact(target, blob.sha256, blob.size):
            continue
        may_replace = project.force or store.may_replace(target)
        if os.path.lexists(target) and not may_replace:
            raise UsageError(
                f"{target} is another file than the one asked for, and was not put there by this "
                "program; it stays",
                hint="move it away and run the command again; download-model and tokenizer replace "
                "it with --force, and put theirs elsewhere with --output DIR",
            )
        todo.append((blob, target))
    todo.sort(key=lambda item: _rank(item[1]))
    folder = _folder_of([target for _, target in todo]) if len(todo) > 1 else None
    if folder is None or os.path.lexists(folder) or folder in (root, *root.parents):
        store.place_all(todo, root)
    else:
        _place_folder(todo, folder, root, project)


def _place_folder(
    todo: list[tuple[Artifact, Path]], folder: Path, root: Path, project: Project
) -> None:
    """Create *folder* with all of its files."""
    store = project.store
    fresh = folder.with_name(fresh_name(f".{folder.name}"))
    inside = [(blob, fresh / target.absolute().relative_to(folder)) for blob, target in todo]
    try:
        if folder.parent.is_dir():
            _sweep(folder, project)
        with open_folder(root, folder.parent) as fd:
            try:
                store.place_all(inside, root)
                if fd is None:
                    fresh.rename(folder)
                else:
                    os.rename(fresh.name, folder.name, src_dir_fd=fd, dst_dir_fd=fd)
            except OSError:
                if not folder.is_dir():
                    raise
                store.place_all(todo, root)  # another process was faster
            finally:
                for _, path in inside:
                    store.verified.forget(path)
                shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise from_os_error(error, folder) from error
    for blob, target in todo:
        store.verified.remember(target, blob.sha256, placed=True)


def _sweep(folder: Path, project: Project) -> None:
    """Remove what killed processes left of *folder*, if all of it is also in the store."""
    name = re.compile(re.escape(short_name(f".{folder.name}")) + r"\.partial\.\d+-[0-9a-f]{8}")
    for left in folder.parent.iterdir():
        if not name.fullmatch(left.name) or time.time() - left.lstat().st_mtime < _ABANDONED_S:
            continue
        files = [path for path in left.rglob("*") if not path.is_dir() or path.is_symlink()]
        if all(path.is_file() and project.store.may_replace(path) for path in files):
            shutil.rmtree(left, ignore_errors=True)


def _rank(path: Path) -> tuple[bool, bool]:
    """Sort key: last are the files without which a folder is not a complete model."""
    return path.name == "config.json", "-00001-of-" in path.name


def _folder_of(targets: Sequence[Path]) -> Path:
    return Path(os.path.commonpath([target.absolute().parent for target in targets]))

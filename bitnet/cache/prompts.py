"""Files with the keys, values and states that a model computed for the ids of a prompt.

``<folder>/<model>/<name>.kv``, a folder for each model by the digest of its weights. Their total
size is bounded: files used least recently are removed first. A file is written as a draft under
another name and then renamed, never changed, and only its user can read it.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet.base import settings
from bitnet.base.errors import BitnetError
from bitnet.base.files import CACHE_HINT, keep, require_space
from bitnet.base.quantities import human_size
from bitnet.store.root import keep_in_cache
from bitnet.store.tree import prompts_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

SUFFIX = ".kv"
SPARE_BYTES = 2 * 10**9  # left free on the disk
ABANDONED_S = 3600.0  # age at which a draft counts as left by a killed process
_MODEL = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[0-9a-f]{32}\.kv")
_DRAFT = re.compile(r"\.[0-9a-f]{32}\.kv\.\d+-[0-9a-f]+\.tmp")


@dataclass(frozen=True)
class Stored:
    """A file with the state of a prompt."""

    path: Path
    size_bytes: int
    last_used_s: float  # since the epoch


class PromptFolder:
    """The files of all models in one folder, which several processes may use at the same time."""

    def __init__(self, root: Path, *, limit_bytes: float, in_cache: bool = False) -> None:
        """Files in *root*, of *limit_bytes* in all; *in_cache*: *root* is part of the cache."""
        self.root = root
        self.limit_bytes = limit_bytes
        self._in_cache = in_cache

    def paths(self, model: str) -> list[Path]:
        """Paths of the files of *model*."""
        return [file.path for file in _files_in(self.root / model)]

    def write(self, model: str, name: str, parts: Sequence[bytes | memoryview]) -> str:
        """Write *parts* as the file *name* of *model*; return why it failed, empty if it did not.

        The least recently used files are removed to make room for it.
        """
        size = sum(len(part) for part in parts)
        if size > self.limit_bytes:
            return f"it takes {human_size(size)}, BITNET_PROMPT_CACHE_SIZE allows less"
        folder = self.root / model
        path = folder / f"{name}{SUFFIX}"
        self._make_room(size, path)
        try:
            require_space(self.root, size, path.name, CACHE_HINT, spare=SPARE_BYTES)
        except BitnetError as error:
            return error.message
        with suppress(OSError):  # reported when the file is written
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        if self._in_cache:
            return keep_in_cache(path, *parts, private=True)
        return keep(path, *parts, private=True)

    def mark_used(self, path: Path) -> None:
        """Record that *path* was used now; the time of its last change stays."""
        with suppress(OSError):
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))

    def remove(self, path: Path) -> None:
        """Delete *path*, also while others have it open."""
        with suppress(OSError):
            path.unlink()

    def _make_room(self, size_bytes: int, new: Path) -> None:
        """Delete files until *size_bytes* more fit, and drafts that killed processes left.

        The file at *new* does not count, because it will be replaced.
        """
        files: list[Stored] = []
        with suppress(OSError):
            for item in _items(self.root):
                if _MODEL.fullmatch(item.name) and item.is_dir(follow_symlinks=False):
                    files += _files_in(self.root / item.name)
                    _remove_abandoned(self.root / item.name)
        files = [file for file in files if file.path != new]
        total = sum(file.size_bytes for file in files) + size_bytes
        for file in sorted(files, key=lambda file: file.last_used_s):
            if total <= self.limit_bytes:
                return
            logger.debug("%s makes room for the state of another prompt", file.path)
            self.remove(file.path)
            total -= file.size_bytes


def choose_folder(choice: str, cache: Path) -> PromptFolder | None:
    """The folder for *choice*: ``auto`` (in *cache*), a path, or None for ``off``.

    None also if BITNET_PROMPT_CACHE_SIZE is 0.
    """
    limit = settings.prompt_cache_size()
    if choice == "off" or not limit:
        return None
    if choice == "auto":
        return PromptFolder(prompts_folder(cache), limit_bytes=limit, in_cache=True)
    from pathlib import Path

    return PromptFolder(settings.expand_home(Path(choice)).absolute(), limit_bytes=limit)


def _files_in(folder: Path) -> list[Stored]:
    """Files of one model; links and what belongs to other users are left out."""
    files: list[Stored] = []
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        for item in _items(folder):
            if not _NAME.fullmatch(item.name):
                continue
            with suppress(FileNotFoundError):  # removed meanwhile
                status = item.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and _is_ours(status):
                    used_s = max(status.st_atime, status.st_mtime)
                    files.append(Stored(folder / item.name, status.st_size, used_s))
    return files


def _items(folder: Path) -> list[os.DirEntry[str]]:
    """Items of *folder*, which is closed also if one of them cannot be read."""
    with os.scandir(folder) as items:
        return list(items)


def _is_ours(status: os.stat_result) -> bool:
    """True if the file belongs to this user."""
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()


def _remove_abandoned(folder: Path) -> None:
    """Delete the drafts in *folder* that are too old to be written to by a running process."""
    with suppress(OSError):
        for item in _items(folder):
            with suppress(FileNotFoundError):  # removed meanwhile
                is_old = time.time() - item.stat(follow_symlinks=False).st_mtime > ABANDONED_S
                if is_old and _DRAFT.fullmatch(item.name):
                    (folder / item.name).unlink()

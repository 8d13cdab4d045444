"""``CACHEDIR.TAG``: which folder is a cache of ours, for backups and for ``clean-cache``."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from bitnet import settings
from bitnet.errors import PermissionDenied, from_os_error

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["AREAS", "TAG", "has_tag", "is_marked", "make_cache", "strange_names"]

AREAS = ("tokenizers", "models", "store", "screens", "measurements", "reports")
# Names below these folders that only this program gives.
_OUR_NAMES = re.compile(
    r"tokenizers/(compiled/([0-9a-f]{64}\.tok|digests/[0-9a-f]{32}\.json)"
    r"|([\w.]+-\d+k|url-[0-9a-f]{16}|hub-.+@.+|cl100k_base)/.+)"
    r"|models/package--[^/]+/.+"
    r"|screens/[0-9a-f]{32}\.screen"
    r"|measurements/.+-[0-9a-f]{16}\.json"
    r"|reports/lockfile-[0-9a-f]{16}\.lock(\.lease)?",
    re.DOTALL,
)

TAG = "CACHEDIR.TAG"
_BESIDE = {*AREAS, TAG, "README.md", ".gitignore", ".DS_Store", "Thumbs.db"}
SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"  # https://bford.info/cachedir/
_TEXT = SIGNATURE + b"\n# Cache of bitnet; any file in it may be deleted at any time.\n"


def make_cache(root: Path) -> None:
    """Make the cache folder *root* and its ``store``, each marked as a cache where it is ours.

    A folder that holds files of others is not marked: it may be a project's, and a backup would
    leave it out. Its ``store`` is ours in any case.

    Raises:
        PermissionDenied: the folder cannot be made.
        NoSpace: the disk is full.
    """
    try:
        for folder in (root, root / "store"):
            if has_tag(folder) or not _may_be_marked(folder):
                continue
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError, PermissionError), (folder / TAG).open("xb") as file:
                file.write(_TEXT)
    except FileExistsError as error:
        raise PermissionDenied(
            f"{error.strerror} (os error {error.errno}): cannot make {error.filename}",
            hint="choose a folder you may write to: --cache-dir DIR or BITNET_CACHE_DIR",
        ) from error
    except OSError as error:
        raise from_os_error(error, error.filename or root, in_cache=True) from error


def has_tag(folder: Path) -> bool:
    """Whether *folder* carries our mark, not only that of some cache."""
    try:
        content = (folder / TAG).read_bytes()
    except OSError:
        return False
    return content.startswith(SIGNATURE) and b"bitnet" in content


def is_marked(root: Path, path: Path) -> bool:
    """Whether *path* in the cache folder *root* is surely a file that this program made.

    In a folder with our mark every file is, below the folders that a cache has, unless there are
    others beside those: a mark can be copied into a project. Without it, a file is that has a name
    only we give, or lies beside a record of where we fetched it from.
    """
    inside = path.relative_to(root)
    if _is_default(root) or (has_tag(root) and not strange_names(root)):
        return inside.parts[0] in AREAS
    if inside.parts[0] == "store":
        return has_tag(root / "store")
    if _OUR_NAMES.fullmatch(inside.as_posix()):
        return True
    return inside.parts[0] == "tokenizers" and path.with_name(f"{path.name}.origin").is_file()


def strange_names(root: Path) -> list[str]:
    """What lies in *root* and is not of a cache, sorted.

    Raises:
        OSError: it cannot be read.
    """
    return sorted({item.name for item in root.iterdir()} - _BESIDE)


def _is_default(root: Path) -> bool:
    """Whether *root* is where a cache is made when nothing else is asked for."""
    return settings.cache_dir_override() is None and root == settings.cache_dir()


def _may_be_marked(folder: Path) -> bool:
    """Whether *folder* is missing or empty, or holds nothing but what we have made."""
    if folder.name == "store" or not folder.is_dir() or _is_default(folder):
        return True
    if any(item.name not in AREAS for item in folder.iterdir()):
        return False
    files = (path for path in folder.rglob("*") if not path.is_dir())
    return all(is_marked(folder, path) for path in files)

"""``CACHEDIR.TAG``, which marks a folder as this program's cache; what is kept in it."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from bitnet.base import settings
from bitnet.base.errors import BitnetError, from_os_error
from bitnet.base.files import keep

if TYPE_CHECKING:
    from pathlib import Path

AREAS = ("tokenizers", "models", "store", "exact-heads")
# Names that only this program gives to files below these folders.
_OUR_NAMES = re.compile(
    r"tokenizers/(compiled/([0-9a-f]{64}\.tok|digests/[0-9a-f]{32}\.json)"
    r"|([\w.]+-\d+k|url-[0-9a-f]{16}|hub-.+@.+)/.+)"
    r"|models/(hf/.+@.+|url-[0-9a-f]{16}/.+)"
    r"|exact-heads/[0-9a-f]{32}\.copy",
    re.DOTALL,
)

TAG = "CACHEDIR.TAG"
_BESIDE = {*AREAS, TAG, "README.md", ".gitignore", ".DS_Store", "Thumbs.db"}
SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"  # https://bford.info/cachedir/
_TEXT = SIGNATURE + b"\n# Cache of bitnet; any file in it may be deleted at any time.\n"


def make_cache(root: Path) -> None:
    """Create the cache folder *root* and its ``store``, and mark each as a cache if it is ours.

    A folder that holds other files is not marked: it may be a project's, and backups would leave
    it out. Its ``store`` is always marked.
    """
    try:
        for folder in (root, root / "store"):
            if has_tag(folder) or not _may_be_marked(folder):
                continue
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError, PermissionError), (folder / TAG).open("xb") as file:
                file.write(_TEXT)
    except OSError as error:
        raise from_os_error(error, error.filename or root, in_cache=True) from error


def keep_in_cache(path: Path, *parts: bytes | memoryview) -> str:
    """Write *parts* to *path* in the cache of the settings, as :func:`bitnet.base.files.keep`."""
    root = settings.cache_dir()
    if root in path.parents:
        try:
            make_cache(root)
        except BitnetError as error:
            return error.message
    return keep(path, *parts)


def has_tag(folder: Path) -> bool:
    """True if *folder* carries this program's tag, and not only some cache's."""
    try:
        content = (folder / TAG).read_bytes()
    except OSError:
        return False
    return content.startswith(SIGNATURE) and b"bitnet" in content


def is_marked(root: Path, path: Path) -> bool:
    """True if *path* in the cache folder *root* is certainly a file that this program made.

    In a folder with the tag that applies to every file below the folders that a cache has, unless
    there are other entries next to those: a tag can be copied into a project. Without the tag,
    it applies to files with a name that only this program gives.
    """
    inside = path.relative_to(root)
    if _is_default(root) or (has_tag(root) and not strange_names(root)):
        return inside.parts[0] in AREAS
    if inside.parts[0] == "store":
        return has_tag(root / "store")
    return _OUR_NAMES.fullmatch(inside.as_posix()) is not None


def strange_names(root: Path) -> list[str]:
    """Names in *root* that do not belong to a cache, sorted."""
    return sorted({item.name for item in root.iterdir()} - _BESIDE)


def _is_default(root: Path) -> bool:
    """True if *root* is the default place of the cache."""
    return settings.cache_dir_override() is None and root == settings.cache_dir()


def _may_be_marked(folder: Path) -> bool:
    """True if *folder* is missing or empty, or holds only files of this program."""
    if folder.name == "store" or not folder.is_dir() or _is_default(folder):
        return True
    if any(item.name not in AREAS for item in folder.iterdir()):
        return False
    files = (path for path in folder.rglob("*") if not path.is_dir())
    return all(is_marked(folder, path) for path in files)

"""The cache folder: create it, write into it, and distinguish it from other folders.

``CACHEDIR.TAG`` marks a folder as this program's cache.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from bitnet.base import settings
from bitnet.base.errors import BitnetError, from_os_error
from bitnet.base.files import keep, open_file
from bitnet.store import tree

if TYPE_CHECKING:
    from pathlib import Path

TAG = "CACHEDIR.TAG"
SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"  # https://bford.info/cachedir/
_TEXT = SIGNATURE + b"\n# Cache of bitnet; any file in it may be deleted at any time.\n"
# Names that may be in a folder that is certainly a cache.
_BESIDE = {*tree.AREAS, TAG, "README.md", ".gitignore", ".DS_Store", "Thumbs.db"}


def make_cache(root: Path) -> None:
    """Create the cache folder *root* and its ``store``; mark it as ours if new, empty or default.

    Any other folder may be a project's, and the mark would exclude it from backups.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        is_new = _is_default(root) or all(item.name == TAG for item in root.iterdir())
        if is_new and not has_tag(root):
            with suppress(PermissionError):
                (root / TAG).write_bytes(_TEXT)
        tree.partial_folder(tree.store_folder(root)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, error.filename or root, in_cache=True) from error


def keep_in_cache(path: Path, *parts: bytes | memoryview, private: bool = False) -> str:
    """Write *parts* to *path* in a cache, which is created, as :func:`bitnet.base.files.keep`."""
    # The cache is the parent of its innermost folder with the name of an area.
    areas = (folder for folder in path.parents if folder.name in tree.AREAS)
    try:
        make_cache(next(areas).parent)
    except BitnetError as error:
        return error.message
    return keep(path, *parts, private=private)


def has_tag(folder: Path) -> bool:
    """True if *folder* carries this program's tag, and not only some cache's."""
    try:
        with open_file(folder / TAG) as file:
            content = file.read()
    except OSError:
        return False
    return content.startswith(SIGNATURE) and b"bitnet" in content


def tag_problem(root: Path) -> str:
    """The reason why *root* is not certainly a cache of ours; empty if it is, or is not there.

    A tag can be copied into a project, so nothing else may lie beside the folders of a cache.
    """
    if _is_default(root) or not root.exists():
        return ""
    if strange := sorted({item.name for item in root.iterdir()} - _BESIDE):
        return f"it also holds {strange[0]!r}"
    return "" if has_tag(root) else f"it has no {TAG} of bitnet"


def _is_default(root: Path) -> bool:
    """True if *root* is the default place of the cache."""
    return settings.cache_dir_override() is None and root == settings.cache_dir()

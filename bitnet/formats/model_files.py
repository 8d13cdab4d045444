"""Models among the files of a folder, and their names."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet.errors import from_os_error
from bitnet.formats import safetensors
from bitnet.formats.gguf import part_number

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["is_model_folder", "model_name", "models_below"]


def model_name(path: Path) -> str:
    """The name of the model at *path* for clients: a file's without ``.gguf``, a folder's whole."""
    return path.name.removesuffix(".gguf") or path.resolve().name


def is_model_folder(folder: Path) -> bool:
    """True if *folder* is itself a model: safetensors files with ``config.json``.

    Raises:
        PermissionDenied: what is in it cannot be told.
    """
    try:
        return _is_file(folder / "config.json") and safetensors.recognises(folder)
    except OSError as error:
        raise from_os_error(error, error.filename or folder) from error


def models_below(folder: Path) -> Iterator[Path]:
    """Models in *folder* and below it: GGUF files, and folders with safetensors files.

    Those of a folder come by name, before those of the folders in it. Hidden files and folders are
    left out, and so are the further parts of a split file and the files that llama.cpp calls
    ``mmproj``, which are not models by themselves.

    Raises:
        PermissionDenied: a folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    try:
        for place, folders, files in os.walk(folder, onerror=fail):
            folders[:] = sorted(one for one in folders if not one.startswith("."))
            here = Path(place)
            if is_model_folder(here):
                yield here
            yield from (here / one for one in sorted(files) if _is_gguf(here / one))
    except OSError as error:
        raise from_os_error(error, error.filename or folder) from error


def _is_gguf(path: Path) -> bool:
    return (
        path.suffix == ".gguf"
        and not path.name.startswith(("mmproj", "."))
        and part_number(path.name) == 1
        and _is_file(path)
    )


def _is_file(path: Path) -> bool:
    """As ``path.is_file()``, which in some versions takes what may not be looked at for missing."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise

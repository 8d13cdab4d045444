"""Models among the files of a folder, and their names."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet.base.errors import BitnetError, NotFound, from_os_error
from bitnet.base.files import read_bytes
from bitnet.base.invocation import shell_quote
from bitnet.formats import mapped_file, safetensors
from bitnet.formats.checkpoint import parse_json
from bitnet.formats.gguf_names import has_gguf_name, list_models, part_number, select_models

if TYPE_CHECKING:
    from collections.abc import Iterator


def model_name(path: Path) -> str:
    """The name of the model at *path* for clients: a file's without ``.gguf``, a folder's whole."""
    name = path.name[: -len(".gguf")] if has_gguf_name(path) else path.name
    return name or path.resolve().name


def is_model_folder(folder: Path) -> bool:
    """True if *folder* is itself a model: safetensors files with ``config.json``."""
    try:
        return _is_file(folder / "config.json") and safetensors.recognises(folder)
    except OSError as error:
        raise from_os_error(error, error.filename or folder) from error


def models_below(folder: Path) -> Iterator[Path]:
    """Models in *folder* and below it: GGUF files, and folders with safetensors files.

    Those of a folder come by name, before those of the folders in it. Hidden files and folders are
    left out, and so are the further parts of a split file and the files that belong to a model,
    such as those that llama.cpp calls ``mmproj``.
    """
    for path in candidates_below(folder):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        is_gguf = has_gguf_name(path) and part_number(path.name) == 1
        if not is_hidden and ((is_gguf and _is_file(path)) or is_model_folder(path)):
            yield path


def candidates_below(folder: Path) -> Iterator[Path]:
    """Everything in *folder* and below it that is a model, or is meant to be one.

    Unlike :func:`models_below` also what cannot be opened (links to nothing, folders with only a
    configuration or only weights, a split file without its first part), and what is hidden. Folders
    inside of a model belong to it if ``modules.json`` names them, or if they have no weights, such
    as ``1_Pooling``.
    """

    def fail(error: OSError) -> None:
        raise from_os_error(error, error.filename or folder) from error

    visited: set[Path] = set()
    models: set[Path] = set()  # folders with weights
    for folder_path, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        here = Path(folder_path)
        folders.sort()
        if here.resolve() in visited or here.name == ".git":
            folders.clear()
            continue
        visited.add(here.resolve())
        if any(name.endswith((".safetensors", safetensors.INDEX)) for name in files):
            models.add(here)
            modules = _module_folders(here) if "modules.json" in files else set()
            folders[:] = [name for name in folders if name not in modules]
            yield here
        elif "config.json" in files and here.parent not in models:
            yield here
        yield from select_models(here / name for name in files)


def _module_folders(model: Path) -> set[str]:
    """Folders in *model* that its ``modules.json`` names; none if that file is damaged."""
    try:
        path = model / "modules.json"
        modules = parse_json(read_bytes(path), path, list)
    except BitnetError:
        return set()  # opening the model says what is wrong with the file
    paths = [module.get("path") for module in modules if isinstance(module, dict)]
    return {path.rstrip("/") for path in paths if isinstance(path, str)}


def _is_file(path: Path) -> bool:
    """``path.is_file()``, but missing permission is an error in every version of Python."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise from_os_error(error, path) from error


def only_model(path: Path) -> Path:
    """*path*, or the one GGUF file in it, if it is a folder with nothing else to run."""
    if not path.is_dir() or (path / "config.json").exists():
        return path
    models = list_models(path)
    return models[0] if len(models) == 1 else path


def find_models(folder: Path, *, broken: bool = False) -> list[Path]:
    """The :func:`models_below` *folder*, sorted; with *broken* the :func:`candidates_below` it."""
    try:
        if not folder.is_dir():
            if folder.exists():
                raise NotFound(
                    f"{folder} is a file, expected a folder",
                    hint=f"name its folder: {shell_quote(folder.parent)}",
                )
            raise mapped_file.missing(folder)
    except OSError as error:
        raise from_os_error(error, folder) from error
    models = sorted((candidates_below if broken else models_below)(folder))
    if not models:
        raise mapped_file.folder_without_model(folder)
    return models

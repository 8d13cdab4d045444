"""A tokenizer given by address: a URL, or a repository on the hub (:mod:`bitnet.hub.ref`).

Naming it is consent to this one download. It is kept below ``<cache>/tokenizers`` with a record of
its address, ETag and digest; while that file exists, no connection is opened for it again.
"""

from __future__ import annotations

import hashlib
import logging
import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bitnet.base.errors import BitnetError, NotFound, UsageError
from bitnet.base.files import path_of
from bitnet.hub.orders import FileOrder
from bitnet.hub.provision import provide_all
from bitnet.hub.repository import list_files, some_of
from bitnet.sources import Source
from bitnet.store import links

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bitnet.hub.project import Project
    from bitnet.hub.ref import Ref

logger = logging.getLogger(__name__)

# Files with a vocabulary, in order of preference.
MAIN_FILES = ("tokenizer.model", "tekken.json", "tokenizer.json", "vocab.json", "vocab.txt")
# Files with additional settings.
SIDE_FILES = (
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.jinja",
)


def _folder(remote: Ref, cache: Path) -> Path:
    """Folder of the tokenizer in *cache*."""
    if remote.url:
        key = f"url-{hashlib.sha256(remote.url.encode()).hexdigest()[:16]}"
    else:
        key = f"hub-{remote.repo}@{remote.revision}/{path_of(remote.file).parent.as_posix()}"
        key = re.sub(r"[^\w.@-]+", "--", key).rstrip("-.")
    return cache / "tokenizers" / key


def provide(remote: Ref, project: Project, *, check: Callable[[Path], object]) -> Path:
    """The file of *remote* in the cache, with its additional files.

    *check* reads the file or raises; then it is not kept.

    Raises:
        Offline: it is not in the cache, and the network is switched off.
        NotFound: the file does not exist, or the repository has no tokenizer.
        BitnetError: it cannot be fetched, or *check* refuses it.
    """
    if (remote.file or urlsplit(remote.url).path).endswith(".gguf"):
        raise UsageError(
            f"--tokenizer is {remote.name}: a whole model is not fetched for its tokenizer",
            hint=f"fetch the model: {remote.command}",
        )
    folder = _folder(remote, project.cache)
    for name in _names(remote):
        path = folder / name
        record = project.store.verified.find(path)
        if path.is_file() and record is not None and record.placed:
            if project.store.digest_of(path) == record.sha256:
                logger.info("tokenizer %s is in the cache: %s", remote.name, path)
                return path
            logger.warning("%s has changed since it was fetched, fetching it once more", path)
    logger.info("Downloading tokenizer for repo: %s", remote.name)
    if remote.url:
        files = [Source(remote.name, "", _names(remote)[0], url=remote.url)]
    else:
        files = _files(remote, folder, project)
    orders = [_order(file, folder) for file in files]
    path = provide_all(orders, replace(project, records=False), root=project.cache)[-1].path
    try:
        check(path)
    except BitnetError:
        with suppress(OSError):
            links.remove(path)
        project.store.verified.forget(path)
        raise
    logger.info("Successfully downloaded tokenizer: %s", path)
    return path


def _names(remote: Ref) -> tuple[str, ...]:
    """Possible names of the file in the cache; the name decides how it is read."""
    if not remote.url:
        return (path_of(remote.file).name,) if remote.file else MAIN_FILES
    name = remote.file
    fits = name.endswith((".json", ".model", ".txt"))
    return (str(path_of(name)) if fits else "tokenizer.json",)


def _files(remote: Ref, folder: Path, project: Project) -> list[Source]:
    """Files of a repository: the main file after its additional files, as it stands for all."""
    project.require_connection(folder, f"the same command, or copy the files to {folder}")
    options = project.options_for(remote.repo)
    files = {file.file: file for file in list_files(remote.repo, remote.revision, options)}
    main = remote.file or next((name for name in MAIN_FILES if name in files), "")
    if main not in files:
        expected = main or f"none of {', '.join(MAIN_FILES)}"
        raise NotFound(
            f"{remote.name} has no tokenizer ({expected}); it has {some_of(files)}",
            hint=f"name a file: --tokenizer hf://{remote.repo}/FILE",
        )
    where = main.rpartition("/")[0]
    beside = [f"{where}/{name}".lstrip("/") for name in SIDE_FILES]
    return [files[name] for name in (*beside, main) if name in files]


def _order(source: Source, folder: Path) -> FileOrder:
    path = folder / path_of(source.file).name
    command = f"the same command, or copy the file to {path}"
    return FileOrder(source, "tokenizer", entry=path, default=path, lasts=True, command=command)

"""Oddities of the chat templates of a GGUF file: their origin, and names that they reach for.

A template is a program that others ship with a model. One that was changed on the way, or that
reaches into Python, is named. The repository that a file was made of is known from its keys, from a
lock file, or by its files that lie beside it; no connection is opened.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bitnet.base import settings
from bitnet.base.errors import BitnetError
from bitnet.base.files import read_bytes
from bitnet.store import Store, hugging_face
from bitnet.store.records import LOCK_FILE, read_lock, relative
from bitnet.tokenizer.chat import template_process
from bitnet.tokenizer.discover import repository_of
from bitnet.tokenizer.side_files import templates_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bitnet.formats.gguf import GGUF

_FILES = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
_KEY = "tokenizer.chat_template"
_USUAL = "default"
_SHOWN = 5


def oddities_of(templates: Mapping[str, str], gguf: GGUF | None) -> Iterator[tuple[str, str]]:
    """Kind and description of each: ``template-reaches``, ``template-differs``.

    *templates* have names, the usual one is called ``default``; those that are in a *gguf* file are
    compared with those of the repository that it was made of.
    """
    for name, template in templates.items():
        try:
            names = template_process().reaches(template)
        except BitnetError as error:
            yield "template-reaches", error.message
            continue
        if names:
            listed = ", ".join(names[:_SHOWN])
            text = f"{_label(name)} reaches for {listed}, which no published template needs"
            yield "template-reaches", text
    if templates and gguf is not None:
        for text in _differences(templates, gguf):
            yield "template-differs", text


def _label(name: str) -> str:
    return "the chat template" if name == _USUAL else f"the chat template {name!r}"


def templates_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Templates in the *metadata* of a GGUF file, by name."""
    templates = {}
    for key, value in metadata.items():
        if isinstance(value, str) and (key == _KEY or key.startswith(f"{_KEY}.")):
            templates[key.removeprefix(_KEY).lstrip(".") or _USUAL] = value
    return templates


def _differences(templates: Mapping[str, str], gguf: GGUF) -> Iterator[str]:
    """Descriptions of the *templates* that no known version of the source repository has."""
    for source, versions in _sources(gguf).items():
        for name, template in templates.items():
            originals = [version[name] for version in versions if name in version]
            if originals and not any(_is_same(template, original) for original in originals):
                yield f"{_label(name)} is not that of {source}"


def _is_same(left: str, right: str) -> bool:
    """True if Jinja renders both alike: it leaves out one line end after the last line."""
    return left.removesuffix("\n") == right.removesuffix("\n")


def _sources(gguf: GGUF) -> dict[str, list[dict[str, str]]]:
    """Templates by name of each known version of the source, by the name of the source."""
    sources: dict[str, list[dict[str, str]]] = {}
    folder = gguf.path.absolute().parent
    if not _other_models(gguf, folder):
        beside = {name: folder / name for name in _FILES if (folder / name).is_file()}
        if beside:
            sources[f"{', '.join(beside)} beside it"] = [_read(beside)]
    repositories = {_repository_in_lock_file(gguf.path): f"which {LOCK_FILE} names"}
    repositories[repository_of(gguf.metadata)] = "which it is made of"
    for repository, relation in repositories.items():
        versions = [*_versions_in_cache(repository), *_versions_in_store(repository)]
        if repository and versions:
            sources[f"{repository}, {relation}"] = [_read(files) for files in versions]
    return sources


def _repository_in_lock_file(path: Path) -> str:
    """Repository of the file *path* in the lock file of a folder above it; empty without one."""
    for folder in path.absolute().parents:
        try:
            pins = read_lock(folder / LOCK_FILE)
        except BitnetError:  # other checks report it
            continue
        place = relative(path, folder)
        repositories = [pin.repo for pin in pins if pin.place == place]
        if repositories:
            return repositories[0]
    return ""


def _other_models(gguf: GGUF, folder: Path) -> bool:
    """True if *folder* has models besides *gguf*, whose files those beside it may be."""
    own = {path.name for path in gguf.paths}
    names = (path.name for path in folder.iterdir() if path.suffix.lower() == ".gguf")
    return any(name not in own for name in names)


def _versions_in_cache(repository: str) -> Iterator[dict[str, Path]]:
    """Paths by name of the files of each version of *repository* in Hugging Face's cache."""
    paths = {path.parent for name in _FILES for path in hugging_face.snapshots_of(repository, name)}
    for folder in sorted(paths):
        yield {name: folder / name for name in _FILES if (folder / name).is_file()}


def _versions_in_store(repository: str) -> Iterator[dict[str, Path]]:
    """Paths by name of the files of each version of *repository* in our store."""
    store = Store(settings.cache_dir())
    versions: dict[str, dict[str, Path]] = {}
    for record in store.index:
        if record.repo == repository and record.file in _FILES and record.kind != "version":
            path = store.path_of(record.sha256)
            if path.is_file():
                versions.setdefault(record.commit or record.revision, {})[record.file] = path
    yield from versions.values()


def _read(files: Mapping[str, Path]) -> dict[str, str]:
    """Templates by name in *files*; none in those that are damaged.

    As in transformers, ``chat_template.jinja`` goes before the others.
    """
    if "chat_template.jinja" in files:
        return {_USUAL: read_bytes(files["chat_template.jinja"]).decode("utf-8", "replace")}
    return templates_in(*(_read_object(files.get(name)) for name in _FILES[1:]))


def _read_object(path: Path | None) -> dict[str, Any]:
    """The JSON object in the file *path*; empty if there is none."""
    if path is None:
        return {}
    try:
        values = json.loads(read_bytes(path))
    except (BitnetError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}

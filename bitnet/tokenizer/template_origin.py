"""Oddities of chat templates: changes against the original, and access to Python's internals.

A template is a program that others ship with a model. It is reported if it differs from the
original, or if it uses attributes, filters or statements that lead into Python. The original is
that of the repository that a GGUF file was made of, which its keys or a lock file name, or that in
files beside it. Only copies on this machine are read.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bitnet.base import settings
from bitnet.base.errors import BitnetError
from bitnet.base.files import read_bytes
from bitnet.formats.gguf_names import list_models
from bitnet.store import Store, hugging_face
from bitnet.store.records import LOCK_FILE, read_lock, relative
from bitnet.tokenizer.chat import template_process
from bitnet.tokenizer.model_origin import repository_of
from bitnet.tokenizer.side_files import templates_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bitnet.formats.gguf import GGUF

_FILES = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
_KEY = "tokenizer.chat_template"
_USUAL = "default"
_MOST_NAMES = 5  # names in a message, at most


def oddities_of(templates: Mapping[str, str], gguf: GGUF | None) -> Iterator[tuple[str, str]]:
    """Kind, ``template-reaches`` or ``template-differs``, and description of each oddity.

    Args:
        templates: chat templates by name; the usual one is called ``default``.
        gguf: the file that they are from, to compare them with the original; None compares nothing.
    """
    for name, template in templates.items():
        try:
            names = template_process().reaches(template)
        except BitnetError as error:
            yield "template-reaches", error.message
            continue
        if names:
            listed = ", ".join(names[:_MOST_NAMES])
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
    """Descriptions of the *templates* that differ from every known version in some source."""
    for source, versions in _sources(gguf).items():
        for name, template in templates.items():
            originals = [version[name] for version in versions if name in version]
            if originals and not any(_is_same(template, original) for original in originals):
                yield f"{_label(name)} is not that of {source}"


def _is_same(left: str, right: str) -> bool:
    """True if both are equal, but for the one newline at the end that Jinja ignores."""
    return left.removesuffix("\n") == right.removesuffix("\n")


def _sources(gguf: GGUF) -> dict[str, list[dict[str, str]]]:
    """Known versions of the templates of *gguf* by a label of their source.

    A version is templates by name.
    """
    sources: dict[str, list[dict[str, str]]] = {}
    folder = gguf.path.absolute().parent
    if not _has_other_models(folder, gguf):  # the side files might be those of another model
        beside = {name: folder / name for name in _FILES if (folder / name).is_file()}
        if beside:
            sources[f"{', '.join(beside)} beside it"] = [_read(beside)]
    # If both are the same repository, the second description replaces the first.
    repositories = {
        _repository_in_lock_file(gguf.path): f"which {LOCK_FILE} names",
        repository_of(gguf.metadata): "which it is made of",
    }
    repositories.pop("", None)
    for repository, relation in repositories.items():
        versions = [*_versions_in_cache(repository), *_versions_in_store(repository)]
        if versions:
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


def _has_other_models(folder: Path, gguf: GGUF) -> bool:
    """True if *folder* has GGUF files of models other than *gguf*, or if it cannot be listed."""
    own = {path.name for path in gguf.paths}
    try:
        models = list_models(folder)
    except BitnetError:  # a folder may be open to those who know a name in it
        return True
    return any(path.name not in own for path in models)


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
        # Records of the kind ``version`` have an address or a packaged model for a repository.
        if record.repo == repository and record.file in _FILES and record.kind != "version":
            path = store.path_of(record.sha256)
            if path.is_file():
                versions.setdefault(record.commit or record.revision, {})[record.file] = path
    yield from versions.values()


def _read(files: Mapping[str, Path]) -> dict[str, str]:
    """Templates by name in *files*, paths by file name; a damaged or unreadable file gives none.

    As in transformers, ``chat_template.jinja`` overrides the others.
    """
    if "chat_template.jinja" in files:
        try:
            template = read_bytes(files["chat_template.jinja"])
        except BitnetError:
            return {}
        return {_USUAL: template.decode("utf-8", "replace")}
    return templates_in(*(_read_object(files.get(name)) for name in _FILES[1:]))


def _read_object(path: Path | None) -> dict[str, Any]:
    """The JSON object in the file *path*; empty if *path* is None, unreadable or other JSON."""
    if path is None:
        return {}
    try:
        values = json.loads(read_bytes(path))
    except (BitnetError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}

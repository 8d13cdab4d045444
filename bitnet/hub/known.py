"""Models that can be run by name: this package's, the registry's, and fetched ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet import sources
from bitnet.hub.package_index import PACKAGED
from bitnet.hub.ref import names
from bitnet.shipped import SHIPPED

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.store import Name, Store

__all__ = ["KnownModel", "known_models"]


@dataclass(frozen=True)
class KnownModel:
    """A model and its metadata, known without reading it.

    Attributes:
        name: MODEL argument of commands.
        file: file name of its weights.
        size_bytes: of all files, ``None`` if unknown.
        family: architecture, empty if unknown.
        licence: name of the terms, empty if unknown.
        path: its weights in the store (the first file), ``None`` if they are not here.
    """

    name: str
    file: str
    size_bytes: int | None
    family: str
    licence: str
    path: Path | None


def known_models(store: Store) -> list[KnownModel]:
    """This package's models, the registry's in its order, then other fetched ones by name."""
    fetched: dict[str, list[Name]] = {}
    for name in store.names:
        is_weights = name.file.endswith((".gguf", ".safetensors"))
        if name.kind == "model" and is_weights and store.path_of(name.sha256).is_file():
            fetched.setdefault(_called(name), []).append(name)
    found = [_registered(name, store) for name in names()]
    registered = {_hub_name(source) for source in sources.MODELS.values()}
    return found + [
        _fetched(called, parts, store)
        for called, parts in sorted(fetched.items())
        if called not in registered
    ]


def _registered(name: str, store: Store) -> KnownModel:
    own = SHIPPED.get(name)
    if own is not None:
        return KnownModel(name, own.file, own.size, own.family, own.licence, own.path)
    packaged = PACKAGED.get(name)
    if packaged is not None:
        here = _stored(packaged.sha256, store)
        return KnownModel(
            name, packaged.file, packaged.size, packaged.family, packaged.licence, here
        )
    source = sources.MODELS[name]
    known = store.names.find(source.repo, source.revision, source.file)
    if known is None:
        return KnownModel(name, source.file, source.size, source.family, source.licence, None)
    here = _stored(known.sha256, store)
    return KnownModel(name, source.file, known.size, source.family, source.licence, here)


def _stored(sha256: str, store: Store) -> Path | None:
    path = store.path_of(sha256)
    return path if path.is_file() else None


def _fetched(called: str, parts: list[Name], store: Store) -> KnownModel:
    first = min(parts, key=lambda name: name.file)
    size = sum(name.size for name in parts)
    return KnownModel(called, first.file, size, "", "", store.path_of(first.sha256))


def _called(name: Name) -> str:
    """MODEL argument for *name*; a folder with safetensors is one model."""
    revision = "" if name.revision == "main" else f"@{name.revision}"
    file = f":{name.file}" if name.file.endswith(".gguf") else ""
    return f"hf:{name.repo}{revision}{file}"


def _hub_name(source: sources.Source) -> str:
    return f"hf:{source.repo}:{source.file}"

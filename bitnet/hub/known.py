"""Models that can be run by name: this package's, the registry's, and fetched ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet import sources
from bitnet.hub.ref import names
from bitnet.shipped import SHIPPED

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.store import Artifact, Store


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


def list_models(store: Store) -> list[KnownModel]:
    """This package's models, the registry's in its order, then other fetched ones by name."""
    fetched: dict[str, list[Artifact]] = {}
    for name in store.index:
        is_weights = name.file.endswith((".gguf", ".safetensors"))
        if name.kind == "model" and is_weights and store.path_of(name.sha256).is_file():
            fetched.setdefault(_model_argument(name), []).append(name)
    found = [_registry_model(name, store) for name in names()]
    registered = {_hub_name(source) for source in sources.MODELS.values()}
    return found + [
        _model_in_store(called, parts, store)
        for called, parts in sorted(fetched.items())
        if called not in registered
    ]


def _registry_model(name: str, store: Store) -> KnownModel:
    own = SHIPPED.get(name)
    if own is not None:
        return KnownModel(name, own.file, own.size, own.family, own.licence, own.path)
    source = sources.PACKAGED.get(name) or sources.MODELS[name]
    known = store.index.find(*source.index_name)
    digest, size = (known.sha256, known.size) if known else (source.sha256, source.size)
    path = store.path_of(digest) if digest else None
    here = path if path is not None and path.is_file() else None
    return KnownModel(name, source.file, size, source.family, source.licence, here)


def _model_in_store(called: str, parts: list[Artifact], store: Store) -> KnownModel:
    first = min(parts, key=lambda name: name.file)
    size = sum(name.size for name in parts)
    return KnownModel(called, first.file, size, "", "", store.path_of(first.sha256))


def _model_argument(name: Artifact) -> str:
    """MODEL argument for *name*; a folder with safetensors is one model."""
    if "://" in name.repo:
        return name.repo
    revision = "" if name.revision == "main" else f"@{name.revision}"
    file = f":{name.file}" if name.file.endswith(".gguf") else ""
    return f"hf:{name.repo}{revision}{file}"


def _hub_name(source: sources.Source) -> str:
    return f"hf:{source.repo}:{source.file}"

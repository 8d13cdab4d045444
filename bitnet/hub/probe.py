"""Read parts of a model that is not here yet, without fetching it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet.errors import BitnetError
from bitnet.hub.mirrors import with_mirror
from bitnet.hub.orders import model_path
from bitnet.hub.package_index import PACKAGED
from bitnet.hub.repository import file_url, head, model_facts, read_range
from bitnet.hub.request import ModelRequest, resolve

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bitnet.hub.project import Project
    from bitnet.sources import Source

__all__ = ["Probe", "probe"]


@dataclass(frozen=True)
class Probe:
    """Facts about a model, and a reader for its bytes.

    Attributes:
        name: of the file; of the first part of a split model.
        size: bytes of that file, ``None`` if the server does not report it.
        licence: name of the terms, empty if unknown.
        gated: requires a token of an account that accepted the terms; ``None``: unknown.
        path: the file, if it is local.
        read: reads bytes *start* to *stop* from the server; ``None`` without range requests.
    """

    name: str
    size: int | None
    licence: str
    gated: bool | None
    path: Path | None
    read: Callable[[int, int], bytes] | None


def probe(request: ModelRequest, project: Project, *, fits: Callable[[int], bool | None]) -> Probe:
    """Facts about the model that *request* means, local or on the server.

    Raises:
        BitnetError: as :func:`bitnet.hub.request.resolve`; or the file is not here and the
            server does not answer or refuses.
    """
    packaged = PACKAGED.get(request.id)
    if packaged is not None:
        folder = request.out or project.folder / "models" / packaged.id
        places = (folder / packaged.file, project.store.path_of(packaged.sha256))
        here = next((place for place in places if place.is_file()), None)
        return Probe(packaged.file, packaged.size, packaged.licence, False, here, None)
    source = resolve(request, project, fits=fits)[0]
    path = model_path(project, source.repo, source.file)
    if path.is_file():
        name, size = path.name, path.stat().st_size
        return Probe(name, size, source.licence, source.gated or None, path, None)
    return _remote(source, project)


def _remote(source: Source, project: Project) -> Probe:
    options = with_mirror(project.options, source.repo, project.folder)
    facts = head(file_url(source.repo, source.revision, source.file, options), options)
    licence, gated = source.licence, None
    try:
        repo = model_facts(source.repo, source.revision, options)
        licence, gated = licence or repo.licence or "", repo.gated
    except BitnetError:  # a plain mirror serves files without metadata
        gated = source.gated or None
    name = source.file.rpartition("/")[2]

    def read(start: int, stop: int) -> bytes:
        return read_range(facts.url, start, stop, options)

    return Probe(name, facts.size, licence, gated, None, read)

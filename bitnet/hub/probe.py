"""A model that is not here yet, as far as it can be read without fetching it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet.errors import BitnetError
from bitnet.hub.mirrors import with_mirror
from bitnet.hub.package_index import PACKAGED
from bitnet.hub.packaged import provided_path
from bitnet.hub.provision import model_path
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
    """What is known of a model, and how its bytes can be read.

    Attributes:
        name: of the file, of the first part of a split model.
        size: bytes of that file, ``None`` if the server does not say.
        licence: name of the terms, empty if unknown.
        gated: a token of an account that accepted the terms is needed; ``None``: unknown.
        path: the file, if it is here already.
        read: bytes *start* to *stop* of it on the server; ``None`` if only the whole can be had.
    """

    name: str
    size: int | None
    licence: str
    gated: bool | None
    path: Path | None
    read: Callable[[int, int], bytes] | None


def probe(request: ModelRequest, project: Project, *, fits: Callable[[int], bool | None]) -> Probe:
    """Look at the model that *request* means, in its place or on the server.

    Raises:
        BitnetError: as :func:`bitnet.hub.request.resolve`; the file is not here and the server
            does not answer or refuses.
    """
    packaged = PACKAGED.get(request.id)
    if packaged is not None:
        path = request.out / packaged.file if request.out else provided_path(packaged, project)
        here = path if path.is_file() else None
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
    except BitnetError:  # a plain mirror serves files and knows nothing about them
        gated = source.gated or None
    name = source.file.rpartition("/")[2]

    def read(start: int, stop: int) -> bytes:
        return read_range(facts.url, start, stop, options)

    return Probe(name, facts.size, licence, gated, None, read)

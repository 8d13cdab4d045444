"""Orders: which file to provide, where it belongs and what must hold; and the files provided."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bitnet import sources
from bitnet.base.errors import BitnetError, InvalidFormat, Unsupported, UsageError
from bitnet.base.files import path_of
from bitnet.base.trust import redact_url
from bitnet.hub.http import OTHER_FILE
from bitnet.hub.ref import Ref
from bitnet.hub.repository import file_url
from bitnet.sources import Source
from bitnet.store import tree
from bitnet.store.records import LOCK_FILE, Blob, Pin, find_pin

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.hub.project import Project
    from bitnet.store.records import Kind

    VocabularyCheck = Callable[[Path, int], None]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileOrder:
    """A file to provide: which one, where it belongs, and what must hold."""

    source: Source  # the file, with the digest and the size that are expected, as far as known
    kind: Kind = "model"  # ``tokenizer``, ``model`` or ``package``
    target: Path | None = None  # path that the caller wants; None: only *entry*
    # path in the cache, of a tokenizer or of a file by address; None: the store is enough
    entry: Path | None = None
    default: Path | None = None  # usual path; a file there that fits the order is used
    pinned: Pin | None = None  # its present entry in the lock file
    listed: str | None = None  # digest in the hub's list of files; the server must not differ
    needs_no_request: bool = False  # if a file of this name was fetched before, that is used
    check: Callable[[Path], None] | None = None  # accepts the file, or raises
    was_checked: bool = True  # the file passed *check* when it was fetched
    # the file at *entry*, which this program did not write, passes *check*
    is_own_file_usable: bool = False
    command: str = ""  # the command that fetches it, or another way, for the hint when offline

    @property
    def label(self) -> str:
        """Name of the file in the display of progress; for a package, the name of its model."""
        return self.source.name if self.kind == "package" else self.source.file

    @property
    def update_hint(self) -> str:
        """Hint of the error that the server has another file than expected."""
        if self.kind == "package":
            return "the package index pip uses contradicts itself: check `pip config list`"
        # For a model without a pin, there is nothing to update: only another server helps.
        is_unpinned_model = self.kind == "model" and self.pinned is None
        return OTHER_FILE if is_unpinned_model else "accept the new file with: bitnet sync --update"

    @property
    def is_vouched(self) -> bool:
        """True if the expected digest is a user's, this program's or a server's.

        A pin of bytes that no digest verified only says that they are the same bytes again.
        """
        return self.source.sha256 is not None and (self.pinned is None or self.pinned.verified)

    def answer(
        self,
        blob: Blob,
        *,
        commit: str | None = None,
        etag: str = "",
        verified: bool = True,
        is_as_ordered: bool = True,
        fetched: bool = False,
    ) -> Obtained:
        """The answer to this order: *blob*, with its record for the lock file.

        Options are fields of :class:`Pin` and :class:`Obtained`; *etag* is for a file by address.
        """
        source = self.source
        repo = source.repo
        revision = source.revision
        if source.url:  # the ETag distinguishes versions behind one address
            repo = redact_url(source.url)
            revision = etag or "unknown"
        pin = Pin(
            self.kind,
            repo,
            revision,
            source.file,
            commit,
            blob.sha256,
            blob.size,
            source.licence,
            verified=verified,
        )
        return Obtained(self, blob, pin, is_as_ordered, fetched, source.licence_url)


@dataclass(frozen=True)
class Obtained:
    """A file that was ordered, on this machine."""

    order: FileOrder
    blob: Blob  # the bytes, where they are
    pin: Pin  # what they are, as it is recorded
    is_as_ordered: bool = True  # it is the file that was ordered; False: it may be a user's own
    fetched: bool = False  # its bytes were transferred just now
    licence_url: str = ""  # where the terms are
    is_placed: bool = False  # it was put into its place just now, where another file may have been

    @property
    def path(self) -> Path:
        """The path to use: the ordered one, else that in the cache or in the store."""
        return self.order.target or self.order.entry or self.blob.path

    @property
    def cached(self) -> bool:
        """True if no bytes were transferred."""
        return not self.fetched

    @property
    def licence_line(self) -> str:
        """Text to read before using it, without a judgement about what its terms allow."""
        repo = self.pin.repo
        page = repo if "://" in repo else f"https://huggingface.co/{repo}"
        url = self.licence_url or page
        if not self.pin.licence:
            return f"Licence: see {url}"
        return f"Licence: {self.pin.licence}, {url} (you decide whether it fits your use)"

    @property
    def digest_note(self) -> str:
        """End of a line about the file; empty if its bytes were verified by a digest."""
        if self.pin.verified:
            return ""
        return " (not verified by a digest: no server announced one)"

    def facts(self) -> dict[str, Any]:
        """The file in its place as JSON values."""
        return {
            "path": str(self.path),
            "sha256": self.pin.sha256,
            "size": self.pin.size,
            "commit": self.pin.commit,
            "cached": self.cached,
            "licence": self.licence_line,
            "verified": self.pin.verified,
        }


def order_of(
    source: Source,
    project: Project,
    *,
    target: Path | None = None,
    check: VocabularyCheck | None = None,
) -> FileOrder:
    """The order for *source*; *check* reads a tokenizer, given its number of ids, or raises."""
    if source.vocab_size:
        assert check is not None
        return tokenizer_order(source, target, project, check)
    if not source.parts:
        return model_order(source, target, project)
    path = target or project.folder / "models" / source.repo / source.file
    return FileOrder(
        source,
        "package",
        target=path,
        default=path,
        pinned=project.pin_of(("package", *source.index_name)),
        command=f"bitnet download-model {source.repo}",
    )


def model_path(project: Project, source: Source) -> Path:
    """Path ``models/ORG-REPO/FILE`` of *source* in *project*.

    If another file is pinned there, the folder is ``ORG--REPO@REVISION``.
    """
    plain = project.folder / "models" / source.repo.replace("/", "-") / path_of(source.file)
    entries = project.pins()
    own = find_pin(entries, ("model", *source.index_name))
    occupant = _pin_at(entries, plain, project)
    is_free = occupant is None or occupant == own
    if is_free or (occupant is not None and own is not None and occupant.sha256 == own.sha256):
        return plain
    folder = f"{source.repo.replace('/', '--')}@{quote(source.revision, safe='')}"
    return project.folder / "models" / folder / path_of(source.file)


def _pin_at(entries: list[Pin], path: Path, project: Project) -> Pin | None:
    """Lock file entry of the file at *path*; None if there is none."""
    place = project.place_of(path)
    if place is None:  # outside of the project: a lock file has no entry for it
        return None
    return next((entry for entry in entries if entry.place == place), None)


def model_order(source: Source, target: Path | None, project: Project) -> FileOrder:
    """The order for a model file, at *target* or below ``models``, as :func:`order_of`."""
    file_url(source.repo, source.revision, source.file, project.options)  # refuses bad names
    default = model_path(project, source)
    path = target or default
    identity = ("model", *source.index_name)
    pinned = project.pin_of(identity)
    if pinned is not None:
        if source.sha256 not in (None, pinned.sha256):
            raise UsageError(
                f"--sha256 is {source.sha256}, {LOCK_FILE} has {pinned.sha256} for "
                f"{source.repo}/{source.file}",
                hint="leave --sha256 out, or accept the file on the server: bitnet sync --update",
            )
        if source.sha256 is not None:  # the user vouches for the pinned bytes
            pinned = replace(pinned, verified=True)
        licence = source.licence or pinned.licence
        source = replace(_with_pin(source, pinned), licence=licence)
    occupant = _pin_at(project.pins(), path, project)
    is_occupied = (
        occupant is not None and identity != occupant.identity and source.sha256 != occupant.sha256
    )
    if occupant is not None and is_occupied and not project.force:
        pinned_file = f"{occupant.repo}/{occupant.file} ({occupant.revision})"
        raise UsageError(
            f"{path} belongs to {pinned_file} in {LOCK_FILE}, "
            f"{source.repo}/{source.file} ({source.revision}) cannot go there too",
            hint="choose another folder with --output, or replace it with --force",
        )
    ref = Ref(source.repo, repo=source.repo, revision=source.revision, file=source.file)
    return FileOrder(
        source,
        target=path,
        default=default,
        pinned=pinned,
        command="bitnet sync --update" if project.update else ref.command,
    )


def _with_pin(source: Source, pinned: Pin) -> Source:
    """*source* with the pinned digest, size and commit; a branch may have moved since."""
    commit = pinned.commit or pinned.revision
    return replace(source, sha256=pinned.sha256, size=pinned.size, commit=commit)


def tokenizer_entry(source: Source, cache: Path) -> Path:
    """Path of the tokenizer of *source* in the cache."""
    return tree.tokenizer_path(cache, source.cache_key, Path(source.file).name)


def tokenizer_order(
    source: Source, target: Path | None, project: Project, check: VocabularyCheck
) -> FileOrder:
    """The order for the tokenizer *source*; if it was fetched before, no connection is needed."""
    entry = tokenizer_entry(source, project.cache)
    pinned = project.pin_of(("tokenizer", *source.index_name))
    source = source if pinned is None else _with_pin(source, pinned)

    def accept(path: Path) -> None:
        check(path, source.vocab_size)

    usable = (
        _is_own_file_usable(entry, project, accept) and target is None and source.sha256 is None
    )
    return FileOrder(
        source,
        "tokenizer",
        target=target,
        entry=entry,
        default=entry,
        pinned=pinned,
        needs_no_request=True,
        check=accept,
        was_checked=usable or project.store.index.find(*source.index_name) is not None,
        is_own_file_usable=usable,
        command=tokenizer_command(source, entry),
    )


def tokenizer_command(source: Source, entry: Path) -> str:
    """The command that fetches *source*, or another way to put its file at *entry*."""
    named = (source.repo, source.file)
    names = [name for name, each in sources.TOKENIZERS.items() if (each.repo, each.file) == named]
    if names:
        return f"bitnet tokenizer --source {names[0]}"
    return f"the same call, or copy the file to {entry}"


def _is_own_file_usable(entry: Path, project: Project, check: Callable[[Path], None]) -> bool:
    """True if *entry* is a user's own file and passes *check*; False with --force or --update.

    A file that fails *check*, or that has changed since this program wrote it, is fetched once
    more, with a warning.
    """
    if not entry.is_file():
        return False
    record = project.store.verified.find(entry)
    was_written_here = record is not None and record.placed
    if record is not None and was_written_here:
        is_unchanged = project.store.digest_of(entry) == record.sha256
        if is_unchanged:
            return False  # it is not a user's: this program wrote it
    try:
        check(entry)
    except BitnetError as error:
        logger.warning("cached tokenizer is not usable, fetching it once more: %s", error)
        return False
    if was_written_here:
        logger.warning("%s has changed since it was checked, fetching it once more", entry)
        return False
    return not (project.force or project.update)


def order_from_lock(entry: Pin, project: Project, *, check: VocabularyCheck) -> FileOrder:
    """The order for the file that a lock file's *entry* names."""
    target = project.folder / path_of(entry.place) if entry.place is not None else None
    if project.is_in_cache(entry.place):
        raise UsageError(
            f"{LOCK_FILE} puts {entry.repo}/{entry.file} at {entry.place}, which is in the cache",
            hint=f"remove that entry, or use a cache outside of {project.folder}: --cache-dir DIR",
        )
    if entry.kind == "model":
        source = sources.model_source(entry.repo) or Source(entry.repo, entry.repo)
        # Without a digest: `model_order` takes it from this entry, except with --update.
        source = replace(
            source, file=entry.file, revision=entry.revision, licence=entry.licence, sha256=None
        )
        return order_of(source, project, target=target)
    if entry.kind == "package":
        model = sources.PACKAGED.get(entry.repo)
        if model is not None and (project.update or model.sha256 == entry.sha256):
            return order_of(model, project, target=target)
        registered = f"{model.revision} {model.sha256}" if model else "no such model"
        raise Unsupported(
            f"{LOCK_FILE} pins {entry.repo} {entry.revision} with sha256 {entry.sha256}, "
            f"this version has {registered}",
            hint="bitnet sync --update, or use the version that wrote the lock file",
        )
    source = find_registered(entry, f"{LOCK_FILE} pins")
    return order_of(source, project, target=target, check=check)


def derive_place(pin: Pin, where: str) -> str | None:
    """Path below the cache of the tokenizer that *pin* names in a bundle; None for other kinds.

    It follows from the name alone. A name that cannot be one, or that this version does not know,
    is refused; *where* is the beginning of the message.
    """
    if pin.kind == "package":
        _require_packaged(pin, where)
        return None
    file_url(pin.repo, pin.revision, pin.file)  # refuses bad names
    if pin.kind == "model":
        return None
    if pin.kind == "tokenizer":
        return tokenizer_entry(find_registered(pin, where), Path()).as_posix()
    raise InvalidFormat(f"{where} a file of the kind {pin.kind!r}")


def _require_packaged(pin: Pin, where: str) -> None:
    """Refuse a *pin* that is not a file of a registered packaged model."""
    model = sources.PACKAGED.get(pin.repo)
    if model is None or pin.revision != model.revision:
        registered = model.revision if model is not None else "no such model"
        raise Unsupported(
            f"{where} {pin.repo} {pin.revision}, this version has {registered}",
            hint="use the same version on both machines",
        )
    # The digests of notices are not registered: that of *pin* is accepted.
    expected = {package.file_name: pin.sha256 for package in model.notices}
    expected[model.file] = str(model.sha256)
    if pin.file not in expected:
        raise InvalidFormat(f"{where} {pin.file}, which is not a file of {pin.repo}")
    if pin.sha256 != expected[pin.file]:
        raise InvalidFormat(
            f"{where} {pin.repo}/{pin.file} with sha256 {pin.sha256}, expected {expected[pin.file]}"
        )


def find_registered(pin: Pin, where: str) -> Source:
    """The registered tokenizer that *pin* names; refused if there is none.

    *where* is the beginning of the message: ``bitnet.lock.json pins``.
    """
    for tokenizer in sources.TOKENIZERS.values():
        if (tokenizer.repo, tokenizer.file) == (pin.repo, pin.file):
            return replace(tokenizer, revision=pin.revision)
    raise Unsupported(
        f"{where} the tokenizer {pin.repo}/{pin.file}, which is not registered",
        hint=f"registered: {', '.join(s.repo for s in sources.TOKENIZERS.values())}",
    )

"""Bundles: files of this machine, in one tar file, for machines without a network.

    bitnet-bundle.json      the files under their names, a project's lock file, attestations
    sha256/<sha256>         content, in the order of the digests

Bundles are written and read without a connection. The same files give the same bundle, bit by bit.
Reading is strict: every header must equal the one that would be written for the listed file, and
its place in the cache must be the one that follows from its name. So a bundle cannot name a path to
write to, and contains only the listed files, without links.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tarfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from bitnet import sources
from bitnet.base import locks, settings
from bitnet.base.errors import (
    BitnetError,
    HashMismatch,
    IntegrityError,
    InvalidFormat,
    NotFound,
    Offline,
    Unsupported,
    UsageError,
    from_os_error,
)
from bitnet.base.files import open_file, path_of, require_space
from bitnet.base.outputs import OutputFile, OutputKind, begins_with
from bitnet.base.trust import SHA256
from bitnet.hub.models import files_here, list_models, locate_model
from bitnet.hub.orders import FileOrder, derive_place, tokenizer_command, tokenizer_entry
from bitnet.hub.provide import notices, provide
from bitnet.hub.ref import Ref, parse
from bitnet.sources import Source
from bitnet.store import tree
from bitnet.store.records import (
    LOCK_FILE,
    Blob,
    Pin,
    from_record,
    lock_text,
    parse_lock,
    read_lock,
    relative,
    to_record,
)
from bitnet.store.root import make_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bitnet.hub.project import Project
    from bitnet.store.blobs import Store

    Report = Callable[[int, int], None]  # called with bytes done and total

logger = logging.getLogger(__name__)

VERSION = 1
MANIFEST = "bitnet-bundle.json"

_CHUNK = 1 << 20
_BLOCK = tarfile.BLOCKSIZE
_LARGEST_MANIFEST = 256 << 20  # bytes; an attestation of a large model takes a few MB

ARCHIVE = OutputKind("a bundle", lambda path: begins_with(path, MANIFEST.encode()))


@dataclass(frozen=True)
class BundledFile:
    """A file to put into a bundle."""

    pin: Pin  # its name; its digest is computed from the file
    path: Path


@dataclass(frozen=True)
class Bundle:
    """Content of a bundle, either to be written or read from one."""

    files: tuple[Pin, ...]  # the files under their names
    lock: str | None = None  # text of a project's lock file, if there is one
    attestations: dict[str, str] = field(default_factory=dict)  # texts, by digest of the model
    path: Path = field(default=Path(), compare=False)  # of a bundle that was read
    # paths of the files of a bundle to write, by digest
    places: dict[str, Path] = field(default_factory=dict, compare=False)

    @cached_property
    def blobs(self) -> dict[str, Blob]:
        """Each file once, by its digest, in the order of the bundle."""
        sizes = {file.sha256: file.size for file in self.files}
        return {
            sha256: Blob(sha256, size, self.places.get(sha256, Path()))
            for sha256, size in sorted(sizes.items())
        }

    @cached_property
    def manifest(self) -> bytes:
        """The first member: JSON text, the same bytes for the same content."""
        sort_key = partial(json.dumps, sort_keys=True)
        document = {
            "version": VERSION,
            "files": sorted(map(to_record, self.files), key=sort_key),
            "lock": self.lock,
            "attestations": self.attestations,
        }
        return (json.dumps(document, indent=1, ensure_ascii=True, sort_keys=True) + "\n").encode()

    @property
    def size(self) -> int:
        """Bytes of the tar file, including the empty blocks at its end."""
        sizes = [len(self.manifest), *(blob.size for blob in self.blobs.values())]
        used = sum(_BLOCK + size + -size % _BLOCK for size in sizes) + 2 * _BLOCK
        return used + -used % tarfile.RECORDSIZE


# --- export --------------------------------------------------------------------------------------


def model_files(text: str, project: Project) -> list[BundledFile]:
    """The files of the model *text*, with its notices."""
    model = parse(text)
    if model.path is not None or model.url:
        raise UsageError(
            f"{text!r} is not the name of a model; a bundle holds models by name",
            hint="`bitnet models` lists the names; a file of your own is copied as it is",
        )
    if model.shipped:
        raise UsageError(
            f"{text} is part of this program: every installation has it",
            hint="leave it out of the bundle",
        )
    try:
        files = files_here(model, project)
    except Offline:
        hint = f"fetch it first: {model.command}"
        raise NotFound(f"{text} is not on this machine", hint=hint) from None
    members = [BundledFile(file.pin, file.path) for file in files]
    return [*members, *_notices(files[0].pin, project)]


def tokenizer_file(source: Source, project: Project) -> BundledFile:
    """The file of the tokenizer *source* in the cache."""
    entry = tokenizer_entry(source, project.cache)
    if not entry.is_file():
        raise NotFound(
            f"the tokenizer {source.repo}/{source.file} is not on this machine",
            hint=f"fetch it first: {tokenizer_command(source, entry)}",
        )
    name = source.repo, source.revision, source.file
    return BundledFile(Pin("tokenizer", *name, place=relative(entry, project.cache)), entry)


def find_tokenizer(path: Path, project: Project) -> list[BundledFile]:
    """The tokenizer at *path*, if it is in the cache and its origin is recorded; else empty."""
    place = relative(path, project.cache)
    if place is None or not place.startswith("tokenizers/"):
        return []
    names = {
        (source.repo, source.file)
        for source in sources.TOKENIZERS.values()
        if relative(tokenizer_entry(source, project.cache), project.cache) == place
    }
    digest = project.store.digest_of(path)
    for entry in project.store.index:
        is_here = (entry.kind, entry.place, entry.sha256) == ("tokenizer", place, digest)
        if is_here and (entry.repo, entry.file) in names:
            return [BundledFile(entry, path)]
    logger.warning("%s is not in the bundle: where it is from is not known", path)
    return []


def list_pinned(project: Project) -> list[BundledFile]:
    """The files that the lock file pins."""
    files = []
    for entry in project.pins():
        target = project.folder / path_of(entry.place) if entry.place is not None else None
        blob = project.store.find_anywhere(entry.sha256, entry.size, target)
        if blob is None:
            raise NotFound(
                f"{entry.repo}/{entry.file}, which {LOCK_FILE} pins, is not on this machine",
                hint="fetch it first: bitnet sync",
            )
        derive_place(entry, f"{LOCK_FILE} pins")  # refuses what an import would refuse
        files.append(BundledFile(entry, blob.path))
        files += _notices(entry, project)
    return files


def _notices(model: Pin, project: Project) -> list[BundledFile]:
    """Notices of *model* in the store, if it is a packaged one."""
    source = sources.PACKAGED.get(model.repo) if model.kind == "package" else None
    inside = notices(source, project.store) if source is not None else {}
    return [BundledFile(replace(model, file=file), blob.path) for file, blob in inside.items()]


def collect(
    members: Iterable[BundledFile], attestations: dict[str, str], project: Project
) -> Bundle:
    """A bundle of *members* with their files' present digests, and their pins as a lock file."""
    store = project.store
    by_name: dict[tuple[str, str, str], Pin] = {}
    places: dict[str, Path] = {}
    for member in members:
        pin = member.pin
        path = member.path
        sha256 = store.digest_of(path)
        record = store.index.find(*pin.index_name)
        commit = record.commit if record is not None and record.sha256 == sha256 else pin.commit
        size = path.stat().st_size
        pin = replace(pin, commit=commit, sha256=sha256, size=size, licence="")
        place = derive_place(pin, "the bundle would have")
        by_name[pin.index_name] = replace(pin, place=place)
        places[sha256] = path
    pinned = [entry for entry in project.pins() if entry.sha256 in places]
    lock = lock_text(pinned) if pinned else None
    return Bundle(tuple(by_name.values()), lock, attestations, places=places)


def write_bundle(
    bundle: Bundle, output: OutputFile, *, report: Report = lambda _d, _t: None
) -> str:
    """Write *bundle* to *output*, whole or not at all; return the SHA-256 of that file.

    The digest of each file in it is computed again.
    """
    output.check()
    path = output.path
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a file", hint="name a file with --output FILE")
    total = bundle.size
    digest = hashlib.sha256()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        require_space(path.parent, total, str(path), "choose another disk with --output FILE")
        with output.draft() as draft, draft.open("xb") as out:

            def put(data: bytes) -> None:
                out.write(data)
                digest.update(data)
                report(out.tell(), total)

            put(_member(MANIFEST, len(bundle.manifest)) + bundle.manifest)
            put(bytes(-len(bundle.manifest) % _BLOCK))
            for sha256, blob in bundle.blobs.items():
                put(_member(f"sha256/{sha256}", blob.size))
                content = hashlib.sha256()
                begin = out.tell()
                with open_file(blob.path) as file:
                    for chunk in _chunks(file, blob.size):
                        put(chunk)
                        content.update(chunk)
                if (out.tell() - begin, content.hexdigest()) != (blob.size, sha256):
                    raise HashMismatch(
                        f"{blob.path} is not the file with sha256 {sha256} any more",
                        hint="fetch it again; `bitnet cache verify` finds others like it",
                    )
                put(bytes(-blob.size % _BLOCK))
            put(bytes(total - out.tell()))
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise from_os_error(error, error.filename or path) from error
    return digest.hexdigest()


def _member(name: str, size: int) -> bytes:
    """Header of a member with its name and size; the other fields are the same for all members."""
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT, "ascii", "strict")


# --- import --------------------------------------------------------------------------------------


def import_bundle(
    path: Path,
    project: Project,
    *,
    check: Callable[[str, str], object],
    into: Path | None,
    report: Report,
) -> tuple[Bundle, set[str], dict[str, Path]]:
    """Put the files of the bundle at *path* into the store, and under their names.

    The names come last: until then nothing of the bundle is visible. *check* reads the text of an
    attestation, given a name for messages, or raises. *into* is the folder of a project that
    receives the lock file. Returns the bundle, the digests that are new to the store, and the paths
    of the models that are now available, by name.
    """
    bundle = read_bundle(path)
    for digest, text in bundle.attestations.items():
        check(text, f"{path}: attestation of {digest}")
    lock_file = _lock_for(into, bundle, force=project.force) if into is not None else None
    added: list[str] = []
    files = [file for file in bundle.files if not _is_other(file, project)]
    provide(
        [_order(file, project) for file in files],
        replace(project, records=False, force=False),
        root=project.cache,
        add_to_store=lambda: added.extend(_unpack(bundle, project.store, report)),
    )
    for file in files:  # provide() recorded them without commits, which only the bundle knows
        project.store.record_name(file, *file.index_name)
    if into is not None and lock_file is not None:
        replace(project, folder=into).write_lock_file(lock_file)
    paths = {}
    for row in list_models(project.store):
        # Files in the store are named by their digests.
        if row.path is not None and row.path.name in bundle.blobs:
            # The bundle may have only a part of the model. Commands do not take the name of a
            # repository without an owner, which is for lock files.
            with suppress(NotFound, Offline, UsageError):
                paths[row.name] = locate_model(parse(row.name), project, fetch=False)
    return bundle, set(added), paths


def read_bundle(path: Path) -> Bundle:
    """The bundle at *path*, with its manifest checked; its files are not read yet."""
    try:
        with open_file(path) as file:
            block = file.read(_BLOCK)
            try:
                size = tarfile.TarInfo.frombuf(block, "ascii", "strict").size
                is_ours = 0 <= size <= _LARGEST_MANIFEST and block == _member(MANIFEST, size)
            except (tarfile.HeaderError, ValueError, UnicodeError):
                is_ours = False
            if not is_ours:
                raise InvalidFormat(
                    f"{path} is not a bundle: it does not begin with {MANIFEST}",
                    hint="make one with: bitnet bundle export MODEL --output FILE",
                )
            bundle = _parse_manifest(file.read(size), path)
            expected = bundle.size
            actual = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise from_os_error(error, path) from error
    if expected != actual:
        raise InvalidFormat(
            f"{path} has {actual:,} bytes, by its manifest {expected:,}", hint="copy it again"
        )
    return bundle


def _parse_manifest(text: bytes, path: Path) -> Bundle:
    """The bundle that its manifest *text* describes; a wrong one is refused."""
    try:
        document = json.loads(text)
        if (version := document.pop("version")) != VERSION:
            raise Unsupported(
                f"{path} has version {version!r}, this program reads {VERSION}",
                hint="update bitnet",
            )
        files = tuple(from_record(item, "files") for item in document.pop("files"))
        bundle = Bundle(files, **document, path=path)  # an unknown key is a TypeError
        texts = [*bundle.attestations.values(), "" if bundle.lock is None else bundle.lock]
        if not all(map(SHA256.fullmatch, bundle.attestations)):
            raise ValueError("an attestation of no file")
        if not all(isinstance(entry, str) for entry in texts):
            raise ValueError("not a text")
        if len({(file.sha256, file.size) for file in files}) != len(bundle.blobs):
            raise ValueError("two sizes of one file")
        if bundle.manifest != text:
            raise ValueError("it is not as this program writes it")
        _refuse_other_places(files, f"{path} has")
    except Unsupported:
        raise
    except BitnetError as error:
        problem = error.message
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = str(error)
    else:
        return bundle
    raise InvalidFormat(f"{path}: its manifest is damaged: {problem}", hint="copy it again")


def _refuse_other_places(files: Sequence[Pin], where: str) -> None:
    """Refuse *files* whose places do not follow from their names, and two files for one place.

    *where* is the beginning of a message about a name.
    """
    digests: dict[str, str] = {}  # by place
    for file in files:
        place = derive_place(file, where)
        if file.place != place:
            raise InvalidFormat(
                f"{file.place!r} is not the place of the {file.kind} {file.repo}/{file.file}"
            )
        if place is not None and digests.setdefault(place, file.sha256) != file.sha256:
            raise InvalidFormat(f"two files for {place}")
    if len({file.index_name for file in files}) != len(files):
        raise InvalidFormat("two files of one name")


def _lock_for(into: Path, bundle: Bundle, *, force: bool) -> str:
    """Text of the lock file for the project *into*; an existing file with other pins is refused."""
    if bundle.lock is None:
        raise UsageError(
            f"{bundle.path} has no lock file that says where its files belong",
            hint="leave --project out: the models can be used by name",
        )
    pinned = parse_lock(bundle.lock.encode(), bundle.path)
    present = read_lock(into / LOCK_FILE)
    if present and not force and {*present} != {*pinned}:
        raise UsageError(
            f"{into / LOCK_FILE} pins other files than {bundle.path}; it stays",
            hint="choose another folder with --project, or replace it with --force",
        )
    return lock_text(pinned)


def _is_other(file: Pin, project: Project) -> bool:
    """True if the name of *file* means another file on this machine, which is kept and logged."""
    store = project.store
    name = file.index_name
    record = store.index.find(*name)
    if project.force or record is None or record.sha256 == file.sha256:
        return False
    if store.find(record.sha256) is None:  # the other file is not here any more
        return False
    text = "%s %s %s: this machine has another file of that name, which is kept without --force"
    logger.warning(text, *name)
    return True


def _order(file: Pin, project: Project) -> FileOrder:
    """The order for *file*, at its place in the cache."""
    source = Source(file.repo, file.repo, file.file, file.revision, file.sha256, file.size)
    # By a pin, the order knows that no digest vouched for the file when it was fetched.
    unverified = None if file.verified else file
    if file.place is not None:  # a tokenizer's
        entry = project.cache / path_of(file.place)
        is_free = project.force or not entry.exists()
        return FileOrder(source, file.kind, entry=entry if is_free else None, pinned=unverified)
    packaged = file.repo if file.kind == "package" else ""
    ref = Ref("", repo=file.repo, revision=file.revision, packaged=packaged)
    return FileOrder(
        source, file.kind, target=ref.folder(project.cache) / path_of(file.file), pinned=unverified
    )


def _unpack(bundle: Bundle, store: Store, report: Report) -> list[str]:
    """Put every missing file of *bundle* into *store*; return the digests of these files.

    A file is moved into place when it is complete and verified. If one is wrong, all files that
    were added are removed again; if the process is killed, they stay, and the next run continues.
    """
    make_cache(store.root)
    blobs = bundle.blobs.values()
    missing = sum(blob.size for blob in blobs if not store.path_of(blob.sha256).is_file())
    # Not CACHE_HINT: without a network, what is removed from the cache cannot be fetched again.
    require_space(store.root, missing, bundle.path.name, "choose another disk: --cache-dir DIR")
    added: list[str] = []
    done = 0
    total = sum(blob.size for blob in blobs)
    try:
        with open_file(bundle.path) as file:
            file.seek(_BLOCK + len(bundle.manifest) + -len(bundle.manifest) % _BLOCK)
            for blob in blobs:
                name = f"sha256/{blob.sha256}"
                if file.read(_BLOCK) != _member(name, blob.size):
                    raise InvalidFormat(f"something else is where {name} belongs")
                end = file.tell() + blob.size + -blob.size % _BLOCK
                guard = tree.transfer_lock(store.folder, blob.sha256)
                with locks.hold(guard, timeout_s=settings.lock_timeout(), what=name) as lock:
                    if store.find(blob.sha256) is None:
                        store.put(_chunks(file, blob.size), blob, blob.sha256, alone=lock.is_kernel)
                        added.append(blob.sha256)
                file.seek(end)
                done += blob.size
                report(done, total)
            if any(file.read()):
                raise InvalidFormat("something follows its last member")
    except IntegrityError as error:
        for blob in filter(None, map(store.find, added)):
            store.drop(blob)
        raise type(error)(f"{bundle.path}: {error.message}", hint="copy it again") from error
    except OSError as error:
        raise from_os_error(error, error.filename or bundle.path, in_cache=True) from error
    return added


def _chunks(file: IO[bytes], size: int) -> Iterator[bytes]:
    """The next *size* bytes of *file* in chunks; fewer if the file ends before."""
    while size and (chunk := file.read(min(_CHUNK, size))):
        yield chunk
        size -= len(chunk)

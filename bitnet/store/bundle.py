"""A bundle: files of a store in one tar file, for machines without a network.

    bitnet-bundle.json          list of the members, in order, and the names of the files
    bitnet.lock.json            lock file of a project
    attestations/<sha256>.json  attestation of the model with this digest
    sha256/<sha256>             content

The same files give the same bundle, bit by bit: no times, owners or paths of the machine.
Reading is strict: every header must equal the one that would be written for the listed member.
So a bundle cannot name a path to write to, and contains no links, no duplicate names and nothing
else. Any ``tar`` can list and unpack it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import IO, TYPE_CHECKING, Any

from bitnet.base import locks
from bitnet.base.errors import (
    HashMismatch,
    IntegrityError,
    InvalidFormat,
    NoSpace,
    Unsupported,
    UsageError,
    from_os_error,
)
from bitnet.base.files import free_space
from bitnet.base.progress import human_size
from bitnet.base.trust import SHA256
from bitnet.store.partial import clear
from bitnet.store.records import LOCK_FILE, Artifact, from_record, to_record
from bitnet.store.tag import make_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bitnet.store.blobs import Store

    Report = Callable[[int, int], None]

VERSION = 1
MANIFEST = "bitnet-bundle.json"

_CHUNK = 1 << 20
_BLOCK = tarfile.BLOCKSIZE
_LARGEST_TEXT = 64 << 20  # bytes of the manifest, the lock file, an attestation


@dataclass(frozen=True)
class Member:
    """A member of the tar file: its name, digest and size in bytes."""

    name: str
    sha256: str
    size: int

    @property
    def is_blob(self) -> bool:
        """True if it is a file of the store, and not metadata."""
        return self.name == f"sha256/{self.sha256}"


@dataclass(frozen=True)
class Bundle:
    """Content of a bundle, to write or just read.

    Attributes:
        files: the files under their names; those to write have a path.
        models: meaning of model names: ``repo``, ``revision``, ``asked`` and ``files``.
        lock: text of a project's lock file, if there is one.
        attestations: texts, by digest of the model.
        path: of an open bundle.
        blobs: members with the content of its files, in order.
        start: offset of the first of them.
    """

    files: tuple[Artifact, ...]
    models: tuple[dict[str, Any], ...] = ()
    lock: bytes | None = None
    attestations: dict[str, bytes] = field(default_factory=dict)
    path: Path = field(default=Path(), compare=False)
    blobs: tuple[Member, ...] = ()
    start: int = 0


# --- writing -------------------------------------------------------------------------------------


def write_bundle(
    contents: Bundle, path: Path, *, force: bool = False, report: Report = lambda _d, _t: None
) -> str:
    """Write *contents* to *path*: the whole file, or nothing.

    Every digest is computed again while writing.

    Returns:
        The SHA-256 of the file.
    """
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint="replace it with --force, or choose another name")
    texts, members = _list_members(contents)
    sources = {file.sha256: file for file in contents.files}
    manifest = _manifest(contents, members)
    total = _whole_size(len(manifest), members)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if (free := free_space(path.parent)) < total:
            raise NoSpace(
                f"No space left on device (os error 28): {path} needs {human_size(total)}, "
                f"{human_size(free)} are free",
                hint="choose another disk with --output FILE",
            )
        with _fresh_file(path) as out:
            digest = hashlib.sha256()

            def put(data: bytes) -> None:
                out.write(data)
                digest.update(data)
                report(out.tell(), total)

            _put_text(put, MANIFEST, manifest)
            for member in members:
                if member.name in texts:
                    _put_text(put, member.name, texts[member.name])
                else:
                    put(_header(member.name, member.size))
                    _put_file(put, sources[member.sha256])
                    put(bytes(-member.size % _BLOCK))
            put(bytes(total - out.tell()))
    except OSError as error:
        raise from_os_error(error, error.filename or path) from error
    return digest.hexdigest()


def _list_members(contents: Bundle) -> tuple[dict[str, bytes], list[Member]]:
    texts = {LOCK_FILE: contents.lock} if contents.lock is not None else {}
    for sha256, text in sorted(contents.attestations.items()):
        texts[f"attestations/{sha256}.json"] = text
    members = [Member(n, hashlib.sha256(t).hexdigest(), len(t)) for n, t in texts.items()]
    sizes = sorted({file.sha256: file.size for file in contents.files}.items())
    return texts, members + [Member(f"sha256/{key}", key, size) for key, size in sizes]


def _manifest(contents: Bundle, members: list[Member]) -> bytes:
    document = {
        "version": VERSION,
        "members": [asdict(member) for member in members],
        "files": sorted(map(to_record, contents.files), key=json.dumps),
        "models": sorted(contents.models, key=json.dumps),
    }
    return (json.dumps(document, indent=1, ensure_ascii=True, sort_keys=True) + "\n").encode()


def _put_text(put: Callable[[bytes], None], name: str, text: bytes) -> None:
    put(_header(name, len(text)) + text + bytes(-len(text) % _BLOCK))


def _put_file(put: Callable[[bytes], None], blob: Artifact) -> None:
    digest, count = hashlib.sha256(), 0
    with blob.path.open("rb") as file:
        while count < blob.size and (chunk := file.read(min(_CHUNK, blob.size - count))):
            put(chunk)
            digest.update(chunk)
            count += len(chunk)
    if (count, digest.hexdigest()) != (blob.size, blob.sha256):
        raise HashMismatch(
            f"{blob.path} is not the file with sha256 {blob.sha256} any more",
            hint="fetch it again; `bitnet cache verify` finds others like it",
        )


def _header(name: str, size: int) -> bytes:
    """Header of a member: nothing but name and size."""
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT, "ascii", "strict")


def _whole_size(manifest: int, members: list[Member] | tuple[Member, ...]) -> int:
    """Bytes of the whole bundle, including the empty blocks at its end."""
    sizes = [manifest, *(member.size for member in members)]
    used = sum(_BLOCK + size + -size % _BLOCK for size in sizes) + 2 * _BLOCK
    return used + -used % tarfile.RECORDSIZE


@contextmanager
def _fresh_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that becomes *path* when the block ends without an error.

    Where the system supports unnamed files (Linux), it has no name until then, so nothing is left
    of it when the process is killed.
    """
    fresh = path.with_name(f".{path.name[:99]}.{os.getpid()}-{token_hex(4)}")
    try:
        fd = os.open(path.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
    except (OSError, AttributeError):
        fd = -1
    try:
        with open(fd, "w+b") if fd >= 0 else fresh.open("x+b") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
            if fd >= 0:
                unnamed = f"/proc/self/fd/{fd}"  # absolute: the next argument only chooses linkat
                with suppress(FileExistsError):
                    os.link(unnamed, path, src_dir_fd=fd, follow_symlinks=True)
                    return
                os.link(unnamed, fresh, src_dir_fd=fd, follow_symlinks=True)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


# --- reading -------------------------------------------------------------------------------------


def read_bundle(path: Path) -> Bundle:
    """The bundle at *path*, with its list and texts checked; its files are not read yet."""
    try:
        with path.open("rb") as file:
            block = file.read(_BLOCK)
            try:
                size = tarfile.TarInfo.frombuf(block, "ascii", "strict").size
                is_ours = 0 <= size <= _LARGEST_TEXT and block == _header(MANIFEST, size)
            except (tarfile.HeaderError, ValueError, UnicodeError):
                is_ours = False
            if not is_ours:
                raise InvalidFormat(
                    f"{path} is not a bundle: it does not begin with {MANIFEST}",
                    hint="make one with: bitnet bundle export MODEL --output FILE",
                )
            members, files, models = _parse_manifest(file.read(size), path)
            expected, found = _whole_size(size, members), os.fstat(file.fileno()).st_size
            if expected != found:
                raise InvalidFormat(
                    f"{path} has {found:,} bytes, its list speaks of {expected:,}: "
                    f"{'it is not complete' if found < expected else 'something was added to it'}",
                    hint="copy it again",
                )
            file.seek(-size % _BLOCK, os.SEEK_CUR)
            texts = {one.name: _text(file, one, path) for one in members if not one.is_blob}
            start = file.tell()
    except OSError as error:
        raise from_os_error(error, path) from error
    blobs = tuple(member for member in members if member.is_blob)
    lock = texts.pop(LOCK_FILE, None)
    attested = {name[len("attestations/") : -len(".json")]: text for name, text in texts.items()}
    return Bundle(files, models, lock, attested, path, blobs, start)


def _parse_manifest(
    text: bytes, path: Path
) -> tuple[tuple[Member, ...], tuple[Artifact, ...], tuple[dict[str, Any], ...]]:
    """Parsed content of a manifest."""
    try:
        document = json.loads(text)
        version = document["version"]
        if version == VERSION:
            members = tuple(_member(item) for item in document["members"])
            files = tuple(from_record(item, "files") for item in document["files"])
            models = tuple(_model(item) for item in document["models"])
            kinds = [member.is_blob for member in members]
            if kinds != sorted(kinds):
                raise ValueError("texts come before files")
            if len({member.name for member in members}) != len(members):
                raise ValueError("two members of one name")
            sizes = {member.sha256: member.size for member in members if member.is_blob}
            if any(sizes.get(file.sha256) != file.size for file in files):
                raise ValueError("a name without its file")
            return members, files, models
    except InvalidFormat as error:
        problem = error.message
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = str(error)
    else:
        raise Unsupported(
            f"{path} has version {version!r}, this program reads {VERSION}", hint="update bitnet"
        )
    raise InvalidFormat(f"{path}: its list is damaged: {problem}", hint="copy it again")


def _member(item: dict[str, Any]) -> Member:
    member = Member(**item)
    sound = type(member.size) is int and member.size >= 0 and SHA256.fullmatch(member.sha256)
    attested = re.fullmatch(r"attestations/[0-9a-f]{64}\.json", member.name)
    is_text = member.name == LOCK_FILE or attested
    if not sound or not (member.is_blob or (is_text and member.size <= _LARGEST_TEXT)):
        raise ValueError(f"not a member: {item!r}")
    return member


def _model(item: dict[str, Any]) -> dict[str, Any]:
    texts = [item["repo"], item["revision"], item["asked"], *item["files"]]
    if len(item) != 4 or not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise ValueError(f"not a model: {item!r}")
    return item


def unpack(
    bundle: Bundle, store: Store, *, lock_s: float, report: Report = lambda _d, _t: None
) -> list[str]:
    """Put every missing file of *bundle* into *store*; the digests of those files.

    A file is moved into place when it is complete and verified. If one is wrong, nothing of the
    bundle stays; if the process is killed, finished files stay, and the next run continues.
    *lock_s* bounds the wait for a process that fetches one of the files.
    """
    make_cache(store.root)
    _need_space(bundle, store)
    fresh: list[str] = []
    done, total = 0, sum(member.size for member in bundle.blobs)
    try:
        with bundle.path.open("rb") as file:
            file.seek(bundle.start)
            for member in bundle.blobs:
                _expect(file, member, bundle.path)
                end = file.tell() + member.size + -member.size % _BLOCK
                if _take_member(file, member, bundle, store, lock_s):
                    fresh.append(member.sha256)
                file.seek(end)
                done += member.size
                report(done, total)
            if any(file.read()):
                raise InvalidFormat(f"{bundle.path}: something follows its last member")
    except IntegrityError:
        for blob in filter(None, map(store.find, fresh)):
            store.drop(blob)
        raise
    except OSError as error:
        raise from_os_error(error, error.filename or bundle.path, in_cache=True) from error
    return fresh


def _need_space(bundle: Bundle, store: Store) -> None:
    missing = sum(m.size for m in bundle.blobs if not store.path_of(m.sha256).is_file())
    if missing > (free := free_space(store.root)):
        raise NoSpace(
            f"No space left on device (os error 28): {bundle.path.name} needs "
            f"{human_size(missing)}, {human_size(free)} are free in {store.root}",
            hint="choose another disk: --cache-dir DIR",
        )


def _expect(file: IO[bytes], member: Member, path: Path) -> None:
    """Read the header of *member*, which must be next in *file*."""
    if file.read(_BLOCK) != _header(member.name, member.size):
        raise InvalidFormat(
            f"{path}: something else is where {member.name} belongs", hint="copy it again"
        )


def _text(file: IO[bytes], member: Member, path: Path) -> bytes:
    _expect(file, member, path)
    text = file.read(member.size)
    file.seek(-member.size % _BLOCK, os.SEEK_CUR)
    if hashlib.sha256(text).hexdigest() != member.sha256:
        raise HashMismatch(f"{path}: {member.name} is damaged", hint="copy it again")
    return text


def _take_member(
    file: IO[bytes], member: Member, bundle: Bundle, store: Store, lock_s: float
) -> bool:
    """Put the bytes of *member* into *store*; true unless they were there already."""
    folder = store.folder / "partial"
    folder.mkdir(exist_ok=True)
    what = f"the file {member.sha256[:16]} of {bundle.path.name}"
    with locks.hold(folder / f"{member.sha256}.lock", timeout_s=lock_s, what=what) as lock:
        if store.find(member.sha256) is not None:
            clear(folder / member.sha256, alone=lock.is_kernel)
            return False
        try:
            store.put(
                _chunks(file, member.size),
                member.sha256,
                sha256=member.sha256,
                size=member.size,
                alone=lock.is_kernel,
            )
        except HashMismatch as error:
            raise HashMismatch(f"{bundle.path}: {error.message}", hint="copy it again") from error
    return True


def _chunks(file: IO[bytes], size: int) -> Iterator[bytes]:
    while size and (chunk := file.read(min(_CHUNK, size))):
        yield chunk
        size -= len(chunk)

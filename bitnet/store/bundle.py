"""A bundle: files of a store in one tar file, for machines without a network.

    bitnet-bundle.json      the files under their names, a project's lock file, attestations
    sha256/<sha256>         content, in the order of the digests

The same files give the same bundle, bit by bit: no times, owners or paths of the machine. Reading
is strict: every header must equal the one that would be written for the listed file. So a bundle
cannot name a path to write to, and contains no links, no duplicate names and nothing else. Any
``tar`` can list and unpack it.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from secrets import token_hex
from typing import IO, TYPE_CHECKING, Any

from bitnet.base import locks, settings
from bitnet.base.errors import (
    HashMismatch,
    IntegrityError,
    InvalidFormat,
    Unsupported,
    UsageError,
    from_os_error,
)
from bitnet.base.files import require_space
from bitnet.base.trust import SHA256
from bitnet.store.partial import clear
from bitnet.store.records import Artifact, from_record, to_record
from bitnet.store.tag import make_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bitnet.store.blobs import Store

    Report = Callable[[int, int], None]

VERSION = 1
MANIFEST = "bitnet-bundle.json"

_CHUNK = 1 << 20
_BLOCK = tarfile.BLOCKSIZE
_LARGEST_MANIFEST = 256 << 20  # bytes; an attestation of a large model has a few


@dataclass(frozen=True)
class Bundle:
    """Content of a bundle, to write or just read."""

    files: tuple[Artifact, ...]  # the files under their names; those to write have a path
    # meaning of model names: ``repo``, ``revision``, ``asked`` and ``files``
    models: tuple[dict[str, Any], ...] = ()
    lock: str | None = None  # text of a project's lock file, if there is one
    attestations: dict[str, str] = field(default_factory=dict)  # texts, by digest of the model
    path: Path = field(default=Path(), compare=False)  # of an open bundle

    @cached_property
    def blobs(self) -> dict[str, Artifact]:
        """Each file once, by its digest, in the order of the bundle."""
        return dict(sorted({file.sha256: file for file in self.files}.items()))

    @cached_property
    def manifest(self) -> bytes:
        """The first member."""
        in_order = partial(json.dumps, sort_keys=True)
        document = {
            "version": VERSION,
            "files": sorted(map(to_record, self.files), key=in_order),
            "models": sorted(self.models, key=in_order),
            "lock": self.lock,
            "attestations": self.attestations,
        }
        return (json.dumps(document, indent=1, ensure_ascii=True, sort_keys=True) + "\n").encode()


def write_bundle(
    bundle: Bundle, path: Path, *, force: bool = False, report: Report = lambda _d, _t: None
) -> str:
    """Write *bundle*, with its digests computed again, to *path* or nothing; its own SHA-256."""
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint="replace it with --force, or choose another name")
    total = _whole_size(bundle)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        hint = "choose another disk with --output FILE"
        require_space(path.parent, total, str(path), lambda _missing: hint)
        with _fresh_file(path) as out:
            digest = hashlib.sha256()

            def put(data: bytes) -> None:
                out.write(data)
                digest.update(data)
                report(out.tell(), total)

            put(_member(MANIFEST, len(bundle.manifest)) + bundle.manifest)
            put(bytes(-len(bundle.manifest) % _BLOCK))
            for sha256, blob in bundle.blobs.items():
                put(_member(f"sha256/{sha256}", blob.size))
                content, begin = hashlib.sha256(), out.tell()
                with blob.path.open("rb") as file:
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
    except OSError as error:
        raise from_os_error(error, error.filename or path) from error
    return digest.hexdigest()


def _member(name: str, size: int) -> bytes:
    """Header of a member: nothing but name and size."""
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT, "ascii", "strict")


def _whole_size(bundle: Bundle) -> int:
    """Bytes of the whole bundle, including the empty blocks at its end."""
    sizes = [len(bundle.manifest), *(blob.size for blob in bundle.blobs.values())]
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


def read_bundle(path: Path) -> Bundle:
    """The bundle at *path*, with its manifest checked; its files are not read yet."""
    try:
        with path.open("rb") as file:
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
            text = file.read(size)
            bundle = _parse_manifest(text, path)
            expected, actual = _whole_size(bundle), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise from_os_error(error, path) from error
    if expected != actual:
        reason = "it is not complete" if actual < expected else "something was added to it"
        raise InvalidFormat(
            f"{path} has {actual:,} bytes, its list speaks of {expected:,}: {reason}",
            hint="copy it again",
        )
    return bundle


def _parse_manifest(text: bytes, path: Path) -> Bundle:
    try:
        document = json.loads(text)
        version = document.pop("version")
        if version == VERSION:
            files = tuple(from_record(item, "files") for item in document.pop("files"))
            bundle = Bundle(files, tuple(document.pop("models")), **document, path=path)
            for meaning in bundle.models:
                texts = [*(meaning[key] for key in ("repo", "revision", "asked"))]
                texts += meaning["files"]
                are_texts = all(isinstance(text, str) and text.isprintable() for text in texts)
                if len(meaning) != 4 or not are_texts:
                    raise ValueError(f"not a model: {meaning!r}")
            texts = [*bundle.attestations.values(), bundle.lock or ""]
            if not all(map(SHA256.fullmatch, bundle.attestations)):
                raise ValueError("an attestation of no file")
            if not all(isinstance(entry, str) for entry in texts):
                raise ValueError("not a text")
            if len({(file.sha256, file.size) for file in files}) != len(bundle.blobs):
                raise ValueError("two sizes of one file")
            if bundle.manifest != text:
                raise ValueError("it is not as this program writes it")
            return bundle
    except InvalidFormat as error:
        problem = error.message
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = str(error)
    else:
        raise Unsupported(
            f"{path} has version {version!r}, this program reads {VERSION}", hint="update bitnet"
        )
    raise InvalidFormat(f"{path}: its list is damaged: {problem}", hint="copy it again")


def unpack(bundle: Bundle, store: Store, *, report: Report = lambda _d, _t: None) -> list[str]:
    """Put every missing file of *bundle* into *store*; the digests of those files.

    A file is moved into place when it is complete and verified. If one is wrong, nothing of the
    bundle stays; if the process is killed, finished files stay, and the next run continues.
    """
    make_cache(store.root)
    blobs = bundle.blobs.values()
    missing = sum(blob.size for blob in blobs if not store.path_of(blob.sha256).is_file())
    hint = "choose another disk: --cache-dir DIR"
    require_space(store.root, missing, bundle.path.name, lambda _missing: hint)
    fresh: list[str] = []
    done, total = 0, sum(blob.size for blob in blobs)
    try:
        with bundle.path.open("rb") as file:
            size = len(bundle.manifest)
            file.seek(_BLOCK + size + -size % _BLOCK)
            for blob in blobs:
                name = f"sha256/{blob.sha256}"
                if file.read(_BLOCK) != _member(name, blob.size):
                    raise InvalidFormat(
                        f"{bundle.path}: something else is where {name} belongs",
                        hint="copy it again",
                    )
                end = file.tell() + blob.size + -blob.size % _BLOCK
                if _take_member(file, blob, bundle, store):
                    fresh.append(blob.sha256)
                file.seek(end)
                done += blob.size
                report(done, total)
            if any(file.read()):
                raise InvalidFormat(f"{bundle.path}: something follows its last member")
    except IntegrityError:
        for artifact in filter(None, map(store.find, fresh)):
            store.drop(artifact)
        raise
    except OSError as error:
        raise from_os_error(error, error.filename or bundle.path, in_cache=True) from error
    return fresh


def _take_member(file: IO[bytes], blob: Artifact, bundle: Bundle, store: Store) -> bool:
    """Put the bytes of *blob*, next in *file*, into *store*; true unless they were there."""
    folder, key = store.folder / "partial", blob.sha256
    folder.mkdir(exist_ok=True)
    what, wait_s = f"the file {key[:16]} of {bundle.path.name}", settings.lock_timeout()
    with locks.hold(folder / f"{key}.lock", timeout_s=wait_s, what=what) as lock:
        if store.find(key) is not None:
            clear(folder / key, alone=lock.is_kernel)
            return False
        chunks = _chunks(file, blob.size)
        try:
            store.put(chunks, blob, alone=lock.is_kernel)
        except HashMismatch as error:
            raise HashMismatch(f"{bundle.path}: {error.message}", hint="copy it again") from error
    return True


def _chunks(file: IO[bytes], size: int) -> Iterator[bytes]:
    while size and (chunk := file.read(min(_CHUNK, size))):
        yield chunk
        size -= len(chunk)

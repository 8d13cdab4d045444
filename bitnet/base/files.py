"""Operations on whole files: atomic writes, digests, free space."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import BitnetError, InvalidFormat, NoSpace, UsageError, from_os_error
from bitnet.base.quantities import human_size

if TYPE_CHECKING:
    from io import BufferedReader

_OPEN_FLAGS = (
    getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
)
_SPECIAL = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_READ_BYTES = 1 << 18  # at once; they fit into the cache of a core
# Bytes of a file's name that the name of a file beside it repeats. Together with what is added to
# them they stay below 143, the shortest limit of a usual file system (eCryptfs).
_REPEATED_BYTES = 99
CACHE_HINT = (
    "free space there (`bitnet cache clean --models --dry-run` lists what the cache can free), or "
    "choose another disk: --cache-dir DIR"
)

OUTPUT_HINT = "free space there, or choose a folder on another disk: --output DIR"


def open_file(path: Path) -> BufferedReader:
    """Open the regular file *path*, which a user or a checkout names, for reading.

    All code that reads such a file opens it here. Reading a pipe, a socket or a device could block
    or never end, and a checkout may contain a link to one: they are refused.
    """
    name = os.fspath(path)
    refuse_special(path.stat(), path)
    # The path may lead to another file by now, so the open one is checked again. O_NONBLOCK keeps
    # the opening of a pipe from waiting for its writer.
    descriptor = os.open(name, os.O_RDONLY | _OPEN_FLAGS)
    try:
        refuse_special(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def refuse_special(status: os.stat_result, path: Path) -> None:
    """Refuse the file *path* with *status* unless it is a regular file."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        kinds = (kind for is_kind, kind in _SPECIAL if is_kind(status.st_mode))
        raise InvalidFormat(
            f"{path} is not a regular file but {next(kinds, 'something else')}",
            hint="write the content to a file, and name that file",
        )


def is_file_or_folder(path: Path) -> bool:
    """True for a regular file or a folder, False if *path* cannot be looked up; else refuse it."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a NUL in the text
        return False
    if not stat.S_ISDIR(status.st_mode):
        refuse_special(status, path)
    return True


def exists(path: Path) -> bool:
    """True if *path* exists; False if not, or if it cannot be looked up.

    A path cannot be looked up if a part of it is too long, or if this user may not search its
    folder. Before Python 3.14, ``Path.exists`` raises an ``OSError`` for such a path.
    """
    try:
        path.stat()
    except (OSError, ValueError):  # ValueError: a NUL in the text
        return False
    return True


def real_path(path: Path) -> Path:
    """*path* without links, absolute; its last parts need not exist.

    Links in a circle, a NUL, and a working folder that was deleted are errors that name the path.
    """
    try:
        return path.resolve()
    except RuntimeError:  # before Python 3.13
        circle = OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        raise from_os_error(circle, path) from None
    except OSError as error:
        raise from_os_error(error, path) from error
    except ValueError:
        raise UsageError(f"{os.fspath(path)!r} is not a path", hint="check the path") from None


def sha256_of(path: Path) -> str:
    """SHA-256 of the file *path*, hexadecimal."""
    digest = hashlib.sha256()
    buffer = bytearray(_READ_BYTES)
    with open_file(path).detach() as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()


def git_oid(path: Path) -> str:
    """SHA-1 under which git stores the content of the file *path*, its blob id, hexadecimal."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def digest_of(path: Path) -> str:
    """As :func:`sha256_of`, with errors of this package that name the file."""
    try:
        return sha256_of(path)
    except OSError as error:
        raise from_os_error(error, path) from error


def read_bytes(path: Path) -> bytes:
    """The content of the file *path*, with errors that name it."""
    try:
        with open_file(path) as file:
            return file.read()
    except OSError as error:
        raise from_os_error(error, path) from error


def read_json(path: Path, *, hint: str) -> dict[str, Any]:
    """The JSON object in the file *path*; *hint* says how to get another one."""
    raw = read_bytes(path)
    try:
        values = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidFormat(f"{path.name} is not JSON: {error}", hint=hint) from error
    if not isinstance(values, dict):
        raise InvalidFormat(f"{path.name} does not hold a JSON object", hint=hint)
    return values


def free_space(folder: Path) -> int:
    """Bytes free on the file system of *folder*, which need not exist yet."""
    try:
        return shutil.disk_usage(_nearest_existing(folder)).free
    except OSError as error:
        raise from_os_error(error, folder) from error


def device_of(folder: Path) -> int:
    """Number of the file system that *folder* is on, or will be when it is created."""
    try:
        return _nearest_existing(folder).stat().st_dev
    except OSError as error:
        raise from_os_error(error, folder) from error


def _nearest_existing(folder: Path) -> Path:
    """*folder*, or the nearest folder above it that exists."""
    whole = folder.absolute()
    existing = (path for path in (whole, *whole.parents) if path.exists())
    return next(existing, whole)  # on Windows a whole drive may be missing


def require_space(folder: Path, size: int, purpose: str, hint: str, *, spare: int = 0) -> None:
    """Refuse to write *size* bytes below *folder* if less than *spare* bytes would stay free."""
    free = free_space(folder)
    if size + spare > free:
        needed = human_size(size)
        extra = f" and {human_size(spare)} to spare" if spare else ""
        raise NoSpace(
            f"No space left on device (os error {errno.ENOSPC}): {purpose} needs {needed} "
            f"more{extra}, {human_size(free)} are free in {folder}",
            hint=hint,
        )


def check_writable(folder: Path) -> None:
    """Create *folder*, and test that a file can be created in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # on Linux it never gets a name
            pass
    except OSError as error:
        raise from_os_error(error, folder) from error


def text_of(path: str | os.PathLike[str]) -> str:
    """*path* as text with the same meaning in every locale: its bytes read as UTF-8."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def path_of(text: str) -> Path:
    """The path for which :func:`text_of` returns *text*, in this process's locale."""
    return Path(os.fsdecode(text.encode("utf-8", "surrogateescape")))


def beside(path: Path, end: str) -> Path:
    """Path of a hidden file beside *path* that belongs to it: ``.NAME.END``.

    A long name is cut, and followed by its digest, so that two files never share a hidden file.
    """
    encoded = path.name.encode(errors="surrogatepass")
    if len(encoded) <= _REPEATED_BYTES:
        return path.with_name(f".{path.name}.{end}")
    digest = hashlib.sha256(encoded).hexdigest()[:16]
    beginning = encoded[: _REPEATED_BYTES - len(f"-{digest}")]
    return path.with_name(f".{beginning.decode(errors='ignore')}-{digest}.{end}")


def write_text(path: Path, text: str) -> None:
    """Write *text* as UTF-8 with :func:`write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(
    path: Path, *parts: bytes | memoryview, durable: bool = True, private: bool = False
) -> None:
    """Write *parts* to *path* atomically; folders are created.

    An existing file keeps its permissions, and a link its target; a device or a pipe is written to
    directly. Without *durable* a power failure may lose the file. With *private* only this user can
    ever read it.
    """
    mode = 0o600 if private else 0o666

    def create(name: str, flags: int) -> int:
        return os.open(name, flags | _OPEN_FLAGS, mode)

    try:
        target = real_path(path)
        if target.exists() and not target.is_file():
            target.write_bytes(b"".join(parts))
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = beside(target, f"{os.getpid()}-{token_hex(4)}.tmp")
        try:
            with open(temporary, "xb", opener=create) as out:
                out.writelines(parts)
                if durable:
                    out.flush()
                    os.fsync(out.fileno())
            if target.exists() and not private:
                temporary.chmod(target.stat().st_mode & 0o777)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise from_os_error(error, path) from error


def keep(path: Path, *parts: bytes | memoryview, private: bool = False) -> str:
    """Write *parts* to *path* in a cache; return the reason of a failure, or an empty text.

    Only this user can read a *private* file.
    """
    try:
        write_bytes(path, *parts, durable=False, private=private)
    except BitnetError as error:
        return error.message
    return ""

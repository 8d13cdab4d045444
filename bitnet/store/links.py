"""A second name for a file: as a reflink, a hard link or a copy."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import stat
from contextlib import suppress
from secrets import token_hex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["link", "make_read_only", "remove", "replace_file", "sync_folder"]

_FICLONE = 0x40049409  # linux/fs.h


def link(source: Path, target: Path) -> str:
    """Make *target* the same file as *source* in one step.

    First a reflink is tried: two files that share blocks until one is changed; then a hard link;
    then a copy. An existing *target* is replaced atomically: a reader sees the old or the new
    file.

    Returns:
        ``reflink``, ``hard link`` or ``copy``; empty if both are one file already.

    Raises:
        OSError: none of them is possible.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        if target.samefile(source):
            return ""
    fresh = target.with_name(f"{target.name}.partial.{os.getpid()}-{token_hex(4)}")
    try:
        how = _made(source, fresh)
        replace_file(fresh, target)
    except BaseException:
        remove(fresh)
        raise
    return how


def replace_file(source: Path, target: Path) -> None:
    """Rename *source* to *target*, even if *target* is read-only.

    Raises:
        OSError: that is not possible.
    """
    try:
        source.replace(target)
    except PermissionError:
        if os.name != "nt":
            raise
        target.chmod(stat.S_IWRITE)  # Windows cannot replace a read-only file
        source.replace(target)


def remove(path: Path) -> None:
    """Delete *path*, even if it is read-only; nothing happens if it does not exist.

    Raises:
        OSError: it cannot be deleted.
    """
    try:
        path.unlink(missing_ok=True)
    except PermissionError:
        if os.name != "nt":
            raise
        path.chmod(stat.S_IWRITE)
        again = path.with_name(f"{path.name}.{token_hex(4)}")
        path.rename(again)
        again.unlink()


def make_read_only(path: Path) -> None:
    """Make *path* read-only for all users, where the file system has permissions."""
    with suppress(OSError):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)


def sync_folder(folder: Path) -> None:
    """Make a rename in *folder* durable, on file systems that can."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _made(source: Path, fresh: Path) -> str:
    if _reflinked(source, fresh):
        _as(source, fresh)
        return "reflink"
    remove(fresh)
    try:
        fresh.hardlink_to(source)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        shutil.copyfile(source, fresh)
        with fresh.open("rb+") as file:
            os.fsync(file.fileno())
        _as(source, fresh)
        return "copy"
    return "hard link"


def _as(source: Path, fresh: Path) -> None:
    """Set the time of *fresh* to that of *source*: in the past, so that a change shows at once."""
    status = source.stat()
    with suppress(OSError):
        os.utime(fresh, ns=(status.st_atime_ns, status.st_mtime_ns))


def _reflinked(source: Path, fresh: Path) -> bool:
    """Make *fresh* a reflink of *source*; true if that was possible."""
    if platform.system() == "Linux":
        import fcntl

        try:
            with source.open("rb") as old, fresh.open("xb") as new:
                fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError:
            return False
        return True
    if platform.system() == "Darwin":  # pragma: no cover
        with suppress(AttributeError, OSError):
            clone = ctypes.CDLL(None, use_errno=True).clonefile
            return bool(clone(os.fsencode(source), os.fsencode(fresh), 0) == 0)
    return False

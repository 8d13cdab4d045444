"""A second name for a file: as a reflink, a hard link or a copy."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from bitnet.base.files import open_file

_FICLONE = 0x40049409  # linux/fs.h
_LONGEST_BYTES = 200  # of a name that gets a suffix; a folder takes 255 bytes
_SHORTENED_BYTES = 180  # of what is left of a longer one
#: A writable file of another program that is smaller than this is copied rather than linked: such
#: files, of settings, are edited in place. Larger ones are weights, of which two would fill disks.
EDITED_BYTES = 64 << 20


class Prepared:
    """A second name for a file beside *target*, ready to become it in one step.

    First a reflink of *source* is tried: two files that share blocks until one is changed; then a
    hard link; then a copy. ``how`` says which; it is empty if both are one file already. *folder*
    is a descriptor of the folder of *target*, ``None`` where the system has none; it must stay open
    until :meth:`commit` or :meth:`discard`. With *may_be_edited*, people may edit *target*: a
    writable *source* is not linked unless it is large (:data:`EDITED_BYTES`).
    """

    def __init__(
        self, source: Path, target: Path, folder: int | None, *, may_be_edited: bool = False
    ) -> None:
        self.how = ""
        self._may_be_edited = may_be_edited
        self._folder = folder
        name = fresh_name(target.name)
        # Names relative to *folder*, passed as dir_fd; or without it, whole paths.
        self._fresh = Path(name) if folder is not None else target.with_name(name)
        self.target = Path(target.name) if folder is not None else target
        with suppress(OSError):
            if not target.is_symlink() and target.samefile(source):
                return
        try:
            self.how = self._make(source)
        except BaseException:
            self.discard()
            raise

    def commit(self) -> None:
        """Rename the prepared file to its target: a reader sees the old or the new file."""
        if self.how:
            replace_file(self._fresh, self.target, self._folder)

    def discard(self) -> None:
        """Delete the prepared file, unless it was committed."""
        with suppress(OSError):
            remove(self._fresh, self._folder)

    def remove_target(self) -> None:
        """Delete the file that has the target's name, if there is one."""
        remove(self.target, self._folder)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        return os.open(self._fresh, flags, 0o666, dir_fd=self._folder)

    def _make(self, source: Path) -> str:
        """Make the second name of *source*; return how: a value of ``how``."""
        if self._reflink(source):
            self._set_time(source)
            return "reflink"
        status = source.stat()
        is_writable = bool(status.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
        if self._may_be_edited and is_writable and status.st_size < EDITED_BYTES:
            return self._copy(source)
        try:
            os.link(source, self._fresh, dst_dir_fd=self._folder)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # a copy would need even more space
            return self._copy(source)
        return "hard link"

    def _copy(self, source: Path) -> str:
        """Make a copy of *source*; return how."""
        with open_file(source) as old, open(self._open(), "wb") as new:
            shutil.copyfileobj(old, new, 1 << 20)
            new.flush()
            os.fsync(new.fileno())
        self._set_time(source)
        return "copy"

    def _reflink(self, source: Path) -> bool:
        """Make a reflink of *source*; true if that was possible."""
        if platform.system() == "Linux":
            import fcntl

            with open_file(source) as old, open(self._open(), "wb") as new:
                try:
                    fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
                except OSError:
                    remove(self._fresh, self._folder)
                    return False
            return True
        if platform.system() == "Darwin":  # pragma: no cover
            with suppress(AttributeError, OSError):
                clone = ctypes.CDLL(None, use_errno=True).clonefileat
                names = os.fsencode(source), self._folder, os.fsencode(self._fresh)
                return bool(clone(-2, *names, 0) == 0)  # -2: AT_FDCWD
        return False

    def _set_time(self, source: Path) -> None:
        """Copy the time of *source*, which is in the past, so a later change gets another mtime."""
        status = source.stat()
        times = status.st_atime_ns, status.st_mtime_ns
        with suppress(OSError):
            os.utime(self._fresh, ns=times, dir_fd=self._folder)


def fresh_name(name: str) -> str:
    """A new name for an unfinished file that will be called *name*; not too long for a folder."""
    return f"{short_name(name)}.partial.{os.getpid()}-{token_hex(4)}"


def short_name(name: str) -> str:
    """The beginning of the file name *name* that leaves room for a suffix."""
    raw = os.fsencode(name)
    return name if len(raw) <= _LONGEST_BYTES else raw[:_SHORTENED_BYTES].decode(errors="ignore")


def replace_file(source: Path, target: Path, folder: int | None = None) -> None:
    """Rename *source* to *target*, even if *target* is read-only; both may be names in *folder*."""
    try:
        os.replace(source, target, src_dir_fd=folder, dst_dir_fd=folder)
    except PermissionError:
        if os.name != "nt":
            raise
        target.chmod(stat.S_IWRITE)  # Windows cannot replace a read-only file
        source.replace(target)


def remove(path: Path, folder: int | None = None) -> None:
    """Delete *path*, even if it is read-only; nothing happens if it does not exist."""
    try:
        with suppress(FileNotFoundError):
            os.unlink(path, dir_fd=folder)
    except PermissionError:
        if os.name != "nt":
            raise
        path.chmod(stat.S_IWRITE)
        again = path.with_name(f"{path.name}.{token_hex(4)}")
        path.rename(again)
        again.unlink()


def sync_folder(folder: Path) -> None:
    """Make a rename in *folder* durable, on file systems that can."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

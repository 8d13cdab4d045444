"""Locks between processes: kernel locks with a bounded wait that names their holder.

A lock file stays, unless it lies beside a user's files: then its holder deletes it when it releases
the lock. If a process gets the lock of a file that was deleted meanwhile, it opens the file at that
path again. The holder writes into the file who it is, for the messages of waiting processes.

Some shared file systems refuse kernel locks, and some grant one to every process at once. There a
lock has no effect, and callers must be correct without it: it only keeps work from being repeated.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
import weakref
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, TypeVar

from bitnet.base.errors import BitnetError, CacheBusy, from_os_error
from bitnet.base.files import read_bytes
from bitnet.base.trust import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

REPORT_INTERVAL_S = 10.0
POLL_INTERVAL_S = 0.05
# To see if a lock is held, `is_held` takes it for a moment. A lock that is busy in all of these
# tries has another holder.
_TRIES = 5
_TRY_INTERVAL_S = 0.005
# Errors of flock if a file system has no locks, or if its lock server is not running.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP}

_locks_work_on: dict[int, bool] = {}  # by ``st_dev``
_Owner = TypeVar("_Owner")
# Objects that are alive, and the functions that renew them in a forked child (renew_in_child).
_owners: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


class Lock:
    """A lock that :func:`hold` creates: ``flock`` on a file whose text names the holder."""

    def __init__(self, path: Path, *, is_shared: bool = False) -> None:
        self.path = path
        # True: the kernel excludes all other processes of this machine. False: they are not
        # excluded, since the file system has no locks, or Windows no shared ones.
        self.is_kernel = True
        self._is_shared = is_shared
        self._fd = -1
        self._since = time.strftime("%H:%M:%S")

    def report(self, progress: str) -> None:
        """Tell waiting processes the progress of the work."""
        holder = f"process {os.getpid()} on {socket.gethostname()} since {self._since}"
        # A failure affects only the messages of waiting processes.
        with suppress(OSError), open(self.path, "r+", encoding="utf-8") as file:
            file.write(f"{holder}, {progress}" if progress else holder)
            file.truncate()

    def acquire(self) -> bool:
        """True if the lock was free and is held now; does not wait for another holder."""
        while True:
            fd = self._open()
            try:
                if self.is_kernel:
                    import fcntl

                    how = fcntl.LOCK_SH if self._is_shared else fcntl.LOCK_EX
                    fcntl.flock(fd, how | fcntl.LOCK_NB)
                # A file with 0 hard links was deleted by its last holder: open the path again.
                if os.fstat(fd).st_nlink:
                    self._fd = fd
                    fd = -1  # stays open
                    return True
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                return False
            finally:
                if fd >= 0:
                    os.close(fd)

    def delete(self) -> None:
        """Delete the file if no other process holds it, unless another file is in its place."""
        with suppress(OSError):
            if self._is_shared:
                if not self.is_kernel:
                    return
                import fcntl

                # This fails while others share the lock; the last of them deletes the file.
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(self.path.lstat(), os.fstat(self._fd)):
                self.path.unlink()

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        nofollow = getattr(os, "O_NOFOLLOW", 0)
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | nofollow, 0o666)
        except PermissionError as denied:
            try:  # another user's file; flock accepts a read-only descriptor
                return os.open(self.path, os.O_RDONLY | nofollow)
            except FileNotFoundError:  # it cannot be created
                raise denied from None


class _WindowsLock(Lock):  # pragma: no cover
    """A lock of the package ``filelock``, for Windows; a shared one has no effect there."""

    def __init__(self, path: Path, *, is_shared: bool = False) -> None:
        from filelock import FileLock  # here: it imports asyncio

        super().__init__(path, is_shared=is_shared)
        self.is_kernel = not is_shared
        self._lock = FileLock(path, thread_local=False)

    def acquire(self) -> bool:
        from filelock import Timeout

        with suppress(Timeout):
            if self.is_kernel:
                self._lock.acquire(blocking=False)
            return True
        return False

    def delete(self) -> None:
        """Do nothing: an open file cannot be deleted here."""

    def release(self) -> None:
        self._lock.release()


_SystemLock = _WindowsLock if os.name == "nt" else Lock


@contextmanager
def hold(
    path: Path,
    *,
    timeout_s: float,
    what: str = "",
    hint: str = "",
    leave: bool = True,
    shared: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Lock]:
    """Hold the lock file *path*, which is created if it is missing.

    Args:
        path: its folder must exist.
        timeout_s: how long to wait for another holder.
        what: name of the work, for messages; by default the file's name.
        hint: the hint of the error after too long a wait.
        leave: False: delete the file when the lock is released. A file that a killed process left
            is deleted by the next holder.
        shared: several processes may hold the lock, if all share it. On Windows a shared lock has
            no effect.
        clock: returns the time in seconds; tests replace it.
        sleep: waits for a number of seconds; tests replace it.

    The error is :class:`CacheBusy` if another process held the lock for all of *timeout_s*.
    """
    lock = _SystemLock(path, is_shared=shared)
    what = what or path.name
    try:
        lock.is_kernel = lock.is_kernel and _locks_work(path.parent)
        started = last_report = clock()
        while not _acquire(lock):
            waited = clock() - started
            if waited >= timeout_s:
                raise CacheBusy(
                    f"{what} is held by {holder_of(path)}; gave up after {waited:.0f} s",
                    hint=hint or "wait for it to finish, or allow more with BITNET_LOCK_TIMEOUT",
                )
            if clock() - last_report >= REPORT_INTERVAL_S:
                last_report = clock()
                text = "waiting for %s: held by %s; %.0f s so far"
                logger.warning(text, what, holder_of(path), waited)
            sleep(min(POLL_INTERVAL_S, max(0.0, timeout_s - waited)))
    except OSError as error:
        raise from_os_error(error, path) from error
    lock.report("")
    try:
        yield lock
    finally:
        if not leave:
            lock.delete()
        lock.release()


def _acquire(lock: Lock) -> bool:
    """As :meth:`Lock.acquire`, with some more tries: :func:`is_held` may have the lock briefly."""
    for _ in range(_TRIES - 1):
        if lock.acquire():
            return True
        time.sleep(_TRY_INTERVAL_S)
    return lock.acquire()


def is_held(path: Path) -> bool:
    """True if a process holds the lock file *path* at this moment."""
    lock = _SystemLock(path)
    with suppress(OSError):
        if path.exists() and not _acquire(lock):
            return True
    lock.release()
    return False


def holder_of(path: Path) -> str:
    """Text about the last holder of the lock file *path*; it may have released the lock since."""
    try:
        text = read_bytes(path).decode("utf-8", "replace")
        return printable(text) or "another process"
    except BitnetError:
        return "another process"


@cache
def boot_id() -> str:
    """Kernel's random id of this boot, the same in all containers; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _locks_work(folder: Path) -> bool:
    """True if a lock on a file in *folder* excludes a second one; tested once per file system."""
    if os.name == "nt":  # pragma: no cover
        return True
    device = folder.stat().st_dev
    if device not in _locks_work_on:
        _locks_work_on[device] = _try_locks(folder)
        if not _locks_work_on[device]:
            logger.info("locks have no effect in %s", folder)
    return _locks_work_on[device]


def _try_locks(folder: Path) -> bool:
    """True if a second lock on one file in *folder* is refused."""
    import fcntl

    how = fcntl.LOCK_EX | fcntl.LOCK_NB
    with (
        NamedTemporaryFile(prefix=".lock-", dir=folder) as first,
        open(first.name, "r+b") as second,
    ):
        try:
            fcntl.flock(first, how)
            fcntl.flock(second, how)  # granted as well: locks have no effect
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
    return False


def renew_in_child(owner: _Owner, renew: Callable[[_Owner], None]) -> None:
    """Call ``renew(owner)`` first thing in every forked child, for as long as *owner* lives."""
    _owners[owner] = renew


def _renew_owners() -> None:
    for owner, renew in list(_owners.items()):
        renew(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_owners)

"""Locks between processes: kernel locks with a bounded wait that names their holder.

A lock file is kept, or deleted with the lock if it is next to a user's files. Only its holder
deletes it, and a process that locks a deleted file takes the one of the same name instead. The
holder writes its identity into the file; the record of a dead process has no effect, since the
kernel released its lock.

Some shared file systems refuse kernel locks, and some grant one to every process at once. This is
tested once per file system. There a lock has no effect: callers stay correct without locks, which
only save work.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import time
import uuid
import weakref
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, TypeVar

from bitnet.base.errors import CacheBusy, from_os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

REPORT_INTERVAL_S = 10.0
POLL_INTERVAL_S = 0.05
_PROCESS = uuid.uuid4().hex[:12]  # distinguishes this process from an earlier one with its pid
# Errors of flock where a file system has no locks, or its lock server does not run.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP}


@dataclass(frozen=True)
class Owner:
    """A process and its work."""

    pid: int  # its process id
    host: str  # name of its machine, or container
    since: float  # start of its work, in seconds since the epoch
    progress: str = ""  # of the work, in words
    process: str = ""  # distinguishes processes with the same pid
    boot: str = ""  # id of the machine's boot; empty if unknown
    namespace: str = ""  # namespace of the pid; containers have their own
    started: str = ""  # start of the process, in ticks since the boot

    @classmethod
    def me(cls, *, since: float | None = None, progress: str = "") -> Owner:
        """This process."""
        moment = time.time() if since is None else since
        return cls(
            os.getpid(),
            socket.gethostname(),
            moment,
            progress,
            _PROCESS,
            *_place(),
            _start_of(os.getpid()),
        )

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """The owner described by *text*; ``None`` if it is invalid."""
        try:
            owner = cls(**json.loads(text))
        except (ValueError, TypeError):
            return None
        kinds = [type(value) for value in asdict(owner).values()]
        return owner if kinds == [int, str, float, *[str] * 5] else None

    @property
    def is_me(self) -> bool:
        """True if it is this process."""
        return self.pid == os.getpid() and self.process == _PROCESS

    @property
    def is_dead(self) -> bool:
        """True if it certainly does not run; a process elsewhere is never certainly dead.

        Elsewhere means another host, or another container or boot under the same host name.
        """
        if self.is_me or self.host != socket.gethostname():
            return False
        if (self.boot, self.namespace) not in (("", ""), _place()):
            return False
        if self.pid == os.getpid():
            return True  # our pid, used before by another process
        if not _exists(self.pid):
            return True
        return bool(self.started) and _start_of(self.pid) not in ("", self.started)

    def text(self) -> str:
        """The record that :meth:`parse` reads."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        progress = f", {self.progress}" if self.progress else ""
        state = " (not running any more)" if self.is_dead else ""
        return f"process {self.pid} on {self.host} since {since}{progress}{state}"


def _exists(pid: int) -> bool:
    """True if a process with this pid runs."""
    if os.name == "nt":  # pragma: no cover  # there, signal 0 is Ctrl-C
        import ctypes

        handle = ctypes.windll.kernel32.OpenProcess(0x1000, False, pid)  # type: ignore[attr-defined]
        if handle:
            ctypes.windll.kernel32.CloseHandle(handle)  # type: ignore[attr-defined]
        return bool(handle)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


@cache
def _place() -> tuple[str, str]:
    """This boot of the machine, and the pid namespace; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return boot, os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except OSError:
        return "", ""


def _start_of(pid: int) -> str:
    """Start of process *pid*, in ticks since the boot; empty if unknown."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    fields = status.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""  # proc(5), field 22


class Lock:
    """A lock in use, which :func:`hold` creates: ``flock`` on a file whose content stays."""

    def __init__(self, path: Path, *, is_shared: bool = False) -> None:
        self.path = path
        # the kernel excludes all other processes of this machine; otherwise nothing does
        self.is_kernel = True
        self._is_shared = is_shared
        self._fd = -1
        self._since = time.time()

    def report(self, progress: str) -> None:
        """Tell waiting processes the progress of the work."""
        record = Owner.me(since=self._since, progress=progress).text()
        # If the record cannot be written, only the waiters' messages are affected.
        with suppress(OSError), open(self.path, "r+", encoding="utf-8") as file:
            file.write(record)
            file.truncate()

    def acquire(self) -> bool:
        """Try once, and again if the file was deleted meanwhile."""
        while True:
            fd = self._open()
            try:
                if self.is_kernel:
                    import fcntl

                    how = fcntl.LOCK_SH if self._is_shared else fcntl.LOCK_EX
                    fcntl.flock(fd, how | fcntl.LOCK_NB)
                if os.fstat(fd).st_nlink:
                    self._fd, fd = fd, -1
                    return True
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                return False
            finally:
                if fd >= 0:
                    os.close(fd)

    def delete(self) -> None:
        """Delete the file while it is held, unless another one is in its place."""
        with suppress(OSError):
            if os.path.samestat(self.path.lstat(), os.fstat(self._fd)):
                self.path.unlink()

    def release(self) -> None:
        """Release it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        nofollow = getattr(os, "O_NOFOLLOW", 0)
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | nofollow, 0o666)
        except PermissionError:  # another user's file in a shared cache; it can still be locked
            return os.open(self.path, os.O_RDONLY | nofollow)


class _WindowsLock(Lock):  # pragma: no cover
    """A lock of ``filelock``, which knows how on Windows; none is shared there."""

    def __init__(self, path: Path, *, is_shared: bool = False) -> None:
        from filelock import FileLock  # here, since it loads asyncio

        super().__init__(path, is_shared=is_shared)
        self.is_kernel = not is_shared
        self._lock = FileLock(path, thread_local=False)

    def acquire(self) -> bool:
        """Try once; true on success."""
        from filelock import Timeout

        try:
            if self.is_kernel:
                self._lock.acquire(blocking=False)
        except Timeout:
            return False
        return True

    def delete(self) -> None:
        """Do nothing: an open file cannot be deleted here."""

    def release(self) -> None:
        """Release it."""
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
    """Hold the lock file *path*, which is created if missing; :class:`CacheBusy` after the time.

    *what* is the name of the work, for messages, and *hint* helps after too long a wait. Without
    *leave* the file is deleted with the lock, and a killed process's file by the next one. *shared*
    holds it together with others that do the same; where the system cannot, it has no effect.
    """
    lock, what = _SystemLock(path, is_shared=shared), what or path.name
    try:
        lock.is_kernel = lock.is_kernel and kernel_locks_work(path.parent)
        started = last_report = clock()
        while not lock.acquire():
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


def is_held(path: Path) -> bool:
    """True if a process holds the lock file *path* at this moment."""
    if not path.exists():
        return False
    lock = _SystemLock(path)
    try:
        if not lock.acquire():
            return True
    except OSError:
        return False
    lock.release()
    return False


def owner_of(path: Path) -> Owner | None:
    """Last recorded owner of the lock file; it need not hold the lock any more."""
    try:
        return Owner.parse(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def holder_of(path: Path) -> str:
    """Last recorded owner of the lock file in words."""
    return str(owner_of(path) or "another process")


def kernel_locks_work(folder: Path) -> bool:
    """True if a lock on a file in *folder* excludes a second one; tested once per file system."""
    if os.name == "nt":  # pragma: no cover
        return True
    device = folder.stat().st_dev
    if device not in _working:
        _working[device] = _try_locks(folder)
        if not _working[device]:
            logger.info("locks have no effect in %s", folder)
    return _working[device]


_working: dict[int, bool] = {}  # by device


def _try_locks(folder: Path) -> bool:
    import fcntl

    how = fcntl.LOCK_EX | fcntl.LOCK_NB
    with NamedTemporaryFile(prefix=".lock-", dir=folder) as first, open(first.name, "rb") as second:
        try:
            fcntl.flock(first, how)
            fcntl.flock(second, how)  # where this is granted as well, locks have no effect
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
    return False


_Owner = TypeVar("_Owner")
_owners: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def renew_in_child(owner: _Owner, renew: Callable[[_Owner], None]) -> None:
    """Call ``renew(owner)`` first thing in every forked child, for as long as *owner* lives."""
    _owners[owner] = renew


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        after_in_child=lambda: [renew(owner) for owner, renew in list(_owners.items())]
    )

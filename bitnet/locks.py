"""Locks between processes: kernel locks with a bounded wait that says who holds them.

The lock file is never deleted, because a process could hold it at that moment, and a second one
would then lock another file of the same name. The holder writes who it is into the file; a record
of a process that no longer lives is only history, since the kernel gave up its lock.

On some shared file systems a lock seems to succeed for everybody. Whoever uses this module must
stay correct then; the lock only saves work.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from bitnet.errors import CacheBusy, from_os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Lock", "Owner", "hold", "is_held", "owner_of"]

logger = logging.getLogger(__name__)

REPORT_INTERVAL_S = 10.0
POLL_INTERVAL_S = 0.05
_PROCESS = uuid.uuid4().hex[:12]  # tells this process from an earlier one with its number


@dataclass(frozen=True)
class Owner:
    """A process: number, host, start of its work in seconds since the epoch, progress in words."""

    pid: int
    host: str
    since: float
    progress: str = ""
    process: str = ""

    @classmethod
    def me(cls, *, since: float | None = None, progress: str = "") -> Owner:
        """This process."""
        moment = time.time() if since is None else since
        return cls(os.getpid(), socket.gethostname(), moment, progress, _PROCESS)

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """The owner that *text* describes, ``None`` when it describes none."""
        try:
            fields = json.loads(text)
            return cls(
                int(fields["pid"]),
                str(fields["host"]),
                float(fields["since"]),
                str(fields.get("progress", "")),
                str(fields.get("process", "")),
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    @property
    def is_me(self) -> bool:
        """Whether it is this process."""
        return self.pid == os.getpid() and self.process == _PROCESS

    @property
    def is_dead(self) -> bool:
        """Whether it surely no longer runs; a process on another host is never surely dead."""
        if self.host != socket.gethostname() or self.is_me:
            return False
        if self.pid == os.getpid():
            return True  # our number, given to another process before us
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            return False
        return False

    def text(self) -> str:
        """The record that :meth:`parse` reads."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        progress = f", {self.progress}" if self.progress else ""
        state = " (not running any more)" if self.is_dead else ""
        return f"process {self.pid} on {self.host} since {since}{progress}{state}"


class Lock:
    """A lock that is held; :func:`hold` gives it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._owner = Owner.me()
        self.report("")

    def report(self, progress: str) -> None:
        """Tell those who wait how far the work is."""
        record = Owner.me(since=self._owner.since, progress=progress).text()
        # A record that cannot be written only makes the waiters' messages poorer.
        with suppress(OSError), open(self.path, "r+", encoding="utf-8") as file:
            file.write(record)
            file.truncate()


@contextmanager
def hold(
    path: Path,
    *,
    timeout_s: float,
    what: str = "",
    hint: str = "",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Lock]:
    """Hold the lock file *path*.

    Args:
        path: the lock file; made when missing, never deleted.
        timeout_s: longest wait in seconds.
        what: what is being waited for, for messages; the file's name when empty.
        hint: what helps when the wait was too long.
        clock: monotonic seconds.
        sleep: waits so many seconds.

    Raises:
        CacheBusy: the wait was too long; names the owner.
        PermissionDenied: the lock file cannot be made.
    """
    what = what or path.name
    lock = FileLock(path, thread_local=False)
    started = said = clock()
    while True:
        try:
            lock.acquire(blocking=False)
            break
        except Timeout:
            pass
        except OSError as error:
            raise from_os_error(error, path) from error
        waited = clock() - started
        if waited >= timeout_s:
            raise CacheBusy(
                f"{what} is held by {_name(owner_of(path))}; gave up after {waited:.0f} s",
                hint=hint or "wait for it to finish, or allow more with --lock-timeout=SECONDS",
            )
        if clock() - said >= REPORT_INTERVAL_S:
            said = clock()
            logger.warning(
                "waiting for %s: held by %s; %.0f s so far", what, _name(owner_of(path)), waited
            )
        sleep(min(POLL_INTERVAL_S, max(0.0, timeout_s - waited)))
    try:
        yield Lock(path)
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Whether a process holds the lock file *path* at this moment."""
    if not path.exists():
        return False
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    except OSError:
        return False
    lock.release()
    return False


def owner_of(path: Path) -> Owner | None:
    """Who wrote itself into the lock file last; it need not hold the lock any more."""
    try:
        return Owner.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _name(owner: Owner | None) -> str:
    return str(owner) if owner is not None else "another process"

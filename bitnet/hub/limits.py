"""What all transfers of a command share: connections, bytes per second, and the end of it."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Limits", "Stopped"]

CONNECTIONS = 8  # of all files together, where nothing else is asked for
_BURST_S = 0.125  # of the rate: what a connection reads at once
_POLL_S = 0.2


class Stopped(Exception):  # never leaves the package
    """Another transfer has failed, or the user has had enough; this one ends."""


class Limits:
    """Limits of one command; every thread may use them.

    Args:
        rate: bytes per second of all connections together; 0: as fast as they come.
        connections: that are open at once; 0: the usual number.
        clock: monotonic seconds.
        sleep: waits so many seconds; the limits' own wait ends early when they are stopped.
    """

    def __init__(
        self,
        *,
        rate: float = 0.0,
        connections: int = 0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self.rate = rate
        self.connections = connections or CONNECTIONS
        self._clock = clock
        self._stopped = threading.Event()
        self._sleep = sleep if sleep is not None else self.sleep
        self._slots = threading.BoundedSemaphore(self.connections)
        self._lock = threading.Lock()
        self._told: list[Callable[[], None]] = []
        self._paid_until = clock()  # when the bytes that came are allowed to have come

    # --- the end -----------------------------------------------------------------------------

    def stop(self) -> None:
        """Let every transfer end soon."""
        self._stopped.set()
        with self._lock:
            told = list(self._told)
        for end in told:
            end()

    @contextmanager
    def telling(self, end: Callable[[], None]) -> Iterator[None]:
        """Call *end* when everything shall end, for what would go on waiting."""
        with self._lock:
            self._told.append(end)
        try:
            yield
        finally:
            with self._lock:
                self._told.remove(end)

    def go_on(self) -> None:
        """Allow transfers again, once those that were to end have ended."""
        self._stopped.clear()

    @property
    def is_stopped(self) -> bool:
        """Whether everything shall end."""
        return self._stopped.is_set()

    def sleep(self, duration_s: float) -> None:
        """Wait *duration_s* seconds.

        Raises:
            Stopped: everything shall end.
        """
        if self._stopped.wait(duration_s):
            raise Stopped

    # --- connections -------------------------------------------------------------------------

    @contextmanager
    def connection(self, ended: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """One of the connections; gives whether it had to be waited for.

        Args:
            ended: whether the transfer that asks has no use for it any more.

        Raises:
            Stopped: everything shall end, or that transfer has ended.
        """
        waited = not self._slots.acquire(blocking=False)
        if waited:
            while not self._slots.acquire(timeout=_POLL_S):
                if self.is_stopped or ended():
                    raise Stopped
        try:
            yield waited
        finally:
            self._slots.release()

    # --- bytes per second --------------------------------------------------------------------

    def share(self, count: int) -> int:
        """How many of *count* bytes to read at once, so that the rate is kept smoothly."""
        return min(count, max(1, int(self.rate * _BURST_S))) if self.rate else count

    def pay(self, count: int, ended: Callable[[], bool] = lambda: False) -> float:
        """Wait until *count* bytes, which have come, are within the rate; seconds waited.

        Time without transfers is not saved up: after a pause the rate is the same.

        Raises:
            Stopped: everything shall end.
        """
        if not self.rate:
            return 0.0
        with self._lock:
            now = self._clock()
            self._paid_until = max(now, self._paid_until) + count / self.rate
            wait = self._paid_until - now
        left = wait
        while left > 0 and not ended():
            self._sleep(min(left, _POLL_S))
            left -= _POLL_S
        return wait

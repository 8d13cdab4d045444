"""Limits shared by all transfers of a command: connections, rate, and cancellation."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONNECTIONS = 8  # of all files together, by default
_BURST_S = 0.125  # of the rate: bytes that a connection reads at once
_POLL_S = 0.2


class Stopped(Exception):  # never leaves the package
    """This transfer is cancelled: another one has failed, or the user interrupted."""


class Limits:
    """Limits of one command; thread-safe.

    Args:
        rate: bytes per second of all connections together; 0: unlimited.
        connections: open at once; 0: the default.
        clock: monotonic seconds.
        sleep: waits this many seconds; the limits' own wait ends early on cancellation.
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
        self._paid_until = clock()  # time at which the received bytes are within the rate

    # --- the end -----------------------------------------------------------------------------

    def stop(self) -> None:
        """Cancel every transfer."""
        self._stopped.set()
        with self._lock:
            told = list(self._told)
        for end in told:
            end()

    @contextmanager
    def telling(self, end: Callable[[], None]) -> Iterator[None]:
        """Call *end* on cancellation, to wake up whatever is waiting."""
        with self._lock:
            self._told.append(end)
        try:
            yield
        finally:
            with self._lock:
                self._told.remove(end)

    def go_on(self) -> None:
        """Allow transfers again, after the cancelled ones have ended."""
        self._stopped.clear()

    @property
    def is_stopped(self) -> bool:
        """True if transfers are cancelled."""
        return self._stopped.is_set()

    def sleep(self, duration_s: float) -> None:
        """Wait *duration_s* seconds.

        Raises:
            Stopped: transfers are cancelled.
        """
        if self._stopped.wait(duration_s):
            raise Stopped

    # --- connections -------------------------------------------------------------------------

    @contextmanager
    def connection(self, ended: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Take one of the connections; yields true if it had to wait for one.

        Args:
            ended: true if the transfer that asks does not need it any more.

        Raises:
            Stopped: transfers are cancelled, or that transfer has ended.
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
        """Number of *count* bytes to read at once, so that the rate is kept smoothly."""
        return min(count, max(1, int(self.rate * _BURST_S))) if self.rate else count

    def pay(self, count: int, ended: Callable[[], bool] = lambda: False) -> float:
        """Wait until *count* received bytes are within the rate; the seconds waited.

        Idle time is not credited: after a pause the rate is the same.

        Raises:
            Stopped: transfers are cancelled.
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

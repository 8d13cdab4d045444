"""Limits of all transfers of a command: connections, rate, threads, attempts, cancellation."""

from __future__ import annotations

import logging
import re
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from bitnet.base.errors import BitnetError, NetworkError
from bitnet.base.trust import redact_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


logger = logging.getLogger(__name__)

CONNECTIONS = 8  # of all files together, by default
_BURST_S = 0.125  # of the rate: bytes that a connection reads at once
_POLL_S = 0.2


class Stopped(Exception):  # never leaves the package
    """This transfer is cancelled: another one has failed, or the user interrupted."""


class Limits:
    """Limits of one command; thread-safe.

    *rate* is in bytes per second of all connections together, 0 unlimited; 0 *connections* are the
    default. The limits' own wait, unlike *sleep*, ends early on cancellation.
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
        """Wait *duration_s* seconds."""
        if self._stopped.wait(duration_s):
            raise Stopped

    @contextmanager
    def connection(self, ended: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Take a connection, unless the transfer has *ended*; true if it had to wait for it."""
        waited = not self._slots.acquire(blocking=False)
        if waited:
            while not self._slots.acquire(timeout=_POLL_S):
                if self.is_stopped or ended():
                    raise Stopped
        try:
            yield waited
        finally:
            self._slots.release()

    def share(self, count: int) -> int:
        """Number of *count* bytes to read at once, so that the rate is kept smoothly."""
        return min(count, max(1, int(self.rate * _BURST_S))) if self.rate else count

    def pay(self, count: int, ended: Callable[[], bool] = lambda: False) -> float:
        """Wait until *count* bytes are within the rate, without credit for a pause; the seconds."""
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


_ADDRESS = re.compile(r"( for|:)? \w+://\S+?(?=: | |:?$)")
TROUBLESHOOTING = (
    "look for the cause with: bitnet doctor network; behind a proxy set HTTPS_PROXY; "
    "use a mirror with --base-url=URL; allow more with --retries=N or BITNET_DOWNLOAD_TIMEOUT"
)


class Transient(Exception):  # never leaves the package
    """A temporary failure: *error* is raised when it persists."""

    def __init__(
        self, error: BitnetError, *, retry_after_s: float | None = None, attempts: int | None = None
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.retry_after_s = retry_after_s
        self.attempts = attempts

    @property
    def reason(self) -> str:
        """The failure without the address, which the final error names."""
        return _ADDRESS.sub("", self.error.message)


def request_error(url: str, reason: str) -> NetworkError:
    """Error for a request to *url* without a usable reply."""
    return NetworkError(
        f"HTTP request failed for {redact_url(url)}: {reason}", hint=TROUBLESHOOTING
    )


FILES_AT_ONCE = 4
TURN_S = 0.5  # after which a signal is seen at the latest

T = TypeVar("T")


def at_once(calls: Sequence[Callable[[], T]], limits: Limits) -> list[T]:
    """Results of *calls*, several at a time, in order; when one fails, the others end soon."""
    if len(calls) < 2:
        return [call() for call in calls]
    try:
        ended = in_threads(calls, min(FILES_AT_ONCE, limits.connections, len(calls)), limits.stop)
    finally:
        limits.go_on()
    if error := first_error(ended):
        raise error
    return [one.result() for one in ended]


def in_threads(
    calls: Iterable[Callable[[], T]], threads: int, stop: Callable[[], object]
) -> list[Future[T]]:
    """Run *calls* in *threads* until all have ended; *stop* ends them when one fails."""
    running: list[Future[T]] = []
    done: set[Future[T]] = set()
    all_well = False
    with ThreadPoolExecutor(threads, thread_name_prefix="download") as pool:
        try:
            running += map(pool.submit, calls)
            while len(done) < len(running) and first_error(done) is None:
                # In turns: a signal that comes just before a wait does not end it.
                done, _ = wait(running, TURN_S, FIRST_EXCEPTION)
            all_well = first_error(done) is None
        finally:
            if not all_well:
                stop()
                pool.shutdown(wait=False, cancel_futures=True)
    return running


def first_error(ended: Iterable[Future[T]]) -> BaseException | None:
    """An error that ended one of these calls: the cause, rather than that another was stopped."""
    errors = [error for one in ended if not one.cancelled() and (error := one.exception())]
    return min(errors, key=lambda error: isinstance(error, Stopped), default=None)

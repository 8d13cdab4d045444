"""Limits of retries: attempts without progress, waits, and time."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol

from bitnet.base import settings
from bitnet.base.errors import NetworkError, RateLimited
from bitnet.hub.http import TROUBLESHOOTING

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.hub.fetch_options import FetchOptions
    from bitnet.hub.http import Transient

logger = logging.getLogger(__name__)

BACKOFF_S = 0.2  # doubles with every failure ...
LONGEST_BACKOFF_S = 20.0  # ... up to this
JITTER = 0.1  # largest share added to a wait, so that clients do not retry in step
STOP_POLL_S = 0.2  # time in which a waiting thread notices cancellation
FRESH_START_BYTES = 1 << 20  # an attempt that received this much does not count as a failure


class RetryPolicy(Protocol):
    """Limits and time of the attempts of a session."""

    options: FetchOptions
    attempts: int | None  # most in a row without progress; None: limited by time only
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    jitter: Callable[[], float]  # from 0 to 1


class Patience:
    """Decides how long one operation is retried; all threads of the operation share one object."""

    def __init__(self, session: RetryPolicy) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._failures = 0  # in a row
        self._gained = 0  # bytes since the last failure
        self._waited_s = 0.0  # own waits since the last byte
        self._last_byte = session.clock()
        self._last_gain = self._last_byte  # that, or the end of a wait that the server asked for

    def report_bytes(self, count: int) -> None:
        """Report that *count* more bytes have arrived."""
        with self._lock:
            self._last_gain = self._session.clock()
            self._last_byte = self._last_gain
            self._waited_s = 0.0
            self._gained += count
            if self._gained >= FRESH_START_BYTES:
                self._failures = 0
                self._gained = 0

    def report_failure(
        self, what: str, broken: Transient, *, stopped: Callable[[], bool] | None = None
    ) -> None:
        """Report a failure of *what*; wait for the next attempt or until *stopped*, or give up.

        Giving up raises :class:`NetworkError` or :class:`RateLimited`, with the limit reached.
        """
        session = self._session
        options = self._session.options

        # Count the failure, and choose the wait before the next attempt.
        with self._lock:
            self._failures += 1
            self._gained = 0
            failures = self._failures
            silent_s = max(session.clock() - self._last_gain, self._waited_s)
        wait = min(BACKOFF_S * 2 ** min(failures - 1, 30), LONGEST_BACKOFF_S)
        wait *= 1 + JITTER * session.jitter()
        # If the server asks for a wait, it counts together with the time since the last byte.
        server_wait_s = broken.retry_after_s or 0.0
        wait = max(wait, server_wait_s)
        waited_and_asked_s = 0.0
        if server_wait_s:
            waited_and_asked_s = server_wait_s + session.clock() - self._last_byte

        # Give up?
        limits = [limit for limit in (session.attempts, broken.attempts) if limit]
        most = min(limits, default=None)
        ending = ""
        if most is not None and failures >= most:
            ending = "1 attempt" if failures == 1 else f"{failures} attempts"
        elif waited_and_asked_s > settings.retry_after_max():
            ending = (
                f"the server asks to wait {server_wait_s:.0f} s, {waited_and_asked_s:.0f} s with "
                "the time since the last byte; BITNET_RETRY_AFTER_MAX allows less"
            )
        elif silent_s > options.deadline_s:
            ending = f"{failures} attempts, no progress for {silent_s:.0f} s"
        if ending:
            if failures > 1:
                logger.warning("%s: attempt %d failed: %s", what, failures, broken.reason)
            kind = RateLimited if isinstance(broken.error, RateLimited) else NetworkError
            hint = broken.error.hint or TROUBLESHOOTING
            raise kind(f"{broken.error.message} ({ending})", hint=hint)

        # Wait. A wait requested by the server is not silence.
        if not server_wait_s:
            with self._lock:
                self._waited_s += wait
        number = f"{failures} of {most}" if most is not None else f"{failures}"
        logger.warning(
            "%s: attempt %s failed: %s; next attempt in %.1f s", what, number, broken.reason, wait
        )
        if stopped is None:
            session.sleep(wait)
        else:
            until = session.clock() + wait
            while (left := until - session.clock()) > 0 and not stopped():
                session.sleep(min(left, STOP_POLL_S))
        if server_wait_s:
            with self._lock:
                self._last_gain = session.clock()

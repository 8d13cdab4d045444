"""Time and attempts left for an operation that fails for a while."""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING, Protocol

from bitnet.base.errors import BitnetError, NetworkError, RateLimited
from bitnet.base.trust import redact_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.hub.options import FetchOptions

logger = logging.getLogger(__name__)

BACKOFF_S = 0.2  # doubles with every failure ...
LONGEST_BACKOFF_S = 20.0  # ... up to this
JITTER = 0.1  # largest share added to a wait, so that clients do not retry in step
STOP_POLL_S = 0.2  # time in which a waiting thread notices cancellation
FRESH_START_BYTES = 1 << 20  # an attempt that received this much does not count as a failure
_ADDRESS = re.compile(r"( for|:)? \w+://\S+?(?=: | |:?$)")
TROUBLESHOOTING = (
    "look for the cause with: bitnet doctor network; behind a proxy set HTTPS_PROXY; "
    "use a mirror with --base-url=URL; allow more with --retries=N or BITNET_DOWNLOAD_TIMEOUT"
)


class Transient(Exception):  # never leaves the package
    """A temporary failure: *error* is raised when it persists."""

    def __init__(
        self,
        error: BitnetError,
        *,
        retry_after_s: float | None = None,
        attempts: int | None = None,
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.retry_after_s = retry_after_s
        self.attempts = attempts

    @property
    def reason(self) -> str:
        """The failure without the address, which the final error names."""
        return _ADDRESS.sub("", self.error.message)


class Waiting(Protocol):
    """Clocks, limits and the number of attempts of a session."""

    options: FetchOptions
    attempts: int | None
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    jitter: Callable[[], float]


class Patience:
    """Time and attempts left for one operation; its threads share one."""

    def __init__(self, session: Waiting) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._failures = 0
        self._gained = 0
        self._waited_s = 0.0
        self._last_gain = session.clock()

    def report_bytes(self, count: int) -> None:
        """Report that *count* more bytes have arrived."""
        with self._lock:
            self._last_gain = self._session.clock()
            self._waited_s = 0.0
            self._gained += count
            if self._gained >= FRESH_START_BYTES:
                self._failures = self._gained = 0

    def report_failure(
        self, what: str, broken: Transient, *, stopped: Callable[[], bool] | None = None
    ) -> None:
        """Report a failure of *what* and wait before the next attempt, or until *stopped*.

        Raises:
            BitnetError: there is no further attempt.
        """
        session, options = self._session, self._session.options
        with self._lock:
            self._failures += 1
            self._gained = 0
            failures = self._failures
            silent_s = max(session.clock() - self._last_gain, self._waited_s)
        wait = min(BACKOFF_S * 2 ** min(failures - 1, 30), LONGEST_BACKOFF_S)
        wait *= 1 + JITTER * session.jitter()
        if broken.retry_after_s is not None:
            wait = max(wait, broken.retry_after_s)
        most = min(filter(None, (session.attempts, broken.attempts)), default=None)
        ending = ""
        if most is not None and failures >= most:
            ending = "1 attempt" if failures == 1 else f"{failures} attempts"
        elif wait > options.retry_after_s:
            ending = f"the server asks to wait {wait:.0f} s, BITNET_RETRY_AFTER_MAX allows less"
        elif silent_s > options.deadline_s:
            ending = f"{failures} attempts, no progress for {silent_s:.0f} s"
        if ending:
            if failures > 1:
                logger.warning("%s: attempt %d failed: %s", what, failures, broken.reason)
            raise _final_error(broken.error, ending)
        if broken.retry_after_s is None:  # a wait requested by the server is not silence
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
        if broken.retry_after_s is not None:
            with self._lock:
                self._last_gain = session.clock()


def request_error(url: str, reason: str) -> NetworkError:
    """Error for a request to *url* without a usable reply."""
    return NetworkError(
        f"HTTP request failed for {redact_url(url)}: {reason}", hint=TROUBLESHOOTING
    )


def _final_error(error: BitnetError, ending: str) -> BitnetError:
    hint = error.hint or TROUBLESHOOTING
    kind = RateLimited if isinstance(error, RateLimited) else NetworkError
    return kind(f"{error.message} ({ending})", hint=hint)

"""``requests`` and ``urllib3``, errors of replies, and limits of all transfers of a command.

Both packages are imported without opening a socket. To find out whether the machine has IPv6,
``urllib3`` binds one on import (``_has_ipv6`` in ``urllib3/util/connection.py``). Offline means
that no socket is opened, and ``--offline`` is read only after the import. So the check is skipped:
without IPv6, a connection to such an address fails, and the next address is tried.
"""

from __future__ import annotations

import hashlib
import logging
import re
import socket
import threading
import time
from base64 import b64decode
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from bitnet.base import settings
from bitnet.base.errors import (
    AuthError,
    BitnetError,
    HashMismatch,
    LicenceNotAccepted,
    NetworkError,
    NotFound,
    RateLimited,
    TokenInvalid,
    TokenMissing,
)
from bitnet.base.trust import SHA256, printable, redact_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import requests


_has_ipv6 = socket.has_ipv6
socket.has_ipv6 = False
try:
    import requests
    import urllib3
    import urllib3.util.connection
finally:
    socket.has_ipv6 = _has_ipv6
urllib3.util.connection.HAS_IPV6 = _has_ipv6

__all__ = ["requests", "urllib3"]

logger = logging.getLogger(__name__)

_COUNT = re.compile(r"[0-9]{1,18}")  # of bytes; more digits cannot be a file size
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)
_UNSATISFIED_RANGE = re.compile(r"bytes \*/(\d{1,18})", re.ASCII)

# ``sha-256=:BASE64:`` in Repr-Digest, ``sha-256=BASE64`` in Digest.
_SHA256_FIELD = re.compile(r"(?:^|,)\s*sha-256=:?(?P<digest>[A-Za-z0-9+/]{43}=):?", re.IGNORECASE)
_SHA256_OF_NOTHING = hashlib.sha256().hexdigest()
OTHER_FILE = "this server has another file: do not use it, and try another one with --base-url=URL"
_RATE_LIMIT = re.compile(r"\br=(?P<left>\d{1,9}) *; *t=(?P<seconds>\d{1,9})\b", re.ASCII)
_RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+|[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
_API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)")

CONNECTIONS = 8  # of all files together, by default
BURST_S = 0.125  # a connection reads at once what the rate allows in this time
_POLL_S = 0.2  # time in which a waiting thread notices cancellation

# An address in an error message, with the "for" or the colon before it.
_ADDRESS = re.compile(r"( for|:)? \w+://\S+?(?=: | |:?$)")
TROUBLESHOOTING = (
    "look for the cause with: bitnet doctor network; behind a proxy set HTTPS_PROXY; "
    "use a mirror with --base-url=URL; allow more with --retries=N or BITNET_DOWNLOAD_TIMEOUT"
)

FILES_AT_ONCE = 4
TURN_S = 0.2  # a signal is noticed after this time at the latest
GRACE_S = 0.2  # time that threads get to end after Ctrl-C

T = TypeVar("T")


def repository_of(url: str, endpoint: str) -> tuple[str, str, str] | None:
    """Repository, revision and file in *url*, if it is an address of the hub."""
    if not url.startswith(f"{endpoint}/"):
        return None
    match = _RESOLVE.fullmatch(urlsplit(url).path[len(urlsplit(endpoint).path) :])
    if match is None:
        return None
    return match["repo"], unquote(match["revision"]), unquote(match["file"])


def is_disabled(response: requests.Response) -> bool:
    """True if *response* says that no user has access to the repository."""
    status = response.status_code
    is_named = response.headers.get("X-Error-Code") == "DisabledRepo"
    is_described = "disabled" in response.headers.get("X-Error-Message", "").lower()
    return status == 451 or is_named or (status == 403 and is_described)


def error_of(
    response: requests.Response, url: str, endpoint: str, *, with_token: bool
) -> BitnetError:
    """Error for *response* to a request for *url*; neither *url* nor *endpoint* has secrets.

    *with_token*: the request had the access token of the hub at *endpoint*.
    """
    status = response.status_code
    code = response.headers.get("X-Error-Code", "")
    message = printable(response.headers.get("X-Error-Message", ""))
    text = f"HTTP error {status}: {url}"
    if status < 400 or status >= 600:
        return NetworkError(
            f"HTTP status {status} for {url}: no file comes with it",
            hint="a proxy or mirror answers instead of the hub: another one with --base-url=URL",
        )
    # The address of a user's own file, on a server that is not the hub.
    if not f"{url}/".startswith(f"{endpoint}/") and status in (401, 403):
        return AuthError(
            f"{text}: this server refuses access{_quote(message)}",
            hint="check the address and its login; an access token of the hub is not sent there",
        )
    if is_disabled(response):
        why = "for legal reasons" if status == 451 else "by the hub"
        return AuthError(
            f"{text}: access to this repository is disabled {why}{_quote(message)}",
            hint="no token and no licence opens it; choose another repository or a mirror",
        )
    page = _page(url, endpoint)
    tokens = f"{endpoint}/settings/tokens"
    if code == "RepoNotFound":
        return NotFound(
            f"{text}: the repository does not exist, or is private",
            hint=f"check the spelling at {endpoint}; for a private one set HF_TOKEN",
        )
    missing = {"RevisionNotFound": ": the revision", "EntryNotFound": ": the file"}.get(code, "")
    if missing or status in (404, 410):
        if missing:
            missing += " does not exist"
        return NotFound(text + missing + _quote(message), hint=f"see what there is at {page}")
    # Three signs of terms that the account has not accepted, of which two are enough: access is
    # refused (403), a token was sent (the server knows the account), the repository has terms.
    if sum((status == 403, with_token, code == "GatedRepo")) > 1:
        if not with_token:
            return LicenceNotAccepted(
                f"{text}{_quote(message)}: this model has terms to accept, and HF_TOKEN is not set",
                hint=f"1. accept them at {page}  2. make a token at {tokens}  "
                "3. export HF_TOKEN=hf_...",
            )
        return LicenceNotAccepted(
            f"{text}{_quote(message)}: the account of the token in "
            f"{settings.token_origin()} has not accepted this model's terms, or the token may not "
            "read it",
            hint=f"accept them at {page} and run the command again",
        )
    if status == 401 and with_token:
        return TokenInvalid(
            f"{text}: the access token in {settings.token_origin()} is not accepted; it may have "
            "expired",
            hint=f"make a new token at {tokens}, then: export HF_TOKEN=hf_...",
        )
    if status in (401, 403):
        return TokenMissing(
            f"{text}: this file needs an access token and HF_TOKEN is not set{_quote(message)}",
            hint=f"1. make a token at {tokens}  2. accept the model's terms at {page}  "
            "3. export HF_TOKEN=hf_...",
        )
    if status == 429:
        return RateLimited(
            f"{text}: too many requests",
            hint="wait, set HF_TOKEN (accounts have higher limits), or use --base-url=MIRROR",
        )
    return NetworkError(text + _quote(message), hint="")


def _quote(message: str) -> str:
    """The server's message about an error, as the end of a sentence."""
    return f' (the server says: "{message}")' if message else ""


def _page(url: str, endpoint: str) -> str:
    """Web page of the repository in *url*."""
    named = repository_of(url, endpoint)
    if named is not None:
        return f"{endpoint}/{named[0]}"
    match = _API.match(urlsplit(url).path[len(urlsplit(endpoint).path) :])
    return f"{endpoint}/{match['repo']}" if match and url.startswith(endpoint) else endpoint


def refuse_pages(response: requests.Response, url: str) -> None:
    """Refuse a web page, or an encoded body, in place of a file."""
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml") and not url.endswith((".html", ".htm")):
        raise not_expected(response, url, "a file")
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise NetworkError(
            f"{url}: the reply is {encoding}-encoded though the plain file was asked for",
            hint="a proxy or mirror alters replies; use another one with --base-url=URL",
        )


def not_expected(response: requests.Response, url: str, expected: str) -> NetworkError:
    """Error for a reply that is not *expected*."""
    kind = response.headers.get("Content-Type", "nothing known").partition(";")[0]
    return NetworkError(
        f"{url}: expected {expected}, got {kind}: a login page of this network, or a proxy's",
        hint="open a page in a browser and log in to the network; or run: bitnet doctor network",
    )


def read_digest(response: requests.Response) -> str | None:
    """SHA-256 of the whole file that *response* or a redirect before it announces, or None.

    The hub sends ``X-Linked-Etag``, also with a redirect; others ``Repr-Digest`` (RFC 9530) or
    ``Digest`` (RFC 3230). Two different ones are refused.
    """
    digest = None
    for reply in (*response.history, response):
        for announced in _digests_in(reply):
            if digest not in (None, announced):
                raise HashMismatch(
                    f"{redact_url(str(reply.url))} announces SHA-256 {announced}, another server "
                    f"on the way announces {digest}",
                    hint=OTHER_FILE,
                )
            digest = announced
    return digest


def _digests_in(reply: requests.Response) -> Iterator[str]:
    """SHA-256 digests of the whole file in the headers of *reply*, hexadecimal in lower case."""
    headers = reply.headers
    linked = headers.get("X-Linked-Etag", "").strip('"').lower()
    if SHA256.fullmatch(linked):
        yield linked

    # The other two headers describe the content of this reply. In a redirect or an error, that is a
    # page, and in an encoded reply it is not the file either. RFC 9530 (appendix E) obsoletes
    # ``Digest``: servers disagree whether it is of the part that a 206 sends, or of the whole file.
    encoding = headers.get("Content-Encoding", "identity").strip().lower()
    if reply.status_code not in (200, 206) or encoding not in ("", "identity"):
        return
    names = ["Repr-Digest"] if reply.status_code == 206 else ["Repr-Digest", "Digest"]
    for name in names:
        for match in _SHA256_FIELD.finditer(headers.get(name, "")):
            with suppress(ValueError):
                digest = b64decode(match["digest"], validate=True).hex()
                # A reply to HEAD has no content, and some servers send the digest of 0 bytes.
                if SHA256.fullmatch(digest) and digest != _SHA256_OF_NOTHING:
                    yield digest


def as_count(value: str | None) -> int | None:
    """Number of bytes in a header; ``None`` if it is missing or invalid."""
    text = (value or "").strip()
    return int(text) if _COUNT.fullmatch(text) else None


def read_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that a server asks to wait, at the time *now*; None if it does not say.

    ``Retry-After`` is seconds or a date. The hub sends ``RateLimit: "api";r=0;t=55``: the number of
    requests left, and seconds until there are more (draft-ietf-httpapi-ratelimit-headers-09).
    """
    value = headers.get("Retry-After", "").strip()
    with suppress(ValueError, OverflowError):
        if value.isdecimal():
            return float(value)
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    match = _RATE_LIMIT.search(headers.get("RateLimit", ""))
    return float(match["seconds"]) if match and int(match["left"]) == 0 else None


def content_range(value: str | None) -> tuple[int, int, int | None] | None:
    """Start, stop (exclusive) and whole size of a ``Content-Range`` header; ``*`` is ``None``.

    None if the header is not valid: also that of a part which is empty or goes beyond the size
    (RFC 9110, 14.4).
    """
    match = _CONTENT_RANGE.fullmatch((value or "").strip())
    if match is None:
        return None
    start = int(match[1])
    stop = int(match[2]) + 1
    size = None if match[3] == "*" else int(match[3])
    if start >= stop or (size is not None and stop > size):
        return None
    return start, stop, size


def complete_length(value: str | None) -> int | None:
    """Size of the whole file in the ``Content-Range`` of a reply 416; ``None`` without one."""
    match = _UNSATISFIED_RANGE.fullmatch((value or "").strip())
    return int(match[1]) if match is not None else None


# --- limits of all transfers of a command --------------------------------------------------------


class Stopped(Exception):  # never leaves the package
    """This transfer is cancelled: another one has failed, or the user interrupted."""


class Limits:
    """Limits of one command; thread-safe.

    *rate* is in bytes per second of all connections together, 0 unlimited. *sleep* replaces
    :meth:`sleep`, which ends early on cancellation.
    """

    def __init__(
        self,
        *,
        rate: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self.rate = rate
        self.connections = settings.connections() or CONNECTIONS
        self._clock = clock
        self._stopped = threading.Event()
        self._sleep = sleep if sleep is not None else self.sleep
        self._slots = threading.BoundedSemaphore(self.connections)
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._paid_until = clock()  # time at which the received bytes are within the rate

    def stop(self) -> None:
        """Cancel every transfer."""
        self._stopped.set()
        with self._lock:
            listeners = list(self._listeners)
        for end in listeners:
            end()

    @contextmanager
    def on_stop(self, end: Callable[[], None]) -> Iterator[None]:
        """Call *end* if the command is cancelled during the block, to wake up waiting threads."""
        with self._lock:
            self._listeners.append(end)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(end)

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
        """Hold a connection during the block; yields True if it had to wait for one.

        The wait ends with :class:`Stopped` on cancellation, or if the transfer has *ended*.
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

    def pay(self, count: int, ended: Callable[[], bool] = lambda: False) -> float:
        """Wait until *count* more bytes are within the rate, or the transfer has *ended*.

        Returns the length of the whole wait in seconds. A pause without bytes does not allow more
        bytes later.
        """
        if not self.rate:
            return 0.0
        with self._lock:
            now = self._clock()
            self._paid_until = max(now, self._paid_until) + count / self.rate
            wait_s = self._paid_until - now
        left_s = wait_s
        while left_s > 0 and not ended():
            self._sleep(min(left_s, _POLL_S))
            left_s -= _POLL_S
        return wait_s


class Transient(Exception):  # never leaves the package
    """A temporary failure: *error* is raised if it persists.

    *retry_after_s* is the wait that the server asks for, *attempts* a limit for this failure.
    """

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


def at_once(calls: Sequence[Callable[[], T]], limits: Limits) -> list[T]:
    """Results of *calls* in their order; several run at a time.

    If one fails, the others end soon, and its error is raised.
    """
    limits._stopped.clear()
    if len(calls) < 2:
        return [call() for call in calls]
    try:
        threads = min(FILES_AT_ONCE, limits.connections, len(calls))
        results = in_threads(calls, threads, limits.stop)
    except Exception:
        # After Ctrl-C, which is not an Exception, the limits stay stopped: a thread that still
        # waits for a server must not continue when it gets the reply.
        limits._stopped.clear()
        raise
    return results


def in_threads(
    calls: Iterable[Callable[[], T]], threads: int, stop: Callable[[], object]
) -> list[T]:
    """Results of *calls* in their order, after all have ended.

    If one fails, *stop* ends the others, and its error is raised. After Ctrl-C, a thread that does
    not end within GRACE_S is left to end with the process: it may be connecting to a server that
    does not answer.
    """
    waiting: SimpleQueue[tuple[Future[T], Callable[[], T]]] = SimpleQueue()
    futures: list[Future[T]] = []

    def work() -> None:
        with suppress(Empty):
            while True:
                future, call = waiting.get_nowait()
                if future.set_running_or_notify_cancel():
                    _run(future, call)

    is_interrupted = True  # unless the block below ends without an exception
    done: set[Future[T]] = set()
    try:
        for call in calls:
            futures.append(Future())
            waiting.put((futures[-1], call))
        for number in range(threads):
            threading.Thread(target=work, name=f"download-{number}", daemon=True).start()
        while len(done) < len(futures) and not _errors(done):
            # Wait in turns: a signal that arrives just before a wait would not end it.
            done, _ = wait(futures, TURN_S, FIRST_EXCEPTION)
        is_interrupted = False
    finally:
        if is_interrupted or _errors(done):
            stop()
            for future in futures:
                future.cancel()
        wait(futures, GRACE_S if is_interrupted else None)
    if errors := _errors(futures):
        # The cause first: the other threads fail with Stopped because of it.
        raise min(errors, key=lambda error: isinstance(error, Stopped))
    return [future.result() for future in futures]


def _run(future: Future[T], call: Callable[[], T]) -> None:
    """Set the result of *call*, or its error."""
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is taken
        future.set_exception(error)
    else:
        future.set_result(result)


def _errors(ended: Iterable[Future[T]]) -> list[BaseException]:
    """Errors of the futures that have *ended*; a cancelled one has none."""
    return [error for future in ended if not future.cancelled() and (error := future.exception())]

"""HTTP sessions with retries, controlled redirects, the token's scope and the offline switch.

A :class:`HubSession` is a ``requests`` session, so proxies and certificate bundles are configured
as for ``requests``. It adds: the access token is sent to the hub's own origin only, replies become
errors with hints, and temporary failures are retried.
"""

from __future__ import annotations

import email.utils
import logging
import random
import re
import threading
import time
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin, urlsplit, urlunsplit

from bitnet import __version__, settings
from bitnet.errors import (
    AuthError,
    BitnetError,
    NetworkError,
    Offline,
    RateLimited,
    TokenInvalid,
    UsageError,
)
from bitnet.hub import replies
from bitnet.hub.faults import FaultyTransport
from bitnet.hub.http import requests, urllib3
from bitnet.hub.limits import Limits
from bitnet.hub.options import FetchOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

__all__ = ["HubSession", "Patience", "Transient", "origin", "shown"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

BACKOFF_S = 0.2  # doubles with every failure ...
LONGEST_BACKOFF_S = 20.0  # ... up to this
DRILL_ATTEMPTS = 3  # an injected fault is meant to fail
UNKNOWN_HOST_ATTEMPTS = 5  # an unknown host name is unlikely to appear within minutes
JITTER = 0.1  # largest share added to a wait, so that clients do not retry in step
STOP_POLL_S = 0.2  # time in which a waiting thread notices cancellation
CONNECT_TIMEOUT_S = 15.0
MAX_REDIRECTS = 8
FRESH_START_BYTES = 1 << 20  # an attempt that received this much does not count as a failure
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")  # one hub under several names
_ADDRESS = re.compile(r"( for|:)? \w+://\S+?(?=: | |:?$)")

_UNKNOWN_HOST = "the host name cannot be resolved"
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
        super().__init__(str(error))
        self.error = error
        self.retry_after_s = retry_after_s
        self.attempts = attempts

    @property
    def reason(self) -> str:
        """The failure without the address, which the final error names."""
        return _ADDRESS.sub("", self.error.message)


def shown(url: str) -> str:
    """*url* without possible secrets: user, password, query, fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def shown_origin(url: str) -> str:
    """Host of *url*, and its port if it is not the default."""
    _, host, port = origin(url)
    usual = {"http": 80, "https": 443}.get(urlsplit(url).scheme)
    return str(host) if port == usual else f"{host}:{port}"


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port of *url*."""
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, parts.port or default


class HubSession:
    """Connections for one command; use it as a context manager.

    Args:
        options: the user's options.
        clock: monotonic seconds.
        sleep: waits this many seconds.
        now: seconds since the epoch, for ``Retry-After`` dates.
        jitter: returns a random number from 0 to 1.
        limits: shared with others; otherwise its own.

    Raises:
        UsageError: the fault injection in the environment is invalid.
    """

    def __init__(
        self,
        options: FetchOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
        limits: Limits | None = None,
    ) -> None:
        self.options = options if options is not None else FetchOptions()
        rate, count = self.options.rate, self.options.at_once
        own = Limits(rate=rate, connections=count, clock=clock, sleep=sleep)
        self.limits = limits if limits is not None else own
        self.clock, self.sleep, self.now, self.jitter = clock, sleep, now, jitter
        self._requests = requests.Session()
        self._requests.headers = requests.structures.CaseInsensitiveDict(
            {"User-Agent": f"bitnet/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
        )
        self._requests.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        pool: dict[str, Any] = {"pool_maxsize": max(4, self.options.at_once)}
        drill = settings.simulate_network_error()
        self.attempts = self.options.retries
        if self.attempts is None and drill:
            self.attempts = DRILL_ATTEMPTS
        transport = (
            FaultyTransport(drill, **pool) if drill else requests.adapters.HTTPAdapter(**pool)
        )
        self._requests.mount("http://", transport)
        self._requests.mount("https://", transport)
        self._token_refused = False
        self._logins: dict[str, tuple[str, str]] = {}

    def reach(self, *, proxy: str, cert: str, logins: Mapping[str, tuple[str, str]]) -> None:
        """Use *proxy*, trust the certificates in *cert*, and log in to hosts with a login.

        Args:
            proxy: its address; empty for the environment's.
            cert: a file; empty for the default.
            logins: user and password, by scheme and host.
        """
        if proxy:
            self._requests.proxies = {"http": proxy, "https": proxy}
        if cert:
            self._requests.verify = cert
        self._logins = dict(logins)

    def __enter__(self) -> HubSession:
        return self

    def __exit__(self, *error: object) -> None:
        self._requests.close()

    def open(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        leave_origin: bool = True,
        token: bool = True,
        also: Collection[int] = (),
    ) -> requests.Response:
        """The reply to one request after redirects, with its body unread; no retries.

        Args:
            url: first address.
            method: ``GET`` or ``HEAD``.
            headers: added to the request, on every hop.
            leave_origin: follow redirects to other hosts; otherwise such a redirect is the reply.
            token: send the access token to the hub.
            also: statuses that are accepted besides successes.

        Raises:
            Offline: the network is switched off; nothing was opened.
            Transient: a temporary failure.
            BitnetError: a permanent one.
        """
        if self.options.is_offline:
            raise Offline(
                f"offline: {shown(url)} is not on disk and the network is switched off",
                hint="unset BITNET_OFFLINE and HF_HUB_OFFLINE, and leave --offline away",
            )
        secret = settings.access_token() if token and not self._token_refused else None
        here, with_token = url, False
        for _ in range(MAX_REDIRECTS):
            with_token = secret is not None and self._is_the_hub(here)
            sent = dict(headers or {})
            if with_token:
                sent["Authorization"] = f"Bearer {_checked(secret)}"
            login = self._logins.get("://".join(urlsplit(here)[:2]))
            if login is not None:
                sent["Authorization"] = requests.auth._basic_auth_str(*login)
            response = self._send(method, here, sent)
            if response.status_code not in _REDIRECTS or "Location" not in response.headers:
                break
            target = urljoin(here, response.headers["Location"])
            if not (leave_origin or origin(target) == origin(here) or self._is_the_hub(target)):
                return response
            response.close()
            here = _safe(here, target)
        else:
            raise NetworkError(f"{shown(url)}: more than {MAX_REDIRECTS} redirects")
        if response.status_code in also:
            return response
        if response.status_code == 401 and with_token:
            return self._without_token(url, method, headers, leave_origin, response)
        kept_back = secret is not None and not with_token and origin(here) != origin(url)
        return self._accepted(
            response,
            url,
            with_token=with_token or self._token_refused,
            elsewhere=shown_origin(here) if kept_back else "",
        )

    def _is_the_hub(self, url: str) -> bool:
        """True if *url* is on the hub's own host, under any of its names."""
        endpoint = self.options.endpoint
        if origin(url) == origin(endpoint):
            return True
        scheme, host, port = origin(url)
        hub_scheme, hub_host, _ = origin(endpoint)
        if host == hub_host and (hub_scheme, scheme, port) == ("http", "https", 443):
            return True
        if scheme == "https" and hub_scheme == "https" and port == 443:
            ours = _HUB_HOSTS if hub_host in _HUB_HOSTS else ()
            if host in ours:
                return True
        named = {host, f"{host}:{port}"} & set(settings.hub_hosts())
        return bool(named) and scheme in ("https", hub_scheme)

    def _without_token(
        self,
        url: str,
        method: str,
        headers: Mapping[str, str] | None,
        leave_origin: bool,
        refused: requests.Response,
    ) -> requests.Response:
        """Retry without a token: an expired one must not prevent access to a public file."""
        refused.close()
        try:
            response = self.open(
                url, method=method, headers=headers, leave_origin=leave_origin, token=False
            )
        except (BitnetError, Transient):
            return self._accepted(refused, url, with_token=True)
        self._token_refused = True
        logger.warning(
            "the hub does not accept the token in HF_TOKEN; the file is public and comes without "
            "it; make a new token at %s/settings/tokens",
            shown(self.options.endpoint),
        )
        return response

    def _send(self, method: str, url: str, headers: Mapping[str, str]) -> requests.Response:
        """Send one request; raises :class:`Transient`."""
        # Errors of requests contain signed addresses, so none of them is chained.
        silence = min(self.options.stall_s, self.options.deadline_s)
        logger.debug("%s %s %s", method, shown(url), headers.get("Range", ""))
        try:
            return self._requests.request(
                method,
                url,
                headers=headers,
                stream=True,
                allow_redirects=False,
                auth=_no_auth,
                timeout=(min(CONNECT_TIMEOUT_S, silence), silence),
            )
        except requests.exceptions.SSLError:
            raise NetworkError(
                f"HTTP request failed for {shown(url)}: the certificate is not trusted",
                hint="behind an inspecting proxy, set REQUESTS_CA_BUNDLE to its certificate file",
            ) from None
        except (
            requests.exceptions.InvalidURL,
            requests.exceptions.InvalidSchema,
            requests.exceptions.MissingSchema,
        ):
            raise UsageError(f"not an address to fetch from: {shown(url)}") from None
        except requests.exceptions.RequestException as error:
            reason = _reason(error)
            limit = UNKNOWN_HOST_ATTEMPTS if reason == _UNKNOWN_HOST else None
            raise Transient(failed(url, reason), attempts=limit) from None

    def _accepted(
        self, response: requests.Response, url: str, *, with_token: bool, elsewhere: str = ""
    ) -> requests.Response:
        """*response* if it is a success, else raise its error."""
        if response.ok:
            return response
        response.close()
        endpoint = shown(self.options.endpoint)
        error = replies.error_of(response, shown(url), endpoint, with_token=with_token)
        if elsewhere and isinstance(error, AuthError):
            error = type(error)(
                f"{error.message.partition(': ')[0]} {shown(url)}: the hub redirects to "
                f"{elsewhere}, which did not get the access token",
                hint=f"if {elsewhere} belongs to the hub: export BITNET_HUB_HOSTS={elsewhere}",
            )
        if response.status_code in (408, 429) or response.status_code >= 500:
            raise Transient(error, retry_after_s=self._retry_after(response))
        raise error

    def _retry_after(self, response: requests.Response) -> float | None:
        """Seconds the server asks to wait, given in seconds or as a date."""
        value = response.headers.get("Retry-After", "").strip()
        if value.isdecimal():
            return float(value)
        try:
            moment = email.utils.parsedate_to_datetime(value)
            return max(0.0, moment.timestamp() - self.now())
        except (ValueError, OverflowError):
            return None

    def retrying(self, what: str, attempt: Callable[[], T], *, attempts: int | None = None) -> T:
        """Result of *attempt*, retried up to *attempts* times where that may help.

        Raises:
            BitnetError: the last failure, after too many.
        """
        patience = Patience(self)
        while True:
            try:
                return attempt()
            except Transient as broken:  # noqa: PERF203
                broken.attempts = min(filter(None, (attempts, broken.attempts)), default=None)
                patience.failed(what, broken)

    def json(self, url: str, what: str) -> tuple[Any, Mapping[str, str]]:
        """The JSON document at *url* and the reply's headers.

        Raises:
            NetworkError: the connection failed, or the reply is not JSON.
            NotFound: the document does not exist.
            AuthError: access is refused.
        """

        def attempt() -> tuple[Any, Mapping[str, str]]:
            with self.open(url) as response:
                try:
                    return response.json(), response.headers
                except requests.exceptions.JSONDecodeError:
                    raise replies.not_expected(response, shown(url), "JSON") from None
                except requests.exceptions.RequestException as error:
                    raise Transient(failed(url, _reason(error))) from None
                except (ValueError, RecursionError):  # thousands of digits; too deep
                    raise replies.not_expected(response, shown(url), "JSON") from None

        return self.retrying(what, attempt)


class Patience:
    """Time and attempts left for one operation; its threads share one."""

    def __init__(self, session: HubSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._failures = 0
        self._gained = 0
        self._waited_s = 0.0
        self._last_gain = session.clock()

    def gained(self, count: int) -> None:
        """Report that *count* more bytes have arrived."""
        with self._lock:
            self._last_gain = self._session.clock()
            self._waited_s = 0.0
            self._gained += count
            if self._gained >= FRESH_START_BYTES:
                self._failures = self._gained = 0

    def failed(
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
            raise _given_up(broken.error, ending)
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


def failed(url: str, reason: str) -> NetworkError:
    """Error for a request to *url* without a usable reply."""
    return NetworkError(f"HTTP request failed for {shown(url)}: {reason}", hint=TROUBLESHOOTING)


def _given_up(error: BitnetError, ending: str) -> BitnetError:
    hint = error.hint or TROUBLESHOOTING
    kind = RateLimited if isinstance(error, RateLimited) else NetworkError
    return kind(f"{error.message} ({ending})", hint=hint)


def _safe(here: str, target: str) -> str:
    """*target* of a redirect from *here*; raises if it drops encryption."""
    if here.startswith("https:") and not target.startswith("https:"):
        raise NetworkError(
            f"{shown(here)} redirects to an unencrypted address: {shown(target)}",
            hint=TROUBLESHOOTING,
        )
    return target


def _no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Prevent requests from adding passwords from ``~/.netrc``."""
    return request


def _checked(token: str | None) -> str:
    """*token* if it is a valid header value; requests would quote it in its error otherwise."""
    if token is None or not (token.isascii() and token.isprintable() and " " not in token):
        raise TokenInvalid(
            "HF_TOKEN holds characters that no access token has",
            hint="copy the token again: export HF_TOKEN=hf_...",
        )
    return token


def _reason(error: BaseException) -> str:
    """Reason of a failed request in a few words, without addresses."""
    if isinstance(error, requests.exceptions.Timeout):
        return "timeout"
    if isinstance(error, requests.exceptions.ProxyError):
        return "the proxy does not answer"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, urllib3.exceptions.NameResolutionError):
            return _UNKNOWN_HOST
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        inner = getattr(cause, "reason", None) or next(
            (arg for arg in cause.args if isinstance(arg, BaseException)), None
        )
        cause = inner if isinstance(inner, BaseException) else cause.__cause__
    return "connection failed"

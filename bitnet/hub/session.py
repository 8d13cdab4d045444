"""HTTP sessions with retries, controlled redirects, the token's scope and the offline switch.

Proxies and certificate bundles are configured as for ``requests``.
"""

from __future__ import annotations

import json
import logging
import random
import re
import time
from base64 import b64encode
from contextlib import suppress
from functools import partial
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from bitnet import __version__
from bitnet.base import settings, trust
from bitnet.base.errors import (
    AuthError,
    BitnetError,
    NetworkError,
    Offline,
    TokenInvalid,
    UsageError,
)
from bitnet.base.trust import origin, printable, redact_url
from bitnet.hub import http
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.http import TROUBLESHOOTING, Limits, Transient, request_error, requests, urllib3
from bitnet.hub.patience import Patience
from bitnet.hub.transport import bundle_error, mount_transport, tls_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from bitnet.hub.transport import NetworkRoute

logger = logging.getLogger(__name__)

T = TypeVar("T")

DRILL_ATTEMPTS = 3  # with injected faults, so that a drill ends soon
SIGNED_ATTEMPTS = 3  # at a storage address that refuses its own signature
UNREACHED_ATTEMPTS = 3  # at a server that has not answered yet: it may not exist
LONGEST_DOCUMENT = 64 << 20  # bytes of a JSON document, or of all pages of a listing
CONNECT_TIMEOUT_S = 15.0
MAX_REDIRECTS = 8

_UNKNOWN_HOST = "the host name cannot be resolved"
_REFUSED = "connection refused"
_REFUSALS = (400, 401, 403)  # statuses by which storage refuses a signature that has expired
# Text of http.client about a proxy that answers itself, instead of connecting to the server.
_REFUSED_TUNNEL = re.compile(r"Tunnel connection failed: (401|403|407)")


class HubSession:
    """Connections for one command, within *limits*; use it as a context manager.

    *route* has certificates and proxies for a server. *sleep* is that of *limits* where a stop has
    to end its waits. Tests replace *clock*, *sleep*, *now* (the time since the epoch) and *jitter*.
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
        route: NetworkRoute | None = None,
    ) -> None:
        self.options = options if options is not None else FetchOptions()
        own = Limits(rate=self.options.rate, clock=clock, sleep=sleep)
        self.limits = limits if limits is not None else own
        self.clock = clock
        self.sleep = sleep
        self.now = now
        self.jitter = jitter
        self._requests = _Requests()
        self._requests.headers = requests.structures.CaseInsensitiveDict(
            {"User-Agent": f"bitnet/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
        )
        self._requests.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        if route is not None:
            route.apply(self._requests)
        drill = settings.simulate_network_error()
        self.attempts = self.options.retries or (DRILL_ATTEMPTS if drill else None)
        # A transfer opens up to 4 connections (AUTOMATIC_CONNECTIONS), unless a user sets more.
        mount_transport(self._requests, max(4, settings.connections()), drill)
        self._token_refused = False
        self._reached: set[tuple[object, ...]] = set()  # origins that have answered

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
        accept: Collection[int] = (200,),
    ) -> requests.Response:
        """The reply to one request after redirects, with its body unread; no retries.

        A status that is not in *accept* is raised as an error, as :class:`Transient` if a retry may
        help. Without *leave_origin*, a redirect to another host is not followed, but returned.
        """
        if self.options.is_offline:
            raise Offline(
                f"offline: {redact_url(url)} is not on disk and the network is switched off",
                hint=f"unset {', '.join(settings.offline.names)}, and leave --offline out",
            )
        secret = None if self._token_refused else settings.access_token()
        follow = partial(self._follow, url, method, headers or {}, leave_origin)
        response, address, with_token = follow(secret)
        if response.is_redirect or response.status_code in accept:
            return response
        response.close()
        if response.status_code == 407:
            raise self._proxy_refusal(address, 407)
        if response.status_code in _REFUSALS and self._is_elsewhere(address, url):
            raise _storage_refusal(response.status_code, url, address)
        if response.status_code == 401 and with_token:
            # An expired token must not prevent access to a public file.
            with suppress(BitnetError, Transient):
                public, _, _ = follow(None)
                if public.is_redirect or public.status_code in accept:
                    self._token_refused = True
                    logger.warning(
                        "the hub does not accept the token in %s; the file is public and "
                        "comes without it; make a new token at %s/settings/tokens",
                        settings.token_origin(),
                        redact_url(self.options.endpoint),
                    )
                    return public
                public.close()
        is_refused = response.status_code in (401, 403) and not http.is_disabled(response)
        if is_refused and self._login_for(address, url):
            raise AuthError(
                f"HTTP error {response.status_code}: {redact_url(url)}: the server refuses the "
                "login in its address",
                hint="correct it: export HF_ENDPOINT=https://USER:PASSWORD@HOST; write other "
                "characters than letters and digits as %XX",
            )
        # Address of the host that refused, if it is not the hub and so did not get the token.
        elsewhere = ""
        if secret is not None and not with_token:
            elsewhere = address
        raise self._refusal(response, url, with_token or self._token_refused, elsewhere)

    def _is_the_hub(self, url: str) -> bool:
        """True if *url* is on the hub that the user named, under any of its names."""
        options = self.options
        return trust.is_token_host(url, options.user_endpoint or options.endpoint)

    def _is_elsewhere(self, address: str, url: str) -> bool:
        """True if redirects led from *url* to *address*, on another host than the hub's."""
        return origin(address) != origin(url) and not self._is_the_hub(address)

    def _login_for(self, address: str, url: str) -> str:
        """``USER:PASSWORD`` that the user put into the address of this server; empty if none.

        It is sent to the server in whose address it is, never to one that a redirect names.
        """
        options = self.options
        for named in (url, *options.addresses, options.user_endpoint):
            login = urlsplit(named).netloc.rpartition("@")[0]
            if login and origin(named) == origin(address):
                return unquote(login)
        return ""

    def _proxy_refusal(self, url: str, status: int) -> NetworkError:
        """The error for a proxy that answers *status* itself; it is not retried."""
        proxies = self._requests.merge_environment_settings(url, {}, None, None, None)["proxies"]
        proxy = redact_url(requests.utils.select_proxy(url, proxies) or "") or "the proxy"
        if status != 407:
            host = urlsplit(url).hostname
            return NetworkError(
                f"{proxy} refuses to connect to {host} (HTTP status {status})",
                hint=f"ask who runs the proxy, or reach {host} without it: export NO_PROXY={host}",
            )
        return NetworkError(
            f"{proxy} refuses its user name or password (HTTP status 407); it was asked once",
            hint="correct them: export HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT; write other "
            "characters than letters and digits as %XX",
        )

    def _follow(
        self,
        url: str,
        method: str,
        headers: Mapping[str, str],
        leave_origin: bool,
        secret: str | None,
    ) -> tuple[requests.Response, str, bool]:
        """The last reply (its history: the redirects), its address, and True if it got *secret*."""
        address = url
        redirects: list[requests.Response] = []
        for _ in range(MAX_REDIRECTS):
            with_token = secret is not None and self._is_the_hub(address)
            sent = dict(headers)
            if with_token:
                text = secret or ""
                # Refuse it here: the error of requests for an invalid header quotes the header.
                if not (text.isascii() and text.isprintable() and " " not in text):
                    raise TokenInvalid(
                        f"{settings.token_origin()} holds characters that no access token has",
                        hint="copy the token again: export HF_TOKEN=hf_...",
                    )
                sent["Authorization"] = f"Bearer {text}"
            if login := self._login_for(address, url):
                # As huggingface_hub 2.4 does: the login of an address replaces the token.
                with_token = False
                sent["Authorization"] = _basic(login)
            response = self._send(method, address, sent)
            response.history = [*redirects]
            if not response.is_redirect:
                return response, address, with_token
            target = _target(address, response)
            if not (leave_origin or origin(target) == origin(address) or self._is_the_hub(target)):
                return response, address, with_token
            response.close()
            redirects.append(response)
            address = target
        raise NetworkError(f"{redact_url(url)}: more than {MAX_REDIRECTS} redirects")

    def post(self, url: str, document: Mapping[str, Any]) -> requests.Response:
        """The reply to *document*, sent as JSON without the token, whatever its status.

        A failed connection raises :class:`Transient`.
        """
        headers = {"Content-Type": "application/json"}
        if login := self._login_for(url, url):
            headers["Authorization"] = _basic(login)
        return self._send("POST", url, headers, json.dumps(document).encode())

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> requests.Response:
        """The reply to one request, whatever its status.

        A failure that a retry may mend raises :class:`Transient`.
        """
        # Errors of requests contain signed addresses, so none of them is chained.
        silence_s = min(settings.stall_timeout(), self.options.deadline_s)
        logger.debug("%s %s %s", method, redact_url(url), headers.get("Range", ""))
        try:
            response = self._requests.request(
                method,
                url,
                headers=headers,
                data=body,
                stream=True,
                allow_redirects=False,
                auth=lambda request: request,  # no passwords from ``~/.netrc``
                timeout=(min(CONNECT_TIMEOUT_S, silence_s), silence_s),
            )
        except requests.exceptions.SSLError as error:
            raise tls_failure(url, error) from None
        except requests.exceptions.InvalidSchema:
            raise UsageError(
                f"no connection to {redact_url(url)}: the proxy for it is not an HTTP proxy",
                hint="set HTTPS_PROXY to an HTTP proxy, or unset ALL_PROXY; for SOCKS: "
                "pip install pysocks",
            ) from None
        except (ValueError, urllib3.exceptions.HTTPError):  # such as an invalid host name
            raise UsageError(f"not an address to fetch from: {redact_url(url)}") from None
        except requests.exceptions.RequestException as error:
            if match := _REFUSED_TUNNEL.search(str(error)):
                raise self._proxy_refusal(url, int(match[1])) from None
            reason = _reason(error)
            is_absent = reason in (_UNKNOWN_HOST, _REFUSED) and origin(url) not in self._reached
            limit = UNREACHED_ATTEMPTS if is_absent else None
            raise Transient(request_error(url, reason), attempts=limit) from None
        except OSError as error:  # requests looks for the certificates before it connects
            raise bundle_error(error) from None
        self._reached.add(origin(url))
        return response

    def _refusal(
        self, response: requests.Response, url: str, with_token: bool, elsewhere: str
    ) -> BitnetError | Transient:
        """The error for *response* to *url*; a temporary one is :class:`Transient`.

        *elsewhere* is the address of the reply if that host did not get the token, else empty.
        """
        endpoint = redact_url(self.options.endpoint)
        error = http.error_of(response, redact_url(url), endpoint, with_token=with_token)
        if elsewhere and isinstance(error, AuthError) and not http.is_disabled(response):
            host = urlsplit(elsewhere).netloc.rpartition("@")[2]
            hint = f"if {host} belongs to the hub: export BITNET_HUB_HOSTS={host}"
            if self.options.user_endpoint:  # a project must not talk users into giving a token
                hint = (
                    f"{host} is named by this project's bitnet.toml, not by you; if you run it, "
                    f"name it yourself: --base-url=https://{host}"
                )
            error = type(error)(
                f"HTTP error {response.status_code}: {redact_url(url)}: {host} refuses access, and "
                "did not get the access token: you did not name it as the hub, or it is not "
                "encrypted",
                hint=hint,
            )
        if response.status_code not in (408, 429) and not 500 <= response.status_code < 600:
            return error
        return Transient(error, retry_after_s=http.read_wait(response.headers, self.now()))

    def retrying(self, what: str, attempt: Callable[[], T], *, attempts: int | None = None) -> T:
        """Result of *attempt*, which is tried up to *attempts* times if its error is Transient.

        *what* is the name of the work in messages.
        """
        patience = Patience(self)
        while True:
            try:
                return attempt()
            except Transient as broken:  # noqa: PERF203
                limits = [limit for limit in (attempts, broken.attempts) if limit]
                broken.attempts = min(limits, default=None)
                patience.report_failure(what, broken)

    def json(
        self,
        url: str,
        what: str,
        *,
        longest: int = LONGEST_DOCUMENT,
        attempts: int | None = None,
    ) -> tuple[Any, Mapping[str, str], int]:
        """The JSON document *what* at *url*, headers of the reply, and the bytes of its body.

        A body of more than *longest* bytes is refused. The request is tried up to *attempts* times.
        """

        def attempt() -> tuple[Any, Mapping[str, str], int]:
            body = bytearray()
            printable_url = redact_url(url)
            with self.open(url) as response:
                started = self.clock()
                try:
                    for chunk in response.iter_content(1 << 16):
                        body += chunk
                        if len(body) > longest:
                            text = f"more than {longest:,} bytes where a short text belongs"
                            raise NetworkError(f"{printable_url}: {text}", hint=TROUBLESHOOTING)
                        if self.clock() - started > self.options.deadline_s:
                            raise Transient(request_error(url, "timeout"))
                    return json.loads(body), response.headers, len(body)
                except (ValueError, RecursionError):  # not UTF-8; thousands of digits; too deep
                    raise http.not_expected(response, printable_url, "JSON") from None
                except (OSError, urllib3.exceptions.HTTPError) as error:
                    raise Transient(request_error(url, _reason(error))) from None

        return self.retrying(what, attempt, attempts=attempts)


def _storage_refusal(status: int, url: str, address: str) -> AuthError | Transient:
    """The error for *status* from the host of *address*, to which redirects led from *url*.

    The host did not get the token, and must not: any host could answer with such a status to ask
    for it. A signed address expires, so the hub is asked for another one: :class:`Transient`.
    """
    host = urlsplit(address).netloc.rpartition("@")[2]
    text = f"HTTP error {status}: {redact_url(url)}: {host}, to which it redirects,"
    if urlsplit(address).query:
        error = NetworkError(
            f"{text} does not accept the signed address",
            hint="check the clock of this machine, and try again; or use a mirror: --base-url=URL",
        )
        return Transient(error, attempts=SIGNED_ATTEMPTS)
    return AuthError(
        f"{text} refuses access; it did not get the access token, which is for the hub only",
        hint="use another server: --base-url=URL",
    )


def _target(here: str, redirect: requests.Response) -> str:
    """The address that *redirect*, the reply from *here*, leads to."""
    text = redirect.headers["Location"]
    try:
        target = trust.address(text, here)
    except ValueError as error:
        redirect.close()
        raise NetworkError(
            f"{redact_url(here)} redirects to {printable(redact_url(text))!r}: {error}",
            hint=TROUBLESHOOTING,
        ) from None
    if here.startswith("https:") and not target.startswith("https:"):
        redirect.close()
        raise NetworkError(
            f"{redact_url(here)} redirects to an unencrypted address: {redact_url(target)}",
            hint=TROUBLESHOOTING,
        )
    return target


def _basic(login: str) -> str:
    """Value of the header ``Authorization`` for *login*, ``USER:PASSWORD``."""
    return f"Basic {b64encode(login.encode()).decode()}"


class _Requests(requests.Session):
    """A session that ignores redirects; requests parses their addresses even if told not to."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None: :meth:`HubSession.open` follows redirects."""


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
            return _REFUSED
        inner = getattr(cause, "reason", None) or next(
            (arg for arg in cause.args if isinstance(arg, BaseException)), None
        )
        cause = inner if isinstance(inner, BaseException) else cause.__cause__
    return "connection failed"

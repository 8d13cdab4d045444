"""``requests`` and parts of ``urllib3``, imported without opening a socket.

To find out whether the machine has IPv6, ``urllib3`` binds a socket on import (``_has_ipv6`` in
``urllib3/util/connection.py``). Offline means no socket at all, and whether a command is offline
may not be known before this import. So the check is skipped; addresses that cannot be reached are
skipped when connecting.

:class:`Transport` adds a limit in time to the headers of a reply: the time-out of a socket only
limits the silence between two bytes of them. :class:`FaultyTransport` injects faults below the code
that retries, resumes and explains, which is the real one.
"""

from __future__ import annotations

import io
import re
import socket
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from bitnet.base.errors import (
    AuthError,
    BitnetError,
    LicenceNotAccepted,
    NetworkError,
    NotFound,
    RateLimited,
    TokenInvalid,
    TokenMissing,
)
from bitnet.base.trust import printable

if TYPE_CHECKING:
    import requests
    from requests import PreparedRequest, Response

    from bitnet.base.settings import NetworkFault


_known = socket.has_ipv6
socket.has_ipv6 = False
try:
    import requests
    import urllib3
    import urllib3.util.connection
finally:
    socket.has_ipv6 = _known
urllib3.util.connection.HAS_IPV6 = _known

__all__ = ["Transport", "requests", "urllib3"]


class _TimedHeaders:
    """A connection that ends when the headers of a reply take longer than its time-out."""

    def getresponse(self) -> Any:
        """The reply, with its headers read."""
        late = threading.Event()
        connection: Any = self.sock  # type: ignore[attr-defined]

        def end() -> None:
            late.set()
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(float(self.timeout or 60.0), end)  # type: ignore[attr-defined]
        timer.daemon = True
        timer.start()
        try:
            response = super().getresponse()  # type: ignore[misc]
        except Exception:
            if late.is_set():
                raise TimeoutError("the headers are not complete") from None
            raise
        finally:
            timer.cancel()
        if late.is_set():
            raise TimeoutError("the headers are not complete")
        return response


class _Http(_TimedHeaders, urllib3.connection.HTTPConnection):
    pass


class _Https(_TimedHeaders, urllib3.connection.HTTPSConnection):
    pass


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Https


class Transport(requests.adapters.HTTPAdapter):
    """The transport of every request: as that of ``requests``, with a limit for headers."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Create the pool of direct connections."""
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        """The pool of connections through a proxy."""
        manager = super().proxy_manager_for(*args, **options)
        if not hasattr(manager, "proxy_config"):  # SOCKS has connections of its own
            return manager
        manager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
        return manager


_PAGE = b"<!DOCTYPE html><html><body>Please log in to use this network.</body></html>"


class FaultyTransport(Transport):
    """A transport that breaks the requests named by ``BITNET_SIMULATE_NETWORK_ERROR``."""

    def __init__(self, faults: list[NetworkFault], for_ever: bool, **options: Any) -> None:
        super().__init__(**options)
        self._faults, self._for_ever = deque(faults), for_ever

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        """Carry *request*, or break it with the next fault."""
        if not self._faults:
            return super().send(request, *args, **options)
        fault = self._faults[0] if self._for_ever else self._faults.popleft()
        if fault.after_bytes is None:
            return self._broken(fault, request)
        response = super().send(request, *args, **options)
        if request.method == "GET" and response.status_code in (200, 206):
            response.raw = _BreakingBody(response.raw, fault)
        else:
            self._faults.appendleft(fault)  # keep it for a request with a body
        return response

    def _broken(self, fault: NetworkFault, request: PreparedRequest) -> Response:
        if fault.kind == "timeout":
            raise requests.exceptions.ReadTimeout("simulated time-out", request=request)
        if fault.kind == "reset":
            raise requests.exceptions.ConnectionError(
                "simulated connection failure", request=request
            )
        status = 200 if fault.kind == "html" else int(fault.kind)
        headers = {"Content-Type": "text/html" if status == 200 else "text/plain"}
        if status == 429:
            headers["Retry-After"] = "1"
        body = _PAGE if status == 200 else b"simulated"
        raw = urllib3.HTTPResponse(
            io.BytesIO(body),
            headers=headers,
            status=status,
            preload_content=False,
            request_method=request.method,
        )
        return self.build_response(request, raw)


class _BreakingBody:
    """A reply's body that ends in an error after some bytes; everything else is passed on."""

    def __init__(self, raw: Any, fault: NetworkFault) -> None:
        self._raw = raw
        self._fault = fault
        self._left = fault.after_bytes or 0

    def read1(self, amt: int, decode_content: bool | None = None) -> bytes:
        """Read up to *amt* bytes, or raise the fault."""
        if self._left <= 0:
            self._raw.close()
            if self._fault.kind == "timeout":
                raise urllib3.exceptions.ReadTimeoutError(None, None, "simulated time-out")  # type: ignore[arg-type]
            raise urllib3.exceptions.ProtocolError("simulated reset")
        chunk: bytes = self._raw.read1(min(amt, self._left), decode_content=decode_content)
        self._left -= len(chunk)
        return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


_COUNT = re.compile(r"[0-9]{1,18}")  # of bytes; more digits cannot be a file size
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)

_RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+|[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
_API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)")


def repository_of(url: str, endpoint: str) -> tuple[str, str, str] | None:
    """Repository, revision and file in *url*, if it is an address of the hub."""
    if not url.startswith(f"{endpoint}/"):
        return None
    match = _RESOLVE.fullmatch(urlsplit(url).path[len(urlsplit(endpoint).path) :])
    if match is None:
        return None
    return match["repo"], unquote(match["revision"]), unquote(match["file"])


def error_of(
    response: requests.Response, url: str, endpoint: str, *, with_token: bool
) -> BitnetError:
    """Error for *response* to a request for *url*, which has no secrets, as *endpoint* has none."""
    status, code = response.status_code, response.headers.get("X-Error-Code", "")
    message = printable(response.headers.get("X-Error-Message", ""))
    text = f"HTTP error {status}: {url}"
    if status < 400 or status >= 600:
        return NetworkError(
            f"HTTP status {status} for {url}: no file comes with it",
            hint="a proxy or mirror answers instead of the hub: another one with --base-url=URL",
        )
    if not f"{url}/".startswith(f"{endpoint}/") and status in (401, 403):
        return AuthError(
            f"{text}: this server refuses access{_quote(message)}",
            hint="check the address and its login; an access token of the hub is not sent there",
        )
    if status == 451 or code == "DisabledRepo" or (status == 403 and "disabled" in message.lower()):
        why = "for legal reasons" if status == 451 else "by the hub"
        return AuthError(
            f"{text}: access to this repository is disabled {why}{_quote(message)}",
            hint="no token and no licence opens it; choose another repository or a mirror",
        )
    missing = {"RevisionNotFound": "the revision", "EntryNotFound": "the file"}.get(code)
    if missing is not None:
        return NotFound(
            f"{text}: {missing} does not exist{_quote(message)}",
            hint=f"see what there is at {_page(url, endpoint)}",
        )
    if code == "RepoNotFound":
        return NotFound(
            f"{text}: the repository does not exist, or is private",
            hint=f"check the spelling at {endpoint}; for a private one set HF_TOKEN",
        )
    if status == 403 or (code == "GatedRepo" and with_token):
        if code == "GatedRepo" or with_token:
            return LicenceNotAccepted(
                f"{text}{_quote(message)}: the account behind HF_TOKEN has not accepted this "
                "model's terms, or the token may not read it",
                hint=f"accept them at {_page(url, endpoint)} and run the command again",
            )
        return TokenMissing(
            f"{text}{_quote(message)}: access is refused and HF_TOKEN is not set",
            hint=f"accept the model's terms at {_page(url, endpoint)}, "
            "then: export HF_TOKEN=hf_...",
        )
    if status == 401 and with_token:
        return TokenInvalid(
            f"{text}: the access token in HF_TOKEN is not accepted; it may have expired",
            hint=f"make a new token at {endpoint}/settings/tokens, then: export HF_TOKEN=hf_...",
        )
    if status == 401:
        return TokenMissing(
            f"{text}: this file needs an access token and HF_TOKEN is not set{_quote(message)}",
            hint=(
                f"1. make a token at {endpoint}/settings/tokens  "
                f"2. accept the model's terms at {_page(url, endpoint)}  "
                "3. export HF_TOKEN=hf_..."
            ),
        )
    if status in (404, 410):
        return NotFound(text + _quote(message), hint=f"see what there is at {_page(url, endpoint)}")
    if status == 429:
        return RateLimited(
            f"{text}: too many requests",
            hint="wait, set HF_TOKEN (accounts have higher limits), or use --base-url=MIRROR",
        )
    return NetworkError(text + _quote(message), hint="")


def _quote(said: str) -> str:
    """The server's message about an error, as the end of a sentence."""
    return f' (the server says: "{said}")' if said else ""


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


def as_count(value: str | None) -> int | None:
    """Number of bytes in a header; ``None`` if it is missing or invalid."""
    text = (value or "").strip()
    return int(text) if _COUNT.fullmatch(text) else None


def content_range(value: str | None) -> tuple[int, int, int | None] | None:
    """Start, stop (exclusive) and whole size of a ``Content-Range`` header; ``*`` is ``None``."""
    match = _CONTENT_RANGE.fullmatch((value or "").strip())
    if match is None:
        return None
    start, last, size = match.groups()
    return int(start), int(last) + 1, None if size == "*" else int(size)

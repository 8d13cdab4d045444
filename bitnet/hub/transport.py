"""Transport of requests: connections with a limit for headers, certificates, injected faults."""

from __future__ import annotations

import io
import socket
import ssl
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import truststore

from bitnet.base.errors import BitnetError, NetworkError, UsageError
from bitnet.base.trust import printable, redact_url
from bitnet.hub.http import Transient, request_error, requests, urllib3

if TYPE_CHECKING:
    from requests import PreparedRequest, Response

    from bitnet.base.setting_values import NetworkFault


TLS_ATTEMPTS = 3  # with a server that refuses a handshake
_BUNDLE_HINT = "set it to a file with certificates in PEM format, or unset it"
_PAGE = b"<!DOCTYPE html><html><body>Please log in to use this network.</body></html>"


@dataclass(frozen=True)
class NetworkRoute:
    """Certificates and proxies for one server, besides those of the environment or instead."""

    verify: bool | str = True  # file with certificates to trust; False: any certificate is accepted
    certificate: str = ""  # file with a client certificate and its key
    proxies: dict[str, str] = field(default_factory=dict)  # by scheme
    uses_environment: bool = True  # proxies and certificates of the environment apply, too

    def apply(self, session: requests.Session) -> None:
        """Set the certificates and proxies of *session*."""
        session.verify = self.verify
        if self.verify is False:  # by the user's --trusted-host of pip, so without a warning
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        session.cert = self.certificate or None
        session.proxies.update(self.proxies)
        session.trust_env = self.uses_environment


def trust_store() -> ssl.SSLContext:
    """A context that trusts what the system trusts, as pip 24.2 and newer do.

    That is the system's store, or ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``. Requests adds the
    authorities of ``certifi``.
    """
    return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def context_of(bundle: str) -> ssl.SSLContext:
    """The context of a download: it trusts *bundle*, or the system and ``certifi``.

    *bundle* is a file or a folder, as for ``requests``. One that cannot be used is refused.
    """
    if not bundle:
        context = trust_store()
        context.load_verify_locations(requests.utils.DEFAULT_CA_BUNDLE_PATH)
        return context
    try:
        if Path(bundle).is_dir():
            return ssl.create_default_context(capath=bundle)
        return ssl.create_default_context(cafile=bundle)
    except OSError as error:  # ssl.SSLError is one
        raise bundle_error(error) from None


def bundle_error(error: OSError) -> UsageError:
    """Error for certificates of the user that cannot be loaded."""
    return UsageError(
        "the certificates in REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE cannot be used: "
        f"{printable(str(error))}",
        hint=_BUNDLE_HINT,
    )


def tls_failure(url: str, error: BaseException) -> BitnetError | Transient:
    """The failure behind *error* of a request to *url*, an ``SSLError`` of requests."""
    cause = _ssl_cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        why = f" ({printable(cause.verify_message)})" if cause.verify_message else ""
        return NetworkError(
            f"HTTP request failed for {redact_url(url)}: the certificate is not trusted{why}",
            hint="behind an inspecting proxy, set REQUESTS_CA_BUNDLE to its certificate file",
        )
    if isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)):
        return Transient(request_error(url, "connection broke"))
    # The user's certificates cannot be loaded.
    if cause is not None and (cause.library in ("X509", "PEM") or "PEM" in (cause.reason or "")):
        return bundle_error(cause)
    why = (cause.reason if cause is not None else "") or "the handshake failed"
    reason = f"no encrypted connection ({printable(why).replace('_', ' ').lower()})"
    return Transient(request_error(url, reason), attempts=TLS_ATTEMPTS)


def _ssl_cause(error: BaseException | None) -> ssl.SSLError | None:
    """The error of ``ssl`` that *error* wraps, if there is one."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return error
        reason = getattr(error, "reason", None)
        inner = [each for each in (reason, *error.args) if isinstance(each, BaseException)]
        error = inner[0] if inner else error.__cause__
    return None


class _TimedHeaders:
    """A connection that ends when the headers of a reply take longer than its time-out.

    It is a mixin for the connection classes of ``urllib3``.
    """

    def getresponse(self) -> Any:
        """The reply, with its headers read."""
        late = threading.Event()
        connected_socket: Any = self.sock  # type: ignore[attr-defined]

        def end() -> None:
            late.set()
            with suppress(OSError):
                connected_socket.shutdown(socket.SHUT_RDWR)

        # Every request has a time-out; 60 s only satisfy the type.
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


def _limit_headers(pool: type[Any]) -> type[Any]:
    """A subclass of the connection pool *pool* whose connections are :class:`_TimedHeaders`."""
    connection = type("Connection", (_TimedHeaders, pool.ConnectionCls), {})
    return type("Pool", (pool,), {"ConnectionCls": connection})


_POOLS = {
    "http": _limit_headers(urllib3.HTTPConnectionPool),
    "https": _limit_headers(urllib3.HTTPSConnectionPool),
}


class Transport(requests.adapters.HTTPAdapter):
    """The transport of every request: that of ``requests``, with a limit for reading headers.

    The time-out of a socket only limits the silence between two bytes of the headers.
    """

    def __init__(self, context: ssl.SSLContext | None = None, **options: Any) -> None:
        self._context: dict[str, Any] = {} if context is None else {"ssl_context": context}
        super().__init__(**options)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Create the pool of direct connections."""
        super().init_poolmanager(*args, **{**options, **self._context})
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        """The pool of connections through a proxy."""
        manager = super().proxy_manager_for(*args, **{**options, **self._context})
        if isinstance(manager, urllib3.ProxyManager):  # SOCKS has connections of its own
            manager.pool_classes_by_scheme = _POOLS
        return manager


def mount_transport(
    session: requests.Session, connections: int, drill: tuple[list[NetworkFault], bool] | None
) -> None:
    """Make *session* send its requests with a :class:`Transport` of up to *connections* at once.

    *drill* makes requests fail: it has faults, one for each request in order, and True if the first
    fault breaks every request instead.
    """
    options: dict[str, Any] = {"pool_maxsize": connections}
    verify = session.merge_environment_settings("https://", {}, None, None, None)["verify"]
    if verify is True:  # no file of certificates is named
        options["context"] = trust_store()
    transport = FaultyTransport(*drill, **options) if drill else Transport(**options)
    session.mount("http://", transport)
    session.mount("https://", transport)


class FaultyTransport(Transport):
    """A transport that breaks the requests named by ``BITNET_SIMULATE_NETWORK_ERROR``."""

    def __init__(self, faults: list[NetworkFault], for_ever: bool, **options: Any) -> None:
        super().__init__(**options)
        self._faults = deque(faults)
        self._for_ever = for_ever

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        """Carry *request*, or break it with the next fault."""
        fault = self._next_fault()
        if fault is None:
            return super().send(request, *args, **options)
        if fault.after_bytes is None:
            return self._broken(fault, request)
        response = super().send(request, *args, **options)
        if request.method == "GET" and response.status_code in (200, 206):
            _break_body(response.raw, fault)
        elif not self._for_ever:
            self._faults.appendleft(fault)  # keep it for a GET that succeeds
        return response

    def _next_fault(self) -> NetworkFault | None:
        """The fault of the next request; None if there is none left."""
        with suppress(IndexError):  # other connections take faults at the same time
            return self._faults[0] if self._for_ever else self._faults.popleft()
        return None

    def _broken(self, fault: NetworkFault, request: PreparedRequest) -> Response:
        """The simulated reply to *request*; a time-out or a reset is raised as an error."""
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


def _break_body(raw: Any, fault: NetworkFault) -> None:
    """Make reading the body *raw* fail with *fault* after ``fault.after_bytes`` bytes."""
    read1 = raw.read1
    left_bytes = fault.after_bytes or 0

    def read_some(amt: int, decode_content: bool | None = None) -> bytes:
        nonlocal left_bytes
        if left_bytes > 0:
            chunk: bytes = read1(min(amt, left_bytes), decode_content=decode_content)
            left_bytes -= len(chunk)
            return chunk
        raw.close()
        if fault.kind == "timeout":
            raise urllib3.exceptions.ReadTimeoutError(None, None, "simulated time-out")  # type: ignore[arg-type]
        raise urllib3.exceptions.ProtocolError("simulated reset")

    raw.read1 = read_some

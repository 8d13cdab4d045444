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
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import NetworkError, Offline, UsageError
from bitnet.base.settings import DRILL_ENTRY
from bitnet.base.trust import redact_url
from bitnet.hub.limits import BACKOFF_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from requests import PreparedRequest, Response

    from bitnet.hub.options import FetchOptions

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


_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3}
_PAGE = b"<!DOCTYPE html><html><body>Please log in to use this network.</body></html>"


@dataclass(frozen=True)
class NetworkFault:
    """One broken request: the fault, and the bytes of the body before it (None: at once)."""

    kind: str
    after_bytes: int | None = None


def parse_faults(text: str) -> tuple[list[NetworkFault], bool]:
    """The faults of a drill, and true if the last one repeats forever.

    ``1`` breaks every request. A list breaks one request per entry, in order, and then nothing:

        timeout        no reply                     reset      connection refused or reset
        503, 429 ...   a reply with that status     html       a login page instead of the file
        reset@1MB      the body breaks off there    timeout@1MB  the body stops there
        timeout:2      the same twice

    Raises:
        UsageError: *text* does not follow the grammar.
    """
    text = text.strip()
    if text.lower() in ("", "0", "false", "no", "off"):
        return [], False
    if text.lower() in ("1", "true", "yes", "on"):
        return [NetworkFault("reset")], True
    faults: list[NetworkFault] = []
    for entry in text.split(","):
        match = DRILL_ENTRY.fullmatch(entry.strip())
        if match is None:
            raise UsageError(
                f"environment variable BITNET_SIMULATE_NETWORK_ERROR: cannot read {entry!r}",
                hint="use 1, or a list such as timeout:2,503,reset@1MB,429:3,html",
            )
        after = int(match["size"]) * _UNITS[match["unit"].lower()] if match["size"] else None
        faults += [NetworkFault(match["kind"].lower(), after)] * int(match["times"] or 1)
    return faults, False


class FaultyTransport(Transport):
    """A transport that breaks the requests named by ``BITNET_SIMULATE_NETWORK_ERROR``."""

    def __init__(self, text: str, **options: Any) -> None:
        super().__init__(**options)
        faults, self._for_ever = parse_faults(text)
        self._faults = deque(faults)

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


TIMEOUT_S = 10.0
ATTEMPTS = 3


def call_back(
    url: str,
    facts: Mapping[str, Any],
    options: FetchOptions,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """POST *facts* as JSON to *url*, three times or as often as ``--retries`` says.

    Raises:
        Offline: the network is switched off.
        NetworkError: no attempt succeeded.
    """
    if options.is_offline:
        raise Offline(f"offline: {redact_url(url)} is not told that the worker is ready")
    problem = ""
    attempts = options.retries or ATTEMPTS
    for attempt in range(attempts):
        if attempt:
            sleep(BACKOFF_S * 2 ** (attempt - 1))
        try:
            reply = requests.post(url, json=dict(facts), timeout=TIMEOUT_S, allow_redirects=False)
        except requests.RequestException as error:
            problem = type(error).__name__
            continue
        if reply.ok:
            return
        problem = f"HTTP {reply.status_code}"
    raise NetworkError(
        f"callback to {redact_url(url)} failed after {attempts} attempts: {problem}",
        hint="check --callback-url; the worker serves all the same",
    )

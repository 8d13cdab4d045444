"""Middleware before every route: size, time limits, key, and origins of browsers."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bitnet.base.trust import is_loopback
from bitnet.server.pages import OPEN_PREFIX
from bitnet.server.refusals import GONE, Refused, from_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping
    from typing import Any

    from bitnet.server.metrics import Metrics
    from bitnet.server.narration import Narrate
    from bitnet.server.serve_options import ServeOptions

    Scope = MutableMapping[str, Any]  # of ASGI, as the next ones
    Event = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Event]]
    Send = Callable[[Event], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)

MAX_HEADER_BYTES = 32 * 1024
BODY_PATIENCE_S = 60.0  # for a whole body
_OPEN_PATHS = frozenset({"/", "/health", "/health/live", "/health/ready"})  # served without a key
_REQUEST_ID = re.compile(rb"[\w.:/+=@-]{1,128}", re.ASCII)  # a client's id that is kept
# Headers of every response.
_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]
_JSON = re.compile(rb"application/([\w.+-]+\+)?json(\s*;.*)?", re.ASCII | re.IGNORECASE)


class Guard:
    """ASGI middleware; refusals are in the form of the address's dialect."""

    def __init__(
        self, app: App, *, options: ServeOptions, metrics: Metrics, narrate: Narrate
    ) -> None:
        """Guard *app* as *options* say; *metrics* counts requests, *narrate* reports them.

        Without a key, a worker on a loopback address refuses requests whose ``Host`` is not this
        machine: a foreign page whose name resolves to this machine (DNS rebinding) must not read
        the answers. Probes with HTTP/1.0 name no host; browsers always do.
        """
        self._app = app
        self._options = options
        self._metrics = metrics
        self._narrate = narrate
        self._key = options.key().encode()
        self._local_only = not self._key and is_loopback(options.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = dict(scope["headers"]).get(b"x-request-id", b"")
        is_id = _REQUEST_ID.fullmatch(header)
        request_id = header.decode() if is_id else f"req-{secrets.token_hex(8)}"
        ends = AsyncExitStack()  # its callbacks run when the request has ended
        scope.setdefault("state", {}).update(request_id=request_id, ends=ends)
        method = scope["method"]
        if method == "HEAD":  # as GET; the server below drops the body
            scope = {**scope, "method": "GET"}
        status = 0
        begun = time.perf_counter()

        async def send_counted(event: Event) -> None:
            nonlocal status
            if event["type"] == "http.response.start":
                status = event["status"]
                id_header = (b"x-request-id", request_id.encode())
                event["headers"] = [*event.get("headers", ()), id_header, *_HEADERS]
            await send(event)

        try:
            self._check(scope)
            await self._app(scope, await self._body(receive), send_counted)
        except Refused as refusal:
            if status:
                raise
            # Closed, since an unread body would be taken for the next request.
            respond = refusal.response(scope["path"], {"Connection": "close"})
            await respond(scope, receive, send_counted)
        except Exception as error:
            if status or isinstance(error, ConnectionError):  # the latter: the client has gone
                raise
            # The middleware of the framework is outside of this one, and would reply uncounted.
            logger.exception("a request failed")
            await from_error(error).response(scope["path"])(scope, receive, send_counted)
        finally:
            await ends.aclose()
            self._log(scope, method, status or GONE, time.perf_counter() - begun)

    def _log(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        """Count a request by *method* that has ended, and log it, without its query and body."""
        path = getattr(scope.get("route"), "path", "other")
        self._metrics.requests.labels(path, str(status)).inc()
        state = scope["state"]
        text = f"{method} {scope['path'][:200]}"
        request_id = state["request_id"]
        if self._options.access_log:
            client = (scope.get("client") or [None])[0]
            self._narrate(
                "http_request", request=text, request_id=request_id, status=status,
                seconds=round(seconds, 6), client=client,
            )  # fmt: skip
        if status >= 400 and status != GONE and not state.get("is_narrated"):
            level = "WARN" if status < 500 else "ERROR"
            self._narrate(
                "request_refused", level=level, request=text, request_id=request_id, status=status
            )

    def _check(self, scope: Scope) -> None:
        """Refuse requests by their headers."""
        headers = dict(scope["headers"])
        # The server below bounds headers only if they arrive in parts.
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) for name, value in scope["headers"])
        if size > MAX_HEADER_BYTES:
            raise Refused(431, f"a request may have {MAX_HEADER_BYTES:,} bytes of headers")
        self._check_browser(scope, headers)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18:
            raise Refused(400, "Content-Length is not a number")
        if int(length) > self._options.max_body:
            raise self._too_large()
        host = headers.get(b"host", b"localhost").decode("latin-1")
        hostname = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        if self._local_only and not is_loopback(hostname):
            raise Refused(403, f"this worker serves this machine only, not the host {host[:80]!r}")
        path = scope["path"]
        is_open = path in _OPEN_PATHS or path.startswith(OPEN_PREFIX)
        if self._key and not is_open and scope["method"] != "OPTIONS":
            scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
            if b"x-api-key" in headers:  # Anthropic's clients
                scheme = b"bearer"
                key = headers[b"x-api-key"]
            is_key = hmac.compare_digest(key.strip(), self._key)  # constant time
            if scheme.lower() != b"bearer" or not is_key:
                raise Refused(
                    401, "send the worker's key: Authorization: Bearer KEY",
                    kind="authentication_error", code="invalid_api_key",
                )  # fmt: skip

    def _check_browser(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Refuse requests from pages of other origins, before the framework sees them.

        Browsers send a POST without a preflight if its content type is missing or not JSON.
        """
        # CORSMiddleware answers preflights before the guard; without it they fail by their method.
        if scope["method"] == "OPTIONS":
            return
        origin = headers.get(b"origin")
        if origin is not None and not self._is_allowed(origin, headers.get(b"host", b"")):
            page = origin[:80].decode("latin-1")
            raise Refused(
                403, f"pages of {page!r} may not call this worker: see --allow-origin",
                code="origin_not_allowed",
            )  # fmt: skip
        is_page = origin is not None or any(name.startswith(b"sec-fetch-") for name in headers)
        if scope["path"].startswith("/api/") and not is_page:
            return  # Ollama's clients, and curl, do not mark their JSON
        if scope["method"] == "POST" and not _JSON.fullmatch(headers.get(b"content-type", b"")):
            raise Refused(415, "send the header Content-Type: application/json")

    def _is_allowed(self, origin: bytes, host: bytes) -> bool:
        """True if a page of *origin* may call this worker, which it addressed as *host*."""
        text = origin.decode("latin-1")
        if {"*", text} & set(self._options.allow_origin):
            return True
        try:
            return urlsplit(text).netloc == host.decode("latin-1") != ""
        except ValueError:
            return False

    async def _body(self, receive: Receive) -> Receive:
        """Read the whole body; return a function like *receive* whose first event is that body."""
        parts = []
        size_bytes = 0
        expects_more = True
        now = asyncio.get_running_loop().time
        until = now() + BODY_PATIENCE_S
        while expects_more:
            try:
                event = await asyncio.wait_for(receive(), until - now())
            except asyncio.TimeoutError:
                raise Refused(408, "the request's body did not arrive") from None
            if event["type"] != "http.request":
                raise Refused(GONE, "the connection was closed before the request was complete")
            parts.append(event.get("body", b""))
            expects_more = event.get("more_body", False)
            size_bytes += len(parts[-1])
            if size_bytes > self._options.max_body:
                raise self._too_large()
        replayed = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

        async def replay() -> Event:
            return replayed.pop() if replayed else await receive()  # then: the client disconnects

        return replay

    def _too_large(self) -> Refused:
        """The refusal of a body beyond --max-body."""
        most = self._options.max_body
        return Refused(413, f"a request may have {most:,} bytes", code="too_large")

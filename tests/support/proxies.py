"""A proxy on loopback that demands a login, for plain requests and for tunnels (CONNECT).

It records the requests that it forwards. Host names in ``.invalid`` resolve to this machine.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from loopback import LoopbackServer, QuietHandler


class Proxy:
    """A proxy; a context manager. Without *user* it demands no login."""

    def __init__(self, user: str = "", password: str = "") -> None:
        self.login = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}" if user else ""
        self.forbids = False  # answers 403 to every request with the right login
        self.refused = 0  # requests without the right login
        self.forbidden = 0  # requests with the right login that were answered with 403
        self.carried: list[str] = []  # hosts with ports of tunnels, addresses of requests
        self.carried_bytes = 0  # to clients: of tunnels, and of replies
        self._lock = threading.Lock()
        self._server = LoopbackServer(_Handler, self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Proxy:
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop()

    def count(self, chunk: bytes) -> None:
        """Count *chunk*, which a client is about to get."""
        with self._lock:
            self.carried_bytes += len(chunk)


class _Handler(QuietHandler, BaseHTTPRequestHandler):
    """Handler of requests to a :class:`Proxy`."""

    def _is_refused(self):
        """Refuse the request if its login is wrong, or if all are forbidden; True if refused."""
        proxy = self.server.owner
        status = 0
        if proxy.login and self.headers.get("Proxy-Authorization") != proxy.login:
            proxy.refused += 1
            status = 407
        elif proxy.forbids:
            proxy.forbidden += 1
            status = 403
        if status:
            self.send_response(status)
            if status == 407:
                self.send_header("Proxy-Authenticate", 'Basic realm="office"')
            self.send_header("Content-Length", "0")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
        return bool(status)

    def do_CONNECT(self):
        if self._is_refused():
            return
        self.server.owner.carried.append(self.path)
        host, _, port = self.path.rpartition(":")
        with _connect(host, int(port)) as upstream:
            self.send_response(200)
            self.end_headers()
            _pump(self.connection, upstream, self.server.owner)
        self.close_connection = True

    def do_GET(self):
        self._forward()

    def do_HEAD(self):
        self._forward()

    def _forward(self):
        """Forward a plain request, and its reply."""
        if self._is_refused():
            return
        self.server.owner.carried.append(self.path)
        parts = urlsplit(self.path)
        target = parts.path
        if parts.query:
            target += f"?{parts.query}"
        lines = [f"{self.command} {target} HTTP/1.1"]
        for name, value in self.headers.items():
            if name.lower() not in ("proxy-authorization", "proxy-connection", "connection"):
                lines.append(f"{name}: {value}")
        lines += ["Connection: close", "", ""]
        with _connect(parts.hostname, parts.port or 80) as upstream:
            upstream.sendall("\r\n".join(lines).encode())
            while chunk := upstream.recv(1 << 16):
                self.server.owner.count(chunk)
                self.connection.sendall(chunk)
        self.close_connection = True


def _connect(host, port):
    """A connection to *host*, or to this machine for a host in ``.invalid``."""
    address = "127.0.0.1" if host.endswith(".invalid") else host
    return socket.create_connection((address, port))


def _pump(client, upstream, proxy):
    """Carry bytes both ways until a side closes; *proxy* counts those to the client."""
    ends = {client: upstream, upstream: client}
    with contextlib.suppress(OSError):
        while True:
            readable, _, _ = select.select([*ends], [], [])
            for end in readable:
                chunk = end.recv(1 << 16)
                if not chunk:
                    return
                if end is upstream:
                    proxy.count(chunk)
                ends[end].sendall(chunk)

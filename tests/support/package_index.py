"""A package index on loopback, with or without TLS and a login, that records the files it sends."""

from __future__ import annotations

import hashlib
import re
import ssl
from base64 import b64encode
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

from loopback import LoopbackServer, QuietHandler

if TYPE_CHECKING:
    from pathlib import Path

COMPANY_HOST = "index.invalid"  # only a proxy of these tests can resolve it


class PackageIndex:
    """An index of the wheels in *folder*; a context manager."""

    def __init__(self, folder: Path, *, login: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.folder = folder
        self.login = f"Basic {b64encode(login.encode()).decode()}" if login else ""
        self.sent: list[tuple[str, str, int]] = []  # file, first word of the agent, bytes
        self.refused = 0  # requests without the login
        self.truncate: dict[str, int] = {}  # bytes after which a file's body ends, by its name
        self._server = LoopbackServer(_Handler, self, tls=tls)
        self.port = self._server.server_port

    def __enter__(self) -> PackageIndex:
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop()


def company_index(folder, authority):
    """The index of a company: with a login, and a certificate of its own *authority*."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(COMPANY_HOST, "localhost").configure_cert(context)
    return PackageIndex(folder, login="me:s/same", tls=context)


def company_address(index):
    """The address of *index*, with the login; it is reachable only through a proxy."""
    return f"https://me:s%2Fsame@{COMPANY_HOST}:{index.port}/simple"


class _Handler(QuietHandler, BaseHTTPRequestHandler):
    """Handler of requests to a :class:`PackageIndex`."""

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def _answer(self):
        """Reply with a page of links or with a wheel, if the login is right."""
        index = self.server.owner
        if index.login and self.headers.get("Authorization") != index.login:
            index.refused += 1
            self._reply(401, b"", {"WWW-Authenticate": 'Basic realm="index"'})
            return
        kind, _, name = self.path.strip("/").partition("/")
        if kind == "simple":
            self._reply(200, self._page(name), {"Content-Type": "text/html"})
            return
        content = (index.folder / name).read_bytes()
        start, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start, stop = int(start), int(last) + 1 if last else len(content)
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        status = 200
        if "Range" in self.headers:
            status = 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        if name in index.truncate:
            headers["Content-Length"] = str(stop - start)
            self.close_connection = True
            stop = start + index.truncate[name]
        count = self._reply(status, content[start:stop], headers)
        agent = self.headers.get("User-Agent", "").partition("/")[0]
        index.sent.append((name, agent, count))

    def _page(self, name):
        """The page of the distribution *name*: links to its wheels with their digests."""
        links = []
        for path in sorted(self.server.owner.folder.glob("*.whl")):
            distribution = re.sub(r"[-_.]+", "-", path.name.partition("-")[0]).lower()
            if distribution != name:
                continue
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            links.append(f'<a href="/files/{path.name}#sha256={digest}">{path.name}</a>')
        return "\n".join(links).encode()

    def _reply(self, status, body, headers):
        """Send a reply, and return the number of bytes of its body that were sent."""
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return 0
        self.wfile.write(body)
        return len(body)

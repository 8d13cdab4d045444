"""A server of one file that breaks off, forgets and contradicts itself, as its faults say.

    with FaultyServer(Habits(ranges=False), [content], [Fault(ends_at=0.5)]) as server:
        ... fetch(order, store, [server.url], session=session) ...

Its versions have the ETags ``"v0"``, ``"v1"`` and so on. Each request for the file gets the next of
its faults; after the last one it only has its habits.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

from loopback import LoopbackServer, QuietHandler

PAGE = b"<html><h1>416 Requested Range Not Satisfiable</h1></html>"  # as nginx sends it
MOST_REQUESTS = 200  # a client that sends more would never end


@dataclass(frozen=True)
class Habits:
    """The form of every reply of the server."""

    ranges: bool = True  # it sends the part that Range requests
    says_ranges: bool = True  # it has Accept-Ranges
    length: bool = True  # it has Content-Length; else the body is chunked
    head_length: bool = True  # replies to HEAD have Content-Length
    etag: bool = True
    if_range: bool = True  # it compares the ETag in If-Range
    dead_after: int | None = None  # requests for the file after which it is missing: 404


@dataclass(frozen=True)
class Fault:
    """One reply to a request for the file that is not as the habits say."""

    ends_at: float | None = None  # share of the body before the connection is closed
    part: float | None = None  # share of the requested part that is sent, as Content-Range says
    is_whole: bool = False  # the whole file instead of a part
    is_empty: bool = False  # a 206 without a byte instead of a part
    no_total: bool = False  # a part without the size of the file
    status: int = 0
    is_replaced: bool = False  # from now on the server has the next version


class FaultyServer:
    """The server at :attr:`url`; a context manager."""

    def __init__(self, habits: Habits, versions: list[bytes], faults: list[Fault]) -> None:
        self.habits = habits
        self.versions = versions
        self.faults = list(faults)
        self.current = 0
        self.ranges_asked: list[str | None] = []  # Range of each request for the file
        self.lock = threading.Lock()
        self._server = LoopbackServer(_Handler, self)
        self.url = f"http://127.0.0.1:{self._server.server_port}/x/model.gguf"

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *error):
        self._server.stop()


class _Handler(QuietHandler, BaseHTTPRequestHandler):
    """Handler of requests to the file of a :class:`FaultyServer`."""

    def do_HEAD(self):
        owner = self.server.owner
        content = owner.versions[owner.current]
        headers = {"Content-Length": len(content)} if owner.habits.head_length else {}
        self._begin(200, headers)

    def do_GET(self):
        owner = self.server.owner
        habits = owner.habits
        range_header = self.headers.get("Range")
        with owner.lock:
            count = len(owner.ranges_asked)
            owner.ranges_asked.append(range_header)
            fault = owner.faults.pop(0) if owner.faults else Fault()
            if fault.is_replaced:
                owner.current = min(owner.current + 1, len(owner.versions) - 1)
            content = owner.versions[owner.current]
        if count >= MOST_REQUESTS or (habits.dead_after is not None and count >= habits.dead_after):
            self._begin(404, {"Content-Length": 0})
            return
        if fault.status:
            self._begin(fault.status, {"Content-Length": 0})
            return
        if_range = self.headers.get("If-Range") if habits.if_range else None
        is_part = range_header is not None and habits.ranges and not fault.is_whole
        if not is_part or if_range not in (None, self._etag()):
            self._send(200, {}, content, fault)
            return
        first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", range_header).groups()
        self._send_part(content, int(first), int(last) + 1 if last else len(content), fault)

    def _send_part(self, content, start, stop, fault):
        """Send bytes *start* to *stop* of *content*, or what *fault* makes of them."""
        size = len(content)
        if start >= size:
            page = {"Content-Type": "text/html", "Content-Length": len(PAGE)}
            self._begin(416, {"Content-Range": f"bytes */{size}", **page})
            self.wfile.write(PAGE)
            return
        stop = min(stop, size)
        if fault.is_empty:
            stop = start
        elif fault.part is not None:
            stop = start + max(1, int(fault.part * (stop - start)))
        total = "*" if fault.no_total else size
        headers = {"Content-Range": f"bytes {start}-{stop - 1}/{total}"}
        self._send(206, headers, content[start:stop], fault)

    def _send(self, status, headers, body, fault):
        """Send *body*, up to the point where *fault* ends it."""
        is_chunked = not self.server.owner.habits.length
        if is_chunked:
            headers["Transfer-Encoding"] = "chunked"
        else:
            headers["Content-Length"] = len(body)
        self._begin(status, headers)
        sent = body if fault.ends_at is None else body[: int(fault.ends_at * len(body))]
        if is_chunked and sent:
            sent = b"%x\r\n%b\r\n" % (len(sent), sent)
        if is_chunked and fault.ends_at is None:
            sent += b"0\r\n\r\n"
        self.wfile.write(sent)
        self.close_connection = self.close_connection or fault.ends_at is not None

    def _begin(self, status, headers):
        """Send status and headers, with those of the habits."""
        habits = self.server.owner.habits
        self.send_response(status)
        if habits.etag:
            self.send_header("ETag", self._etag())
        if habits.says_ranges:
            self.send_header("Accept-Ranges", "bytes")
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()

    def _etag(self):
        """ETag of the current version."""
        return f'"v{self.server.owner.current}"'

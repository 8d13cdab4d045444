"""Transfer bytes from a server into a partial file, until it is complete.

Several connections to one server fetch a piece of the file each, and only the connection that took
a piece writes it. Bytes that count as done are never written again: they are hashed while others
still arrive, and the digest must be that of the published file. Mirrors are asked one after the
other, if the server before fails: each continues the same partial file.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from http.client import IncompleteRead
from typing import TYPE_CHECKING

from bitnet.base import settings
from bitnet.base.errors import HashMismatch, NetworkError, from_os_error
from bitnet.base.quantities import human_size
from bitnet.base.trust import redact_url
from bitnet.hub import http
from bitnet.hub.http import urllib3
from bitnet.hub.patience import Patience
from bitnet.hub.repository import etag_of, strong_etag
from bitnet.hub.servers import PASSING
from bitnet.hub.trailing_hash import TrailingHash

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import requests

    from bitnet.hub.session import HubSession
    from bitnet.store import Partial, Version

logger = logging.getLogger(__name__)

PARALLEL_FROM_BYTES = 64_000_000  # smaller files get one connection, unless a user sets more
AUTOMATIC_CONNECTIONS = 4
PROBE_BYTES = 2 << 20  # fetched with one connection to measure its speed
FAST_BYTES_PER_S = 100e6  # at this speed more connections do not help
PIECE_BYTES = 16 << 20  # largest piece of a parallel transfer
NOTE_BYTES = 4 << 20  # bytes between two records of parallel parts: the most a kill can lose
READ_BYTES = 1 << 20  # most bytes of one read
LARGE_BYTES = 50_000_000_000  # a warning from here on: a hub may refuse a file of this size
LARGEST_REQUEST = 32_000_000_000  # a file server may refuse larger replies
STALL_BYTES_PER_S = 100  # a slower connection is broken off after the stall time-out
SERVER_ATTEMPTS = 3  # before the next server is asked, if there is another one
MOST_RESTARTS = 10  # from the first byte, with a server that cannot continue a file
SMALLEST_PIECE = 1 << 20  # bytes


class Replaced(Exception):  # never leaves the package
    """The server has another version of the file than it announced."""


class _NoRanges(Exception):
    """The server did not send the requested part of the file."""


@dataclass
class _Piece:
    """Bytes to fetch, from *at* to *stop* (exclusive); a *stop* of None is the end of the file.

    *at* advances while bytes are written.
    """

    at: int
    stop: int | None


@dataclass(eq=False)
class Transfer:
    """Fills *partial*, which may have bytes already, with the file that *facts* describes."""

    session: HubSession
    facts: Version
    partial: Partial
    name: str  # of the file, for messages
    report: Callable[[int, int | None], None]  # called with the bytes done, and the size if known
    mirrors: Sequence[str] = ()  # addresses of the file on other servers

    def __post_init__(self) -> None:
        self.size = self.facts.size
        self._limits = self.session.limits
        self._servers = (self.facts.url, *self.mirrors)
        self._url = self.facts.url
        self._patience = Patience(self.session)
        self._lock = threading.Lock()
        self._waiting: deque[_Piece] = deque()  # pieces that no connection has taken
        self._stop = threading.Event()  # ends the threads of this transfer
        self._unnoted = 0  # bytes since the sidecar was written
        self._ranges = True  # use range requests
        self._in_pieces = False  # several connections are fetching pieces
        self._restarts = 0  # with the present server
        # Bytes that counted as progress; a restart does not reduce it.
        self._most_done = self.partial.done.total
        self._open: set[requests.Response] = set()
        self._hash = TrailingHash(self.partial.path)
        self.announced: str | None = None  # SHA-256 that a reply announced
        self.etag: str | None = None  # of the version that was sent, if a reply named it

    def run(self) -> str:
        """Fetch the missing bytes; return the SHA-256 of the whole file."""
        if self.size is not None and self.size > LARGE_BYTES:
            text = "%s has %s: above 50 GB it is asked for in parts; where the hub refuses them, "
            text += "a mirror may have it: --base-url=URL"
            logger.warning(text, self.name, human_size(self.size))
        *others, last = self._servers
        try:
            with self._limits.on_stop(self._halt):
                for url in others:
                    try:
                        return self._fetch_from(url)
                    except (*PASSING, Replaced) as error:  # noqa: PERF203
                        reason = getattr(error, "message", "") or "it has another file"
                        text = "%s goes on without %s: %s"
                        logger.warning(text, self.name, redact_url(url), reason)
                return self._fetch_from(last)
        finally:
            self._hash.stop()

    def _fetch_from(self, url: str) -> str:
        """Fetch the missing bytes from the server at *url*; return the SHA-256 of the file."""
        self._url = url
        self._patience = Patience(self.session)
        self._ranges = True
        self._restarts = 0
        self._stop.clear()  # it ended the threads that fetched from the server before
        with self._lock:
            self._advance()
        size = self.size or 0
        connections = settings.connections()  # 0: chosen by size and speed
        may_split = connections != 1 and self.facts.accepts_ranges
        is_large = size > PARALLEL_FROM_BYTES or connections > 1  # any size if a user sets them
        is_much_missing = size - self.partial.done.total > 2 * PROBE_BYTES
        if is_large and is_much_missing and may_split and self._probe_is_slow():
            try:
                self._fetch_pieces()
            except _NoRanges:
                self._start_over("no parts from this server")
        while not self._complete:
            self._attempt(self._next_gap())
        return self._hash.finish(self.partial.done.total)

    @property
    def _complete(self) -> bool:
        return self.size is not None and self.partial.done.total >= self.size

    def _must_stop(self) -> bool:
        """True if every thread must stop."""
        return self._stop.is_set() or self._limits.is_stopped

    def _next_gap(self) -> _Piece:
        """The first gap in the partial file, cut to the largest request.

        If the size is unknown, it may be the bytes after the last ones that are done.
        """
        done = self.partial.done
        if self.size is None:
            last = max((stop for _, stop in done), default=0)
            start, stop = next(iter(done.missing(last)), (last, None))
            return _Piece(start, stop)
        start, gap_stop = done.missing(self.size)[0]
        stop = min(gap_stop, start + LARGEST_REQUEST)
        # With None, a request for the whole file has no header Range.
        return _Piece(start, None if stop == self.size else stop)

    # --- several connections -----------------------------------------------------------------

    def _probe_is_slow(self) -> bool:
        """Fetch the next PROBE_BYTES with one connection; True if more of them may be faster.

        False also if the server turns out to send no parts. The reply binds the partial file to an
        ETag, unless a digest identifies the file.
        """
        gap = self._next_gap()
        start = gap.at
        stop = min(gap.stop or gap.at + PROBE_BYTES, gap.at + PROBE_BYTES)
        begun = self.session.clock()
        while gaps := self.partial.done.missing(stop):
            self._attempt(_Piece(gaps[0][0], stop))
            if not self._ranges:
                return False
        speed = (stop - start) / max(self.session.clock() - begun, 1e-9)
        logger.debug("%s: one connection carries %.1f MB/s", self.name, speed / 1e6)
        return settings.connections() > 1 or speed < FAST_BYTES_PER_S

    def _fetch_pieces(self) -> None:
        """Fetch the gaps in pieces, in several threads, in the order of the file."""
        assert self.size is not None
        count = settings.connections() or AUTOMATIC_CONNECTIONS
        missing = self.partial.done.missing(self.size)
        total = sum(stop - start for start, stop in missing)
        # Several pieces per connection, so that no connection works long after the others.
        length = max(SMALLEST_PIECE, min(PIECE_BYTES, total // (4 * count)))
        self._waiting = deque(
            _Piece(at, min(at + length, stop))
            for start, stop in missing
            for at in range(start, stop, length)
        )
        self.partial.is_contiguous = False
        self.partial.note()
        self._in_pieces = True
        try:
            http.in_threads([self._work] * count, count, self._halt)
        except Exception:
            if not self._complete:  # else it failed after the last byte had arrived
                raise
        finally:
            self._in_pieces = False
        self._stop.clear()

    def _halt(self) -> None:
        """Make all threads of this transfer stop soon, also those waiting for bytes."""
        self._stop.set()
        with self._lock:
            for response in self._open:
                with suppress(Exception):
                    response.raw.shutdown()

    def _work(self) -> None:
        """Fetch one piece after the other, until none is left."""
        while not self._must_stop():
            with self._lock:
                if not self._waiting:
                    return
                piece = self._waiting.popleft()
            while piece.stop is not None and piece.at < piece.stop:
                self._attempt(piece)

    # --- one request -------------------------------------------------------------------------

    def _attempt(self, piece: _Piece) -> None:
        """Fetch *piece*, as far as possible in this attempt."""
        try:
            self._fetch(piece)
        except _NoRanges:
            if self._in_pieces:
                raise
            if not self._ranges:
                raise NetworkError(
                    f"{redact_url(self._url)}: a part of the file came unasked"
                ) from None
            self._start_over("the server cannot continue")
        except http.Transient as broken:
            if self._must_stop():
                raise http.Stopped from None
            if self._url != self._servers[-1]:
                broken.attempts = min(SERVER_ATTEMPTS, broken.attempts or SERVER_ATTEMPTS)
            # Several connections stop when one of them fails, which a wait must notice. A single
            # one stops only with the command; Project.connect gives the session a sleep that then
            # ends.
            stopped = self._must_stop if self._in_pieces else None
            self._patience.report_failure(self.name, broken, stopped=stopped)

    def _start_over(self, reason: str) -> None:
        """Discard every byte, and fetch the file with one connection, without range requests."""
        self._restarts += 1
        if self._restarts > MOST_RESTARTS:
            raise NetworkError(
                f"{redact_url(self._url)}: it broke off {MOST_RESTARTS} times, and the server "
                "cannot continue a file",
                hint=http.TROUBLESHOOTING,
            )
        logger.info("%s: %s, starting over", self.name, reason)
        self._ranges = self._in_pieces = False
        self._stop.clear()
        self._hash.stop()
        self.partial.restart()
        self.etag = None
        self._hash = TrailingHash(self.partial.path)

    def _fetch(self, piece: _Piece) -> None:
        """Request *piece*, and write what arrives."""
        if self._must_stop():
            raise http.Stopped
        headers = {}
        start = piece.at
        stop = piece.stop
        if self._ranges and (start or stop is not None):
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
            if self.partial.server_etag and not self.facts.sha256:
                headers["If-Range"] = f'"{self.partial.server_etag}"'
        has_range = "Range" in headers
        with self._limits.connection(self._must_stop) as waited:
            if waited:
                # The wait for our own limit of connections is not silence of the server.
                self._patience.report_bytes(0)
            accept = (200, 206, 416) if has_range else (200,)
            with self.session.open(self._url, headers=headers, accept=accept) as response:
                with self._lock:
                    self._open.add(response)
                try:
                    if self._must_stop():  # since the request was sent
                        raise http.Stopped
                    if response.status_code != 416:  # which may come with a page
                        http.refuse_pages(response, redact_url(self._url))
                    self._compare_digest(response)
                    piece.at, end = self._body_range(response, start, stop, has_range=has_range)
                    if response.status_code == 200:
                        piece.stop = None  # the whole file
                    self._receive(response, piece, end)
                finally:
                    with self._lock:
                        self._open.discard(response)

    def _compare_digest(self, response: requests.Response) -> None:
        """Refuse *response* if it announces another digest than is expected or was announced."""
        digest = http.read_digest(response)
        if digest is None:
            return
        expected = self.facts.sha256 or self.announced
        if expected not in (None, digest):
            raise HashMismatch(
                f"{redact_url(self._url)} announces SHA-256 {digest}, expected {expected}",
                hint=http.OTHER_FILE,
            )
        self.announced = digest

    def _body_range(
        self, response: requests.Response, start: int, stop: int | None, *, has_range: bool
    ) -> tuple[int, int | None]:
        """Start and end in the file of the body of *response*; an unknown end is None.

        *start* and *stop* limit the requested bytes; *has_range*: the request had a header Range.
        The first reply binds the partial file to its ETag. If the whole file is sent instead of a
        part, the transfer starts over, unless pieces are fetched. A body that is not the requested
        part raises :class:`_NoRanges`, one of another version :class:`Replaced`.
        """
        etag = strong_etag(response.headers.get("ETag"))
        if self.facts.sha256:
            etag = None  # replicas have different ETags; the digest decides in the end
        bound = self.partial.server_etag
        is_other = None not in (etag, bound) and etag != bound
        if response.status_code == 416:
            if is_other:
                raise _NoRanges
            return self._end_at(response, start)
        if is_other:
            raise Replaced
        if response.status_code == 206:
            body_start, end = self._part_range(response, start, stop, has_range=has_range)
        else:
            body_start, end = self._whole_range(response, has_range=has_range)
        if self.partial.server_etag is None and not self._in_pieces:
            self.partial.bind(etag)
        if not self.facts.sha256:
            self.etag = etag_of(response) or self.etag
        return body_start, end

    def _end_at(self, response: requests.Response, start: int) -> tuple[int, int]:
        """The empty range at *start*, if *response*, a 416, says that the file ends there."""
        if self.size is not None:
            raise _NoRanges
        if http.complete_length(response.headers.get("Content-Range")) != start:
            raise _NoRanges
        self.size = start
        return start, start

    def _part_range(
        self, response: requests.Response, start: int, stop: int | None, *, has_range: bool
    ) -> tuple[int, int | None]:
        """Start and end of the part of the file in *response*, a 206."""
        part = http.content_range(response.headers.get("Content-Range"))
        if not has_range or part is None:
            raise _NoRanges
        part_start, part_stop, size = part
        if part_start != start or (stop and part_stop > stop):
            raise _NoRanges
        if self.size is None:
            self.size = size
        elif size not in (None, self.size) or part_stop > self.size:
            raise Replaced
        return part_start, part_stop

    def _whole_range(
        self, response: requests.Response, *, has_range: bool
    ) -> tuple[int, int | None]:
        """Start and end of the whole file in *response*, a 200: its end is None if unknown."""
        size = http.as_count(response.headers.get("Content-Length", ""))
        if self.size is not None and size not in (None, self.size):
            raise Replaced
        if has_range and self._in_pieces:
            raise _NoRanges
        if has_range or self.partial.done.total:
            self._start_over("the server sends the whole file")
        if self.size is None:
            self.size = size
        return 0, size

    def _receive(self, response: requests.Response, piece: _Piece, end: int | None) -> None:
        """Write the body of *response* into *piece*; it must reach *end* if that is known."""
        session = self.session
        limits = self._limits
        start = piece.at
        # A stall is judged by the mean speed since the time *since*, when byte *at_since* was next.
        since = session.clock()
        at_since = start
        largest_read = READ_BYTES
        if limits.rate:
            largest_read = min(largest_read, max(1, int(limits.rate * http.BURST_S)))
        while end is None or piece.at < end:
            if limits.is_stopped:
                raise http.Stopped
            count = largest_read if end is None else min(largest_read, end - piece.at)
            try:
                chunk = response.raw.read1(count, decode_content=False)
            except urllib3.exceptions.ReadTimeoutError:
                raise http.Transient(http.request_error(self._url, "timeout")) from None
            except (urllib3.exceptions.HTTPError, OSError) as error:
                if end is not None and any(isinstance(arg, IncompleteRead) for arg in error.args):
                    break  # reported below, with the numbers
                raise http.Transient(http.request_error(self._url, "connection broke")) from None
            if not chunk:
                break
            if self.size is not None and piece.at + len(chunk) > self.size:
                raise Replaced  # the body goes on after the end of the file
            self._store(piece, chunk)
            since += limits.pay(len(chunk), self._must_stop)  # our own limit is not a stall
            waited = session.clock() - since
            if waited >= settings.stall_timeout():
                if piece.at - at_since < STALL_BYTES_PER_S * waited:
                    raise http.Transient(http.request_error(self._url, "stalled"))
                since = session.clock()
                at_since = piece.at
        at = piece.at
        if end is not None and at < end:
            raise http.Transient(
                http.request_error(
                    self._url, f"truncated: {at - start:,} of {end - start:,} bytes came"
                )
            )
        if end is None:
            if self.size is not None and at < self.size:
                # A body of unknown length that ends early: another version, or truncated.
                if self.facts.etag and self.etag not in (None, self.facts.etag):
                    raise Replaced
                raise http.Transient(http.request_error(self._url, f"truncated after {at:,} bytes"))
            self.size = at

    def _store(self, piece: _Piece, chunk: bytes) -> None:
        """Write *chunk* into *piece*, and count it."""
        partial = self.partial
        with self._lock:
            at = piece.at
            stop = piece.at + len(chunk)
            if (piece.stop is not None and stop > piece.stop) or partial.done.overlaps(at, stop):
                raise AssertionError(f"bytes {at} to {stop} do not belong to this connection")
            try:
                partial.write(at, chunk)
            except OSError as error:
                raise from_os_error(error, partial.path, in_cache=True) from error
            partial.done.add(at, stop)
            piece.at = stop
            done = partial.done.total
            # After a restart, bytes that had arrived before are not progress.
            gained = max(0, done - self._most_done)
            self._most_done += gained
            self._unnoted += len(chunk)
            if self._unnoted >= NOTE_BYTES and not partial.is_contiguous:
                self._unnoted = 0
                with suppress(OSError):
                    partial.note()
            self._advance()
            partial.flush_behind()
        self._patience.report_bytes(gained)

    def _advance(self) -> None:
        """Hash the bytes before the first gap, and report the progress."""
        self._hash.advance(self.partial.done.frontier)
        self.report(self.partial.done.total, self.size)

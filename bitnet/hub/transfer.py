"""Transfer bytes from one server or several into a partial file, until it is complete.

Several connections fetch pieces. A server that fails is dropped while another one works, and the
slowest piece at the end is shared (:mod:`bitnet.hub.pieces`).
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.client import IncompleteRead
from typing import TYPE_CHECKING

from bitnet.errors import BitnetError, NetworkError, NoSpace, PermissionDenied, from_os_error
from bitnet.hub.http import urllib3
from bitnet.hub.limits import Stopped
from bitnet.hub.pieces import FilePiece, Pieces
from bitnet.hub.replies import as_count, content_range, refuse_pages
from bitnet.hub.repository import FileFacts, strong_etag
from bitnet.hub.session import HubSession, Patience, Transient, failed, shown
from bitnet.hub.together import first_error, in_threads
from bitnet.hub.trailing_hash import TrailingHash
from bitnet.progress import human_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import requests

    from bitnet.store.partial import Partial

__all__ = ["Replaced", "Transfer"]

logger = logging.getLogger(__name__)

PARALLEL_FROM_BYTES = 64_000_000
AUTOMATIC_CONNECTIONS = 4
PROBE_BYTES = 2 << 20
FAST_BYTES_PER_S = 100e6  # at this speed more connections do not help
PIECE_BYTES = 16 << 20
NOTE_BYTES = 4 << 20  # bytes between two records of parallel parts: the most a kill can lose
READ_BYTES = 1 << 20
LARGE_BYTES = 50_000_000_000
LARGEST_REQUEST = 32_000_000_000  # a file server may refuse larger replies
STALL_BYTES_PER_S = 100
SERVER_ATTEMPTS = 3  # before a server is dropped, if there is another one
IDLE_S = 0.2


class Replaced(Exception):  # never leaves the package
    """The server has another version of the file than it announced."""


class _NoRanges(Exception):
    """The server does not support range requests."""


@dataclass
class _Server:
    """A server that has the file."""

    url: str
    patience: Patience
    failures: int = 0
    is_left_out: bool = False


class Transfer:
    """Fills *partial* with the file that *facts* describes.

    Args:
        session: connections to the server.
        facts: the file; its size may be unknown.
        partial: the partial file; may have bytes already.
        name: its name in messages.
        report: called with the bytes written so far and in total.
        mirrors: further addresses of the file, whose digest is known; no token is sent there.
    """

    def __init__(
        self,
        session: HubSession,
        facts: FileFacts,
        partial: Partial,
        *,
        name: str,
        report: Callable[[int, int | None], None],
        mirrors: Sequence[str] = (),
    ) -> None:
        self._session = session
        self._facts = facts
        self._partial = partial
        self._name = name
        self._report = report
        self._limits = session.limits
        self._servers = [_Server(url, Patience(session)) for url in (facts.url, *mirrors)]
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._pieces = Pieces((), 1, session.clock)
        self._stop = threading.Event()
        self._unnoted = 0
        self._ranges = True  # use range requests
        self._together = False
        self._open: set[requests.Response] = set()
        self._hash = TrailingHash(partial.path)
        self.size = facts.size

    def run(self) -> str:
        """Fetch the missing bytes; return the SHA-256 of the whole file.

        Raises:
            Replaced: the file on the server is not the one announced.
            NetworkError: no attempts or time are left.
            NoSpace: the disk is full.
        """
        if self.size is not None and self.size > LARGE_BYTES:
            logger.warning(
                "%s has %s: above 50 GB the hub sends a file in parts only, and its own programs "
                "refuse it without their other protocol; it is asked for in parts. Where the hub "
                "refuses those, a mirror may have it: --base-url=URL",
                self._name,
                human_size(self.size),
            )
        try:
            with self._limits.telling(self._halt):
                return self._all()
        finally:
            self._hash.stop()

    def _all(self) -> str:
        with self._lock:
            self._advance()
        if self._wants_company() and self._is_slow_alone():
            try:
                self._fetch_together()
            except _NoRanges:
                self._start_over("no parts from this server")
        while not self._complete:
            self._attempt(self._next_gap(), self._servers[0])
        return self._hash.finish()

    @property
    def _complete(self) -> bool:
        return self.size is not None and self._partial.done.total >= self.size

    def _ending(self) -> bool:
        """True if all threads are to end."""
        return self._stop.is_set() or self._limits.is_stopped

    def _next_gap(self) -> FilePiece:
        """The first gap; its end is ``None`` if it is the end of the file."""
        if self.size is None:
            return FilePiece(self._partial.done.frontier, None)
        start, stop = self._partial.done.missing(self.size)[0]
        last = min(stop, start + LARGEST_REQUEST)
        return FilePiece(start, None if last == self.size else last)

    # --- several connections -----------------------------------------------------------------

    def _wants_company(self) -> bool:
        """True if more connections were requested, or the file is big enough for them."""
        asked = self._session.options.at_once
        if self.size is None or asked == 1 or not self._facts.accepts_ranges:
            return False
        missing = self.size - self._partial.done.total
        many = asked > 1 or len(self._servers) > 1 or self.size > PARALLEL_FROM_BYTES
        return missing > 2 * PROBE_BYTES and many

    def _is_slow_alone(self) -> bool:
        """Fetch one part alone; true if more connections may help.

        This also binds the version, so that the other connections ask for the same one.
        """
        if len(self._servers) > 1:
            return True
        gap = self._next_gap()
        start, stop = gap.at, min(gap.stop or gap.at + PROBE_BYTES, gap.at + PROBE_BYTES)
        begun = self._session.clock()
        while gaps := self._partial.done.missing(stop):
            self._attempt(FilePiece(gaps[0][0], stop), self._servers[0])
            if not self._ranges:
                return False
        speed = (stop - start) / max(self._session.clock() - begun, 1e-9)
        logger.debug("%s: one connection carries %.1f MB/s", self._name, speed / 1e6)
        return self._session.options.at_once > 1 or speed < FAST_BYTES_PER_S

    def _fetch_together(self) -> None:
        """Fetch the gaps in pieces, in several threads, in the order of the file."""
        assert self.size is not None
        asked = self._session.options.at_once or AUTOMATIC_CONNECTIONS
        count = max(asked, len(self._servers))
        missing = self._partial.done.missing(self.size)
        total = sum(stop - start for start, stop in missing)
        length = max(1 << 20, min(PIECE_BYTES, total // (4 * count)))
        self._pieces = Pieces(missing, length, self._session.clock)
        self._partial.scatter()
        self._together = True
        servers = [self._servers[number % len(self._servers)] for number in range(count)]
        workers = in_threads([partial(self._work, server) for server in servers], count, self._halt)
        self._together = False
        error = first_error(workers)
        if error and not self._complete:
            raise error
        self._stop.clear()

    def _halt(self) -> None:
        """End all threads soon, also those waiting for bytes."""
        self._stop.set()
        with self._lock:
            for response in self._open:
                with suppress(Exception):
                    response.raw.shutdown()

    def _work(self, server: _Server) -> None:
        rate = 0.0
        while (piece := self._next_piece(server, rate)) is not None:
            try:
                while piece.left and not server.is_left_out:
                    self._attempt(piece, server)
            finally:
                with self._changed:
                    rate = self._pieces.rate_of(piece)
                    self._pieces.end(piece)
                    self._changed.notify_all()
        if self._complete:
            self._halt()  # also threads waiting for bytes that another one received

    def _next_piece(self, server: _Server, rate: float) -> FilePiece | None:
        """Next piece for *server*; ``None``: no more at all."""
        with self._changed:
            while not (self._complete or self._ending() or server.is_left_out):
                piece = self._pieces.take(rate)
                if piece is not None:
                    return piece
                self._changed.wait(IDLE_S)
        return None

    def _leave_out(self, server: _Server, error: BitnetError) -> None:
        """Drop *server* and continue with the others.

        Raises:
            BitnetError: it was the last one.
        """
        with self._lock:
            others = [one for one in self._servers if one is not server and not one.is_left_out]
            if not (others and self._together):
                raise error
            known, server.is_left_out = server.is_left_out, True
        if not known:
            logger.warning("%s goes on without %s: %s", self._name, shown(server.url), error)

    # --- one request -------------------------------------------------------------------------

    def _attempt(self, piece: FilePiece, server: _Server) -> None:
        """Fetch *piece* from *server*, as far as possible in this attempt."""
        try:
            self._fetch(piece, server)
        except _NoRanges:
            if self._together and len(self._servers) > 1:
                self._leave_out(server, NetworkError("it does not send the parts asked for"))
                return
            if self._together:
                raise
            if not self._ranges:
                raise NetworkError(
                    f"{shown(server.url)}: a part of the file came unasked"
                ) from None
            self._start_over("the server cannot continue")
        except Replaced:
            if server is self._servers[0] or not self._together:
                raise
            self._leave_out(server, NetworkError("it has another file"))
        except BitnetError as error:
            if isinstance(error, NoSpace | PermissionDenied):
                raise
            self._leave_out(server, error)
        except Transient as broken:
            if self._ending():
                raise Stopped from None
            server.failures += 1
            if self._together and server.failures >= SERVER_ATTEMPTS:
                with suppress(BitnetError):
                    self._leave_out(server, broken.error)
                    return
            stopped = self._ending if self._together else None
            server.patience.failed(self._name, broken, stopped=stopped)

    def _start_over(self, reason: str) -> None:
        logger.info("%s: %s, starting over", self._name, reason)
        self._ranges = self._together = False
        self._stop.clear()
        self._hash.stop()
        self._partial.restart()
        self._hash = TrailingHash(self._partial.path)

    def _fetch(self, piece: FilePiece, server: _Server) -> None:
        """Request *piece*, and write what arrives."""
        if self._ending():
            raise Stopped
        headers = {}
        start, stop = piece.at, piece.stop
        if self._ranges and (start or stop is not None):
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
            if self._partial.sent_etag and not self._facts.sha256:
                headers["If-Range"] = f'"{self._partial.sent_etag}"'
        with self._limits.connection(self._ending) as waited:
            if waited:
                server.patience.gained(0)  # our own limit is not silence of the server
            with self._session.open(server.url, headers=headers, also=(416,)) as response:
                with self._lock:
                    self._open.add(response)
                try:
                    refuse_pages(response, shown(server.url))
                    piece.at, end = self._checked(response, start, stop, asked=bool(headers))
                    self._receive(response, piece, end, server)
                finally:
                    with self._lock:
                        self._open.discard(response)

    def _checked(
        self, response: requests.Response, start: int, stop: int | None, *, asked: bool
    ) -> tuple[int, int | None]:
        """Start and end of *response*'s body in the file.

        Raises:
            _NoRanges: it is not the requested part.
            Replaced: it belongs to another version.
        """
        etag, bound = strong_etag(response.headers.get("ETag")), self._partial.sent_etag
        if self._facts.sha256:
            etag = bound = None  # replicas have different ETags; the digest decides in the end
        if response.status_code == 416:
            raise _NoRanges
        if etag and bound and etag != bound:
            raise Replaced
        if response.status_code == 206:
            found = content_range(response.headers.get("Content-Range"))
            if not asked or found is None or found[0] != start or (stop and found[1] > stop):
                raise _NoRanges
            if self.size is not None and found[2] not in (None, self.size):
                raise Replaced
            end: int | None = found[1]
        else:
            length = response.headers.get("Content-Length", "")
            end = as_count(length)
            if self.size is not None and end not in (None, self.size):
                raise Replaced
            if asked and self._together:
                raise _NoRanges
            if asked:
                self._start_over("the server sends the whole file")
                start = 0
            self.size = self.size if self.size is not None else end
        if bound is None and not self._together:
            self._partial.bind(etag)
        return start, end

    def _receive(
        self, response: requests.Response, piece: FilePiece, end: int | None, server: _Server
    ) -> None:
        """Write the body of *response*; it must reach *end* if that is known.

        It may end earlier if another connection has taken the tail of *piece*.
        """
        session, limits = self._session, self._limits
        start = piece.at
        since, at_since = session.clock(), start
        while end is None or piece.at < end:
            if limits.is_stopped:
                raise Stopped
            if self._together and piece.stop is not None:
                end = min(end or piece.stop, piece.stop)
            try:
                count = READ_BYTES if end is None else min(READ_BYTES, end - piece.at)
                if count <= 0:
                    break
                chunk = response.raw.read1(limits.share(count), decode_content=False)
            except urllib3.exceptions.ReadTimeoutError:
                raise Transient(failed(server.url, "timeout")) from None
            except (urllib3.exceptions.HTTPError, OSError) as error:
                if any(isinstance(arg, IncompleteRead) for arg in error.args):
                    break  # reported below, with the numbers
                raise Transient(failed(server.url, "the connection broke")) from None
            if not chunk:
                break
            self._store(piece, chunk, server)
            since += limits.pay(len(chunk), self._ending)
            waited = session.clock() - since
            if waited >= session.options.stall_s:
                if piece.at - at_since < STALL_BYTES_PER_S * waited:
                    raise Transient(failed(server.url, "stalled"))
                since, at_since = session.clock(), piece.at
        at = piece.at
        if self._together and piece.stop is not None and end is not None:
            end = min(end, piece.stop)
        if end is not None and at < end:
            raise Transient(
                failed(server.url, f"truncated: {at - start:,} of {end - start:,} bytes came")
            )
        if end is None:
            if self.size is not None and at < self.size:
                raise Transient(failed(server.url, f"truncated after {at:,} bytes"))
            self.size = at

    def _store(self, piece: FilePiece, chunk: bytes, server: _Server) -> None:
        """Write *chunk*, then count it."""
        partial, at = self._partial, piece.at
        try:
            partial.write(at, chunk)
        except OSError as error:
            raise from_os_error(error, partial.path, in_cache=True) from error
        with self._lock:
            partial.done.add(at, at + len(chunk))
            piece.at = at + len(chunk)
            self._unnoted += len(chunk)
            if self._unnoted >= NOTE_BYTES and not partial.is_contiguous:
                self._unnoted = 0
                with suppress(OSError):
                    partial.note()
            self._advance()
        partial.flush_behind()
        server.failures = 0
        server.patience.gained(len(chunk))

    def _advance(self) -> None:
        self._hash.advance(self._partial.done.frontier)
        self._report(self._partial.done.total, self.size)

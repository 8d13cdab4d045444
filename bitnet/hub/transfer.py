"""Bytes from a server into a partial file: by one connection or several, until all are there."""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from http.client import IncompleteRead
from typing import TYPE_CHECKING

from bitnet.errors import NetworkError, from_os_error
from bitnet.hub.http import urllib3
from bitnet.hub.replies import as_count, content_range, refuse_pages
from bitnet.hub.repository import FileFacts, strong_etag
from bitnet.hub.session import HubSession, Patience, Transient, failed, shown
from bitnet.hub.trailing_hash import TrailingHash

if TYPE_CHECKING:
    from collections.abc import Callable

    import requests

    from bitnet.store.partial import Partial

__all__ = ["Replaced", "Transfer"]

logger = logging.getLogger(__name__)

PARALLEL_FROM_BYTES = 64_000_000
AUTOMATIC_CONNECTIONS = 4
PROBE_BYTES = 2 << 20
FAST_BYTES_PER_S = 100e6  # one connection at this speed gains nothing from company
PIECE_BYTES = 16 << 20
NOTE_BYTES = 4 << 20  # of parallel parts, between two notes: what a kill costs at most
READ_BYTES = 1 << 20
STALL_BYTES_PER_S = 100


class Replaced(Exception):  # never leaves the package
    """The server has another version of the file than it announced."""


class _Stopped(Exception):
    """Another thread has failed; this one ends."""


class _NoRanges(Exception):
    """The server does not send the part that was asked for."""


class Transfer:
    """Fills *partial* with the file that *facts* describes.

    Args:
        session: the way to the server.
        facts: the file; its size may be unknown.
        partial: where the bytes go; may hold some already.
        name: what to call it in messages.
        report: told the number of bytes that are written, and the whole size.
    """

    def __init__(
        self,
        session: HubSession,
        facts: FileFacts,
        partial: Partial,
        *,
        name: str,
        report: Callable[[int, int | None], None],
    ) -> None:
        self._session = session
        self._facts = facts
        self._partial = partial
        self._name = name
        self._report = report
        self._patience = Patience(session)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._unnoted = 0
        self._ranges = True  # ask for parts
        self._together = False
        self._open: set[requests.Response] = set()
        self._hash = TrailingHash(partial.path)
        self.size = facts.size

    def run(self) -> str:
        """Fetch what is missing; the SHA-256 of the whole file.

        Raises:
            Replaced: the file on the server is not the one announced.
            NetworkError: attempts or time are used up.
            NoSpace: the disk is full.
        """
        try:
            with self._lock:
                self._advance()
            if self._wants_company() and self._is_slow_alone():
                try:
                    self._fetch_together()
                except _NoRanges:
                    self._start_over("no parts from this server")
            while not self._complete:
                self._attempt(*self._next_gap())
            return self._hash.finish()
        finally:
            self._hash.stop()

    @property
    def _complete(self) -> bool:
        return self.size is not None and self._partial.done.total >= self.size

    def _next_gap(self) -> tuple[int, int | None]:
        """The first missing part; its end is ``None`` where it is the end of the file."""
        if self.size is None:
            return self._partial.done.frontier, None
        start, stop = self._partial.done.missing(self.size)[0]
        return start, None if stop == self.size else stop

    # --- several connections -----------------------------------------------------------------

    def _wants_company(self) -> bool:
        """Whether more connections are asked for, or the file is big enough for them."""
        asked = self._session.options.at_once
        if self.size is None or asked == 1 or not self._facts.accepts_ranges:
            return False
        missing = self.size - self._partial.done.total
        return missing > 2 * PROBE_BYTES and (asked > 1 or self.size > PARALLEL_FROM_BYTES)

    def _is_slow_alone(self) -> bool:
        """Fetch one part alone, and say whether more connections can be of use.

        It also binds the version, so that every other connection asks for the same one.
        """
        start, stop = self._next_gap()
        stop = min(stop or start + PROBE_BYTES, start + PROBE_BYTES)
        begun = self._session.clock()
        while gaps := self._partial.done.missing(stop):
            self._attempt(gaps[0][0], stop)
            if not self._ranges:
                return False
        speed = (stop - start) / max(self._session.clock() - begun, 1e-9)
        logger.debug("%s: one connection carries %.1f MB/s", self._name, speed / 1e6)
        return self._session.options.at_once > 1 or speed < FAST_BYTES_PER_S

    def _fetch_together(self) -> None:
        """Fetch the gaps in pieces, by several threads, in the order of the file."""
        assert self.size is not None
        count = self._session.options.at_once or AUTOMATIC_CONNECTIONS
        missing = self._partial.done.missing(self.size)
        total = sum(stop - start for start, stop in missing)
        length = max(1 << 20, min(PIECE_BYTES, total // (4 * count)))
        pieces: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        for start, stop in missing:
            for at in range(start, stop, length):
                pieces.put((at, min(at + length, stop)))
        self._partial.scatter()
        self._together = True
        with ThreadPoolExecutor(count, thread_name_prefix="download") as pool:
            workers = [pool.submit(self._work, pieces) for _ in range(count)]
            try:
                wait(workers, return_when=FIRST_EXCEPTION)
            finally:
                if not all(worker.done() and worker.exception() is None for worker in workers):
                    self._halt()
        self._together = False
        errors = [error for worker in workers if (error := worker.exception()) is not None]
        errors.sort(key=lambda error: isinstance(error, _Stopped))
        if errors:
            raise errors[0]

    def _halt(self) -> None:
        """Make every thread end soon, also one that waits for bytes."""
        self._stop.set()
        with self._lock:
            for response in self._open:
                with suppress(Exception):
                    response.raw.shutdown()

    def _work(self, pieces: queue.SimpleQueue[tuple[int, int]]) -> None:
        with suppress(queue.Empty):
            while True:
                start, stop = pieces.get_nowait()
                at: int | None = start
                while at is not None:
                    self._attempt(at, stop)
                    with self._lock:
                        gaps = self._partial.done.missing(stop)
                    at = next((max(a, start) for a, b in gaps if b > start), None)

    # --- one request -------------------------------------------------------------------------

    def _attempt(self, start: int, stop: int | None) -> None:
        """Fetch from *start* to *stop* or the end, as far as it goes this time."""
        try:
            self._fetch(start, stop)
        except _NoRanges:
            if self._together:
                raise
            if not self._ranges:
                raise NetworkError(
                    f"{shown(self._facts.url)}: a part of the file came unasked"
                ) from None
            self._start_over("the server cannot continue")
        except Transient as broken:
            if self._stop.is_set():
                raise _Stopped from None
            stopped = self._stop.is_set if self._together else None
            self._patience.failed(self._name, broken, stopped=stopped)

    def _start_over(self, reason: str) -> None:
        logger.info("%s: %s, starting over", self._name, reason)
        self._ranges = self._together = False
        self._stop.clear()
        self._hash.stop()
        self._partial.restart()
        self._hash = TrailingHash(self._partial.path)

    def _fetch(self, start: int, stop: int | None) -> None:
        """Ask for *start* to *stop* or the end, and write what comes."""
        if self._stop.is_set():
            raise _Stopped
        headers = {}
        if self._ranges and (start or stop is not None):
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
            if self._partial.sent_etag and not self._facts.sha256:
                headers["If-Range"] = f'"{self._partial.sent_etag}"'
        url = self._facts.url
        with self._session.open(url, headers=headers, also=(416,)) as response:
            with self._lock:
                self._open.add(response)
            try:
                refuse_pages(response, shown(url))
                start, end = self._checked(response, start, stop, asked=bool(headers))
                self._receive(response, start, end)
            finally:
                with self._lock:
                    self._open.discard(response)

    def _checked(
        self, response: requests.Response, start: int, stop: int | None, *, asked: bool
    ) -> tuple[int, int | None]:
        """Where the body of *response* starts and ends in the file.

        Raises:
            _NoRanges: it is not the part that was asked for.
            Replaced: it is of another version.
        """
        etag, bound = strong_etag(response.headers.get("ETag")), self._partial.sent_etag
        if self._facts.sha256:
            etag = bound = None  # replicas name it differently; its digest decides in the end
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

    def _receive(self, response: requests.Response, start: int, end: int | None) -> None:
        """Write the body of *response* from *start* on; it has to reach *end* if that is known."""
        session = self._session
        at = start
        since, at_since = session.clock(), at
        while end is None or at < end:
            try:
                count = READ_BYTES if end is None else min(READ_BYTES, end - at)
                chunk = response.raw.read1(count, decode_content=False)
            except urllib3.exceptions.ReadTimeoutError:
                raise Transient(failed(self._facts.url, "timeout")) from None
            except (urllib3.exceptions.HTTPError, OSError) as error:
                if any(isinstance(arg, IncompleteRead) for arg in error.args):
                    break  # said below, with the numbers
                raise Transient(failed(self._facts.url, "the connection broke")) from None
            if not chunk:
                break
            self._store(at, chunk)
            at += len(chunk)
            waited = session.clock() - since
            if waited >= session.options.stall_s:
                if at - at_since < STALL_BYTES_PER_S * waited:
                    raise Transient(failed(self._facts.url, "stalled"))
                since, at_since = session.clock(), at
        if end is not None and at < end:
            raise Transient(
                failed(self._facts.url, f"truncated: {at - start:,} of {end - start:,} bytes came")
            )
        if end is None:
            if self.size is not None and at < self.size:
                raise Transient(failed(self._facts.url, f"truncated after {at:,} bytes"))
            self.size = at

    def _store(self, at: int, chunk: bytes) -> None:
        """Write *chunk*, and count it once it is written."""
        partial = self._partial
        try:
            partial.write(at, chunk)
        except OSError as error:
            raise from_os_error(error, partial.path, in_cache=True) from error
        with self._lock:
            partial.done.add(at, at + len(chunk))
            self._unnoted += len(chunk)
            if self._unnoted >= NOTE_BYTES and not partial.is_contiguous:
                self._unnoted = 0
                with suppress(OSError):
                    partial.note()
            self._advance()
        partial.flush_behind()
        self._patience.gained(len(chunk))

    def _advance(self) -> None:
        self._hash.advance(self._partial.done.frontier)
        self._report(self._partial.done.total, self.size)

"""Connections with time limits for slow clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

HEADER_PATIENCE_S = 10.0  # from connecting, or the first byte of a request, to the last header
# Seconds after a client's last byte. The first write to a closed socket succeeds and is answered by
# a reset; only the next one fails.
PROBES_S = (0.0, 0.2, 1.0, 5.0, 30.0)
MAX_CONNECTIONS = 512  # most systems permit 1,024 open files per process
MAX_OF_A_CLIENT = MAX_CONNECTIONS // 2  # so that none alone can shut out the others
READER_PATIENCE_S = 60.0  # time a client may leave sent bytes unread
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


class PatientProtocol(H11Protocol):
    """uvicorn's protocol, which closes connections that send headers or read answers too slowly.

    h11 bounds the size of headers, which uvicorn's other protocol does not.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, within the time limit."""
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by the event that they wait for
        super().connection_made(transport)
        if self._is_one_too_many():
            transport.write(_BUSY)
            transport.close()
            return
        self._wait_for("headers", HEADER_PATIENCE_S)

    def data_received(self, data: bytes) -> None:
        """Receive data, and bound the time from the first byte of a request to its last header."""
        if "headers" not in self._timers and not self._answering:
            self._wait_for("headers", HEADER_PATIENCE_S)
        super().data_received(data)
        if self._answering:
            self._stop_waiting("headers")

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection open for an answer: the client has sent its last byte.

        It has closed the connection, or waits for the answer. Only writing tells the two apart, so
        probes are sent while the answer is computed.
        """
        if not self._answering:
            return False
        cycle: Any = self.cycle
        cycle.keep_alive = False
        for delay_s in PROBES_S:
            self.loop.call_later(delay_s, self._probe, cycle)
        return True

    def _probe(self, cycle: Any) -> None:
        """Write a probe that clients ignore; if the client has gone, the second probe fails."""
        if cycle is not self.cycle or cycle.response_complete or self.transport.is_closing():
            return
        # Set by exchange.py, for streams over HTTP/1.1.
        probe = cycle.scope.get("state", {}).get("probe")
        if not cycle.response_started:
            if cycle.scope["http_version"] == "1.1":  # HTTP/1.0 has no such reply
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif probe is not None:  # as a chunk
            self.transport.write(b"%x\r\n%b\r\n" % (len(probe), probe))

    def pause_writing(self) -> None:
        """Close the connection if the client does not read what was sent to it in time."""
        super().pause_writing()
        self._wait_for("reader", READER_PATIENCE_S)

    def resume_writing(self) -> None:
        """Stop waiting for the client, which reads again."""
        self._stop_waiting("reader")
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        for timer_name in [*self._timers]:
            self._stop_waiting(timer_name)
        super().connection_lost(exc)

    def _is_one_too_many(self) -> bool:
        """True if this client had its share of the connections before this one."""
        if not self.client:
            return False
        clients = [getattr(connection, "client", None) for connection in self.connections]
        count = sum(client is not None and client[0] == self.client[0] for client in clients)
        return bool(count > MAX_OF_A_CLIENT)

    @property
    def _answering(self) -> bool:
        """True from the last header of a request to the end of its response."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _wait_for(self, timer_name: str, patience_s: float) -> None:
        """Close the connection after *patience_s* if the event *timer_name* does not come first."""
        self._timers[timer_name] = self.loop.call_later(patience_s, self._give_up, timer_name)

    def _stop_waiting(self, timer_name: str) -> None:
        """Cancel the timer *timer_name*, if it runs."""
        if timer := self._timers.pop(timer_name, None):
            timer.cancel()

    def _give_up(self, timer_name: str) -> None:
        """Close the connection: the event *timer_name* did not come in time.

        If an answer has begun, the headers were complete, and only a slow reader is cut off.
        """
        self._stop_waiting(timer_name)
        if timer_name == "reader" or not self._answering:
            self.transport.abort()

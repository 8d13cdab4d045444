"""HTTP servers on loopback that run in a thread until they are closed."""

from __future__ import annotations

import threading
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from http.server import BaseHTTPRequestHandler

_POLL_S = 0.02  # longest wait for the end of a server


class LoopbackServer(ThreadingHTTPServer):
    """A server whose requests *handler* answers; *owner* is what it serves, for the handler.

    With *tls* it speaks HTTPS.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        handler: type[BaseHTTPRequestHandler],
        owner: Any,
        *,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", port), handler)
        if tls is not None:
            # The handshake is left to the thread of a request: a client may never end it.
            self.socket = tls.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def start(self) -> None:
        """Answer requests from now on, in a thread."""
        threading.Thread(target=self.serve_forever, args=(_POLL_S,), daemon=True).start()

    def stop(self) -> None:
        """Answer no more requests."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: clients break connections here, that is what these servers are for."""


class QuietHandler:
    """Base of request handlers that speak HTTP/1.1 and log nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Do nothing."""

"""Run a worker: start listening with a loaded model, and shut down in order."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import signal
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

from bitnet.base.errors import InferenceError, Interrupted, UsageError, from_os_error
from bitnet.base.trust import is_loopback
from bitnet.server.app import create_app
from bitnet.server.connection import MAX_CONNECTIONS, PatientProtocol
from bitnet.server.guard import MAX_HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from bitnet.server.metrics import Metrics
    from bitnet.server.models import Models
    from bitnet.server.narration import Narrate
    from bitnet.server.serve_options import ServeOptions

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 30  # time for which an idle connection stays open
SENDING_S = 5  # time for clients to read the end of their answers on shutdown
PASS_S = 3  # part of SENDING_S after which requests end even if a pass or a load is still running
LAST_WORDS_S = 1  # instead of SENDING_S after a second SIGINT
_HOSTS = "--host takes an address of this machine: 127.0.0.1, or 0.0.0.0 for every one"


def run(
    models: Models,
    metrics: Metrics,
    options: ServeOptions,
    narrate: Narrate,
    *,
    bound: socket.socket,
    ready: Callable[[str], None],
) -> None:
    """Serve *models* until a signal ends it.

    SIGTERM and the first SIGINT: new requests are refused, running answers may finish for ``drain``
    seconds and are then cut short. The second SIGINT ends them at once.

    *bound* is from :func:`bind`; *ready* is called with the address, in a thread, once connections
    are accepted.
    """
    if not options.key() and not is_loopback(options.host):
        logger.warning("any client that reaches %s can use it: there is no key", options.host)
    app = create_app(models, metrics, narrate, options)
    server = _Server(_configuration(app, options), models, narrate, ready, drain_s=options.drain)
    with _filter_log(narrate), _explain_errors(address_of(bound)):
        server.run(sockets=[bound])
    narrate("server_stop")
    if server.interrupts > 1:
        raise Interrupted("stopped at once; running answers were cut off")
    if (dead := models.dead) is not None:
        failure = dead.failure
        raise InferenceError(
            f"{dead.name}: the thread that ran the model died: {type(failure).__name__}",
            hint="start the worker again; what was being written is lost",
        ) from failure


@contextmanager
def _filter_log(narrate: Narrate) -> Iterator[None]:
    """Narrate malformed HTTP as a refused request, and drop the log of cancelled requests."""

    def accept(record: logging.LogRecord) -> bool:
        if not record.getMessage().startswith("Invalid HTTP request"):
            return not isinstance((record.exc_info or (None, None))[1], asyncio.CancelledError)
        narrate("request_refused", request="a client sent something that is not HTTP", status=400)
        return False

    log = logging.getLogger("uvicorn.error")
    log.addFilter(accept)
    try:
        yield
    finally:
        log.removeFilter(accept)


def _configuration(app: Any, options: ServeOptions) -> uvicorn.Config:
    """Configuration of uvicorn to serve *app* as *options* say."""
    return uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        ssl_certfile=options.tls_cert or None,
        ssl_keyfile=options.tls_key or None,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=MAX_CONNECTIONS,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SENDING_S,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )


class _Server(uvicorn.Server):
    """uvicorn's server, which drains the models after a signal, before it shuts down."""

    def __init__(
        self,
        config: uvicorn.Config,
        models: Models,
        narrate: Narrate,
        ready: Callable[[str], None],
        *,
        drain_s: float,
    ) -> None:
        super().__init__(config)
        self.models = models
        self._narrate = narrate
        self._ready = ready
        self.interrupts = 0  # by SIGINT
        self._drain_s = drain_s
        self._pass_s: float = PASS_S
        self._draining_until: float | None = None  # ``time.monotonic``

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, and announce it."""
        await super().startup(sockets)
        if self.should_exit or not sockets:
            return
        address = address_of(sockets[0])
        port = sockets[0].getsockname()[1]
        self._narrate("plain", text="Worker ready, starting HTTP server")
        self._narrate("server_start", address=address, port=port)
        self._narrate("plain", text=f"HTTP server listening on {address}")
        threading.Thread(target=self._open, args=(address,), daemon=True).start()

    def _open(self, address: str) -> None:
        """Announce that the worker is ready; the last line is the address to open in a browser."""
        at = f"{'https' if self.config.is_ssl else 'http'}://{address}"
        self._ready(at)
        here = at.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
        self._narrate("plain", text=f"open {here}")
        self._narrate("open", names=", ".join(self.models.slots), address=here)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM; uvicorn's own would raise them again."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Record the signal only: the interrupted code may hold a lock or be writing a line."""
        self.interrupts += sig == signal.SIGINT
        self._draining_until = self._draining_until or time.monotonic() + self._drain_s
        # While answers are drained, on_tick ends that; only uvicorn's own wait needs force.
        self.force_exit = self.should_exit and self.interrupts > 1

    async def on_tick(self, counter: int) -> bool:
        """True if serving must stop; while answers finish, new requests are refused."""
        if (until := self._draining_until) is not None:
            left_s = max(0, until - time.monotonic())
            # uvicorn waits for clients until the answers' time and SENDING_S have passed.
            self.config.timeout_graceful_shutdown = math.ceil(left_s + SENDING_S)
            if self.interrupts > 1:
                left_s = 0
                self._pass_s = min(PASS_S, LAST_WORDS_S / 2)
                self.config.timeout_graceful_shutdown = LAST_WORDS_S
            if not self.models.draining:
                self._narrate("draining", open=self.models.open_jobs)
            self.models.drain(left_s)
            self.should_exit = not (left_s and self.models.open_jobs)
        if self.models.dead is not None:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all connections, after the last event of each stream."""
        loop = asyncio.get_running_loop()
        giving_up = loop.call_later(self._pass_s, self.models.give_up)
        await super().shutdown(sockets)
        giving_up.cancel()
        if self.force_exit:  # uvicorn then leaves the rest to the end of the program
            await self._cut_off()
            await self.lifespan.shutdown()

    async def _cut_off(self) -> None:
        """End all requests; cancel those that have not ended after LAST_WORDS_S."""
        self.models.give_up()
        tasks = set(self.server_state.tasks)
        if not tasks:
            return
        _, unfinished = await asyncio.wait(tasks, timeout=LAST_WORDS_S)
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)


# --- the address ---------------------------------------------------------------------------------


def bind(host: str, port: int) -> socket.socket:
    """A socket at *host* and *port* (0: a free one) that does not accept connections yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise UsageError(f"--host {host}: {error.strerror}", hint=_HOSTS) from None
    except ValueError:  # an empty or a too long part, or a NUL
        raise UsageError(f"--host {host[:100]!r} is not the name of a host", hint=_HOSTS) from None
    with _explain_errors(f"{host}:{port}"):
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    return bound


def address_of(bound: socket.socket) -> str:
    """Host and port, as in a URL."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def _explain_errors(address: str) -> Iterator[None]:
    """Turn an ``OSError`` of listening on *address* into an error with a hint."""
    try:
        yield
    except OSError as error:
        own_error = from_os_error(error, address)
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(own_error.message, hint=_HOSTS) from error
        kind = UsageError if error.errno == errno.EADDRINUSE else type(own_error)
        raise kind(own_error.message, hint="choose another port; a free one: --port 0") from error

"""A real server on a loopback port, in a thread of the test."""

import asyncio
import contextlib
import threading
import time
from types import SimpleNamespace

import httpx
import uvicorn
from waiting import PATIENCE_S

from bitnet import load
from bitnet.formats.containers import open_checkpoint
from bitnet.server.app import create_app
from bitnet.server.connection import PatientProtocol
from bitnet.server.metrics import Metrics
from bitnet.server.models import Models
from bitnet.server.narration import narrator
from bitnet.server.run import _Server
from bitnet.server.serve_options import ServeOptions
from bitnet.server.slot import Slot

# Uvicorn checks ten times a second whether it must stop; here it does so a hundred times.
uvicorn.server.asyncio = SimpleNamespace(
    **vars(asyncio) | {"sleep": lambda delay_s: asyncio.sleep(delay_s / 10)}
)


class CommandServer(_Server):
    """The server of the command, in a thread, which cannot handle signals."""

    capture_signals = contextlib.nullcontext


class Running:
    """A server that accepts requests; *lines* are the lines of its log."""

    def __init__(self, models, server, lines):
        self.models = models
        self.server = server
        self.slot = models.default
        self.lines = lines
        self.port = server.servers[0].sockets[0].getsockname()[1]
        self.loop = server.servers[0].get_loop()
        self.address = f"http://127.0.0.1:{self.port}"
        # Plain HTTP: reading the certificates of this system takes as long as starting the worker.
        self.http = httpx.Client(base_url=self.address, timeout=PATIENCE_S, verify=False)

    def post(self, path, body, **more):
        """The reply to *body*, sent as JSON."""
        return self.http.post(path, json=body, **more)


@contextlib.contextmanager
def listening(path, *, name="tiny", app_options=None, lines=None, ignore_keys=(), **options):
    """A worker with the model at *path*, which is loaded."""
    slot = Slot(name, path, lambda: open_checkpoint(path, ignore_keys=ignore_keys), load)
    with serving_all([slot], app_options=app_options, lines=lines, **options) as worker:
        yield worker


def slot_of(path, name="", **more):
    """A slot for the model at *path*, by default with the name of its file."""
    return Slot(name or path.stem, path, lambda: open_checkpoint(path), load, **more)


@contextlib.contextmanager
def serving_all(slots, *, app_options=None, lines=None, loaded=True, drain_s=None, **options):
    """A worker with all models of *slots*, the first of them loaded or none.

    With *drain_s*, its server is that of the command, whose signals a test hands to it.
    """
    lines = [] if lines is None else lines
    metrics = Metrics()
    narrate = narrator(lines.append, worker_id="w1")
    options = {"max_output_tokens": 48} | options
    with contextlib.closing(Models(slots, metrics, narrate, **options)) as models:
        if loaded:
            models.pin(models.default, slots[0].load(slots[0].open()))
        app_options = {"worker_id": "w1"} | (app_options or {})
        app = create_app(models, metrics, narrate, ServeOptions(**app_options))
        config = uvicorn.Config(
            app,
            port=0,
            http=PatientProtocol,
            log_config=None,
            timeout_graceful_shutdown=5,
            timeout_keep_alive=PATIENCE_S,  # no connection ends just as a slow test uses it
        )
        server = uvicorn.Server(config)
        if drain_s is not None:
            server = CommandServer(config, models, narrate, lambda _: None, drain_s=drain_s)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.005)
            running = Running(models, server, lines)
            with running.http:
                yield running
        finally:
            server.should_exit = True
            thread.join()

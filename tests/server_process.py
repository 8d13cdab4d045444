"""A real worker on a loopback port."""

import contextlib
import threading
import time

import httpx
import uvicorn
from waiting import PATIENCE_S

from bitnet.runtime.language_model import load
from bitnet.server.app import create_app
from bitnet.server.connection import PatientProtocol
from bitnet.server.metrics import Metrics
from bitnet.server.narration import Narrator
from bitnet.server.service import Service
from bitnet.server.worker import Worker


class Running:
    """A worker that listens; *lines* are what it narrated."""

    def __init__(self, service, server, lines):
        self.service = service
        self.lines = lines
        self.port = server.servers[0].sockets[0].getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.address, timeout=PATIENCE_S)

    def post(self, path, body, **more):
        return self.http.post(path, json=body, **more)


@contextlib.contextmanager
def listening(
    path,
    *,
    name="tiny",
    app_options=None,
    lines=None,
    ignore_keys=(),
    max_output_tokens=48,
    **worker_options,
):
    lines = [] if lines is None else lines
    metrics = Metrics()
    with load(path, ignore_keys=ignore_keys) as model:
        worker = Worker(model, metrics, **worker_options)
        narrate = Narrator(lines.append, worker_id="w1")
        service = Service(worker, metrics, narrate, name, int(time.time()), max_output_tokens)
        app = create_app(service, **(app_options or {}))
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                port=0,
                http=PatientProtocol,
                log_config=None,
                timeout_graceful_shutdown=5,
                timeout_keep_alive=PATIENCE_S,  # no connection ends just as a slow test uses it
            )
        )
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.005)
            running = Running(service, server, lines)
            with running.http:
                yield running
        finally:
            server.should_exit = True
            thread.join()

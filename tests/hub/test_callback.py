"""The message that a worker is ready."""

import contextlib
import http.server
import json
import threading

import pytest

from bitnet.base.errors import NetworkError, Offline
from bitnet.hub.callback import call_back
from bitnet.hub.fetch_options import FetchOptions


@contextlib.contextmanager
def receiver(*statuses):
    """A server that answers POSTs with *statuses*, the last one for ever."""
    got = []
    left = list(statuses)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(left.pop(0) if len(left) > 1 else left[0])
            self.end_headers()

        def log_message(self, *words):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/ready", got
        finally:
            server.shutdown()
            thread.join()


def test_a_callback_is_tried_again_and_given_up_in_the_end():
    waits = []
    with receiver(500, 503, 200) as (url, got):
        call_back(url, {"worker_id": "w"}, FetchOptions(), sleep=waits.append)
    assert got == [{"worker_id": "w"}] * 3
    assert waits == [0.2, 0.4]
    with receiver(500) as (url, got), pytest.raises(NetworkError, match="3 attempts: HTTP 500"):
        call_back(url, {}, FetchOptions(), sleep=waits.append)
    with pytest.raises(Offline):
        call_back(url, {}, FetchOptions(offline=True))

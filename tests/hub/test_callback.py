"""The POST by which a worker reports to its pool that it is ready."""

import contextlib
import json
import os
import ssl
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import pytest
from loopback import LoopbackServer, QuietHandler

from bitnet.base.errors import NetworkError, Offline
from bitnet.hub.callback import call_back
from bitnet.hub.fetch_options import FetchOptions


class _Receiver(QuietHandler, BaseHTTPRequestHandler):
    """Records each POST, and replies with the next status; a redirect's address has secrets."""

    def do_POST(self):
        owner = self.server.owner
        owner.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        owner.logins.append(self.headers.get("Authorization"))
        status = owner.statuses.pop(0) if len(owner.statuses) > 1 else owner.statuses[0]
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if 300 <= status < 400:
            self.send_header("Location", "https://u:s@pool.example.org/ready?token=s")
        self.end_headers()


@contextlib.contextmanager
def receiver(*statuses, tls=None):
    """A pool: a server that answers POSTs with *statuses* in turn, and repeats the last one."""
    owner = SimpleNamespace(statuses=list(statuses), got=[], logins=[])
    server = LoopbackServer(_Receiver, owner, tls=tls)
    owner.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}/ready"
    server.start()
    try:
        yield owner
    finally:
        server.stop()


def test_a_callback_is_given_up_after_three_attempts_and_not_sent_offline():
    waits = []
    with receiver(500, 503, 204) as pool:
        call_back(pool.url, {"worker_id": "w"}, FetchOptions(), sleep=waits.append)
    assert pool.got == [{"worker_id": "w"}] * 3
    assert waits == [0.2, 0.4]
    with receiver(500) as pool, pytest.raises(NetworkError, match="3 attempts: HTTP 500"):
        call_back(pool.url, {}, FetchOptions(), sleep=waits.append)
    with pytest.raises(Offline):
        call_back(pool.url, {}, FetchOptions(offline=True))


def test_a_redirected_callback_is_an_error_that_names_the_place_without_secrets():
    # Without the login and the token of the address.
    message = "HTTP 308 to https://pool.example.org/ready, which is not followed"
    with receiver(308) as pool, pytest.raises(NetworkError, match=message):
        call_back(pool.url, {}, FetchOptions(retries=1))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (f"http://{'x' * 70}.invalid/", "not an address"),  # a label of DNS has at most 63 letters
        ("http://127.0.0.1:1/", "connection refused"),  # no program listens at port 1
    ],
)
def test_an_address_that_nothing_can_be_sent_to_is_an_error(url, problem):
    with pytest.raises(NetworkError, match=f"^callback to .* failed.*{problem}"):
        call_back(url, {}, FetchOptions(retries=1))


def test_the_login_of_a_callback_is_that_of_its_address_and_never_of_a_netrc_file():
    netrc = Path(os.environ["HOME"]) / ".netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    netrc.chmod(0o600)
    with receiver(200) as pool:
        call_back(pool.url, {}, FetchOptions())
        call_back(pool.url.replace("//", "//u:p@"), {}, FetchOptions())
    assert pool.logins == [None, "Basic dTpw"]  # Base64 of u:p


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_a_callback_trusts_the_certificates_that_downloads_trust(
    authority, bundle, monkeypatch, variable
):
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, bundle)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with receiver(200, tls=context) as pool:
        call_back(pool.url, {"status": "ready"}, FetchOptions(retries=1))
    assert pool.got == [{"status": "ready"}]

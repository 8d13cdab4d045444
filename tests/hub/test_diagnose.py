"""``doctor network``: each step of the way to the hub."""

import socket
import ssl
from http.server import BaseHTTPRequestHandler

import pytest
from hub_server import Rule
from loopback import LoopbackServer

from bitnet.base.errors import NetworkError, UsageError
from bitnet.hub.diagnose import PROBE, diagnose
from bitnet.hub.fetch_options import FetchOptions

REPO, _, FILE = PROBE.partition("/resolve/main/")


def look(url, **options):
    """Steps of the diagnosis of the hub at *url*, by subject, in their order."""
    return {step.subject: step for step in diagnose(FetchOptions(base_url=url, **options))}


def test_every_step_of_a_working_hub_succeeds(hub):
    hub.add(REPO, FILE, b"x" * 5000)
    steps = look(hub.url)
    assert list(steps) == ["hub", "proxy", "DNS", "TCP", "reply", "speed"]
    assert not any(step.failed for step in steps.values())
    assert steps["speed"].text.startswith("5.0 kB from ")
    assert "the file comes from" in steps["reply"].text


def test_a_diagnosis_ends_at_the_first_step_that_fails(hub):
    steps = look(hub.url)  # the repository does not exist
    assert list(steps)[-1] == "reply"
    assert steps["reply"].failed


# Exit codes: 11 without access, 12 above a rate limit, 14 for other errors of the network.
@pytest.mark.parametrize(("status", "code"), [(401, 11), (403, 11), (429, 12), (503, 14)])
def test_a_hub_that_refuses_the_request_fails_at_the_reply_with_the_exit_code_of_its_status(
    hub, status, code
):
    hub.add(REPO, FILE, b"x")
    hub.rules.append(Rule(where="hub", status=status))
    assert look(hub.url)["reply"].exit_code == code


def test_a_closed_port_is_a_failed_connection():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # free again, and closed, when the server is gone
    steps = look(f"http://127.0.0.1:{port}")
    assert steps["TCP"].exit_code == NetworkError.exit_code
    assert "HTTPS_PROXY" in steps["TCP"].hint


def test_a_server_without_encryption_fails_at_tls(hub):
    steps = look(hub.url.replace("http://", "https://"))
    assert list(steps)[-1] == "TLS"
    assert "REQUESTS_CA_BUNDLE" in steps["TLS"].hint


@pytest.mark.parametrize("content", [None, b"", b"hello"], ids=["missing", "empty", "no PEM"])
def test_a_bundle_of_certificates_that_cannot_be_used_fails_at_tls(
    hub, tmp_path, monkeypatch, content
):
    if content is not None:
        (tmp_path / "bundle.pem").write_bytes(content)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "bundle.pem"))
    steps = look(hub.url.replace("http://", "https://"))
    assert list(steps)[-1] == "TLS"
    assert "REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE cannot be used" in steps["TLS"].text
    assert steps["TLS"].exit_code == UsageError.exit_code


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_bundle_of_certificates_may_be_a_file_or_a_folder(
    tmp_path, monkeypatch, authority, bundle, is_folder
):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path) if is_folder else bundle)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = LoopbackServer(BaseHTTPRequestHandler, None, tls=context)
    server.start()
    try:
        steps = look(f"https://127.0.0.1:{server.server_port}")
    finally:
        server.stop()
    # OpenSSL finds a certificate in a folder only by a file name made of a hash of its subject, so
    # the certificate in this folder is not found.
    assert ("certificate verify failed" in steps["TLS"].text) == is_folder
    assert ("reply" in steps) == (not is_folder)


def test_a_name_that_does_not_resolve_fails_at_dns(monkeypatch):
    def unknown(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    steps = look("https://hub.invalid")
    assert list(steps)[-1] == "DNS"
    assert "DNS server" in steps["DNS"].hint


def test_a_host_name_with_a_label_of_more_than_63_letters_is_refused():
    with pytest.raises(UsageError, match="expects an address"):
        look(f"https://{'x' * 70}.invalid")


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_behind_a_proxy_the_diagnosis_connects_to_the_proxy_and_hides_its_login(
    monkeypatch, scheme
):
    # No program listens at port 9.
    monkeypatch.setenv("HTTPS_PROXY", f"{scheme}user:secret@127.0.0.1:9")
    steps = look("https://hub.invalid")
    assert steps["proxy"].text == "http://127.0.0.1:9"
    assert "127.0.0.1" in steps["DNS"].text
    assert list(steps)[-1] == "TCP"


@pytest.mark.parametrize(
    ("proxy", "port"),
    [
        ("proxy.invalid", 80),
        ("http://proxy.invalid", 80),
        ("https://proxy.invalid", 443),
        ("socks4://proxy.invalid", 1080),
        ("socks4a://proxy.invalid", 1080),
        ("socks5://proxy.invalid", 1080),
        ("socks5h://proxy.invalid", 1080),
        ("socks5://proxy.invalid:9050", 9050),
    ],
)
def test_a_proxy_without_a_port_is_reached_at_the_usual_port_of_its_scheme(
    monkeypatch, proxy, port
):
    lookups = []

    def ask(host, port, **options):
        lookups.append((host, port))
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    look("https://hub.invalid")
    assert lookups == [("proxy.invalid", port)]


def test_the_token_and_signed_addresses_are_in_no_step(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_do_not_show")
    hub.add(REPO, FILE, b"x" * 5000)
    shown = repr(look(hub.url))
    assert "do_not_show" not in shown
    assert "Signature" not in shown


def test_offline_diagnosis_opens_no_socket_and_looks_up_no_name(monkeypatch):
    def bomb(*args, **kwargs):
        raise AssertionError("a socket was made")

    monkeypatch.setattr(socket, "socket", bomb)
    monkeypatch.setattr(socket, "getaddrinfo", bomb)
    monkeypatch.setattr(ssl, "create_default_context", bomb)
    monkeypatch.setenv("BITNET_OFFLINE", "1")
    (step,) = diagnose(FetchOptions())
    assert "nothing was opened" in step.text

"""Sessions: refusals of servers, proxies and certificates, each as an error with its own hint."""

import ssl
from base64 import b64encode
from contextlib import contextmanager
from socketserver import BaseRequestHandler
from types import SimpleNamespace

import pytest
import requests
import responses
import urllib3
from downloading import download, fetch_file
from hub_server import Rule
from loopback import LoopbackServer
from proxies import Proxy

from bitnet.base import settings
from bitnet.base.errors import (
    AuthError,
    BitnetError,
    LicenceNotAccepted,
    NetworkError,
    NotFound,
    TokenInvalid,
    TokenMissing,
    UsageError,
)
from bitnet.hub import transport
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.repository import file_url, head
from bitnet.hub.session import HubSession

HUNG_UP = b""  # a reply: the connection is closed without a byte


class _Raw(BaseRequestHandler):
    """Counts connections, and sends the same bytes on each."""

    def handle(self):
        self.server.owner.count += 1
        self.request.recv(4096)
        self.request.sendall(self.server.owner.reply)


@contextmanager
def answering(reply, tls=None):
    """A server at an HTTPS address that answers with the bytes of *reply*."""
    server = LoopbackServer(_Raw, SimpleNamespace(reply=reply, count=0), tls=tls)
    server.url = f"https://127.0.0.1:{server.server_port}/f"
    server.start()
    try:
        yield server
    finally:
        server.stop()


TOKEN = "hf_TheSecretThatMustNeverAppear"
BIG = b"x" * 5000


# --- refusals ------------------------------------------------------------------------------------


@pytest.fixture
def gated(hub):
    """A hub with a gated model; it knows TOKEN, whose user has not accepted the licence."""
    hub.add("org/model", "model.gguf", BIG)
    hub.repo("org/model", gated=True)
    hub.tokens[TOKEN] = set()
    return hub


def test_without_a_token_the_steps_to_get_one_are_named(gated, session, tmp_path):
    with pytest.raises(TokenMissing, match="HF_TOKEN is not set") as caught:
        fetch_file(session, tmp_path)
    for step in ("1. make a token", "2. accept", f"{gated.url}/org/model", "3. export HF_TOKEN"):
        assert step in caught.value.hint
    assert caught.value.exit_code == 11


def test_with_a_token_whose_user_has_not_accepted_the_licence_its_page_is_named(
    gated, session, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(LicenceNotAccepted, match="has not accepted") as caught:
        fetch_file(session, tmp_path)
    assert f"{gated.url}/org/model" in caught.value.hint


def test_a_token_that_the_hub_does_not_know_is_reported_as_not_accepted(
    gated, session, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    with pytest.raises(TokenInvalid, match="not accepted; it may have expired"):
        fetch_file(session, tmp_path)


def test_the_error_for_a_missing_file_lists_the_files_and_suggests_a_similar_name(
    hub, session, tmp_path
):
    hub.add("org/model", "ggml-model-i2_s.gguf", BIG)
    hub.add("org/model", "README.md", b"about")
    with pytest.raises(NotFound) as caught:
        fetch_file(session, tmp_path, file="ggml-model-i2s.gguf")
    address = f"{hub.url}/org/model/resolve/main/ggml-model-i2s.gguf"
    assert caught.value.message.startswith(f"HTTP error 404: {address}")
    assert "it has README.md, ggml-model-i2_s.gguf" in caught.value.message
    assert caught.value.hint == "did you mean ggml-model-i2_s.gguf?"


def test_the_error_for_a_missing_revision_lists_the_revisions_and_suggests_a_similar_one(
    hub, session, tmp_path
):
    hub.add("org/model", "model.gguf", BIG)
    with pytest.raises(NotFound, match="no revision 'mian' in org/model; it has main") as caught:
        fetch_file(session, tmp_path, revision="mian")
    assert caught.value.hint == "did you mean main?"


def test_a_missing_repository_is_reported_as_missing_or_private(hub, session, tmp_path):
    with pytest.raises(NotFound, match="the repository does not exist, or is private"):
        fetch_file(session, tmp_path, repo="unknown/repo")


def test_a_server_that_was_never_reached_is_given_up_after_three_attempts(tmp_path):
    options = FetchOptions(base_url="http://127.0.0.1:9")
    with HubSession(options, sleep=lambda s: None) as hub_session:
        url = file_url("org/model", "main", "model.gguf", options)
        with pytest.raises(NetworkError, match=r"connection refused \(3 attempts\)"):
            download(url, tmp_path / "file", session=hub_session, progress="none")


def test_a_server_that_sends_no_byte_is_a_timeout(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_STALL_TIMEOUT", "0.05")
    hub.add("org/model", "model.gguf", BIG)
    hub.rules.append(Rule(where="cdn", stall_at=0))
    options = FetchOptions(base_url=hub.url, retries=2)
    with HubSession(options, sleep=lambda s: None) as hub_session:
        url = file_url("org/model", "main", "model.gguf", options)
        with pytest.raises(NetworkError, match=r"^HTTP request failed for http.*: timeout"):
            download(url, tmp_path / "file", session=hub_session, progress="none")


# --- addresses -----------------------------------------------------------------------------------


def test_the_endpoint_in_the_environment_is_read_when_an_address_is_made(
    hub, tmp_path, monkeypatch
):
    hub.add("org/model", "model.gguf", BIG)
    options = FetchOptions()
    monkeypatch.setenv("HF_ENDPOINT", f"{hub.url}/")
    url = file_url("org/model", "main", "model.gguf", options)
    assert url == f"{hub.url}/org/model/resolve/main/model.gguf"
    download(url, tmp_path / "file", options=options, progress="none")


def test_a_proxy_in_the_environment_is_used(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", hub.url)
    monkeypatch.setenv("no_proxy", "")
    options = FetchOptions(base_url="http://hub.example.org", retries=1)
    with pytest.raises(NotFound):
        download(
            file_url("org/model", "main", "model.gguf", options),
            tmp_path / "file",
            options=options,
            progress="none",
        )
    # A request to a proxy has the whole address.
    assert hub.requests()[0].path.startswith("http://hub.example.org/org/model/")


@pytest.mark.parametrize("address", ["ftp://hub", "hub.example.org", "file:///etc"])
def test_an_endpoint_without_http_or_https_is_refused(monkeypatch, address):
    with pytest.raises(UsageError):
        FetchOptions(base_url=address)
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(UsageError):
        file_url("org/model", "main", "file")


@pytest.mark.parametrize(
    ("repo", "file"), [("../up", "f"), ("a/b/c", "f"), ("a/b", "../f"), ("a/b", ""), ("", "f")]
)
def test_names_that_are_empty_or_leave_the_repository_are_refused(repo, file):
    with pytest.raises(UsageError):
        file_url(repo, "main", file)


@pytest.mark.parametrize(
    "wrong",
    [
        {"retries": 0},
        {"timeout": -1.0},
    ],
)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(UsageError):
        FetchOptions(**wrong)


def test_a_redirect_from_https_to_http_is_refused(session):
    encrypted = responses.RequestsMock()
    encrypted.get("https://hub.example.org/f", status=302, headers={"Location": "http://cdn/f"})
    with (
        encrypted,
        session() as hub_session,
        pytest.raises(NetworkError, match="redirects to an unencrypted address: http://cdn/f"),
    ):
        hub_session.open("https://hub.example.org/f")


# --- reasons that the hub states, and settings ---------------------------------------------------


@pytest.mark.parametrize(
    ("status", "headers", "kind", "said"),
    [
        (404, {"X-Error-Code": "RevisionNotFound"}, NotFound, "the revision does not exist"),
        (404, {"X-Error-Code": "EntryNotFound"}, NotFound, "the file does not exist"),
        (404, {"X-Error-Code": "RepoNotFound"}, NotFound, "the repository does not exist"),
        (451, {}, AuthError, "disabled for legal reasons"),
        (403, {"X-Error-Message": "Access to this resource is disabled."}, AuthError,
         'disabled by the hub (the server says: "Access to this resource is disabled.")'),
        (403, {"X-Error-Code": "GatedRepo"}, LicenceNotAccepted, "has not accepted"),
        (400, {"X-Error-Message": "a\x1b[2Jb"}, NetworkError, "a\\x1b[2Jb"),
    ],
)  # fmt: skip
def test_a_refusal_of_the_hub_becomes_the_error_of_its_status_and_headers(
    hub, session, tmp_path, monkeypatch, status, headers, kind, said
):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.rules.append(Rule(where="hub", status=status, headers=headers))
    with pytest.raises(kind) as caught:
        fetch_file(session, tmp_path)
    assert type(caught.value) is kind  # not one derived from it
    assert said in str(caught.value)
    if "disabled" in said:
        assert "accept" not in str(caught.value) + caught.value.hint


def test_without_a_token_the_terms_are_named_and_the_hint_is_to_set_one(hub, session, tmp_path):
    hub.rules.append(Rule(where="hub", status=403, headers={"X-Error-Code": "GatedRepo"}))
    with pytest.raises(LicenceNotAccepted, match="terms to accept") as caught:
        fetch_file(session, tmp_path)
    assert "export HF_TOKEN=" in caught.value.hint


@pytest.mark.parametrize("variable", ["HF_ENDPOINT", "BITNET_CONNECTIONS", "BITNET_LIMIT_RATE"])
@pytest.mark.parametrize(
    "text", ["htp://user:sesame@x", "user:sesame@x", "http://user:sesame@", "x,ftp://u:sesame@x"]
)
def test_no_error_about_a_setting_shows_the_password_of_an_address(variable, text, monkeypatch):
    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageError) as caught:
        settings.check()
    assert "sesame" not in f"{caught.value} {caught.value.hint}"
    with pytest.raises(UsageError) as caught:
        FetchOptions(base_url=text)
    assert "sesame" not in f"{caught.value} {caught.value.hint}"


def test_a_missing_bundle_of_certificates_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "missing.pem"))
    with (
        HubSession(FetchOptions(base_url="https://127.0.0.1:9", retries=1)) as hub_session,
        pytest.raises(UsageError, match=r"REQUESTS_CA_BUNDLE.*missing\.pem"),
    ):
        hub_session.open("https://127.0.0.1:9/f")


@pytest.mark.parametrize("content", [b"", b"hello", b"-----BEGIN CERTIFICATE-----\nA\n"])
def test_a_bundle_without_certificates_is_named_as_the_cause(tmp_path, monkeypatch, content):
    (tmp_path / "bundle.pem").write_bytes(content)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "bundle.pem"))
    with (
        answering(HUNG_UP) as server,
        HubSession(FetchOptions(base_url=server.url, retries=1)) as hub_session,
        pytest.raises(UsageError, match=r"REQUESTS_CA_BUNDLE.*cannot be used"),
    ):
        hub_session.open(server.url)


@pytest.mark.parametrize(
    ("reply", "reason", "attempts"),  # a refused handshake has 3 attempts, not the 5 of the session
    [
        (HUNG_UP, "connection broke", 5),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", r"no encrypted connection \(wrong version number", 3),
        # A TLS record: alert, TLS 1.2, 2 bytes: fatal, handshake_failure (40).
        (b"\x15\x03\x03\x00\x02\x02\x28", r"no encrypted connection \(ssl.*handshake failure", 3),
    ],
    ids=["hangs up", "plain", "refuses"],
)
def test_a_handshake_that_fails_is_tried_again_and_not_blamed_on_a_certificate(
    session, reply, reason, attempts
):
    with answering(reply) as server, session(retries=5) as hub_session:
        with pytest.raises(NetworkError, match=rf"{reason}.*\({attempts} attempts\)"):
            head(server.url, hub_session)
        assert server.owner.count == attempts


def test_a_certificate_that_is_not_trusted_is_named_at_once(session, authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with answering(b"", tls=context) as server, session(retries=5) as hub_session:
        with pytest.raises(NetworkError, match=r"certificate is not trusted.*issuer") as caught:
            head(server.url, hub_session)
        assert "REQUESTS_CA_BUNDLE" in caught.value.hint
        assert server.owner.count == 1


class FakeSocksManager(urllib3.PoolManager):
    """Stand-in for urllib3's pool for SOCKS, which needs PySocks: it has connections of its own."""

    def __init__(self, *_args, **options):
        super().__init__(**options)
        self.pool_classes_by_scheme = {"http": object(), "https": object()}


def test_a_socks_proxy_keeps_its_own_connections(monkeypatch):
    monkeypatch.setattr(requests.adapters, "SOCKSProxyManager", FakeSocksManager)
    own = transport.Transport().proxy_manager_for("socks5://127.0.0.1:9")
    assert own.pool_classes_by_scheme.keys() == {"http", "https"}
    assert {type(kind) for kind in own.pool_classes_by_scheme.values()} == {object}
    plain = transport.Transport().proxy_manager_for("http://127.0.0.1:9")
    assert plain.pool_classes_by_scheme == transport._POOLS


def test_an_error_behind_a_socks_proxy_names_the_proxy(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    with (
        HubSession(FetchOptions(base_url="http://127.0.0.1:9", retries=1)) as hub_session,
        pytest.raises((UsageError, NetworkError), match="proxy"),
    ):
        hub_session.open("http://hub.example.org/f")


# --- refusals by others than the hub -------------------------------------------------------------


def test_after_an_expired_signature_the_hub_is_asked_for_another_address(
    hub, session, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.tokens[TOKEN] = {"org/model"}
    hub.add("org/model", "model.gguf", BIG)
    hub.rules.append(Rule(where="cdn", status=403, body=b"Request has expired", times=2))
    fetch_file(session, tmp_path)
    assert (tmp_path / "model.gguf").read_bytes() == BIG
    assert len(hub.requests("hub", "GET")) == 3  # a new address each time


@pytest.mark.parametrize("status", [400, 401, 403])
@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_storage_that_refuses_gets_no_token_and_its_advice_is_not_shown(
    hub, session, tmp_path, monkeypatch, status, token
):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
        hub.tokens[token] = {"org/model"}
    hub.add("org/model", "model.gguf", BIG)
    codes = {"X-Error-Code": "GatedRepo", "X-Error-Message": "export BITNET_HUB_HOSTS=localhost"}
    hub.rules.append(Rule(where="cdn", status=status, headers=codes))
    with pytest.raises(NetworkError, match="does not accept the signed address") as caught:
        fetch_file(session, tmp_path)
    text = f"{caught.value} {caught.value.hint}"
    for word in ("HUB_HOSTS", "HF_TOKEN", "terms"):
        assert word not in text
    assert "(3 attempts)" in text
    assert not any("Authorization" in seen.headers for seen in hub.requests("cdn"))


def test_the_login_in_the_hubs_address_is_sent_there_and_nowhere_else(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)  # as in huggingface_hub, the login replaces it
    hub.add("org/model", "model.gguf", BIG)
    login = f"Basic {b64encode(b'me:s/same').decode()}"
    hub.tokens[login] = set()
    with HubSession(FetchOptions(base_url=hub.url.replace("//", "//me:s%2Fsame@"))) as hub_session:
        fetch_file(lambda: hub_session, tmp_path)
    assert (tmp_path / "model.gguf").read_bytes() == BIG
    assert {seen.headers.get("Authorization") for seen in hub.requests("hub")} == {login}
    assert {seen.headers.get("Authorization") for seen in hub.requests("cdn")} == {None}


@pytest.fixture
def proxy():
    """A proxy with the login me:sesame."""
    with Proxy("me", "sesame") as server:
        yield server


@pytest.mark.parametrize("address", ["http://hub.invalid/f", "https://hub.invalid/f"])
def test_a_proxy_that_refuses_the_password_is_named_and_asked_once(
    proxy, address, monkeypatch, clock
):
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy.url.replace("//", "//me:wrong-sesame@"))
    monkeypatch.setenv("NO_PROXY", "")
    with (
        HubSession(FetchOptions(), clock=clock, sleep=clock.sleep) as hub_session,
        pytest.raises(NetworkError, match="refuses its user name or password") as caught,
    ):
        hub_session.retrying("f", lambda: hub_session.open(address))
    assert proxy.url in caught.value.message
    assert "sesame" not in caught.value.message
    assert proxy.refused == 1
    assert clock.waits == []


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/f", "https://127.0.0.1:9/f"])
def test_a_proxy_that_forbids_a_host_is_asked_once_and_named_for_https(
    proxy, address, monkeypatch, clock
):
    proxy.forbids = True
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy.url.replace("//", "//me:sesame@"))
    monkeypatch.setenv("NO_PROXY", "")
    with (
        HubSession(FetchOptions(), clock=clock, sleep=clock.sleep) as hub_session,
        pytest.raises(BitnetError) as caught,
    ):
        hub_session.retrying("f", lambda: hub_session.open(address))
    if address.startswith("https"):  # for http, the reply of a proxy looks like one of the host
        assert f"{proxy.url} refuses to connect to 127.0.0.1" in str(caught.value)
    assert clock.waits == []
    assert proxy.forbidden == 1
    assert proxy.carried == []

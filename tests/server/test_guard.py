"""Who may come in, and with how much."""

import socket

import pytest
from waiting import PATIENCE_S

from bitnet.server.guard import MAX_HEADER_BYTES


def raw(worker, text, *, until=b""):
    with socket.create_connection(("127.0.0.1", worker.port), timeout=PATIENCE_S) as connection:
        connection.sendall(text)
        got = b""
        while chunk := connection.recv(65536):
            got += chunk
            if until and until in got:
                break
        return got


def test_a_key_is_wanted_everywhere_but_on_the_page_and_for_health(serving):
    worker = serving(app_options={"api_key": "s3cret"})
    for path in ("/", "/health/live", "/health/ready"):
        assert worker.http.get(path).status_code == 200
    for path in ("/metrics", "/v1/models", "/openapi.json", "/docs"):
        assert worker.http.get(path).status_code == 401
    body = {"prompt": "a", "max_tokens": 1}
    for header in (None, "s3cret", "Bearer", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret"):
        headers = {"Authorization": header} if header else {}
        reply = worker.post("/v1/inference", body, headers=headers)
        assert reply.status_code == 401
        assert reply.json()["error"]["code"] == "invalid_api_key"
        assert reply.headers["www-authenticate"] == "Bearer"
    right = worker.post("/v1/inference", body, headers={"Authorization": "Bearer s3cret"})
    assert right.status_code == 200
    assert "s3cret" not in "\n".join(worker.lines)


def test_a_request_that_is_too_large_is_refused_with_and_without_a_length(serving):
    worker = serving(app_options={"max_body": 1000})
    reply = worker.post("/v1/inference", {"prompt": "a" * 2000})
    assert reply.status_code == 413
    chunked = worker.http.post("/v1/inference", content=iter([b"a" * 600, b"a" * 600]))
    assert chunked.status_code == 413
    assert worker.post("/v1/inference", {"prompt": "a", "max_tokens": 1}).status_code == 200


def test_another_host_name_is_refused_where_only_this_machine_is_served(serving):
    worker = serving(app_options={"local_only": True})
    assert worker.http.get("/health/live").status_code == 200
    for host in ("localhost:1", "[::1]:80", "127.0.0.9"):
        assert worker.http.get("/health/live", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", ""):
        assert worker.http.get("/health/live", headers={"Host": host}).status_code == 403
    assert b" 200 OK" in raw(worker, b"GET /health/live HTTP/1.0\r\n\r\n")  # a load balancer's


def test_browsers_of_other_pages_are_refused_unless_allowed(serving):
    ask = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST"}
    closed = serving().http.options("/v1/inference", headers=ask)
    assert "access-control-allow-origin" not in closed.headers
    open_ = serving(app_options={"cors_origins": ["http://a.example"]})
    reply = open_.http.options("/v1/inference", headers=ask)
    assert reply.headers["access-control-allow-origin"] == "http://a.example"
    other = open_.http.options("/v1/inference", headers=ask | {"Origin": "http://b.example"})
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    "text",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: b\r\n" * 20000 + b"\r\n",
        b"GET /?" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x00\x01\x02\xff\r\n\r\n",
        b"POST /v1/inference HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    ],
    ids=["header flood", "endless line", "no HTTP", "negative length", "two lengths"],
)
def test_what_is_no_proper_request_is_refused(worker, text):
    try:
        got = raw(worker, text)
    except ConnectionError:  # refused while we were still sending
        got = b""
    assert b" 200 " not in got.partition(b"\r\n")[0]
    assert worker.post("/v1/inference", {"prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_whole_block_of_headers_is_bounded_too(worker):
    headers = {"X-A": "b" * (MAX_HEADER_BYTES - 1000)}
    assert worker.http.get("/health/live", headers=headers).status_code == 200
    headers["X-B"] = "b" * 1000
    assert worker.http.get("/health/live", headers=headers).status_code == 431


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"a"', b"\xff\xfe", b"{" * 5000])
def test_a_body_that_is_no_json_object_is_refused(worker, body):
    headers = {"Content-Type": "application/json"}
    reply = worker.http.post("/v1/inference", content=body, headers=headers)
    assert reply.status_code == 400
    assert "Traceback" not in reply.text


def test_the_pages_bring_everything_with_them(worker):
    for path in ("/", "/docs"):
        page = worker.http.get(path)
        assert "http://" not in page.text
        assert "https://" not in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]

"""Requests that the guard accepts or refuses: keys, hosts, origins, types and sizes."""

import asyncio
import math
import socket

import pytest
from waiting import PATIENCE_S, until

from bitnet.server import guard, narration
from bitnet.server.guard import MAX_HEADER_BYTES
from bitnet.server.metrics import Metrics
from bitnet.server.narration import narrator
from bitnet.server.serve_options import ServeOptions

JSON = {"Content-Type": "application/json"}


def raw(worker, text):
    """Bytes of the reply to the bytes *text*."""
    with socket.create_connection(("127.0.0.1", worker.port), timeout=PATIENCE_S) as connection:
        connection.sendall(text)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


def test_a_key_is_required_everywhere_but_on_the_page_and_for_health(serving):
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
    chunked = worker.http.post(
        "/v1/inference", content=iter([b"a" * 600, b"a" * 600]), headers=JSON
    )
    assert chunked.status_code == 413
    assert worker.post("/v1/inference", {"prompt": "a", "max_tokens": 1}).status_code == 200


def test_another_host_name_is_refused_where_only_this_machine_is_served(serving):
    worker = serving()
    assert worker.http.get("/health/live").status_code == 200
    for host in ("localhost:1", "[::1]:80", "127.0.0.9"):
        assert worker.http.get("/health/live", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", ""):
        assert worker.http.get("/health/live", headers={"Host": host}).status_code == 403
    # Load balancers ask without a Host.
    assert b" 200 OK" in raw(worker, b"GET /health/live HTTP/1.0\r\n\r\n")


def test_a_preflight_of_another_origin_is_not_allowed_unless_configured(serving):
    ask = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST"}
    closed = serving().http.options("/v1/inference", headers=ask)
    assert "access-control-allow-origin" not in closed.headers
    open_ = serving(app_options={"allow_origin": ["http://a.example"]})
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
def test_what_is_not_a_proper_request_is_refused(worker, text):
    try:
        received = raw(worker, text)
    except ConnectionError:  # refused while we were still sending
        received = b""
    assert b" 200 " not in received.partition(b"\r\n")[0]
    assert worker.post("/v1/inference", {"prompt": "a", "max_tokens": 1}).status_code == 200


def test_headers_are_bounded_together_and_not_only_each(worker):
    headers = {"X-A": "b" * (MAX_HEADER_BYTES - 1000)}
    assert worker.http.get("/health/live", headers=headers).status_code == 200
    headers["X-B"] = "b" * 1000
    assert worker.http.get("/health/live", headers=headers).status_code == 431


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"a"', b"\xff\xfe", b"{" * 5000])
def test_a_body_that_is_not_a_json_object_is_refused(worker, body):
    headers = {"Content-Type": "application/json"}
    reply = worker.http.post("/v1/inference", content=body, headers=headers)
    assert reply.status_code == 400
    assert "Traceback" not in reply.text


def test_the_pages_refer_to_no_other_host(worker):
    for path in ("/", "/docs"):
        page = worker.http.get(path)
        assert "http://" not in page.text
        assert "https://" not in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "json"])
def test_a_post_without_a_json_content_type_is_refused_but_for_ollamas_paths(worker, kind):
    headers = {"Content-Type": kind} if kind else {}
    for path in ("/v1/inference", "/v1/chat/completions", "/tokenize", "/nowhere"):
        reply = worker.http.post(path, content=b'{"prompt": "a"}', headers=headers)
        assert reply.status_code == 415
    assert not any("inference_start" in line for line in worker.lines)
    # Ollama's own clients send none, or another one.
    reply = worker.http.post("/api/show", content=b'{"model": "tiny"}', headers=headers)
    assert reply.status_code == 200


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/problem+json"])
def test_json_by_another_name_is_json(worker, kind):
    body = b'{"prompt": "a", "max_tokens": 1}'
    reply = worker.http.post("/v1/inference", content=body, headers={"Content-Type": kind})
    assert reply.status_code == 200


def test_a_page_of_another_origin_is_refused_unless_allowed(serving):
    body = {"prompt": "a", "max_tokens": 1}
    allowed = [], ["http://a.example"], ["*"]
    closed, named, every = (serving(app_options={"allow_origin": each}) for each in allowed)
    for origin in ("http://a.example", "null", "http://localhost:1", "http://[", "x"):
        reply = closed.post("/v1/inference", body, headers={"Origin": origin})
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "origin_not_allowed")
    own = {"Origin": closed.address}
    assert closed.post("/v1/inference", body, headers=own).status_code == 200
    good = named.post("/v1/inference", body, headers={"Origin": "http://a.example"})
    assert good.headers["access-control-allow-origin"] == "http://a.example"
    exposed = good.headers["access-control-expose-headers"]
    assert {"X-Request-ID", "bitnet-ignored"} <= {*exposed.split(", ")}
    bad = named.post("/v1/inference", body, headers={"Origin": "http://b.example"})
    assert bad.status_code == 403
    anyone = every.post("/v1/inference", body, headers={"Origin": "http://b.example"})
    assert anyone.status_code == 200


class Credulous:
    """An app that runs the model for every request, to test the guard alone."""

    ran = 0

    async def __call__(self, scope, receive, send):
        self.ran += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def pass_through(app, headers):
    """Events that a client gets from *app* behind a guard, for a POST with *headers*."""
    sent_events = []
    narrate = narrator(lambda _line: None, worker_id="w")
    options = ServeOptions(api_key="k")  # with one, the host may be any
    guarded = guard.Guard(app, options=options, metrics=Metrics(), narrate=narrate)
    scope = {
        "type": "http", "method": "POST", "path": "/v1/inference", "raw_path": b"/v1/inference",
        "query_string": b"", "headers": [*headers, (b"x-api-key", b"k")],
    }  # fmt: skip

    async def receive():
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(event):
        sent_events.append(event)

    asyncio.run(guarded(scope, receive, send))
    return sent_events


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"host", b"localhost")], 415),
        ([(b"host", b"localhost"), (b"content-type", b"text/plain")], 415),
        ([(b"host", b"h"), (b"content-type", b"application/json"), (b"origin", b"http://e")], 403),
        ([(b"host", b"h"), (b"content-type", b"application/json"), (b"origin", b"http://h")], 200),
    ],
)
def test_other_pages_are_refused_whatever_the_framework_does(headers, status):
    app = Credulous()
    assert pass_through(app, headers)[0]["status"] == status
    assert app.ran == (status == 200)


def test_a_request_that_fails_is_undone_last_first():
    undone = []

    async def app(scope, receive, send):
        scope["state"]["ends"].callback(undone.append, "the model is released")
        scope["state"]["ends"].callback(undone.append, "the answers are cancelled")
        raise ConnectionError("the client has gone")

    with pytest.raises(ConnectionError):
        pass_through(app, [(b"host", b"h"), (b"content-type", b"application/json")])
    assert undone == ["the answers are cancelled", "the model is released"]


def test_the_official_javascript_client_may_call_from_a_page(serving):
    worker = serving(app_options={"allow_origin": ["http://a.example"], "api_key": "k"})
    headers = "authorization,content-type,x-stainless-lang,x-stainless-retry-count,x-stainless-os"
    preflight = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST"}
    reply = worker.http.options(
        "/v1/chat/completions", headers=preflight | {"Access-Control-Request-Headers": headers}
    )
    assert reply.status_code == 200
    allowed = {name.strip() for name in reply.headers["access-control-allow-headers"].split(",")}
    assert set(headers.split(",")) <= allowed
    refused = worker.post("/v1/inference", {"prompt": "a"}, headers={"Origin": "http://a.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "http://a.example"


def test_a_refused_request_is_logged_and_a_flood_of_them_only_in_part(worker, monkeypatch):
    monkeypatch.setattr(narration, "SPAN_S", math.inf)  # one span, however slow the machine is
    named = {"X-Request-ID": "mine-7"}
    reply = worker.post("/v1/inference", {"prompt": ""}, headers=named)
    assert reply.headers["x-request-id"] == "mine-7"
    (line,) = until(lambda: [line for line in worker.lines if 'action="request_refused"' in line])
    assert 'request_id="mine-7"' in line
    assert 'status="400"' in line
    for _ in range(60):
        worker.post("/v1/inference", {"prompt": ""})
    # Narration writes at most 20 refusals of a span, and counts the others.
    assert len([line for line in worker.lines if 'action="request_refused"' in line]) == 20


def test_a_request_id_with_other_characters_or_too_long_is_replaced(worker):
    for request_id in ("a b", "x" * 200, 'a"b'):
        reply = worker.http.get("/health/live", headers={"X-Request-ID": request_id})
        assert reply.headers["x-request-id"].startswith("req-")


def test_an_access_log_has_a_line_for_every_request_and_not_its_query(serving):
    worker = serving(app_options={"access_log": True, "api_key": "k"})
    key = {"Authorization": "Bearer k", "X-Request-ID": "mine"}
    body = {"prompt": "ab", "max_tokens": 2}
    assert worker.post("/v1/inference?secret=1", body, headers=key).status_code == 200
    assert worker.post("/v1/inference", body).status_code == 401
    assert worker.http.head("/v1/models", headers=key).status_code == 200

    def logged():
        return [line for line in worker.lines if 'action="http_request"' in line]

    until(lambda: len(logged()) == 3)  # a line comes after its reply
    done, refused, head = logged()
    assert "HEAD /v1/models: 200 in" in head
    assert "POST /v1/inference: 200 in" in done
    assert 'request_id="mine"' in done
    assert 'client="127.0.0.1"' in done
    assert 'status="401"' in refused
    assert "secret" not in "".join(worker.lines)

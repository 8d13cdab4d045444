"""Clients that are slow, greedy or curious."""

import asyncio
import contextlib
import json
import socket
import threading

import pytest
from server_process import listening
from tiny_models import tiny_gguf
from tool_models import LISTING
from waiting import PATIENCE_S, until

from bitnet.base.errors import UsageError
from bitnet.server import connection, exchange, guard
from bitnet.server.narration import narrator
from bitnet.wire.forms import Form
from bitnet.wire.openai import CHAT, chat_requests

HEAD = b"POST /v1/inference HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = {"prompt": "a", "max_tokens": 1}


def connected(worker):
    """A new connection to *worker*."""
    return socket.create_connection(("127.0.0.1", worker.port), timeout=PATIENCE_S)


def everything(one):
    """All bytes from the connection *one* until it is closed."""
    received = b""
    while chunk := one.recv(65536):
        received += chunk
    return received


def answer(one):
    """Bytes from the connection *one* up to the end of an answer, whose body is a JSON object."""
    received = b""
    while not received.endswith(b"}"):
        chunk = one.recv(65536)
        assert chunk, received
        received += chunk
    return received


@pytest.mark.parametrize("sent", [b"", b"P", HEAD], ids=["nothing", "a letter", "no end"])
def test_headers_that_do_not_end_end_the_connection(worker, monkeypatch, sent):
    patience = connection.HEADER_PATIENCE_S
    monkeypatch.setattr(connection, "HEADER_PATIENCE_S", 0.1)
    with connected(worker) as one:
        one.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert everything(one) == b""
    monkeypatch.setattr(connection, "HEADER_PATIENCE_S", patience)
    assert worker.post("/v1/inference", BODY).status_code == 200


def test_a_second_request_has_to_end_its_headers_too(worker, monkeypatch):
    with connected(worker) as client:
        client.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(client).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(connection, "HEADER_PATIENCE_S", 0.1)
        client.sendall(b"GET / HT")
        with contextlib.suppress(ConnectionResetError):
            assert everything(client) == b""


def test_a_request_is_answered_although_the_next_one_is_incomplete(serving, release, monkeypatch):
    worker = serving()
    content = json.dumps(BODY).encode()
    with connected(worker) as client:
        client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content + b"GET / HT")
        until(lambda: worker.slot.open_jobs == 1)
        monkeypatch.setattr(connection, "HEADER_PATIENCE_S", 0.1)
        release()
        assert answer(client).startswith(b"HTTP/1.1 200")


def test_a_body_that_does_not_end_is_given_up(worker, monkeypatch):
    monkeypatch.setattr(guard, "BODY_PATIENCE_S", 0.2)
    with connected(worker) as one:
        one.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        assert b" 408 " in everything(one).partition(b"\r\n")[0]
    assert worker.slot.open_jobs == 0


def test_a_client_that_never_reads_is_cut_off(serving, monkeypatch):
    monkeypatch.setattr(connection, "READER_PATIENCE_S", 0.2)
    worker = serving()
    with connected(worker) as one:
        one.setblocking(False)
        ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50
        errors = []

        def is_cut_off():
            try:
                one.send(ask)
            except BlockingIOError:
                pass
            except (BrokenPipeError, ConnectionResetError) as error:
                errors.append(error)
            return errors

        until(is_cut_off)
    assert worker.post("/v1/inference", BODY).status_code == 200


def prompt_tokens(worker, message, **more):
    """Number of tokens in the prompt of a chat with *message*."""
    body = {"messages": [message], "max_tokens": 1} | more
    reply = worker.post("/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text
    return reply.json()["usage"]["prompt_tokens"]


#: Template code that would compute, run a program, or be a syntax error.
JINJA = "{{7*7}}{{cycler.__init__.__globals__.os.popen('id').read()}}{% for x in y %}"


@pytest.mark.parametrize("keys", [{}, {"tokenizer.chat_template": LISTING}])
def test_templates_in_what_clients_send_are_text(serving, keys):
    worker = serving(keys | {"llama.context_length": 1024})  # described tools take about 200
    plain = prompt_tokens(worker, {"role": "user", "content": "a"})
    user = {"role": "user", "content": "a"}
    code = "{{7*7}}"
    count = len(worker.post("/tokenize", {"content": code, "add_special": False}).json()["tokens"])
    # Code adds as many tokens as its text has: it is not run.
    assert prompt_tokens(worker, {"role": "user", "content": "a" + code}) == plain + count
    assert prompt_tokens(worker, {"role": "user" + code, "content": "a"}) == plain + count
    tool = {"type": "function", "function": {"name": "f", "description": ""}}
    with_tool = prompt_tokens(worker, user, tools=[tool])
    tool["function"]["description"] = code
    assert prompt_tokens(worker, user, tools=[tool]) == with_tool + count
    tool["function"]["name"] = code
    body = {"messages": [user], "tools": [tool]}
    assert worker.post("/v1/chat/completions", body).status_code == 400
    for variables in ({"chat_template": JINJA}, {"loop": JINJA}, {"cycler": 1}, {"m": JINJA}):
        assert prompt_tokens(worker, user, chat_template_kwargs=variables) == plain
    body = {"messages": [user], "max_tokens": 1, "chat_template_kwargs": {"self": 1}}
    assert worker.post("/v1/chat/completions", body).status_code == 400


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/../../../etc/passwd",
        "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/v1/models//etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/page.html",
    ],
)
def test_no_path_leads_to_a_file(worker, path):
    with connected(worker) as one:
        one.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        received = everything(one)
    assert b" 404 " in received.partition(b"\r\n")[0]
    assert b"root:" not in received


def test_a_model_that_a_request_names_is_not_opened(worker):
    reply = worker.post("/v1/completions", BODY | {"model": "/etc/passwd"})
    assert (reply.status_code, reply.json()["model"]) == (200, "tiny")
    assert reply.headers["bitnet-ignored"] == "model"


@pytest.mark.parametrize("form", ["console", "json"])
def test_an_event_stays_on_its_line_whatever_is_in_it(form):
    lines = []
    narrate = narrator(lines.append, worker_id="w", form=form)
    hostile = 'a"\nINFO actor="x"\r\x1b[2J\x9b2J\u2028\x7f'
    narrate("log", text=hostile, request_id=hostile)
    (line,) = lines
    assert line.isprintable()
    if form == "json":
        assert json.loads(line)["human"] == hostile


# A share in positions, and the tokens that it leaves after a prompt of 11: at least DEFAULT_TOKENS,
# which are 8 here, and at most the rest of the context of 64.
@pytest.mark.parametrize(("share", "expected"), [(0, 8), (30, 19), (1000, 53)])
def test_a_chat_of_no_given_length_leaves_room_for_the_others(worker, monkeypatch, share, expected):
    monkeypatch.setattr(exchange, "DEFAULT_TOKENS", 8)
    body = CHAT.read({"messages": [{"role": "user", "content": "a"}]})
    slot = worker.slot
    monkeypatch.setattr(slot, "fair_positions", share)
    (sequence,) = exchange.prepare_sequences(*chat_requests(body), slot, 1, 1000)
    spare = 11 - sequence.prompt_tokens  # the numbers above are for a prompt of 11 ids
    assert sequence.request.max_tokens == expected + (spare if share else 0)


def test_the_share_of_an_answer_is_what_fits_the_memory_for_every_answer_of_a_batch(serving):
    assert serving(max_batch=2).slot.fair_positions == 64  # the context, without a budget
    # Memory is reserved in pages of 64 positions.
    page = serving().slot._scheduler.new_cache().cost(64, 1)
    assert serving(max_batch=2, kv_budget_bytes=2 * page).slot.fair_positions == 64
    assert serving(max_batch=2, kv_budget_bytes=2 * page - 1).slot.fair_positions == 0


def test_an_answer_that_never_fits_the_memory_is_refused_as_too_long(serving, tmp_path):
    page = serving().slot._scheduler.new_cache().cost(64, 1)
    long = tiny_gguf(tmp_path / "long.gguf", **{"llama.context_length": 256})
    with listening(long, kv_budget_bytes=page) as worker:
        assert worker.post("/v1/inference", {"prompt": "a", "max_tokens": 48}).status_code == 200
        # About 150 positions need three pages.
        reply = worker.post("/v1/inference", {"prompt": "a" * 100, "max_tokens": 48})
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert f"the budget is {page:,}" in reply.json()["error"]["message"]


def test_memory_that_no_answer_fits_is_refused_from_the_start(serving):
    with pytest.raises(UsageError, match="the shortest answer take"):
        serving(kv_budget_bytes=1000)


def test_vectors_are_computed_part_by_part(worker):
    body = {"input": ["abcdefghijklmnop", "xyz", "a"]}

    def vectors():
        return [one["embedding"] for one in worker.post("/v1/embeddings", body).json()["data"]]

    whole = vectors()
    worker.slot._scheduler.prefill_chunk = 4
    for part, expected in zip(vectors(), whole, strict=True):
        assert part == pytest.approx(expected, abs=1e-4)


def test_vectors_wait_in_the_queue_like_answers(serving):
    worker = serving(max_batch=1, queue=1)
    slot = worker.slot
    # One place in the batch and one in the queue, both taken.
    with slot.place(), slot.place():
        assert worker.post("/v1/embeddings", {"input": "a"}).status_code == 429
    assert worker.post("/v1/embeddings", {"input": "a"}).status_code == 200
    slot.drain()
    assert worker.post("/v1/embeddings", {"input": "a"}).status_code == 503


def test_a_client_alone_cannot_take_every_connection(worker, monkeypatch):
    monkeypatch.setattr(connection, "MAX_OF_A_CLIENT", 8)
    with contextlib.ExitStack() as stack:
        slow_ones = [stack.enter_context(connected(worker)) for _ in range(8)]
        for one in slow_ones:
            one.sendall(b"P")
        with connected(worker) as one:
            # The ninth connection of one client.
            assert everything(one).startswith(b"HTTP/1.1 503 ")
    with connected(worker) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: LOCALHOST\r\nConnection: close\r\n\r\n")
        assert everything(one).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "body",
    [{"prompt": ["x", *range(60_000)]}, {"prompt": "a"} | {f"k{at}": 1 for at in range(30_000)}],
    ids=["wrong ids", "unknown fields"],
)
def test_a_refused_body_is_checked_in_a_thread_without_an_event_loop(worker, monkeypatch, body):
    runs_in_main_or_loop = set()
    parse = Form.parse

    def noted(self, raw):
        runs_in_main_or_loop.add(threading.current_thread() is threading.main_thread())
        runs_in_main_or_loop.add(asyncio_runs())
        return parse(self, raw)

    monkeypatch.setattr(Form, "parse", noted)
    reply = worker.post("/v1/completions", body)
    assert reply.status_code == 400
    assert len(reply.text) < 1000
    assert runs_in_main_or_loop == {False}


def asyncio_runs():
    """True in the thread of an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

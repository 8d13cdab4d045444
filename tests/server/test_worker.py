"""Many requests at once: batches, queues, clients that leave, deadlines, failures and drains."""

import http.client
import io
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from serve_process import ENDLESS
from waiting import PATIENCE_S, until

from bitnet import load
from bitnet.runtime import scheduler
from bitnet.runtime.scheduler import Scheduler
from bitnet.server import connection

LONG = {"prompt": "ab", "max_tokens": 40}


def metrics_of(worker):
    """Metrics of *worker* as text."""
    return worker.http.get("/metrics").text


def open_stream(worker, body, receive_buffer=None):
    """A connection on which *body* was sent, streamed unless it says otherwise; nothing is read.

    *receive_buffer* is the number of bytes that the system receives before the client reads.
    """
    content = json.dumps({"stream": True} | body).encode()
    client = socket.socket()
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.settimeout(PATIENCE_S)
    client.connect(("127.0.0.1", worker.port))
    client.sendall(
        b"POST /v1/inference HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(content) + content
    )
    return client


def test_answers_written_together_are_those_written_alone(serving, model_path):
    worker = serving(max_batch=4, queue=100)
    prompts = ["ab", "cde", "f", "ghijk", "lm", "nopqrstu", "v", "wxyz"]
    with load(model_path) as model:
        alone = {prompt: model.generate(prompt, max_tokens=20) for prompt in prompts}
    with ThreadPoolExecutor(16) as pool:
        asked = prompts * 8
        replies = list(
            pool.map(lambda p: worker.post("/v1/inference", {"prompt": p, "max_tokens": 20}), asked)
        )
    assert [reply.json()["text"] for reply in replies] == [alone[prompt] for prompt in asked]


def test_a_full_queue_refuses_and_says_when_to_come_again(serving, release):
    worker = serving(max_batch=1, queue=1)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(worker.post, "/v1/inference", LONG) for _ in range(2)]
        until(lambda: worker.slot.open_jobs == 2)
        refused = worker.post("/v1/inference", LONG)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "queue_full"
        release()
        assert [one.result().status_code for one in waiting] == [200, 200]
    assert worker.post("/v1/inference", LONG).status_code == 200
    assert 'bitnet_refused_total{model_name="tiny"} 1.0' in worker.http.get("/metrics").text


@pytest.mark.parametrize("passes", [0, 1, 7])  # that run before the client goes
def test_a_client_that_goes_frees_its_place(serving, release, cancelled, passes):
    worker = serving(max_batch=1, queue=1)
    connection = open_stream(worker, LONG)
    until(lambda: worker.slot.open_jobs == 1)
    release(passes)
    if passes:
        assert b"200 OK" in connection.recv(100)
    connection.close()
    assert cancelled.wait(PATIENCE_S)
    release()
    until(lambda: worker.slot.open_jobs == 0)
    text = worker.http.get("/metrics").text
    assert 'bitnet_answers_total{finish="cancelled",model_name="tiny"} 1.0' in text
    assert worker.post("/v1/inference", LONG).status_code == 200


def test_a_client_that_goes_before_a_whole_answer_frees_its_place_too(serving, release, cancelled):
    worker = serving(max_batch=1, queue=1)
    content = json.dumps(LONG).encode()
    with socket.create_connection(("127.0.0.1", worker.port), timeout=PATIENCE_S) as connection:
        connection.sendall(
            b"POST /v1/inference HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content) + content
        )
        until(lambda: worker.slot.open_jobs == 1)
    assert cancelled.wait(PATIENCE_S)
    release()
    until(lambda: worker.slot.open_jobs == 0)
    assert 'finish="cancelled",model_name="tiny"} 1.0' in worker.http.get("/metrics").text


@pytest.fixture
def waits_for_reader(monkeypatch):
    """An event that is set once the worker waits for a client to read.

    The worker has small buffers for what it sends, so that an answer does not fit into them.
    """
    waits = threading.Event()
    protocol = connection.PatientProtocol
    connection_made = protocol.connection_made
    pause_writing = protocol.pause_writing

    def shrink_buffers(self, transport):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        transport.set_write_buffer_limits(0)
        connection_made(self, transport)

    def tell(self):
        pause_writing(self)
        waits.set()

    monkeypatch.setattr(protocol, "connection_made", shrink_buffers)
    monkeypatch.setattr(protocol, "pause_writing", tell)
    return waits


def test_a_slow_reader_holds_up_no_other(serving, waits_for_reader):
    worker = serving({"llama.context_length": 1024}, max_batch=2, queue=4, max_output_tokens=1000)
    with open_stream(worker, ENDLESS | {"max_tokens": 1000}, receive_buffer=4096):  # never reads
        assert waits_for_reader.wait(PATIENCE_S)
        assert worker.post("/v1/inference", LONG).status_code == 200
        until(lambda: worker.slot.open_jobs == 0)
        assert 'bitnet_answers_total{finish="length",model_name="tiny"} 2.0' in metrics_of(worker)


@pytest.mark.parametrize("streams", [False, True])
def test_a_half_closed_connection_gets_its_answer(serving, release, monkeypatch, streams):
    monkeypatch.setattr(connection, "PROBES_S", (0.0, 0.05, 0.1))
    worker = serving()
    content = json.dumps(LONG | {"stream": streams}).encode()
    with socket.create_connection(("127.0.0.1", worker.port), timeout=PATIENCE_S) as half:
        half.sendall(
            b"POST /v1/inference HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content) + content
        )
        until(lambda: worker.slot.open_jobs == 1)
        release(3)
        half.shutdown(socket.SHUT_WR)
        received = b""
        # A probe of the worker: is the client still there?
        while received.count(b"100 Continue") + received.count(b"\n:\n") < 1:
            received += half.recv(65536)
        release()
        reply = http.client.HTTPResponse(Prefixed(half, received))
        reply.begin()
        text = reply.read().decode()
    assert reply.status == 200
    # The last two parts are [DONE] and the empty text after its blank line.
    last = text if not streams else text.split("\n\n")[-3].removeprefix("data: ")
    assert json.loads(last)["tokens_generated"] == 40


def test_a_half_closed_stream_of_lines_has_lines_of_json_only(serving, release, monkeypatch):
    monkeypatch.setattr(connection, "PROBES_S", (0.0, 0.05, 0.1))
    worker = serving()
    asked = {"model": "tiny", "prompt": "ab", "raw": True, "options": {"num_predict": 40}}
    content = json.dumps(asked).encode()
    with socket.create_connection(("127.0.0.1", worker.port), timeout=PATIENCE_S) as half:
        half.sendall(
            b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content) + content
        )
        until(lambda: worker.slot.open_jobs == 1)
        release(3)
        received = half.recv(65536)
        half.shutdown(socket.SHUT_WR)
        while b"1\r\n \r\n" not in received:  # a probe, as a chunk
            received += half.recv(65536)
        release()
        reply = http.client.HTTPResponse(Prefixed(half, received))
        reply.begin()
        lines = reply.read().decode().split("\n")
    assert lines.pop() == ""
    assert [json.loads(line)["done"] for line in lines][-1] is True


class Prefixed:
    """A socket for HTTPResponse, whose first bytes *got* were already received."""

    def __init__(self, inner, got):
        self.file = io.BufferedReader(Chained(got, inner.makefile("rb", buffering=0)))

    def makefile(self, *_args, **_more):
        return self.file


class Chained(io.RawIOBase):
    """The bytes *got*, and then those of *rest*."""

    def __init__(self, got, rest):
        super().__init__()
        self.got = got
        self.rest = rest

    def readable(self):
        return True

    def readinto(self, buffer):
        if not self.got:
            return self.rest.readinto(buffer)
        part, self.got = self.got[: len(buffer)], self.got[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


@pytest.mark.parametrize("streams", [False, True])
def test_each_answer_that_begins_has_an_end_and_a_client_that_goes_is_not_an_error(
    serving, release, cancelled, streams
):
    worker = serving(max_batch=1)
    going = open_stream(worker, LONG | {"stream": streams})
    until(lambda: any('action="inference_start"' in line for line in worker.lines))
    release(2)
    going.close()
    assert cancelled.wait(PATIENCE_S)
    release()
    worker.post("/v1/inference", LONG)
    worker.post("/v1/inference", LONG | {"stream": True})

    def count(action):
        return sum(f'action="{action}"' in line for line in worker.lines)

    until(lambda: count("inference_complete") == 2)
    until(lambda: count("inference_cancelled") == 1)
    assert count("inference_start") == 3
    assert not any(line.startswith(("ERROR", "WARN")) for line in worker.lines)


@pytest.fixture
def late(serving, monkeypatch):
    """A worker for which a thousand seconds go by after the fourth pass."""
    step = Scheduler.step
    passes = []

    def counted(self):
        passes.append(self)
        return step(self)

    def monotonic():
        return time.monotonic() + (1000 if len(passes) > 4 else 0)

    monkeypatch.setattr(Scheduler, "step", counted)
    clock = SimpleNamespace(monotonic=monotonic, perf_counter=time.perf_counter)
    monkeypatch.setattr(scheduler, "time", clock)
    return serving(deadline_s=900)


def test_an_answer_beyond_its_deadline_is_a_504(late):
    reply = late.post("/v1/inference", LONG)
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline")
    assert 'bitnet_answers_total{finish="deadline",model_name="tiny"} 1.0' in metrics_of(late)
    (line,) = [line for line in late.lines if 'action="inference_failed"' in line]
    assert 'code="deadline"' in line


def test_a_stream_beyond_its_deadline_ends_with_an_error_event(late):
    text = late.post("/v1/inference", LONG | {"stream": True}).text
    *parts, last = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line]
    assert len(parts) == 4  # tokens of the passes before the clock jumps
    assert last["error"]["code"] == "deadline"
    assert "[DONE]" not in text


def test_one_failed_pass_fails_its_answers_and_the_worker_goes_on(serving, monkeypatch):
    worker = serving()
    step = Scheduler.step
    calls = []

    def fails_once(self):
        calls.append(self)
        if len(calls) == 3:
            raise RuntimeError("secret detail")
        return step(self)

    monkeypatch.setattr(Scheduler, "step", fails_once)
    reply = worker.post("/v1/inference", LONG)
    assert reply.status_code == 500
    assert reply.json()["error"]["message"] == "internal error: RuntimeError"
    assert worker.post("/v1/inference", LONG).status_code == 200
    assert worker.http.get("/health/ready").status_code == 200
    assert any('action="inference_failed"' in line for line in worker.lines)


def test_a_stream_that_fails_ends_with_an_error_event(serving, monkeypatch):
    worker = serving()
    step = Scheduler.step
    calls = []

    def fails(self):
        calls.append(self)
        if len(calls) == 5:
            raise MemoryError
        return step(self)

    monkeypatch.setattr(Scheduler, "step", fails)
    text = worker.post("/v1/inference", LONG | {"stream": True}).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line]
    assert events[-1]["error"]["type"] == "server_error"
    assert "[DONE]" not in text


def test_a_draining_worker_finishes_and_takes_nothing_new(serving, release):
    worker = serving()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.post, "/v1/inference", LONG)
        until(lambda: worker.slot.open_jobs == 1)
        worker.slot.drain()
        refused = worker.post("/v1/inference", LONG)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "5"
        assert worker.http.get("/health/ready").status_code == 503
        assert worker.http.get("/health/live").status_code == 200
        release()
        assert running.result().json()["tokens_generated"] == 40


def test_an_answer_without_a_token_at_a_drain_is_refused_instead_of_empty(serving, release):
    worker = serving(max_batch=1)
    with ThreadPoolExecutor(3) as pool:
        replies = [pool.submit(worker.post, "/v1/inference", LONG) for _ in range(2)]
        replies.append(pool.submit(worker.post, "/v1/inference", LONG | {"stream": True}))
        until(lambda: worker.slot.open_jobs == 3)
        worker.slot.drain(0)
        release()
        statuses = [reply.result().status_code for reply in replies]
    refused = [reply.result() for reply in replies if reply.result().status_code == 503]
    assert len(refused) >= 2, statuses  # one had the place and may have written a token
    assert {reply.headers["Retry-After"] for reply in refused} == {"5"}
    for reply in replies:
        text = reply.result().text
        assert reply.result() in refused or re.search('"tokens_generated":[1-9]', text), text


def test_metrics_also_have_the_names_of_vllm_and_llama_server(serving, release):
    worker = serving(max_batch=1, kv_budget_bytes=10**8)
    body = {"prompt": "abcdef", "max_tokens": 5}
    with ThreadPoolExecutor() as pool:
        replies = [pool.submit(worker.post, "/v1/inference", body) for _ in range(2)]
        until(lambda: worker.slot.open_jobs == 2)
        release(1)
        until(lambda: 'vllm:num_requests_running{model_name="tiny"} 1.0' in metrics_of(worker))
        text = metrics_of(worker)
        assert 'vllm:num_requests_waiting{model_name="tiny"} 1.0' in text
        assert 'llamacpp:requests_processing{model_name="tiny"} 1.0' in text
        assert 'llamacpp:requests_deferred{model_name="tiny"} 1.0' in text
        release()
        assert all(reply.result().status_code == 200 for reply in replies)
    until(lambda: 'vllm:num_requests_running{model_name="tiny"} 0.0' in metrics_of(worker))
    text = metrics_of(worker)
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    label = '{model_name="tiny"}'
    prompt = float(values[f"vllm:prompt_tokens_total{label}"])
    assert values[f"vllm:generation_tokens_total{label}"] == "10.0"
    assert values[f"llamacpp:tokens_predicted_total{label}"] == "10.0"
    assert float(values[f"vllm:prefix_cache_queries_total{label}"]) == prompt > 0
    hits = float(values[f"vllm:prefix_cache_hits_total{label}"])
    assert float(values[f"llamacpp:prompt_tokens_total{label}"]) == prompt - hits
    assert hits > 0
    assert values[f"vllm:time_to_first_token_seconds_count{label}"] == "2.0"
    # llama-server's time of prompts leaves the time in the queue out.
    first_s = float(values[f"vllm:time_to_first_token_seconds_sum{label}"])
    assert 0 < float(values[f"llamacpp:prompt_seconds_total{label}"]) < first_s
    # Two answers of five tokens have four gaps each.
    assert values[f"vllm:inter_token_latency_seconds_count{label}"] == "8.0"
    assert values[f"vllm:e2e_request_latency_seconds_count{label}"] == "2.0"
    assert 0 <= float(values[f"vllm:kv_cache_usage_perc{label}"]) <= 1

"""Effects of one request on the others, and errors that the worker reports."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import PATIENCE_S, until

from bitnet.runtime import request_checks
from bitnet.runtime.sampling import Sampler
from bitnet.runtime.structured import Grammars
from bitnet.server import models as server_models
from bitnet.server.slot import Slot

LONG = {"prompt": "ab", "max_tokens": 40}
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
#: A chat whose answer needs a grammar.
ANY = CHAT | {"response_format": {"type": "json_object"}}


def schema(properties):
    """A chat with a schema of so many optional properties."""
    names = {f"p{number}": {"type": "null"} for number in range(properties)}
    wanted = {"type": "object", "properties": names}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": wanted}}
    return CHAT | {"response_format": form}


def test_a_grammar_is_compiled_outside_of_the_models_thread_and_once(worker, monkeypatch):
    pytest.importorskip("llguidance")
    compiled = []
    compile_ = Grammars._compile

    def noted(self, kind, text):
        compiled.append(threading.current_thread().name)
        return compile_(self, kind, text)

    monkeypatch.setattr(Grammars, "_compile", noted)
    for count in (1, 3):
        worker.post("/v1/chat/completions", ANY | {"n": count})
    (name,) = compiled
    assert name.startswith("bitnet-grammar")


def test_others_are_answered_while_a_grammar_is_compiled(worker, monkeypatch):
    pytest.importorskip("llguidance")
    go_on = threading.Event()
    compiles = threading.Event()

    def slow(self, kind, text):
        compiles.set()
        assert go_on.wait(PATIENCE_S)
        raise MemoryError

    monkeypatch.setattr(Grammars, "_compile", slow)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.post, "/v1/chat/completions", ANY)
        assert compiles.wait(PATIENCE_S)
        assert worker.post("/v1/inference", LONG).json()["tokens_generated"] == 40
        assert worker.post("/v1/chat/completions", CHAT).status_code == 200
        go_on.set()
        failed = waiting.result()
    assert failed.status_code == 500
    # It is counted and logged as what it is, with the headers of every reply.
    assert {"x-request-id", "x-content-type-options"} <= {*failed.headers}
    counts = worker.http.get("/metrics").text
    assert 'route="/v1/chat/completions",status="500"} 1.0' in counts
    assert any('action="request_refused"' in line and "500" in line for line in worker.lines)


def test_a_grammar_that_takes_too_long_is_refused_and_one_too_large_at_once(worker, monkeypatch):
    pytest.importorskip("llguidance")
    go_on = threading.Event()
    monkeypatch.setattr(Grammars, "_compile", lambda *_: go_on.wait(PATIENCE_S))
    with monkeypatch.context() as hasty:
        hasty.setattr(server_models, "COMPILE_S", 0.1)
        reply = worker.post("/v1/chat/completions", ANY)
    go_on.set()
    assert reply.status_code == 400
    assert "was not ready after 0.1 s" in reply.json()["error"]["message"]
    reply = worker.post("/v1/chat/completions", schema(request_checks.MAX_PROPERTIES + 1))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "response_format")


def test_a_grammar_that_waits_too_long_behind_slow_ones_is_refused(worker, monkeypatch):
    pytest.importorskip("llguidance")
    go_on = threading.Event()
    begun = threading.Semaphore(0)

    def slow(self, kind, text):
        begun.release()
        assert go_on.wait(PATIENCE_S)
        raise MemoryError

    monkeypatch.setattr(Grammars, "_compile", slow)
    with ThreadPoolExecutor(server_models.COMPILING) as pool:
        blocking = [
            pool.submit(worker.post, "/v1/chat/completions", ANY)
            for _ in range(server_models.COMPILING)
        ]
        assert all(begun.acquire(timeout=PATIENCE_S) for _ in blocking)
        # All threads that compile are busy; the next grammar waits at most TURN_S for its turn.
        monkeypatch.setattr(server_models, "TURN_S", 0.1)
        reply = worker.post("/v1/chat/completions", ANY)
        go_on.set()
        assert {one.result().status_code for one in blocking} == {500}
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "compiling")
    assert reply.headers["Retry-After"] == "5"


def test_waiting_for_a_thread_and_the_work_share_the_time_of_a_request(worker):
    go_on = threading.Event()

    async def fill_the_threads():
        works = [
            worker.models.run_in_thread(lambda: go_on.wait(PATIENCE_S), time.monotonic() + 0.1)
            for _ in range(server_models.PREPARING + 1)
        ]
        return await asyncio.gather(*works, return_exceptions=True)

    try:
        refusals = asyncio.run(fill_the_threads())
    finally:
        go_on.set()
    assert {refusal.code for refusal in refusals} == {"deadline"}


def test_a_schema_with_3000_optional_properties_holds_up_no_client(worker):
    """The schema is below the limit of properties, and its grammar is refused."""
    pytest.importorskip("llguidance")
    reply = worker.post("/v1/chat/completions", schema(3000))
    assert reply.status_code == 400
    assert "grammar" in reply.json()["error"]["message"]
    assert worker.slot.open_jobs == 0
    assert worker.post("/v1/inference", LONG).status_code == 200


class PanicException(BaseException):
    """An error as PyO3 raises for a panic of Rust code: not an Exception, known by its name."""


@pytest.mark.parametrize("error", [ValueError("secret"), PanicException()])
def test_what_breaks_one_sequence_leaves_its_neighbours_alone(serving, release, monkeypatch, error):
    worker = serving(max_batch=4)
    sample = Sampler.sample

    def breaks(self, *args, **more):
        if self.request.temperature == 7:  # marks the request that fails
            raise error
        return sample(self, *args, **more)

    monkeypatch.setattr(Sampler, "sample", breaks)
    with ThreadPoolExecutor(3) as pool:
        good = [pool.submit(worker.post, "/v1/inference", LONG) for _ in range(2)]
        bad = pool.submit(worker.post, "/v1/inference", LONG | {"temperature": 7.0, "top_k": 0})
        until(lambda: worker.slot.open_jobs == 3)
        release()
        assert bad.result().status_code == 500
        assert "secret" not in bad.result().text
        texts = {one.result().json()["text"] for one in good}
    expected = worker.post("/v1/inference", LONG).json()["text"]
    assert texts == {expected}


def test_a_pass_that_fails_for_one_sequence_is_run_for_the_others(serving, release, monkeypatch):
    worker = serving(max_batch=4)
    model = worker.slot.model.model
    hidden = type(model).hidden
    # The pass fails as long as the sequence with these ids is in it.
    poison = worker.slot.model.tokenizer.encode("zzz", add_special=False)

    def breaks(self, segments, *adapters):
        if any(list(segment.tokens)[-3:] == poison for segment in segments):
            raise RuntimeError("a bad weight")
        return hidden(self, segments, *adapters)

    monkeypatch.setattr(type(model), "hidden", breaks)
    with ThreadPoolExecutor(3) as pool:
        good = [pool.submit(worker.post, "/v1/inference", LONG) for _ in range(2)]
        bad = pool.submit(worker.post, "/v1/inference", LONG | {"prompt": "zzz"})
        until(lambda: worker.slot.open_jobs == 3)
        release()
        assert bad.result().status_code == 500
        assert [one.result().json()["tokens_generated"] for one in good] == [40, 40]


def test_answers_of_a_failed_pass_end_also_if_the_model_cannot_go_on(serving, release, monkeypatch):
    worker = serving()

    def fails(*_arguments):
        raise MemoryError

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.post, "/v1/inference", LONG)
        until(lambda: worker.slot.open_jobs == 1)
        monkeypatch.setattr(type(worker.slot._scheduler), "step", fails)
        monkeypatch.setattr(worker.slot, "_new_scheduler", fails)
        release()
        assert waiting.result().status_code == 500
    until(lambda: worker.slot.failure)
    assert worker.slot.open_jobs == 0


def test_a_dead_thread_fails_everything_and_says_so(serving, release, monkeypatch):
    worker = serving()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.post, "/v1/inference", LONG)
        until(lambda: worker.slot.open_jobs == 1)
        monkeypatch.setattr(Slot, "_step", lambda self: 1 / 0)
        release()
        assert waiting.result().status_code == 503
    until(lambda: worker.slot.failure)
    live = worker.http.get("/health/live")
    assert (live.status_code, live.json()["status"]) == (503, "dead")
    assert worker.http.get("/health/ready").status_code == 503
    assert worker.post("/v1/inference", LONG).status_code == 503


#: Serves the model of the first argument, whose thread ends with an error at the first pass.
DIES = """
import sys
from bitnet.server.slot import Slot
Slot._step = lambda self: 1 / 0
from bitnet.__main__ import main
sys.argv[1:] = ["serve", "--model", sys.argv[1], "--port", "0"]
main()
"""


def test_a_worker_whose_thread_dies_ends_with_a_code(model_path):
    process = subprocess.Popen(
        [sys.executable, "-c", DIES, str(model_path)], stderr=subprocess.PIPE, text=True
    )
    try:
        port = next(
            int(found[1])
            for line in process.stderr
            if (found := re.search(r"listening on 127\.0\.0\.1:(\d+)", line))
        )
        content = json.dumps(LONG).encode()
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
            connection.sendall(
                b"POST /v1/inference HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % len(content) + content
            )
            assert b" 503 " in connection.recv(100)
        assert "the thread that ran the model died" in process.communicate(timeout=PATIENCE_S)[1]
        assert process.returncode == 16  # InferenceError
    finally:
        process.kill()
        process.communicate()


def test_a_worker_that_drains_says_so_on_new_connections(serving, release):
    worker = serving()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.post, "/v1/inference", LONG)
        until(lambda: worker.slot.open_jobs == 1)
        worker.slot.drain()
        assert worker.http.get("/health/ready").json()["status"] == "draining"
        release()
        assert running.result().status_code == 200


def test_texts_are_prepared_in_threads_of_their_own(worker, monkeypatch):
    names = []
    tokenizer = type(worker.slot.model.tokenizer)

    def noting(encode):
        def noted(self, *args, **more):
            names.append(threading.current_thread().name)
            return encode(self, *args, **more)

        return noted

    monkeypatch.setattr(tokenizer, "encode", noting(tokenizer.encode))
    monkeypatch.setattr(tokenizer, "encode_array", noting(tokenizer.encode_array))
    worker.post("/v1/inference", LONG)
    worker.post("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 1})
    worker.post("/v1/chat/completions", CHAT)
    worker.post("/v1/embeddings", {"input": ["a", "b"]})
    worker.post("/tokenize", {"content": "a"})
    assert len(names) == 7  # texts of the five requests above
    assert {name.rpartition("_")[0] for name in names} == {"bitnet-prepare"}


def test_vectors_share_passes_and_memory_with_answers(serving, release):
    worker = serving(max_batch=4)
    inputs = ["abc", "defghi", "j"]
    passes = []
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(worker.post, "/v1/inference", LONG)
        until(lambda: worker.slot._running)
        vectors = pool.submit(worker.post, "/v1/embeddings", {"input": inputs})
        until(lambda: worker.slot._inbox)
        scheduler = worker.slot._scheduler
        run = scheduler._run
        # Note the number of sequences of each pass, and run it.
        scheduler._run = lambda parts: passes.append(len(parts)) or run(parts)
        release()
        text = answer.result().json()["text"]
        assert [one["index"] for one in vectors.result().json()["data"]] == [0, 1, 2]
    assert text == worker.post("/v1/inference", LONG).json()["text"]
    assert max(passes) == 4  # the answer and three vectors in one pass


def test_the_caches_of_vectors_never_exceed_the_budget_for_keys_and_values(serving, tmp_path):
    page = serving().slot._scheduler.new_cache().cost(64, 1)
    worker = serving(max_batch=2, kv_budget_bytes=page)
    sizes_bytes = []
    scheduler = worker.slot._scheduler
    step = scheduler.step
    # Note the size of all caches after each step, and return its result.
    scheduler.step = lambda: (step(), sizes_bytes.append(scheduler.caches.size_bytes))[0]
    assert worker.post("/v1/embeddings", {"input": ["ab"] * 5}).status_code == 200
    assert 0 < max(sizes_bytes) <= page

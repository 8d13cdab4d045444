"""``bitnet serve`` as a process: its lines, its signals, its end."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from serve_process import ENDLESS, ENDLESS_MODEL, Process
from tiny_models import tiny_gguf
from waiting import PATIENCE_S, free_port, until

from bitnet.base.errors import UsageError
from bitnet.server.run import bind


@pytest.fixture
def started(model_path):
    processes = []

    def start(*words, path=None, port=0):
        processes.append(Process("--model", path or model_path, "--port", port, *words))
        return processes[-1]

    yield start
    for one in processes:
        one.kill()


def test_a_worker_narrates_its_life_in_order_and_ends_with_0(started):
    worker = started("--worker-id", "w-7").listen()
    worker.until('action="test_mode"')  # written by a thread that ends with the server
    assert worker.post({"prompt": "ab", "max_tokens": 10}).json()["tokens_generated"] == 10
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end() == 0
    text = "\n".join(worker.lines)
    expected = [
        'action="startup"',
        'action="gguf_metadata_loaded"',
        "INFO Detected GGUF file, extracting embedded tokenizer",
        'action="gguf_tokenizer_extract_start"',
        'action="gguf_vocab_size_derived"',
        'action="gguf_tokenizer_metadata_extracted"',
        'action="gguf_tokenizer_extracted" worker_id="w-7" vocab_size="64" human="Extracted '
        'tokenizer from GGUF (64 tokens)" cute="Found the tokenizer inside the GGUF! 📝✨"',
        'action="gguf_load_complete"',
        'cute="GGUF model loaded successfully! Ready to generate! 🎉✨"',
        "INFO GGUF model loaded successfully",
        'action="device_init"',
        'action="model_load_success"',
        "INFO Worker ready, starting HTTP server",
        "INFO HTTP server listening on 127.0.0.1:",
        'action="inference_start"',
        'action="inference_complete"',
        'action="draining"',
        'action="server_stop"',
    ]
    places = [text.find(part) for part in expected]
    assert -1 not in places, expected[places.index(-1)]
    assert places == sorted(places)
    assert 'actor="llm-worker-rbee" action="test_mode"' in text
    assert 'cute="Running in test mode! No callback needed! 🧪"' in text


def test_events_can_be_json_lines(started):
    worker = started("--narration", "json")
    worker.until('"action": "server_start"')
    worker.process.send_signal(signal.SIGINT)
    assert worker.end() == 0
    events = [json.loads(line) for line in worker.lines]
    assert {"time", "level", "actor", "action", "human", "cute", "worker_id"} <= set(events[0])


def test_a_running_answer_is_finished_after_sigterm(started):
    worker = started().listen()
    replies = []
    asking = threading.Thread(
        target=lambda: replies.append(worker.post({"prompt": "ab", "max_tokens": 60}))
    )
    asking.start()
    worker.until('action="inference_start"')
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end() == 0
    asking.join()
    assert replies[0].json()["tokens_generated"] == 60


def test_a_second_interrupt_ends_a_worker_whose_request_still_runs(started):
    worker = started().listen()
    with socket.create_connection(("127.0.0.1", worker.port), timeout=PATIENCE_S) as connection:
        connection.sendall(
            b"POST /v1/inference HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
            b"Content-Type: application/json\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert b" 100 " in connection.recv(100)  # the request runs, and its body never comes
        worker.process.send_signal(signal.SIGINT)
        worker.until('action="draining"')
        worker.process.send_signal(signal.SIGINT)
        assert worker.end() == 130
    assert not any("Traceback" in line for line in worker.lines)


@pytest.mark.parametrize(
    ("first", "again", "drain", "code"),  # two signals, seconds to drain, the exit code
    [(signal.SIGTERM, signal.SIGTERM, "0.2", 0), (signal.SIGINT, signal.SIGINT, "600", 130)],
)
def test_answers_are_cut_off_after_the_time_to_drain_or_by_a_second_interrupt(
    started, tmp_path, first, again, drain, code
):
    endless = tiny_gguf(tmp_path / "endless.gguf", **ENDLESS_MODEL)
    options = ("--drain", drain, "--max-output-tokens", str(10**6))
    worker = started(*options, path=endless).listen()
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(worker.post, ENDLESS)
        worker.until('action="inference_start"')
        # A pass serves both: once the stream has a token, the other answer has one, too.
        with worker.stream(ENDLESS | {"stream": True}) as streamed:
            worker.process.send_signal(first)
            worker.until('action="draining"')
            worker.process.send_signal(again)
            text = streamed.read().decode()
        assert worker.end() == code
        assert whole.result().json()["finish_reason"] == "cancelled"
    assert text.endswith('"finish_reason":"cancelled","done":true}\n\ndata: [DONE]\n\n')
    assert not any("Traceback" in line for line in worker.lines)


def test_a_killed_worker_can_be_started_again_on_its_port(started):
    first = started(port=free_port()).listen()
    first.process.kill()
    assert first.end() == -signal.SIGKILL
    again = started(port=first.port)
    assert again.listen().port == first.port
    assert again.post({"prompt": "ab", "max_tokens": 2}).status_code == 200


def test_a_port_in_use_is_an_error_with_a_hint_before_the_model_is_loaded(started):
    first = started().listen()
    second = started(port=first.port, path="missing.gguf")
    assert second.end() == 2
    assert any("Address already in use" in line for line in second.lines)
    assert "hint: choose another port; a free one: --port 0" in second.lines
    assert not any("Traceback" in line for line in second.lines)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--callback-url", "http://"),
        ("--callback-url", "http://pool:99999/"),
        ("--callback-url", "http://a..b/"),
        ("--allow-origin", "chat.example"),
        ("--allow-origin", "https://chat.example/page"),
    ],
)
def test_an_option_that_is_not_an_address_is_refused(bitnet, option, value):
    done = bitnet("serve", option, value)
    assert done.code == 2
    assert f"{option} expects" in done.err
    assert value in done.err


def test_a_model_that_does_not_load_ends_with_its_code_and_an_event(started, model_path, tmp_path):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(model_path.read_bytes()[:-100])
    worker = started(path=damaged)
    assert worker.end() == 13
    (line,) = [line for line in worker.lines if 'action="model_load_failed"' in line]
    assert line.startswith('ERROR actor="llm-worker-rbee"')
    assert 'human="Model load failed: ' in line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("narration", ["console", "json"])
def test_a_full_disk_for_its_lines_does_not_stop_a_worker(model_path, narration):
    port = free_port()
    command = [sys.executable, "-m", "bitnet", "serve", "--model", str(model_path), "-vv",
               "--port", str(port), "--narration", narration]  # fmt: skip
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(command, stdout=full, stderr=full)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
            until(lambda: is_answered(http), process)
            for prompt in ("ab", "", "cd"):  # the second is refused
                reply = http.post("/v1/inference", json={"prompt": prompt, "max_tokens": 3})
                assert reply.status_code == (200 if prompt else 400)
        process.send_signal(signal.SIGTERM)
        # Not ended by a signal; Python itself ends with 120 if it cannot flush stderr.
        assert process.wait(PATIENCE_S) >= 0
    finally:
        process.kill()
        process.wait()


def is_answered(http):
    """The reply to a health check, or None while the worker does not answer."""
    with contextlib.suppress(httpx.TransportError):
        return http.get("/health/ready")


@pytest.mark.parametrize("narration", ["console", "json"])
def test_the_key_is_in_no_line_and_no_answer(started, monkeypatch, narration):
    key = "k3y-that-no-log-may-have"
    monkeypatch.setenv("BITNET_API_KEY", key)
    worker = started("-vv", "--narration", narration, "--callback-url", "http://127.0.0.1:1/")
    worker.until("server_start")
    worker.port = next(
        int(found[1]) for line in worker.lines if (found := re.search(r"127\.0\.0\.1:(\d+)", line))
    )
    replies = []
    for sent_key in (key, key + "x", key[:-1]):
        for path, body in (("inference", {"prompt": "a", "max_tokens": 1}), ("inference", {}),
                           ("chat/completions", {"messages": []}),
                           ("nothing", {})):  # fmt: skip
            reply = httpx.post(
                f"http://127.0.0.1:{worker.port}/v1/{path}", json=body, timeout=PATIENCE_S,
                headers={"Authorization": f"Bearer {sent_key}"},
            )  # fmt: skip
            replies.append(reply)
    assert {reply.status_code for reply in replies} >= {200, 400, 401, 404}
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end() == 0
    # The beginning of the key finds the wrong keys, too.
    assert key[:-1] not in "\n".join(worker.lines)
    assert not any(key[:-1] in reply.text or key[:-1] in str(reply.headers) for reply in replies)


def test_a_worker_killed_under_load_answers_again_on_its_port(started):
    first = started(port=free_port()).listen()
    outcomes = []

    def ask():
        try:
            outcomes.append(first.post({"prompt": "ab", "max_tokens": 60}).json()["text"])
        except httpx.TransportError as error:
            outcomes.append(error)

    asking = [threading.Thread(target=ask) for _ in range(12)]
    for one in asking:
        one.start()
    first.until('action="inference_start"')
    first.process.kill()
    assert first.end() == -signal.SIGKILL
    for one in asking:
        one.join()
    assert len(outcomes) == 12  # each client has its answer or knows that it has none
    again = started(port=first.port).listen()
    text = again.post({"prompt": "ab", "max_tokens": 60}).json()["text"]
    # An answer that arrived before the worker was killed is whole.
    assert {one for one in outcomes if isinstance(one, str)} <= {text}


def test_a_worker_that_other_machines_reach_needs_a_key_or_consent(started):
    worker = started("--host", "0.0.0.0")
    assert worker.end() == 2
    assert any("--allow-unauthenticated" in line for line in worker.lines)
    allowed = started("--host", "0.0.0.0", "--allow-unauthenticated").listen()
    assert any(line.startswith("Warning: any client that reaches") for line in allowed.lines)


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "a\0b"])
def test_a_host_that_no_machine_can_have_is_refused(host):
    with pytest.raises(UsageError, match="--host"):
        bind(host, 0)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--host", "0.0.0.0", "--allow-unauthenticated", "--features", "avx2"), 0),
        (("--host", "0.0.0.0"), 2),
    ],
)
def test_json_narration_is_json_to_the_last_line(started, words, code):
    worker = started("-vv", "--narration", "json", *words)
    if not code:
        worker.until('"action": "server_start"')
        worker.process.send_signal(signal.SIGTERM)
    assert worker.end() == code
    events = [json.loads(line) for line in worker.lines]
    assert all({"time", "level", "actor", "action", "human"} <= set(event) for event in events)
    if code:
        assert events[-1]["action"] == "worker_failed"
        assert events[-1]["exit_code"] == code
    else:
        assert any(event["human"].startswith("any client that reaches") for event in events)
        assert any(event["human"].startswith("Note: --features") for event in events)


@pytest.mark.parametrize("strict", [False, True])
def test_the_name_of_a_model_is_not_cut_at_a_dot_and_has_aliases(
    started, model_path, tmp_path, strict
):
    path = tmp_path / "bitnet-b1.58-2B.gguf"
    path.write_bytes(model_path.read_bytes())
    words = ["--alias", "small", "--alias", "gpt-4"]
    if strict:
        words.append("--strict-model-name")
    worker = started(*words, path=path).listen()
    base = f"http://127.0.0.1:{worker.port}/v1"
    (model,) = httpx.get(f"{base}/models", timeout=PATIENCE_S).json()["data"]
    assert model["id"] == "bitnet-b1.58-2B"

    def complete(name):
        body = {"model": name, "prompt": "a", "max_tokens": 1}
        return httpx.post(f"{base}/completions", json=body, timeout=PATIENCE_S)

    for name in ("bitnet-b1.58-2B", "small", "gpt-4"):
        reply = complete(name)
        assert reply.status_code == 200
        assert "bitnet-ignored" not in reply.headers

    # A name cut at the dot is as unknown as any other name.
    for name in ("bitnet-b1", "other"):
        reply = complete(name)
        if strict:
            assert reply.status_code == 404
            assert reply.json()["error"]["code"] == "model_not_found"
        else:
            assert reply.status_code == 200
            assert reply.headers["bitnet-ignored"] == "model"


def test_a_worker_that_drains_still_answers_new_connections_with_503(started, tmp_path):
    endless = tiny_gguf(tmp_path / "endless.gguf", **ENDLESS_MODEL)
    worker = started("--max-output-tokens", str(10**6), path=endless).listen()
    replies = []
    asking = threading.Thread(target=lambda: replies.append(worker.post(ENDLESS)))
    asking.start()
    worker.until('action="inference_start"')
    worker.process.send_signal(signal.SIGINT)
    worker.until('action="draining"')
    base = f"http://127.0.0.1:{worker.port}"
    ready = httpx.get(f"{base}/health/ready", timeout=PATIENCE_S)  # a connection of its own
    assert (ready.status_code, ready.json()["status"]) == (503, "draining")
    assert worker.post({"prompt": "a"}).status_code == 503
    worker.process.send_signal(signal.SIGINT)
    assert worker.end() == 130
    asking.join()
    assert [reply.json()["finish_reason"] for reply in replies] == ["cancelled"]


@pytest.mark.parametrize("narration", ["console", "json"])
def test_a_flood_of_garbage_leaves_few_lines(started, narration):
    worker = started("--narration", narration)
    found = worker.until(r"HTTP server listening on 127\.0\.0\.1:(\d+)")
    for _ in range(60):
        with socket.create_connection(("127.0.0.1", int(found[1])), timeout=PATIENCE_S) as one:
            one.sendall(b"\x00\x01\x02\xff\r\n\r\n")
            assert b" 400 " in one.recv(1000)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end() == 0
    assert not any("Invalid HTTP request" in line for line in worker.lines)
    # Refusals beyond MOST_LINES of the narration within SPAN_S are only counted.
    count = sum("not HTTP" in line for line in worker.lines)
    assert 0 < count < 60


def test_lines_that_many_threads_write_are_not_mixed():
    program = textwrap.dedent("""
        import threading
        from bitnet.commands.context import say

        def many(name):
            for number in range(300):
                say(f"<{name} {number}>")

        threads = [threading.Thread(target=many, args=(name,)) for name in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    """)
    done = subprocess.run(
        [sys.executable, "-c", program],
        stderr=subprocess.PIPE, text=True, check=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},  # each write goes out as it comes
    )  # fmt: skip
    assert sorted(done.stderr.splitlines()) == sorted(
        f"<{name} {number}>" for name in range(8) for number in range(300)
    )

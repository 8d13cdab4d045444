"""Every stream that has begun ends with the last event of its dialect, whenever a worker stops."""

import contextlib
import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from server_process import listening, serving_all
from tool_models import tool_gguf
from waiting import PATIENCE_S, until

from bitnet import load
from bitnet.formats.containers import open_checkpoint
from bitnet.server import run
from bitnet.server.slot import Slot
from bitnet.wire.routes import ROUTES

STREAMED = {path: form for path, form in ROUTES.items() if form.events is not None}
ASKED = {"model": "tiny", "stream": True}
MESSAGES = {"messages": [{"role": "user", "content": "ab"}]}
UNENDING = {"logit_bias": {"1": -1000}}  # never the end token
#: A body for each address with streams. If the dialect has a field for it, the answer does not
#: end by itself.
BODIES = {
    "/v1/chat/completions": MESSAGES | UNENDING,
    "/v1/completions": {"prompt": "ab", "max_tokens": 40} | UNENDING,
    "/v1/responses": {"input": "ab"},
    "/v1/inference": {"prompt": "ab", "max_tokens": 40} | UNENDING,
    "/v1/messages": MESSAGES | {"max_tokens": 40},
    "/completion": {"prompt": "ab", "ignore_eos": True},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "ignore_eos": True},
    "/api/chat": MESSAGES,
    "/api/generate": {"prompt": "ab"},
}
#: Tokens that /infill needs.
GAP = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    """A model that answers every address."""
    return tool_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", control=GAP)


@pytest.fixture
def begun(model_path, release):
    """Begin a stream: its worker, and a function that reads the rest of it.

    Headers are sent with the first token, after one pass. No further pass runs before the test
    releases it.
    """
    with contextlib.ExitStack() as stack:

        def begin(path, more=None, **options):
            worker = stack.enter_context(listening(model_path, **options))
            release(1)
            body = ASKED | BODIES[path] | (more or {})
            reply = stack.enter_context(worker.http.stream("POST", path, json=body))
            assert reply.status_code == 200, reply.read()

            def read():
                return reply.read().decode()

            return worker, read

        yield begin
        release()  # before the worker ends, which waits for the pass


def events_of(path, text):
    """Events of the stream *text* of *path*, after checks of its framing up to the last byte."""
    form = STREAMED[path]
    if form.stream == "lines":
        assert text.endswith("\n")
        return [json.loads(line) for line in text.splitlines()]
    assert text.endswith("\n\n")
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line[:6] == "data: "]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    if form.stream == "openai":
        is_failed = "error" in events[-1]
        assert ("[DONE]" in lines) != is_failed
        assert is_failed or lines[-1] == "[DONE]"
    return events


def ending_of(path, text):
    """Ending of the stream *text* of *path*: ``error``, or ``whole``, even if it was cut short."""
    last = events_of(path, text)[-1]
    if STREAMED[path].stream == "named":
        if last["type"] == "error":
            return "error"
        assert last["type"] in {"message_stop", "response.completed", "response.incomplete"}
        return "whole"
    if "error" in last:
        return "error"
    if "choices" in last:
        is_end = last["choices"][0]["finish_reason"]
    else:
        is_end = last.get("done") or last.get("stop")
    assert is_end, last
    return "whole"


def test_every_address_with_streams_is_asked():
    assert set(BODIES) == set(STREAMED)


@pytest.mark.parametrize("path", STREAMED)
def test_an_answer_that_is_cut_short_between_two_passes_ends_as_a_whole_one(begun, release, path):
    worker, read = begun(path)
    worker.models.drain(0)
    release()
    assert ending_of(path, read()) == "whole"


@pytest.mark.parametrize("path", STREAMED)
def test_an_answer_ends_with_an_error_if_its_pass_takes_longer_than_the_worker_may(begun, path):
    worker, read = begun(path)
    worker.models.drain(0)
    worker.loop.call_soon_threadsafe(worker.models.give_up)
    text = read()  # no further pass has run
    assert ending_of(path, text) == "error"
    assert "the worker is stopping" in text


@pytest.mark.parametrize("path", STREAMED)
def test_an_answer_ends_with_an_error_if_the_thread_of_its_model_dies(
    begun, release, path, monkeypatch
):
    worker, read = begun(path)
    monkeypatch.setattr(Slot, "_take_in", lambda _: 1 // 0)  # is called after the pass that runs
    release()
    assert ending_of(path, read()) == "error"
    assert worker.models.dead


@pytest.mark.parametrize("path", STREAMED)
def test_an_answer_whose_model_is_closed_ends_as_a_whole_one(begun, release, path):
    worker, read = begun(path)
    closing = threading.Thread(target=worker.slot.close)  # waits for the pass that runs
    closing.start()
    until(lambda: worker.slot.draining)
    release()
    assert ending_of(path, read()) == "whole"
    closing.join()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_choice_that_has_not_begun_is_an_error_and_not_empty(begun, release, path):
    worker, read = begun(path, {"n": 2}, max_batch=1)
    worker.models.drain(0)
    release()
    assert ending_of(path, read()) == "error"


# One signal with no time to drain; or two or three, of which the second cuts the time short.
@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT] * 2, [signal.SIGINT] * 3])
def test_signals_end_a_stream_while_a_pass_runs(begun, monkeypatch, numbers):
    monkeypatch.setattr(run, "PASS_S", 0.2)
    # Time enough for the client to read the end of its stream.
    monkeypatch.setattr(run, "LAST_WORDS_S", PATIENCE_S)
    drain_s = 0.0 if len(numbers) == 1 else 600.0
    worker, read = begun("/v1/chat/completions", drain_s=drain_s)
    for number in numbers:
        worker.server.handle_exit(number, None)
    assert ending_of("/v1/chat/completions", read()) == "error"


def test_a_request_that_waits_for_a_load_is_refused_when_the_worker_gives_up(model_path):
    opened = threading.Event()
    goes_on = threading.Event()

    def open_late():
        opened.set()
        assert goes_on.wait(PATIENCE_S)
        return open_checkpoint(model_path)

    slot = Slot("tiny", model_path, open_late, load)
    with serving_all([slot], loaded=False) as worker, ThreadPoolExecutor(1) as pool:
        reply = pool.submit(worker.post, "/v1/inference", {"prompt": "a", "stream": True})
        assert opened.wait(PATIENCE_S)
        worker.loop.call_soon_threadsafe(worker.models.give_up)
        assert reply.result().status_code == 503
        goes_on.set()


def test_a_fraction_of_a_second_to_finish_is_not_rounded_away(model_path):
    with listening(model_path, drain_s=0.4) as worker:
        before = time.monotonic()
        worker.server.handle_exit(signal.SIGTERM, None)
        assert worker.server._draining_until >= before + 0.4

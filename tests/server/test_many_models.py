"""``bitnet serve --models`` as a process, through the official clients."""

import contextlib
import signal
import threading
from itertools import zip_longest
from pathlib import Path

import httpx
import pytest
from serve_process import ENDLESS, ENDLESS_MODEL, Process, serving
from tiny_models import tiny_gguf
from waiting import PATIENCE_S, until

from bitnet import load

TEMPLATE = "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}assistant."
ASK = [{"role": "user", "content": "abc"}]


@pytest.fixture
def folder(tmp_path):
    """A folder with a model, and below it one whose rotary positions have another base."""
    folder = tmp_path / "models"
    (folder / "more").mkdir(parents=True)
    keys = {"tokenizer.chat_template": TEMPLATE}
    tiny_gguf(folder / "a.gguf", **keys)
    tiny_gguf(folder / "more/b.gguf", **keys, **{"llama.rope.freq_base": 3.0})
    return folder


def paths(folder):
    """Paths of the two models."""
    return folder / "a.gguf", folder / "more/b.gguf"


def answers(folder):
    """Yield the answer of each model to ASK."""
    for path in paths(folder):
        with load(path) as model:
            yield model.chat(ASK, max_tokens=20)


@pytest.fixture
def worker(folder):
    with serving("--models", folder, "--port", 0, "--alias", "other=b") as worker:
        yield worker
        assert worker.end(signal.SIGTERM) == 0, worker.lines


def test_openais_client_streams_from_two_models_at_once(worker, folder):
    openai = pytest.importorskip("openai")
    body = {"messages": ASK, "max_tokens": 20, "temperature": 0, "stream": True}
    with openai.OpenAI(base_url=f"{worker.address}/v1", api_key="none") as client:
        assert [one.id for one in client.models.list()] == ["a", "b"]
        streams = [client.chat.completions.create(model=name, **body) for name in ("a", "other")]
        texts = ["", ""]
        for parts in zip_longest(*streams):  # one of each in turn
            for number, part in enumerate(parts):
                if part is not None and part.choices:
                    texts[number] += part.choices[0].delta.content or ""
        assert texts == [*answers(folder)]
        with pytest.raises(openai.NotFoundError, match="only 'a', 'b'"):
            client.chat.completions.create(model="c", messages=ASK)


def test_ollamas_client_lists_shows_keeps_and_unloads(worker):
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=worker.address)
    with client._client:  # older ones cannot be closed themselves
        assert [one.model for one in client.list().models] == ["a", "b"]
        assert client.show("b").template == TEMPLATE
        assert client.ps().models == []  # nothing of this loads a model
        client.chat("b:latest", ASK, options={"num_predict": 3}, keep_alive=-1)
        client.generate("a", keep_alive="2h")
        loaded = {one.model: one for one in client.ps().models}
        assert loaded["b"].expires_at.year == 9999  # never: keep_alive is -1
        assert loaded["a"].expires_at < loaded["b"].expires_at
        assert client.generate("b", keep_alive=0).done_reason == "unload"
        until(lambda: [one.model for one in client.ps().models] == ["a"])
        with pytest.raises(ollama.ResponseError, match="keep_alive"):
            client.generate("a", keep_alive="soon")


def test_routes_of_llama_server_are_for_the_model_they_name(worker):
    with httpx.Client(base_url=worker.address, timeout=PATIENCE_S) as http:
        # A model that is not loaded has no slots.
        assert http.get("/slots", params={"model": "b"}).json() == []
        assert http.get("/props", params={"model": "b"}).json()["model_alias"] == "b"
        # It was loaded for /props; a worker has eight slots by default.
        assert len(http.get("/slots", params={"model": "b"}).json()) == 8
        assert http.get("/slots").json() == []
        assert http.get("/props", params={"model": "c"}).status_code == 404
        assert http.post("/tokenize", json={"content": "ab", "model": "b"}).status_code == 200


def mapped(worker, path):
    """Number of memory maps of the file *path* in the process of *worker*."""
    with open(f"/proc/{worker.process.pid}/maps") as maps:
        return sum(str(path) in line for line in maps)


def resident(worker):
    """Resident memory of the process of *worker*, in kB."""
    with open(f"/proc/{worker.process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc on this system")
@pytest.mark.slow
def test_fifty_loads_leave_nothing_behind(folder):
    first, second = paths(folder)
    with (
        serving("--models", folder, "--port", 0, "--models-idle", "0s", "-vv") as worker,
        httpx.Client(base_url=worker.address, timeout=PATIENCE_S) as http,
    ):
        sizes = []
        for count in range(50):
            for name in "ab":
                body = {"model": name, "prompt": "ab", "max_tokens": 4}
                assert http.post("/v1/completions", json=body).status_code == 200
            worker.until('action="model_unloaded"')
            worker.until('action="model_unloaded"')
            if count in (9, 49):  # after 20 and 100 loads
                # The answer's own frames hold the model until they end, after the answer is read.
                until(lambda: mapped(worker, first) == mapped(worker, second) == 0)
                sizes.append(resident(worker))
        stay_loaded = {"model": "a", "keep_alive": -1}
        assert http.post("/api/generate", json=stay_loaded).status_code == 200
        assert mapped(worker, first) > 0 == mapped(worker, second)
        assert sizes[1] - sizes[0] < 20_000, sizes  # kB; what 80 loads would leave is more
        assert worker.end(signal.SIGTERM) == 0


def test_streams_of_two_models_end_in_order_when_the_worker_has_to_stop(tmp_path):
    for name in "ab":
        tiny_gguf(tmp_path / f"{name}.gguf", **ENDLESS_MODEL)
    options = ("--drain", "0.2", "--max-output-tokens", 10**6, "--models-idle", "never")
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(serving("--models", tmp_path, "--port", 0, *options))
        streams = []
        for name in "ab":
            body = ENDLESS | {"model": name, "stream": True}
            # Entered once the first token is there; an answer without any would be refused.
            streams.append(stack.enter_context(worker.stream(body)))
        assert [reply.status_code for reply in streams] == [200, 200]
        worker.process.send_signal(signal.SIGTERM)
        texts = [reply.read().decode() for reply in streams]
        assert worker.end() == 0
    assert [text.count('"finish_reason":"cancelled","done":true') for text in texts] == [1, 1]
    assert [text[-14:] for text in texts] == ["data: [DONE]\n\n"] * 2
    assert not any("Traceback" in line for line in worker.lines)


def test_a_single_model_has_the_name_it_was_given_and_never_goes(tmp_path):
    path = tiny_gguf(tmp_path / "tiny.gguf")
    with serving("--model", path, "--port", 0, "--models-idle", "0s") as worker:
        for name in ("tiny", "tiny:latest"):
            body = {"model": name, "prompt": "a", "keep_alive": 0, "options": {"num_predict": 2}}
            assert worker.post(body | {"stream": False}, "/api/generate").status_code == 200
        assert worker.post({"prompt": "a"}).status_code == 200
        assert worker.end(signal.SIGTERM) == 0
    assert not any("model_unloaded" in line for line in worker.lines)
    assert not any("model_name=" in line for line in worker.lines)


@pytest.fixture
def refused(bitnet):
    def refused(*words):
        done = bitnet("serve", "--port", 0, *words)
        assert done.code
        return done.err

    return refused


def test_two_models_of_one_name_are_refused_with_both_paths(refused, folder, tmp_path):
    again = tmp_path / "again"
    again.mkdir()
    path = tiny_gguf(again / "a.gguf")
    said = refused("--models", f"{folder},{path}")
    assert f"two models are called 'a': {folder / 'a.gguf'} and {path}" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--models", "."), "no model in ."),
        (("--models", "a.gguf,,b.gguf"), "expected models with commas between"),
        (("--models", " "), "--models is ' ', expected models with commas between"),
        (("--models", ""), "--models is empty"),  # as every model of a variable that is not set
        (("--models", "."  , "--model", "x"), "--model and --models exclude each other"),
        (("--models", ".", "--tokenizer", "x"), "--tokenizer and --models exclude each other"),
        (("--models", "x", "--models-idle", "soon"), "--models-idle expects a number and a unit"),
        (("--models", "x", "--models-idle", "0"), "--models-idle expects a number and a unit"),
        (("--models", "x", "--memory-budget", "-1"), "--memory-budget is -1"),
        (("--models", "smolm2-135m"), "no such file or folder, and no model of that name"),
    ],
)  # fmt: skip
def test_wrong_options_for_models_are_refused(refused, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    assert said in refused(*words)


@pytest.mark.parametrize(
    ("alias", "said"),
    [("small=c", "there is no model 'c', only 'a', 'b'"), ("a=b", "cannot be another name of 'b'")],
)
def test_an_alias_is_for_one_of_the_models(refused, folder, alias, said):
    assert said in refused("--models", folder, "--alias", alias)


def test_a_worker_that_is_loading_a_model_ends_with_0_on_sigterm(folder):
    worker = Process("--models", folder, "--port", 0)
    try:
        worker.listen()
        replies = []
        asking = threading.Thread(
            target=lambda: replies.append(worker.post({"prompt": "ab", "model": "a"}))
        )
        asking.start()
        worker.until('action="gguf_metadata_loaded"')
        assert worker.end(signal.SIGTERM) == 0
        asking.join()
        (reply,) = replies
        assert reply.status_code in (200, 503)  # 200 if the model was loaded before the signal
    finally:
        worker.kill()

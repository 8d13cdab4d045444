"""Several models in one worker: loaded for a request, unloaded when idle or for another."""

import contextlib
import gc
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest
from builders import INT32, UINT16, Tensor, Typed, write_gguf
from server_process import serving_all, slot_of
from tiny_models import tiny, tiny_gguf
from waiting import until

from bitnet import load
from bitnet.base.errors import InferenceError, UsageError
from bitnet.server import run
from bitnet.server.loading import memory_of
from bitnet.server.slot import FOREVER

ASK = {"prompt": "ab", "max_tokens": 5, "temperature": 0}


@pytest.fixture
def paths(tmp_path):
    """Two models that give other answers."""
    other = {"llama.rope.freq_base": 3.0}
    return [tiny_gguf(tmp_path / "a.gguf"), tiny_gguf(tmp_path / "b.gguf", **other)]


class Gate:
    """Count the loads of the model in *slot*, and hold each until ``open`` is set."""

    def __init__(self, slot):
        self.open = threading.Event()
        self.loads = 0
        self.error = None
        self._load = slot.load
        self.slot = slot
        slot.load = self.load

    def load(self, checkpoint):
        self.loads += 1
        self.open.wait()
        if self.error is not None:
            raise self.error
        return self._load(checkpoint)


@pytest.fixture
def serve(paths):
    """Start a worker with the two models, none of them loaded."""
    with contextlib.ExitStack() as stack:

        def start(*sources, **options):
            sources = sources or [slot_of(path) for path in paths]
            return stack.enter_context(serving_all(sources, loaded=False, **options))

        yield start


@pytest.fixture
def gate(paths):
    gate = Gate(slot_of(paths[1]))
    yield gate
    gate.open.set()


def ask(worker, model=None, **more):
    """The reply to ASK, sent to the model named *model*."""
    named = {"model": model} if model else {}
    return worker.post("/v1/completions", ASK | named | more)


def text(path):
    """The answer to ASK of the model at *path*, without a server."""
    with load(path) as model:
        return model.generate("ab", max_tokens=5)


def states(worker):
    """State of each model, by name."""
    return worker.http.get("/health/ready").json()["models"]


def test_a_model_is_loaded_by_a_request_that_names_it_and_gives_its_own_answer(serve, paths):
    worker = serve()
    assert states(worker) == {"a": "unloaded", "b": "unloaded"}
    first, second = (ask(worker, name).json() for name in "ab")
    assert [one["model"] for one in (first, second)] == ["a", "b"]
    expected = [text(path) for path in paths]
    assert [one["choices"][0]["text"] for one in (first, second)] == expected
    assert expected[0] != expected[1]
    assert states(worker) == {"a": "loaded", "b": "loaded"}


def test_the_list_of_models_has_their_states_and_loads_none(serve):
    worker = serve()
    ask(worker, "b")
    listed = worker.http.get("/v1/models").json()["data"]
    facts = [(one["id"], one["status"]["value"], one["context_length"]) for one in listed]
    assert facts == [("a", "unloaded", 64), ("b", "loaded", 64)]
    assert worker.http.get("/v1/models/a").json() == listed[0]
    assert states(worker)["a"] == "unloaded"


def test_the_first_model_is_the_default_and_an_unknown_name_is_refused_with_all_names(serve, paths):
    sources = [slot_of(paths[0]), slot_of(paths[1], aliases=("small",))]
    worker = serve(*sources)
    assert ask(worker).json()["model"] == "a"
    assert ask(worker, "small").json()["model"] == "b"
    reply = ask(worker, "c")
    assert reply.status_code == 404
    assert reply.json()["error"]["message"] == "there is no model 'c', only 'a', 'b'"


def test_a_model_is_loaded_once_for_all_that_wait_and_holds_up_no_other(serve, paths, gate):
    worker = serve(slot_of(paths[0]), gate.slot)
    ask(worker, "a")
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(ask, worker, "b") for _ in range(4)]
        until(lambda: worker.models.find("b").queued == 4 and gate.loads)
        assert states(worker)["b"] == "loading"
        assert ask(worker, "a").status_code == 200
        gate.open.set()
        assert [one.result().status_code for one in waiting] == [200] * 4
    assert gate.loads == 1


def test_a_load_that_fails_is_told_and_tried_again(serve, paths, gate):
    gate.error = InferenceError("no such luck")
    gate.open.set()
    worker = serve(slot_of(paths[0]), gate.slot)
    for loads in (1, 2):
        reply = ask(worker, "b")
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "model_load_failed")
        assert "'b' cannot be loaded: no such luck" in reply.json()["error"]["message"]
        assert gate.loads == loads
    assert states(worker)["b"] == "failed"
    assert ask(worker, "a").status_code == 200
    gate.error = None
    assert ask(worker, "b").status_code == 200


def test_a_broken_file_is_listed_and_takes_no_other_down(serve, paths):
    paths[1].write_bytes(paths[1].read_bytes()[:-100])
    worker = serve()
    assert [one["id"] for one in worker.http.get("/v1/models").json()["data"]] == ["a", "b"]
    tags = worker.http.get("/api/tags").json()["models"]
    assert [one["name"] for one in tags] == ["a", "b"]
    assert ask(worker, "b").status_code == 500
    assert ask(worker, "a").status_code == 200
    assert any(
        'action="model_load_failed"' in line and 'model_name="b"' in line for line in worker.lines
    )


def test_more_requests_than_the_queue_has_places_for_are_refused(serve, paths, gate):
    worker = serve(slot_of(paths[0]), gate.slot, max_batch=1, queue=1)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(ask, worker, "b") for _ in range(2)]
        until(lambda: worker.models.find("b").queued == 2)
        reply = ask(worker, "b")
        assert (reply.status_code, reply.headers["Retry-After"]) == (429, "1")
        assert 'bitnet_refused_total{model_name="b"} 1.0' in worker.http.get("/metrics").text
        gate.open.set()
        assert [one.result().status_code for one in waiting] == [200] * 2


def test_a_load_beyond_the_deadline_of_its_request_is_a_timeout_and_goes_on(serve, paths, gate):
    worker = serve(slot_of(paths[0]), gate.slot, deadline_s=0.2)
    assert ask(worker, "b").status_code == 504
    gate.open.set()
    until(lambda: states(worker)["b"] == "loaded")  # for the next request


def test_a_model_whose_requests_have_gone_while_it_was_loaded_is_unloaded_when_idle(
    serve, paths, gate
):
    worker = serve(slot_of(paths[0]), gate.slot, deadline_s=0.2, idle_s=0.0)
    assert ask(worker, "b").status_code == 504
    gate.open.set()
    until(lambda: unloaded(worker, "b") == 1)


def test_a_model_that_is_idle_is_unloaded_and_loaded_again(serve):
    worker = serve(idle_s=0.0)
    for count in (1, 2):
        assert ask(worker, "a").status_code == 200
        until(lambda count=count: unloaded(worker, "a") == count)
    assert states(worker)["a"] == "unloaded"


def unloaded(worker, name):
    """Number of times that the model *name* was unloaded, by the log."""
    said = f'action="model_unloaded" worker_id="w1" model_name="{name}"'
    return sum(said in line for line in worker.lines)


@pytest.mark.parametrize("prompt", ["", "a"])
@pytest.mark.parametrize("left_out", [{}, {"keep_alive": None}])
def test_a_keep_alive_is_forgotten_when_the_model_is_unloaded(serve, prompt, left_out):
    worker = serve()
    generate = {"model": "a", "prompt": prompt, "options": {"num_predict": 1}, "stream": False}
    assert ask(worker, "a").status_code == 200
    assert worker.post("/api/generate", generate | {"keep_alive": 0}).status_code == 200
    until(lambda: unloaded(worker, "a") == 1)
    for _ in range(2):
        assert worker.post("/api/generate", generate | left_out).status_code == 200
        until(lambda: not worker.slot.users)
        assert (worker.slot.loaded, worker.slot.timer) == (True, None)


def test_a_keep_alive_lasts_until_another_request_states_one(serve):
    worker = serve()
    empty = {"model": "a", "stream": False}
    for keep_alive, idle_s in ((60, 60.0), (None, 60.0), ("1h30m", 5400.0), (-1, FOREVER)):
        assert worker.post("/api/generate", empty | {"keep_alive": keep_alive}).status_code == 200
        assert worker.slot.idle_s == idle_s


def test_a_model_in_parts_has_the_size_and_the_digest_of_all_of_them(serve, tmp_path):
    parts = in_two_parts(tmp_path)
    worker = serve(slot_of(parts[0], "a"))
    lines = [f"{sha256(part.read_bytes()).hexdigest()} {part.name}\n" for part in parts]
    (tag,) = worker.http.get("/api/tags").json()["models"]
    assert tag["size"] == sum(part.stat().st_size for part in parts)
    assert tag["digest"] == sha256("".join(lines).encode()).hexdigest()
    parts[1].unlink()  # the list of files is kept, and their sizes are read each time
    (tag,) = worker.http.get("/api/tags").json()["models"]
    assert tag["size"] == parts[0].stat().st_size


def in_two_parts(folder):
    """A model as two files."""
    whole = tiny("llama")
    parts = [folder / f"a-0000{number}-of-00002.gguf" for number in (1, 2)]
    names = [*whole.weights]
    count = {"split.count": Typed(UINT16, 2), "split.tensors.count": Typed(INT32, len(names))}
    for number, chosen in enumerate((names[:7], names[7:])):
        tensors = [
            Tensor(name, whole.weights[name].shape, 0, whole.weights[name].data.tobytes())
            for name in chosen
        ]
        keys = (dict(whole.metadata) if not number else {}) | count
        write_gguf(parts[number], keys | {"split.no": Typed(UINT16, number)}, tensors)
    return parts


def test_a_model_that_is_in_use_is_not_unloaded(serve, release):
    worker = serve(idle_s=0.0)
    release(1)
    with worker.http.stream("POST", "/v1/completions", json=ASK | {"stream": True}) as reply:
        lines = reply.iter_lines()
        assert states(worker)["a"] == "loaded"
        assert not unloaded(worker, "a")
        release()
        assert "data: [DONE]" in lines
    until(lambda: unloaded(worker, "a"))


def test_a_model_that_is_requested_again_before_it_is_unloaded_stays(serve, paths, gate):
    worker = serve(slot_of(paths[0]), gate.slot)
    empty = {"model": "a", "stream": False}
    assert ask(worker, "a").status_code == 200
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(ask, worker, "b")
        until(lambda: gate.loads)  # models are loaded and unloaded one at a time
        assert worker.post("/api/generate", empty | {"keep_alive": 0}).status_code == 200
        assert worker.post("/api/generate", empty | {"keep_alive": -1}).status_code == 200
        gate.open.set()
        assert loading.result().status_code == 200
    assert ask(worker, "b").status_code == 200
    assert states(worker) == {"a": "loaded", "b": "loaded"}
    assert not unloaded(worker, "a")


def budget_for_one(path):
    """One and a half times the bytes of the model at *path*, with a batch of 8: room for one."""
    source = slot_of(path)
    size_bytes = memory_of(source.open(), None, 8, None)
    return size_bytes + size_bytes // 2


def test_a_model_of_which_no_answer_fits_is_not_loaded(serve, gate):
    gate.open.set()
    worker = serve(gate.slot, kv_budget_bytes=1000)
    for _ in range(2):
        reply = ask(worker)
        assert reply.status_code == 500
        assert "the shortest answer take" in reply.json()["error"]["message"]
    assert gate.loads == 0
    assert states(worker) == {"b": "failed"}


def test_a_loaded_model_whose_answers_do_not_fit_the_budget_is_closed(paths):
    slot = slot_of(paths[0])
    model = load(paths[0])
    weights = weakref.ref(model.model)
    with pytest.raises(UsageError, match="the shortest answer take"):
        slot.fill(model, max_batch=1, kv_budget_bytes=1000)
    with pytest.raises(InferenceError, match="is closed"):
        model.generate("a")
    gc.collect()
    assert weights() is None


def test_a_worker_ends_without_waiting_for_a_load_that_runs(serve, paths, gate, monkeypatch):
    monkeypatch.setattr(run, "PASS_S", 0.01)
    worker = serve(slot_of(paths[0]), gate.slot, drain_s=0.0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, worker, "b")
        until(lambda: gate.loads)
        worker.server.handle_exit(signal.SIGTERM, None)
        assert waiting.result().status_code == 503
    until(worker.loop.is_closed)  # asyncio has waited for its threads by then
    lines = len(worker.lines)
    gate.open.set()
    until(lambda: not any(thread.name == "bitnet-load" for thread in threading.enumerate()))
    # The load that ends afterwards writes nothing more.
    assert len(worker.lines) == lines


def test_the_least_recently_used_model_is_unloaded_to_make_room(serve, paths):
    third = tiny_gguf(paths[0].with_name("c.gguf"))
    sources = [slot_of(path) for path in (*paths, third)]
    # Four thirds of the bytes of one and a half models: room for two.
    worker = serve(*sources, memory_bytes=budget_for_one(paths[0]) // 3 * 4)
    for name in "aba":
        ask(worker, name)
    assert ask(worker, "c").status_code == 200
    assert states(worker) == {"a": "loaded", "b": "unloaded", "c": "loaded"}


def test_a_model_that_is_in_use_is_unloaded_for_another_only_afterwards(serve, paths, release):
    worker = serve(memory_bytes=budget_for_one(paths[0]))
    with ThreadPoolExecutor(2) as pool:
        using = pool.submit(ask, worker, "a")
        until(lambda: worker.models.find("a").loaded)
        waiting = pool.submit(ask, worker, "b")
        until(lambda: states(worker)["b"] == "waiting")
        assert states(worker)["a"] == "loaded"
        release()
        assert [one.result().status_code for one in (using, waiting)] == [200, 200]
    assert states(worker) == {"a": "unloaded", "b": "loaded"}


def test_a_request_for_whose_model_no_room_is_made_in_time_is_a_timeout(serve, paths):
    worker = serve(memory_bytes=budget_for_one(paths[0]), deadline_s=0.2)
    worker.models.find("a").users += 1  # as a request that does not end
    until(lambda: ask(worker, "a").status_code == 200)
    assert ask(worker, "b").status_code == 504
    until(lambda: states(worker)["b"] == "unloaded")  # no request waits for it any more


def test_a_model_larger_than_the_budget_is_refused_at_once(serve):
    worker = serve(memory_bytes=1000)
    reply = ask(worker, "a")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_too_large")
    assert "--memory-budget is 1.0 kB" in reply.json()["error"]["message"]
    assert "Retry-After" not in reply.headers


def test_metrics_are_by_model(serve):
    worker = serve()
    ask(worker, "a")
    metrics = worker.http.get("/metrics").text
    for name, tokens in (("a", 5), ("b", 0)):  # b is not loaded
        assert f'vllm:generation_tokens_total{{model_name="{name}"}} {tokens}.0' in metrics
        assert f'bitnet_model_loaded{{model_name="{name}"}} {tokens / 5}' in metrics

"""Adapters by name: clients name one as the model, and answers of several run together."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from adapter_files import adapter_file, factors
from serve_process import Process

import bitnet
from bitnet.formats.containers import open_checkpoint

GREEDY = {"prompt": "abc", "max_tokens": 8, "temperature": 0}


@pytest.fixture
def adapters(model_path, tmp_path):
    """Files of two random adapters of the tiny model, by name, which change its answers."""
    weights = open_checkpoint(model_path).weights
    files = {}
    for seed, name in enumerate(("terse", "rhymes")):
        matrices = [key for key in weights if key.endswith(("attn_q.weight", "ffn_down.weight"))]
        pairs = {key: factors(*weights[key].shape, 4, seed) for key in matrices}
        files[name] = adapter_file(tmp_path / f"{name}.gguf", pairs, alpha=16.0)
    return files


@pytest.fixture
def worker(model_path, adapters):
    """A process that serves the model, and each adapter by its name, scaled by 2."""
    words = [word for name, file in adapters.items() for word in ("--lora", f"{name}={file}:2")]
    process = Process("--model", model_path, "--port", 0, *words)
    yield process.listen()
    process.kill()


def test_a_client_names_an_adapter_as_its_model(worker, model_path, adapters):
    expected = {}
    for name, file in {"": "", **adapters}.items():
        with bitnet.load(model_path, lora=[f"{file}:2"] if name else []) as model:
            expected[name or "tiny"] = model.generate("abc", max_tokens=8)
    # Each adapter changes the answer, so that it shows which one was used.
    assert len(set(expected.values())) == 3
    models = [*expected] * 4  # twelve requests, by eight clients

    def answer(name):
        return worker.post(GREEDY | {"model": name}, path="/v1/completions").json()

    with ThreadPoolExecutor(8) as clients:
        replies = list(clients.map(answer, models))
    assert [reply["model"] for reply in replies] == models
    assert [reply["choices"][0]["text"] for reply in replies] == [expected[name] for name in models]
    # Ollama's clients add a tag to a name.
    body = {"model": "rhymes:latest", "prompt": "abc", "raw": True, "stream": False}
    body |= {"options": {"temperature": 0, "num_predict": 8}}
    assert worker.post(body, path="/api/generate").json()["response"] == expected["rhymes"]


def test_adapters_are_listed_with_their_model(worker):
    listed = httpx.get(f"{worker.address}/v1/models").json()["data"]
    names = [(entry["id"], entry.get("parent")) for entry in listed]
    assert names == [("tiny", None), ("terse", "tiny"), ("rhymes", "tiny")]
    for name in ("terse", "terse:latest"):
        entry = httpx.get(f"{worker.address}/v1/models/{name}").json()
        assert (entry["id"], entry["parent"]) == ("terse", "tiny")
    # A worker with adapters answers only to known names.
    assert worker.post(GREEDY | {"model": "other"}, path="/v1/completions").status_code == 404


@pytest.mark.parametrize(
    ("words", "reason"),  # values of --lora, in which {0} is the file
    [
        (("a={0}", "a={0}"), "a name of its own"),
        (("tiny={0}",), "the name of the model itself"),
        (("={0}",), "a name of its own"),
    ],
)
def test_an_adapter_without_a_name_of_its_own_is_refused(words, reason, model_path, adapters):
    files = [word.format(adapters["terse"]) for word in words]
    options = [word for file in files for word in ("--lora", file)]
    process = Process("--model", model_path, "--port", 0, *options)
    assert process.end() == 2
    assert any(reason in line for line in process.lines)

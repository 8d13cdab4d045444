"""Defaults of a worker for what a request leaves out, with their origins."""

import pytest
from server_process import listening
from tiny_models import tiny_gguf

from bitnet.runtime.request import SamplingOptions

KEYS = {
    "general.sampling.temp": 0.75,
    "general.sampling.top_p": 0.5,
    "tokenizer.chat_template": "{{ messages[0].content }}",
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    path = tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", **KEYS)
    with listening(path, sampling=SamplingOptions(min_p=0.25)) as running:
        yield running


def test_the_list_of_models_says_the_defaults_and_their_origins(worker):
    (facts,) = worker.http.get("/v1/models").json()["data"]
    defaults = facts["generation_defaults"]
    assert defaults["temperature"] == {"value": 0.75, "from": "general.sampling.temp"}
    assert defaults["min_p"] == {"value": 0.25, "from": "command line"}
    assert defaults["top_k"] == {"value": 0, "from": "default"}
    assert defaults["max_tokens"] == {"value": None, "from": "default"}


def test_llama_servers_properties_have_the_same_values(worker):
    params = worker.http.get("/props").json()["default_generation_settings"]["params"]
    assert params["temperature"] == 0.75
    # The default of llama.cpp's server, the value in the file, and the one of the command line.
    assert (params["top_k"], params["top_p"], params["min_p"]) == (40, 0.5, 0.25)


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_shows_the_values_that_it_was_written_with(worker, stream):
    body = {"input": "ab", "max_output_tokens": 2, "stream": stream}
    reply = worker.post("/v1/responses", body)
    assert reply.status_code == 200
    assert '"temperature":0.75' in reply.text.replace(" ", "")
    assert '"top_p":0.5' in reply.text.replace(" ", "")


def test_a_request_that_asks_for_the_likeliest_token_gets_it(worker):
    # With temperature 0 the seed makes no difference.
    body = {"prompt": "ab", "max_tokens": 6, "temperature": 0}
    first, second = (worker.post("/v1/completions", body | {"seed": n}).json() for n in (1, 2))
    assert first["choices"] == second["choices"]

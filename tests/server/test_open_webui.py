"""Open WebUI as people install it, in front of a worker: its list of models, and its chats.

What the model writes is scripted, except in the last test; the requests of Open WebUI and the
streams are real. Its data folder is empty, and it reaches no address but loopback's.
"""

import json
import os
import subprocess
from contextlib import contextmanager

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from scripted_model import script, scripted_gguf
from server_process import listening
from waiting import PATIENCE_S, free_port, until

PROGRAM = os.environ.get("BITNET_TEST_OPEN_WEBUI")
pytestmark = pytest.mark.skipif(
    not PROGRAM,
    reason="needs the program open-webui in an environment of its own: BITNET_TEST_OPEN_WEBUI",
)

START_S = 600  # of the program, whose first start compiles some thousand modules
ANSWER = "The colour is blue."
QUESTION = "Which colour?"
ADDRESSES = {"tiny": "/v1/chat/completions", "ollama.tiny": "/api/chat"}  # by the model's id
CLOSED_PORT = 9  # of loopback, where nothing listens


def settings_of(address, folder):
    """Environment of Open WebUI with its data in *folder* and the worker at *address*."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "DATA_DIR": str(folder / "data"),
        "WEBUI_AUTH": "False",
        "WEBUI_SECRET_KEY": "0123456789abcdef" * 2,
        "OPENAI_API_BASE_URL": f"{address}/v1",
        "OPENAI_API_KEY": "none",
        "OLLAMA_BASE_URL": address,
        "OLLAMA_API_CONFIGS": json.dumps({"0": {"enable": True, "prefix_id": "ollama"}}),
        # Vectors come from the worker too: a model of its own would be downloaded.
        "RAG_EMBEDDING_ENGINE": "openai",
        "OFFLINE_MODE": "True",
        "HF_HUB_OFFLINE": "1",
        "ANONYMIZED_TELEMETRY": "False",
        "DO_NOT_TRACK": "True",
        "SCARF_NO_ANALYTICS": "True",
        "HTTP_PROXY": f"http://127.0.0.1:{CLOSED_PORT}",
        "HTTPS_PROXY": f"http://127.0.0.1:{CLOSED_PORT}",
        "NO_PROXY": "127.0.0.1",
    }


def is_healthy(client):
    """True once Open WebUI answers its *client*."""
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def open_webui(worker, folder):
    """A client of Open WebUI, signed in, whose models are those of *worker*."""
    port = free_port()
    # Plain HTTP: reading the certificates of this system takes a while.
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, verify=False)
    log = folder / "webui.log"
    command = [PROGRAM, "serve", "--host", "127.0.0.1", "--port", str(port)]
    with client, log.open("wb") as output, subprocess.Popen(
        command, cwd=folder, env=settings_of(worker.address, folder),
        stdin=subprocess.DEVNULL, stdout=output, stderr=output,
    ) as process:  # fmt: skip
        try:
            until(lambda: is_healthy(client), process, START_S)
            reply = client.post("/api/v1/auths/signin", json={"email": "", "password": ""})
            client.headers["Authorization"] = f"Bearer {reply.json()['token']}"
            yield client
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            print(log.read_text(errors="replace")[-4000:])  # shown if the test fails


def text_of_stream(reply):
    """The text of the events in *reply*, which have OpenAI's form."""
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    assert lines[-1] == "[DONE]", reply.text
    chunks = [json.loads(line) for line in lines[:-1]]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", [])]
    return "".join(delta.get("content") or "" for delta in deltas)


def requests_of(worker):
    """Number of the requests that *worker* has answered, by their route and status."""
    families = text_string_to_metric_families(worker.http.get("/metrics").text)
    return {
        (sample.labels["route"], sample.labels["status"]): sample.value
        for family in families
        for sample in family.samples
        if sample.name == "bitnet_http_requests_total"
    }


def test_open_webui_lists_the_model_and_chats_through_both_addresses(tmp_path, monkeypatch):
    path = scripted_gguf(tmp_path, monkeypatch)
    folder = tmp_path / "webui"
    folder.mkdir()
    with listening(path, name="tiny", max_output_tokens=4000) as worker:
        prompts = script(monkeypatch, worker.slot.model.tokenizer, [], without_tools=ANSWER)
        with open_webui(worker, folder) as client:
            models = client.get("/api/models").raise_for_status().json()["data"]
            assert {model["id"] for model in models} >= set(ADDRESSES)
            for model in ADDRESSES:
                messages = [{"role": "user", "content": QUESTION}]
                body = {"model": model, "messages": messages, "params": {"temperature": 0.5}}
                whole = client.post("/api/chat/completions", json=body | {"stream": False})
                assert whole.status_code == 200, whole.text
                assert whole.json()["choices"][0]["message"]["content"] == ANSWER
                events = client.post("/api/chat/completions", json=body | {"stream": True})
                assert events.status_code == 200, events.text
                assert text_of_stream(events) == ANSWER

        requests = requests_of(worker)
    assert prompts == [f"<user>{QUESTION}</user>\n<assistant>"] * 4
    for route in ADDRESSES.values():
        assert requests[route, "200"] == 2, requests
    assert {status for _, status in requests} == {"200"}, requests


@pytest.mark.slow
def test_open_webui_shows_what_a_real_small_model_writes(tmp_path, test_models):
    """Only the form of the text counts: a model of 135 million parameters, cut off early."""
    path = test_models / "SmolLM2-135M-Instruct.Q4_1.gguf"
    folder = tmp_path / "webui"
    folder.mkdir()
    texts = set()
    with listening(path, name="tiny", max_output_tokens=16) as worker:
        with open_webui(worker, folder) as client:
            for model in ADDRESSES:
                messages = [{"role": "user", "content": QUESTION}]
                body = {"model": model, "messages": messages, "params": {"temperature": 0}}
                whole = client.post("/api/chat/completions", json=body | {"stream": False})
                assert whole.status_code == 200, whole.text
                texts.add(whole.json()["choices"][0]["message"]["content"])
                events = client.post("/api/chat/completions", json=body | {"stream": True})
                assert events.status_code == 200, events.text
                texts.add(text_of_stream(events))

        requests = requests_of(worker)
    (text,) = texts  # the same by both addresses, whole and streamed
    assert len(text.split()) > 3
    assert {status for _, status in requests} == {"200"}, requests

"""Reasoning in the form of each dialect, whole and streamed."""

import json

import pytest
from reasoning_models import reasoning_gguf
from server_process import listening

CHAT = {"messages": [{"role": "user", "content": "a"}]}
OPTIONS = {"temperature": 1.0, "num_predict": 16, "seed": 3}


@pytest.fixture
def worker(tmp_path):
    with listening(reasoning_gguf(tmp_path / "m.gguf")) as worker:
        yield worker


def events(reply):
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_a_chat_has_reasoning_content(worker):
    body = CHAT | {"max_tokens": 16, "seed": 3, "temperature": 1.0, "thinking_token_budget": 5}
    body["logit_bias"] = {"1": -1e9}
    (choice,) = worker.post("/v1/chat/completions", body).json()["choices"]
    message = choice["message"]
    assert message["reasoning_content"]
    assert message["content"]
    deltas = [
        chunk["choices"][0]["delta"]
        for chunk in events(worker.post("/v1/chat/completions", body | {"stream": True}))
    ]
    for name in ("reasoning_content", "content"):
        assert "".join(delta.get(name, "") for delta in deltas) == message[name]


def test_a_message_has_a_block_of_thinking(worker):
    body = CHAT | {"max_tokens": 16, "top_k": 1}
    body["thinking"] = {"type": "enabled", "budget_tokens": 5}
    blocks = worker.post("/v1/messages", body).json()["content"]
    assert [block["type"] for block in blocks][:1] == ["thinking"]
    streamed = events(worker.post("/v1/messages", body | {"stream": True}))
    deltas = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == blocks[0]["thinking"]
    on, off = (
        worker.post("/v1/messages/count_tokens", {**CHAT, "thinking": {"type": kind}}).json()
        for kind in ("adaptive", "disabled")
    )
    assert off["input_tokens"] == on["input_tokens"] + 1  # the template closes it
    body["thinking"]["budget_tokens"] = -3
    wrong = worker.post("/v1/messages", body)
    assert wrong.status_code == 400
    assert "thinking.budget_tokens is -3" in wrong.json()["error"]["message"]


def test_ollama_has_thinking(worker):
    body = {"model": "tiny", "messages": CHAT["messages"], "options": OPTIONS, "stream": False}
    message = worker.post("/api/chat", body).json()["message"]
    assert message["thinking"]
    streamed = [json.loads(line) for line in worker.post("/api/chat", body | {"stream": True}).text
                .splitlines()]  # fmt: skip
    parts = [line["message"].get("thinking", "") for line in streamed]
    assert "".join(parts) == message["thinking"]
    assert "thinking" not in worker.post("/api/chat", body | {"think": False}).json()["message"]

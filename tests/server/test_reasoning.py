"""Reasoning in the form of each dialect, whole and streamed."""

import json

import openai
import pytest
from reasoning_models import reasoning_gguf
from server_process import listening

CHAT = {"messages": [{"role": "user", "content": "a"}]}
OPTIONS = {"temperature": 1.0, "num_predict": 16, "seed": 3}


@pytest.fixture
def worker(tmp_path):
    with listening(reasoning_gguf(tmp_path / "m.gguf")) as worker:
        yield worker


def chunks(reply):
    """Events of the stream *reply*."""
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_a_chat_has_reasoning_content_whole_and_streamed(worker):
    body = CHAT | {"max_tokens": 16, "seed": 3, "temperature": 1.0, "thinking_token_budget": 5}
    body["logit_bias"] = {"1": -1e9}  # the answer must not end
    (choice,) = worker.post("/v1/chat/completions", body).json()["choices"]
    message = choice["message"]
    assert message["reasoning_content"]
    assert message["content"]
    deltas = [
        chunk["choices"][0]["delta"]
        for chunk in chunks(worker.post("/v1/chat/completions", body | {"stream": True}))
    ]
    for name in ("reasoning_content", "content"):
        assert "".join(delta.get(name, "") for delta in deltas) == message[name]


def test_a_chat_counts_the_tokens_of_its_reasoning(worker):
    with openai.OpenAI(base_url=f"{worker.address}/v1", api_key="none", max_retries=0) as client:
        budget = {"thinking_token_budget": 5, "logit_bias": {"1": -1e9}}
        request = {"model": "tiny", "max_tokens": 16, "seed": 3, "extra_body": budget, **CHAT}
        usage = client.chat.completions.create(**request, n=2).usage
        counted = usage.completion_tokens_details.reasoning_tokens
        assert 2 <= counted < usage.completion_tokens
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *_, last = client.chat.completions.create(**request, n=2, **options)
        assert last.usage.completion_tokens_details == usage.completion_tokens_details


def test_a_response_has_a_reasoning_item_whole_and_streamed(worker):
    client = openai.OpenAI(base_url=f"{worker.address}/v1", api_key="none", max_retries=0)
    request = {"model": "tiny", "input": "a", "max_output_tokens": 16, "temperature": 0}
    response = client.responses.create(**request)
    thought, *_ = response.output
    assert (thought.type, thought.summary) == ("reasoning", [])
    assert thought.content[0].type == "reasoning_text"
    assert thought.content[0].text
    assert 0 < response.usage.output_tokens_details.reasoning_tokens <= response.usage.output_tokens
    with client.responses.stream(**request) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    final = events[-1].response
    assert final.output[0].content == thought.content
    assert final.output_text == response.output_text
    places = [
        kinds.index(kind)
        for kind in (
            "response.output_item.added", "response.content_part.added",
            "response.reasoning_text.delta", "response.reasoning_text.done",
            "response.content_part.done", "response.output_item.done",
        )
    ]  # fmt: skip
    assert places == sorted(places)
    # What a client sends back as the conversation is taken.
    turns = [{"role": "user", "content": "a"}, *(item.model_dump() for item in response.output)]
    turns.append({"role": "user", "content": "b"})
    assert client.responses.create(**request | {"input": turns}).output


def test_an_answer_is_continued_where_it_was_cut_also_within_its_reasoning(worker):
    body = CHAT | {"max_tokens": 12, "temperature": 0}

    def ask(**more):
        (choice,) = worker.post("/v1/chat/completions", body | more).json()["choices"]
        return choice["message"].get("reasoning_content", ""), choice["message"]["content"]

    def continuing(reasoning="", content=""):
        message = {"role": "assistant", "reasoning_content": reasoning, "content": content}
        return {"messages": [*CHAT["messages"], message], "continue_final_message": True}

    reasoning, _ = ask(max_tokens=4)
    assert reasoning
    more, _ = ask(**continuing(reasoning))
    assert more  # it continues the reasoning
    thought, text = ask(**continuing(reasoning, "ab"))
    assert (thought, bool(text)) == ("", True)  # content ends the reasoning


@pytest.mark.parametrize(
    "body",
    [CHAT, {"messages": [*CHAT["messages"], {"role": "assistant", "content": ""}]},
     {"messages": [{"role": "assistant", "content": "a"}], "json_schema": {}}],
    ids=["of the user", "empty", "with a grammar"],
)  # fmt: skip
def test_what_cannot_be_continued_is_refused(worker, body):
    reply = worker.post("/v1/chat/completions", body | {"continue_final_message": True})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "continue_final_message")


def test_a_message_of_anthropics_has_a_block_of_thinking(worker):
    body = CHAT | {"max_tokens": 16, "top_k": 1}
    body["thinking"] = {"type": "enabled", "budget_tokens": 5}
    blocks = worker.post("/v1/messages", body).json()["content"]
    assert [block["type"] for block in blocks][:1] == ["thinking"]
    streamed = chunks(worker.post("/v1/messages", body | {"stream": True}))
    deltas = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == blocks[0]["thinking"]
    on, off = (
        worker.post("/v1/messages/count_tokens", {**CHAT, "thinking": {"type": kind}}).json()
        for kind in ("adaptive", "disabled")
    )
    # Without reasoning, the template writes one token more: the mark that closes it.
    assert off["input_tokens"] == on["input_tokens"] + 1

    # The model itself decides how long it reasons, so the budget is ignored.
    body["thinking"]["type"] = "adaptive"
    named = worker.post("/v1/messages", body).headers["bitnet-ignored"]
    assert named == "thinking.budget_tokens"
    body["thinking"] = {"type": "enabled", "budget_tokens": -3}
    wrong = worker.post("/v1/messages", body)
    assert wrong.status_code == 400
    assert "thinking.budget_tokens is -3" in wrong.json()["error"]["message"]


def test_ollamas_messages_have_thinking_unless_it_is_off(worker):
    body = {"model": "tiny", "messages": CHAT["messages"], "options": OPTIONS, "stream": False}
    message = worker.post("/api/chat", body).json()["message"]
    assert message["thinking"]
    streamed = [json.loads(line) for line in worker.post("/api/chat", body | {"stream": True}).text
                .splitlines()]  # fmt: skip
    parts = [line["message"].get("thinking", "") for line in streamed]
    assert "".join(parts) == message["thinking"]
    assert "thinking" not in worker.post("/api/chat", body | {"think": False}).json()["message"]

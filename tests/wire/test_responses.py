"""OpenAI's responses, through its official client."""

import json

import pytest
from tool_models import CITIES, WEATHER

from bitnet import load

ASK = [{"role": "user", "content": "abc"}]
TOOL = {"type": "function", **WEATHER["function"]}
NAMED = {"type": "function", "name": "weather"}


@pytest.fixture
def requested():
    return {"model": "tiny", "input": "abc", "max_output_tokens": 8, "temperature": 0}


def test_a_response_is_what_the_model_writes(client, requested, path):
    reply = client.responses.create(**requested)
    with load(path) as model:
        assert reply.output_text == model.chat(ASK, max_tokens=8)
        messages = [{"role": "system", "content": "b"}, *ASK]
        expected = model.chat(messages, max_tokens=8)
    assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (reply.usage.output_tokens, reply.store) == (8, False)
    assert client.responses.create(**requested, instructions="b").output_text == expected
    turns = [{"role": "developer", "content": "b"},
             {"role": "user", "content": [{"type": "input_text", "text": "abc"}]}]  # fmt: skip
    assert client.responses.create(**requested | {"input": turns}).output_text == expected


def test_the_clients_stream_is_the_whole_response(client, requested):
    whole = client.responses.create(**requested)
    events = list(client.responses.create(**requested, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.incomplete",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(one.delta for one in events if one.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == whole.output_text


def test_functions_are_called_and_their_results_go_back(client, requested):
    pytest.importorskip("llguidance")
    request = requested | {"max_output_tokens": 300, "tools": [TOOL], "tool_choice": NAMED}
    reply = client.responses.create(**request)
    (call,) = reply.output
    assert (reply.status, call.type, call.name) == ("completed", "function_call", "weather")
    assert json.loads(call.arguments)["city"] in CITIES
    kind = "response.function_call_arguments.delta"
    with client.responses.stream(**request) as stream:
        deltas = [event.delta for event in stream if event.type == kind]
        final = stream.get_final_response()
    assert len(deltas) > 2  # the arguments come in several deltas
    assert "".join(deltas) == call.arguments == final.output[0].arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    turns = [*ASK, call.model_dump(exclude_none=True), result]
    after = client.responses.create(**requested | {"input": turns}, tools=[TOOL])
    assert after.usage.input_tokens > reply.usage.input_tokens


def test_an_answer_follows_a_schema(client, requested):
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "name": "x", "schema": {"const": {"a": 1}}}
    reply = client.responses.create(**requested | {"max_output_tokens": 50}, text={"format": form})
    assert json.loads(reply.output_text) == {"a": 1}


def test_what_cannot_change_the_answer_is_named(worker, requested):
    fields = {
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "text": {"verbosity": "low"},
        "client_metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "tools": [TOOL, {"type": "web_search"}, {"type": "custom", "name": "apply_patch"}],
        "store": False,
    }
    reply = worker.post("/v1/responses", requested | fields)
    assert reply.status_code == 200, reply.text
    assert set(reply.headers["bitnet-ignored"].split(", ")) == {
        "reasoning.effort", "reasoning.summary", "include", "text.verbosity", "client_metadata",
        "prompt_cache_key", "tools.web_search", "tools.custom",
    }  # fmt: skip


def test_entries_of_a_part_that_cannot_change_the_answer_are_named(worker, requested):
    part = {"type": "input_text", "text": "a", "annotations": [{"type": "url_citation"}]}
    turn = {"role": "user", "content": [part]}
    reply = worker.post("/v1/responses", requested | {"input": [turn]})
    assert reply.headers["bitnet-ignored"] == "input.content.annotations"


def test_a_summary_beside_the_reasoning_itself_is_named(worker, requested):
    item = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "a"}],
        "content": [{"type": "reasoning_text", "text": "b"}],
    }
    reply = worker.post("/v1/responses", requested | {"input": [item, *ASK]})
    assert reply.headers["bitnet-ignored"] == "input.summary"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"reasoning": {"efort": "low"}}, "reasoning.efort"),
        ({"tools": [{"type": "mcp"}]}, "tools.0"),
        ({"tools": [TOOL | {"stricct": True}]}, "tools.0.stricct"),
        ({"tools": [TOOL], "tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": NAMED | {"strict": True}}, "tool_choice.strict"),
        ({"text": {"verbose": "low"}}, "text.verbose"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input.0.content.0"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input.0"),
        ({"input": [{"type": "reasoning", "summary": [{"type": "image", "text": "a"}]}]},
         "input.0.summary.0"),
        ({"input": [{"type": "reasoning", "content": [{"type": "text", "text": "a", "x": 1}]}]},
         "input.0.content.0.x"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": [{"role": "user", "content": "a", "contents": "b"}]}, "input.0.contents"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"truncation": "none"}, "truncation"),
        ({"unknown": 1}, "unknown"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_refused_by_its_field(worker, requested, fields, param):
    reply = worker.post("/v1/responses", requested | fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_an_input_is_not_truncated(client, worker, requested):
    assert client.responses.create(**requested, truncation="auto").output_text
    reply = worker.post("/v1/responses", requested | {"truncation": "auto"})
    assert reply.headers["bitnet-ignored"] == "truncation"
    long = worker.post("/v1/responses", requested | {"truncation": "auto", "input": "a" * 5000})
    assert (long.status_code, long.json()["error"]["param"]) == (400, "input")


def test_log_probabilities_are_those_of_the_text(client, worker, requested):
    with_logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    # Later answers take the prompt from the prefix cache; NumPy then adds in another order.
    client.responses.create(**requested)
    whole = client.responses.create(**requested, **with_logprobs)
    (part,) = whole.output[0].content
    assert "".join(entry.token for entry in part.logprobs) == part.text
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)
    assert part.logprobs[0].logprob == part.logprobs[0].top_logprobs[0].logprob < 0
    *events, last = client.responses.create(**requested, **with_logprobs, stream=True)
    assert last.response.output[0].content[0].logprobs == part.logprobs
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    tokens = [entry.token for event in deltas for entry in event.logprobs]
    assert tokens == [entry.token for entry in part.logprobs]
    chat = {"model": "tiny", "messages": ASK, "max_tokens": 8, "temperature": 0}
    same = worker.post("/v1/chat/completions", chat | {"logprobs": True, "top_logprobs": 2})
    expected = [entry["logprob"] for entry in same.json()["choices"][0]["logprobs"]["content"]]
    assert [entry.logprob for entry in part.logprobs] == expected


def test_log_probabilities_come_if_they_are_included(worker, requested):
    reply = worker.post("/v1/responses", requested)
    assert reply.json()["output"][0]["content"][0]["logprobs"] == []
    both = ["message.output_text.logprobs", "reasoning.encrypted_content"]
    named = worker.post("/v1/responses", requested | {"include": both})
    assert named.headers["bitnet-ignored"] == "include"

"""Anthropic's API, through its official client."""

import json

import pytest
from server_process import listening
from tool_models import CITIES, WEATHER

from bitnet import load

ASK = [{"role": "user", "content": "abc"}]
TOOL = {"name": "weather", "input_schema": WEATHER["function"]["parameters"]}
IMAGE = {"role": "user", "content": [{"type": "image", "source": {}}]}


@pytest.fixture(scope="module")
def anthropic():
    return pytest.importorskip("anthropic")  # loading it takes two seconds


@pytest.fixture
def client(worker, anthropic):
    with anthropic.Anthropic(
        base_url=worker.address,
        api_key="k",
        max_retries=0,
        http_client=anthropic.DefaultHttpxClient(verify=False),  # plain HTTP
    ) as client:
        yield client


@pytest.fixture
def requested():
    greedy = {"temperature": 0}  # newer clients have no argument for it
    return {"model": "tiny", "max_tokens": 8, "messages": ASK, "extra_body": greedy}


def test_a_message_is_what_the_model_writes(client, requested, path):
    reply = client.messages.create(**requested)
    with load(path) as model:
        assert reply.content[0].text == model.chat(ASK, max_tokens=8)
    assert (reply.stop_reason, reply.role, reply.model) == ("max_tokens", "assistant", "tiny")
    counted = client.messages.count_tokens(model="tiny", messages=ASK).input_tokens
    usage = reply.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counted
    assert usage.output_tokens == 8


def test_the_clients_stream_is_the_whole_message(client, requested):
    whole = client.messages.create(**requested)
    with client.messages.stream(**requested) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 8)
    kinds = [event.type for event in client.messages.create(**requested, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_instructions_come_first_and_blocks_are_texts(client):
    def count(**more):
        return client.messages.count_tokens(model="tiny", **more).input_tokens

    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]
    plain = count(messages=ASK)
    # One character is one token; blocks of a text are joined by a line end.
    assert count(messages=ASK, system="abc") == plain + len("system.abc.")
    assert count(messages=ASK, system=blocks) == plain + len("system.a\nbc.")
    assert count(messages=[{"role": "user", "content": blocks}]) == plain + 1


def test_a_stop_sequence_is_named(client, requested):
    text = client.messages.create(**requested).content[0].text
    reply = client.messages.create(**requested, stop_sequences=["never", text[2:4]])
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", text[2:4])
    assert reply.content[0].text == text[: text.index(text[2:4])]


# Claude Code joins the names of a plugin, a server and a tool, up to 128 characters.
@pytest.mark.parametrize("name", ["weather", "mcp__plugin_a__" + "b" * 113], ids=["short", "long"])
def test_a_tool_is_used_and_its_result_goes_back(client, requested, name):
    pytest.importorskip("llguidance")
    tools = [TOOL | {"name": name}]
    request = requested | {
        "max_tokens": 300, "tools": tools, "tool_choice": {"type": "tool", "name": name},
    }  # fmt: skip
    reply = client.messages.create(**request)
    (block,) = reply.content
    assert (reply.stop_reason, block.type, block.name) == ("tool_use", "tool_use", name)
    assert block.input["city"] in CITIES
    with client.messages.stream(**request) as stream:
        kinds = [event.delta.type for event in stream if event.type == "content_block_delta"]
        (streamed,) = stream.get_final_message().content
    assert set(kinds) == {"input_json_delta"}
    assert len(kinds) > 2  # the arguments come in several deltas
    assert streamed.input == block.input
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "rain"}
    turns = [
        *ASK, {"role": "assistant", "content": [block.model_dump()]},
        {"role": "user", "content": [result]},
    ]  # fmt: skip
    after = client.messages.create(**requested | {"messages": turns, "tools": tools})
    assert after.usage.input_tokens > reply.usage.input_tokens


def test_an_answer_follows_a_schema(client, requested):
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "schema": {"const": {"a": 1}}}
    body = {"temperature": 0, "output_config": {"format": form}}
    reply = client.messages.create(**requested | {"max_tokens": 50, "extra_body": body})
    assert json.loads(reply.content[0].text) == {"a": 1}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"thinking": {"type": "much"}}, "thinking.type is not"),
        ({"mcp_servers": [{"a": 1}]}, "mcp_servers is not served"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0: tools of Anthropic's"),
        ({"tool_choice": {"type": "all"}}, "tool_choice.type is not"),
        ({"messages": [IMAGE]}, "messages.0.content.0: a block of type 'image'"),
        ({"messages": [{"role": "tool", "content": "a"}]},
         "messages.0.role: expected one of user, assistant, system"),
        ({"messages": [*ASK, {"role": "assistant", "content": "a"}]}, "which is not continued"),
        ({"top_p": 3.0}, "top_p is 3.0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": None}, "max_tokens: this field is required"),
        ({"stop_sequences": [1]}, "stop_sequences.0"),
        ({"output_config": {"efort": "low"}}, "output_config.efort: this field is not known"),
        ({"unknown": 1}, "unknown: this field is not known here"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_refused_in_anthropics_form(worker, fields, words):
    reply = worker.post("/v1/messages", {"messages": ASK, "max_tokens": 8} | fields)
    facts = reply.json()
    assert (reply.status_code, facts["type"]) == (400, "error")
    assert facts["error"]["type"] == "invalid_request_error"
    assert words in facts["error"]["message"]


@pytest.mark.usefixtures("patient")
def test_errors_are_raised_as_exceptions_of_the_client(path, requested, anthropic):
    with listening(path, app_options={"api_key": "secret"}, strict_names=True) as closed:
        with (
            anthropic.Anthropic(base_url=closed.address, api_key="secret", max_retries=0) as strict,
            pytest.raises(anthropic.NotFoundError, match="no model 'other'"),
        ):
            strict.messages.create(**requested | {"model": "other"})
        with anthropic.Anthropic(
            base_url=closed.address, api_key="secret", max_retries=0
        ) as allowed:
            assert allowed.messages.count_tokens(model="tiny", messages=ASK).input_tokens
        with (
            anthropic.Anthropic(base_url=closed.address, api_key="wrong", max_retries=0) as refused,
            pytest.raises(anthropic.AuthenticationError, match="worker's key"),
        ):
            refused.messages.count_tokens(model="tiny", messages=ASK)


def test_a_prompt_beyond_the_context_is_refused_for_its_length(worker):
    """The refusal names the context, not max_tokens: agents ask for 32,000 tokens of any model."""
    long = [{"role": "user", "content": "a" * 5000}]  # the context has 2,048 positions
    reply = worker.post("/v1/messages", {"model": "tiny", "messages": long, "max_tokens": 32_000})
    assert reply.status_code == 400
    assert "context" in reply.json()["error"]["message"]
    assert "32,000" not in reply.json()["error"]["message"]

"""Tools over HTTP, through the official client and LangChain."""

import json

import pytest
from server_process import listening
from tool_models import CITIES, CLOCK, WEATHER, tool_gguf

pytest.importorskip("llguidance")

ASK = [{"role": "user", "content": "a"}]
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture
def worker(tmp_path):
    with listening(tool_gguf(tmp_path / "m.gguf"), max_output_tokens=400) as worker:
        yield worker


@pytest.fixture
def call_request():
    """A request that has to be answered by a call of the function ``weather``."""
    return {
        "model": "tiny", "messages": ASK, "tools": [WEATHER, CLOCK], "max_tokens": 300,
        "temperature": 0, "tool_choice": NAMED,
    }  # fmt: skip


def test_a_named_function_is_called_with_valid_arguments(client, call_request):
    (choice,) = client.chat.completions.create(**call_request).choices
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in CITIES
    call_turn = choice.message.model_dump(exclude_none=True)
    result_turn = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    after = client.chat.completions.create(
        **call_request | {"messages": [*ASK, call_turn, result_turn], "tool_choice": "none"}
    )
    assert after.choices[0].message.tool_calls is None


def test_a_streamed_call_is_the_whole_one_in_deltas(client, call_request):
    whole = client.chat.completions.create(**call_request).choices[0].message.tool_calls[0]
    chunks = list(client.chat.completions.create(**call_request, stream=True))
    deltas = [call for one in chunks for call in one.choices[0].delta.tool_calls or ()]
    assert (deltas[0].function.name, deltas[0].type) == ("weather", "function")
    assert deltas[0].id
    assert {delta.index for delta in deltas} == {0}
    assert len(deltas) > 3  # the call is sent while it is generated
    assert "".join(delta.function.arguments for delta in deltas) == whole.function.arguments
    assert not any(one.choices[0].delta.content for one in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_clients_stream_helper_reads_the_call(client, call_request):
    with client.chat.completions.stream(**call_request) as stream:
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in CITIES


def test_tool_choice_required_calls_one_of_the_functions(client, call_request):
    reply = client.chat.completions.create(
        **call_request | {"tool_choice": "required"}, parallel_tool_calls=False
    )
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.name in ("weather", "clock")
    json.loads(call.function.arguments)


def test_a_call_that_is_cut_short_has_the_finish_reason_length(client, call_request):
    reply = client.chat.completions.create(**call_request | {"max_tokens": 12})
    assert reply.choices[0].finish_reason == "length"


def test_tool_choice_auto_answers_by_the_schema_or_calls(client, call_request):
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "no"}}}
    reply = client.chat.completions.create(
        **call_request | {"tool_choice": "auto"}, response_format=schema, parallel_tool_calls=False
    )
    message = reply.choices[0].message
    if message.tool_calls is None:
        assert message.content == '"no"'
    else:
        (call,) = message.tool_calls
        assert call.function.name in ("weather", "clock")
        json.loads(call.function.arguments)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {
            "name": "f", "parameters": {"properties": {f"p{n}": {} for n in range(5000)}}}}],
          "tool_choice": "required"}, "tools"),
        # A constraint of the text has no place beside calls, allowed or required.
        ({"tool_choice": "auto", "structured_outputs": {"regex": "a"}}, "tools"),
        ({"tool_choice": "required", "structured_outputs": {"regex": "a"}}, "tools"),
        ({"tool_choice": "required", "structured_outputs": {"choice": ["a"]}}, "tools"),
    ],
)  # fmt: skip
def test_wrong_tools_are_refused_by_their_field(worker, call_request, fields, param):
    reply = worker.post("/v1/chat/completions", call_request | fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.fixture
def langchain(worker):
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    return chat(
        model="tiny", base_url=f"{worker.address}/v1", api_key="none", max_retries=0,
        temperature=0, max_tokens=300,
    )  # fmt: skip


def test_langchain_binds_tools(langchain):
    bound = langchain.bind_tools([WEATHER, CLOCK], tool_choice="weather")
    (call,) = bound.invoke("a").tool_calls
    assert (call["name"], call["args"]["city"] in CITIES) == ("weather", True)
    streamed = None
    for chunk in bound.stream("a"):
        streamed = chunk if streamed is None else streamed + chunk
    assert [(one["name"], one["args"]) for one in streamed.tool_calls] == [
        (call["name"], call["args"])
    ]


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_langchain_gets_structured_output(langchain, method):
    schema = {"title": "weather", "description": "x", **WEATHER["function"]["parameters"]}
    weather = langchain.with_structured_output(schema, method=method).invoke("a")
    assert weather["city"] in CITIES

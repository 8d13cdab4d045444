"""gpt-oss with its own template and special tokens: its prompts, and calls over HTTP."""

import importlib.util
import json
import re

import pytest
from gpt_oss_models import TEMPLATE, gpt_oss_gguf
from server_process import listening
from tool_models import CITIES, CLOCK, WEATHER

import bitnet
from bitnet.runtime.request import Request
from bitnet.tokenizer.chat import ChatTemplate

ASK = {"role": "user", "content": "Weather?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "x"}}}
CONVERSATIONS = {
    "a question": ([ASK], None),
    "instructions": ([{"role": "system", "content": "Be kind."}, ASK], None),
    "tools": ([ASK], [WEATHER, CLOCK]),
    "a call and its result": (
        [
            ASK,
            {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": '"rain" é'},
        ],
        [WEATHER],
    ),
    "an answer to it": (
        [
            ASK,
            {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            {"role": "assistant", "content": "It rains."},
            ASK,
        ],
        [WEATHER],
    ),
}


def described(tool):
    """*tool* with the description that the template requires."""
    return {**tool, "function": {**tool["function"], "description": "It tells."}}


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed: an extra of parity",
)
@pytest.mark.parametrize("case", CONVERSATIONS)
def test_prompts_are_those_of_transformers(case):
    from transformers.utils.chat_template_utils import render_jinja_template

    messages, tools = CONVERSATIONS[case]
    tools = tools and [described(tool) for tool in tools]
    (expected,), _ = render_jinja_template(
        [messages], tools=tools, chat_template=TEMPLATE, add_generation_prompt=True
    )
    rendered = ChatTemplate(TEMPLATE).render(messages, tools=tools)
    # The template writes the current date.
    assert re.sub("date: .*", "", rendered) == re.sub("date: .*", "", expected)


def prompt(model, messages, **more):
    """Text of the prompt for *messages*."""
    ids, _ = model.prepare(Request(messages=messages, **more))
    return model.tokenizer.decode(ids)


def test_what_clients_send_back_reaches_the_template(tmp_path):
    """Reasoning under the template's name, and a message for each of several calls."""
    second = {"id": "c2", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    call_turn = {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": [CALL, second]}
    results = [
        {"role": "tool", "tool_call_id": "c2", "content": "noon"},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    with bitnet.load(gpt_oss_gguf(tmp_path / "m.gguf")) as model:
        tools = [described(WEATHER), described(CLOCK)]
        text = prompt(model, [ASK, call_turn, *results], tools=tools)
        # An answer ends at the end of a message or of a call.
        assert {model.tokenizer.token_bytes(one) for one in model.tokenizer.stop_ids} == {
            b"<|return|>", b"<|call|>", b"<|endoftext|>",
        }  # fmt: skip
    assert text.endswith(
        "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
        "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>"
        '{"city": "x"}<|call|>'
        '<|start|>functions.weather to=assistant<|channel|>commentary<|message|>"rain"<|end|>'
        "<|start|>assistant to=functions.clock<|channel|>commentary json<|message|>{}<|call|>"
        '<|start|>functions.clock to=assistant<|channel|>commentary<|message|>"noon"<|end|>'
        "<|start|>assistant"
    )


@pytest.fixture
def worker(tmp_path):
    with listening(gpt_oss_gguf(tmp_path / "m.gguf"), max_output_tokens=400) as worker:
        yield worker


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_is_a_call_in_openais_dialect(client, stream):
    pytest.importorskip("llguidance")
    request = {
        "model": "tiny",
        "messages": [ASK],
        "tools": [described(WEATHER), described(CLOCK)],
        "max_tokens": 300,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    }
    if stream:
        chunks = list(client.chat.completions.create(**request, stream=True))
        deltas = [it for one in chunks for it in one.choices[0].delta.tool_calls or ()]
        name = deltas[0].function.name
        reason = chunks[-1].choices[0].finish_reason
        arguments = "".join(delta.function.arguments for delta in deltas)
    else:
        (choice,) = client.chat.completions.create(**request).choices
        (call,) = choice.message.tool_calls
        assert choice.message.content is None
        name = call.function.name
        arguments = call.function.arguments
        reason = choice.finish_reason
    assert (name, reason) == ("weather", "tool_calls")
    assert json.loads(arguments)["city"] in CITIES

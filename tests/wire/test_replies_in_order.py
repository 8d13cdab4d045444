"""Replies whose text stands before, between and after calls: whole and as events, in order."""

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tool_models import CLOCK, WEATHER, tool_gguf

from bitnet import load
from bitnet.base.errors import UsageError
from bitnet.runtime.answer import Answer
from bitnet.runtime.piece import Piece
from bitnet.runtime.request import Request
from bitnet.wire.routes import ROUTES

HEAD = {"id": "x", "created": 1, "model": "m"}
MESSAGES = [{"role": "user", "content": "a"}]
CHAT = {"messages": MESSAGES}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "rome"}}\n</tool_call>'
ROME = {"city": "rome"}
#: Parts of an answer: a call, or text.
PARTS = st.lists(
    st.sampled_from([CALL, CALL, "a", "b ", " is", " it \n", "\n", " "]), min_size=1, max_size=8
)
WEATHER_CALL = ("weather", ROME)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with load(tool_gguf(tmp_path_factory.mktemp("models") / "m.gguf")) as model:
        yield model


def answer_of(model, text, **fields):
    """An answer of *model* that is *text*, and its pieces."""
    ids, request = model.prepare(Request(messages=MESSAGES, tools=[WEATHER, CLOCK], **fields))
    answer = Answer(model.tokenizer, model.engine.prepare(ids, request))
    tokens = model.tokenizer.encode(text, add_special=False)
    pieces = [answer.take(Piece(token)) for token in tokens]
    return answer, [*pieces, answer.end("stop")]


def replies(path, body, answer, pieces):
    """The whole reply at *path*, and its events."""
    form = ROUTES[path]
    body = form.read(body)

    async def each_piece():
        for piece in pieces:
            yield 0, piece, answer

    async def read():
        return [event async for event in form.events(body, HEAD, each_piece())]

    return form.reply(body, HEAD, [answer]), asyncio.run(read())


def message_blocks(path, answer, pieces):
    """Blocks of Anthropic's message, whole and from its events."""
    whole, events = replies(path, CHAT | {"max_tokens": 9}, answer, pieces)
    blocks = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        if event["type"] == "content_block_delta":
            delta = event["delta"]
            if "text" in delta:
                blocks[-1]["text"] += delta["text"]
            else:
                blocks[-1]["input"] = json.loads(delta["partial_json"])
    return whole["content"], blocks


def response_items(path, answer, pieces):
    """Texts and calls of a response, whole, at the end of its events, and from its deltas."""
    whole, events = replies(path, {"input": "a"}, answer, pieces)
    items = []
    for event in events:
        if event["type"] == "response.output_item.added":
            items.append([event["item"]["type"], ""])
        if event["type"].endswith(".delta"):
            items[-1][1] += event["delta"]
    written = [
        [
            [item["type"], item.get("arguments") or "".join(p["text"] for p in item["content"])]
            for item in reply["output"]
        ]
        for reply in (whole, events[-1]["response"])
    ]
    return *written, items


def expected_blocks(parts):
    """Text, as strings, and calls, as None, of an answer of *parts*, by the rule of the readers."""
    blocks = []
    spaces = ""
    for part in parts:
        if part == CALL:
            blocks.append(None)
            continue
        text = spaces + part
        spaces = ""
        seen = "".join(filter(None, blocks))
        if not text.strip():
            spaces = text
            continue
        if blocks and blocks[-1] is None:
            if not seen:
                text = text.lstrip()
            elif not text[0].isspace():
                text = f"\n{text}"
        spaces = text[len(text.rstrip()) :]
        text = text.rstrip()
        if blocks and blocks[-1] is not None:
            blocks[-1] += text
        else:
            blocks.append(text)
    if spaces and not (blocks and blocks[-1] is None):
        blocks.append((blocks.pop() if blocks else "") + spaces)
    return blocks


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(parts=PARTS)
def test_text_and_calls_keep_their_order_and_spaces(model, parts):
    answer, pieces = answer_of(model, "".join(parts))
    expected = expected_blocks(parts)
    text = "".join(filter(None, expected))
    calls = [WEATHER_CALL] * expected.count(None)
    words = "".join(" " if part == CALL else part for part in parts).split()
    assert (answer.text, answer.text.split()) == (text, words)

    whole, blocks = message_blocks("/v1/messages", answer, pieces)
    assert whole == blocks
    assert [block.get("text") for block in whole] == expected

    whole, final, items = response_items("/v1/responses", answer, pieces)
    assert whole == final == items
    assert [None if kind == "function_call" else text for kind, text in whole] == expected

    whole, events = replies("/v1/chat/completions", CHAT, answer, pieces)
    message = whole["choices"][0]["message"]
    deltas = [event["choices"][0]["delta"] for event in events]
    assert (message["content"] or "") == "".join(d.get("content", "") for d in deltas) == text
    sent = [call for delta in deltas for call in delta.get("tool_calls", ())]
    for calls_of_reply in (message.get("tool_calls", []), sent):
        functions = [call["function"] for call in calls_of_reply]
        assert [(each["name"], json.loads(each["arguments"])) for each in functions] == calls

    whole, lines = replies("/api/chat", CHAT | {"model": "m"}, answer, pieces)
    messages = [line["message"] for line in lines]
    assert whole["message"]["content"] == "".join(each["content"] for each in messages) == text
    sent = [call for each in messages for call in each.get("tool_calls", ())]
    assert sent == whole["message"].get("tool_calls", [])
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in sent] == calls


def allowing(path, mode, *names):
    """A body for *path* with two tools, whose choice of *mode* allows those of *names*."""
    is_chat = path == "/v1/chat/completions"
    functions = [tool["function"] for tool in (WEATHER, CLOCK)]
    named = [{"name": name} for name in names]
    if is_chat:
        allowed = [{"type": "function", "function": each} for each in named]
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
        return CHAT | {"tools": [WEATHER, CLOCK], "tool_choice": choice}
    allowed = [{"type": "function"} | each for each in named]
    choice = {"type": "allowed_tools", "mode": mode, "tools": allowed}
    tools = [{"type": "function"} | each for each in functions]
    return {"input": "a", "tools": tools, "tool_choice": choice}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_only_allowed_tools_may_be_called(model, path):
    form = ROUTES[path]

    def request_of(mode, *names):
        (request,) = form.requests(form.read(allowing(path, mode, *names)))
        return request

    free = request_of("auto", "clock")
    assert not free.needs_grammar
    ids, prepared = model.prepare(free)
    prompt = model.tokenizer.decode(ids)
    assert '"clock"' in prompt
    assert '"weather"' not in prompt
    assert set(prepared.calls.schemas) == {"clock"}
    assert request_of("required", "clock").needs_grammar
    for mode, names in (("some", ["clock"]), ("auto", []), ("auto", ["other"])):
        with pytest.raises(UsageError) as caught:
            request_of(mode, *names)
        assert caught.value.field == "tool_choice"


def test_an_empty_message_has_one_empty_text(model):
    whole, blocks = message_blocks("/v1/messages", *answer_of(model, ""))
    assert whole == blocks == [{"type": "text", "text": ""}]

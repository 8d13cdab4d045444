"""Replies of every dialect to one answer, whole and as events, without a server."""

import asyncio

import pytest

import bitnet
from bitnet.runtime.answer import Answer
from bitnet.runtime.request import Request
from bitnet.wire.routes import ROUTES, dialect_of

HEAD = {"id": "x", "created": 1, "model": "m", "request_id": "r", "worker_id": "w"}
CHAT = {"messages": [{"role": "user", "content": "a"}]}
#: Form, a body of it, and functions for the text in a whole reply and in an event ("" if none).
DIALECTS = {
    "chat": (
        ROUTES["/v1/chat/completions"], CHAT,
        lambda whole: whole["choices"][0]["message"]["content"],
        lambda event: event["choices"][0]["delta"].get("content", ""),
    ),
    "completion": (
        ROUTES["/v1/completions"], {"prompt": "a"},
        lambda whole: whole["choices"][0]["text"],
        lambda event: event["choices"][0]["text"],
    ),
    "response": (
        ROUTES["/v1/responses"], {"input": "a"},
        lambda whole: whole["output"][0]["content"][0]["text"],
        lambda event: event.get("delta", ""),
    ),
    "message": (
        ROUTES["/v1/messages"], CHAT | {"max_tokens": 9},
        lambda whole: whole["content"][0]["text"],
        lambda event: event.get("delta", {}).get("text", ""),
    ),
    "llama-server": (
        ROUTES["/completion"], {"prompt": "a"},
        lambda whole: whole["content"], lambda event: event["content"],
    ),
    "infill": (
        ROUTES["/infill"], {"input_prefix": "a", "input_suffix": "b"},
        lambda whole: whole["content"], lambda event: event["content"],
    ),
    "ollama chat": (
        ROUTES["/api/chat"], CHAT | {"model": "m"},
        lambda whole: whole["message"]["content"], lambda event: event["message"]["content"],
    ),
    "ollama prompt": (
        ROUTES["/api/generate"], {"prompt": "a", "model": "m"},
        lambda whole: whole["response"], lambda event: event["response"],
    ),
    "inference": (
        ROUTES["/v1/inference"], {"prompt": "a"},
        lambda whole: whole["text"], lambda event: "" if "done" in event else event["text"],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def answered():
    """An answer that has ended, and its pieces."""
    with bitnet.load("bitnet-tiny") as model:
        scheduler = model.scheduler()
        ids = model.tokenizer.encode("It is a truth")
        answer = Answer(model.tokenizer, scheduler.submit(ids, Request(max_tokens=9)))
        pieces = [answer.take(piece) for _ in range(9) for _, piece in scheduler.step()]
    assert answer.finish_reason == "length"
    return answer, pieces


@pytest.mark.parametrize("name", DIALECTS)
def test_events_have_the_text_of_the_whole_reply(answered, name):
    answer, pieces = answered
    form, fields, text_of, part_of = DIALECTS[name]
    body = form.read(fields)

    async def each_piece():
        for piece in pieces:
            yield 0, piece, answer

    async def read():
        return [event async for event in form.events(body, HEAD, each_piece())]

    events = asyncio.run(read())
    assert text_of(form.reply(body, HEAD, [answer])) == answer.text
    assert "".join(map(part_of, events)) == answer.text
    assert len(events) > 2


@pytest.mark.parametrize("path", [path for path, form in ROUTES.items() if form.events])
def test_a_stream_has_the_framing_in_which_its_error_event_is_written(path):
    assert ROUTES[path].stream == dialect_of(path).STREAM
    assert (ROUTES[path].dialect == "ollama") == (ROUTES[path].stream == "lines")

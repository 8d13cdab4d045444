"""Keywords of an answer in Python: one table, its types, and the methods that take them."""

import asyncio
import contextlib
import inspect
import math
import re
import threading
from dataclasses import asdict, fields

import pytest
from tool_models import CLOCK, tool_gguf
from waiting import PATIENCE_S

import bitnet
from bitnet.base.errors import WrongType
from bitnet.runtime.answer_options import AnswerOptions
from bitnet.runtime.chain_options import Sampling
from bitnet.runtime.request import SAMPLING, Request

METHODS = ["stream", "generate", "chat", "astream", "agenerate", "achat"]
TYPES = {entry.name: str(entry.type) for entry in fields(Request)}
# Keywords that take more than their fields: a single text, and any sequence for a list.
WIDER = {
    "stop": "str | Sequence[str]",
    "samplers": "Sequence[str]",
    "dry_sequence_breakers": "Sequence[str]",
}
# Fields of conversations, fields that other arguments or methods set, and fields that the model
# fills in.
NOT_KEYWORDS = {
    *("prompt", "messages", "tools", "tool_choice", "parallel_tool_calls", "template_variables"),
    *(
        "thinking",
        "thinking_budget",
        "thinking_message",
        "reasoning_effort",
        "budget",
        "separate_reasoning",
        "continue_final_message",
        "embed",
        "prompt_name",
        "ignore_eos",
        "min_indent",
        "typed",
    ),
    *(
        "fallback",
        "origins",
        "stop_ids",
        "constraint",
        "document",
        "second",
        "scored",
        "breakers",
        "calls",
        "reasoning",
        "lora",
        "suppressed",
        "suppressed_first",
    ),
}


@pytest.fixture(scope="module")
def model():
    with bitnet.load("bitnet-tiny", context=64) as loaded:
        yield loaded


def test_the_keywords_are_the_fields_of_a_request():
    assert AnswerOptions.__annotations__.keys() == TYPES.keys() - NOT_KEYWORDS
    assert set(SAMPLING) <= AnswerOptions.__annotations__.keys()


@pytest.mark.parametrize("name", AnswerOptions.__annotations__)
def test_a_keyword_has_the_type_of_its_field(name):
    declared = AnswerOptions.__annotations__[name].__forward_arg__
    expected = WIDER.get(name, TYPES[name])
    assert set(declared.split(" | ")) == {*expected.split(" | "), "None"}
    # The line that declares it explains it in a comment.
    assert re.search(rf"^ +{name}: .*  # \w", inspect.getsource(AnswerOptions), re.MULTILINE)


def test_a_default_in_the_comment_of_a_keyword_is_that_of_its_field():
    source = inspect.getsource(AnswerOptions)
    named = re.findall(r"^ +(\w+): .*  # .*\(([\d.]+)\)$", source, re.MULTILINE)
    assert len(named) > 8  # the pattern finds the comments that end with a number in parentheses
    defaults = asdict(Request()) | Sampling()._asdict()
    assert {name: float(number) for name, number in named} == {
        name: defaults[name] for name, _ in named
    }


@pytest.mark.parametrize("method", METHODS)
def test_every_keyword_is_in_the_signature(method):
    parameters = inspect.signature(getattr(bitnet.LanguageModel, method)).parameters
    keywords = {
        name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert keywords == AnswerOptions.__annotations__.keys()
    # Declared one by one instead of **options, so that editors can list them.
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def test_the_async_twins_give_the_same_text(model):
    text = model.generate("It is a truth", max_tokens=8)
    assert asyncio.run(model.agenerate("It is a truth", max_tokens=8)) == text


def test_async_answers_that_run_together_have_the_text_of_one_alone(model):
    async def both():
        return await asyncio.gather(
            *(model.agenerate("It is a truth", max_tokens=8) for _ in range(2))
        )

    first, second = asyncio.run(both())
    assert first == second == model.generate("It is a truth", max_tokens=8)


def test_the_loop_goes_on_while_an_answer_is_computed(model, monkeypatch):
    begun, continued = threading.Event(), threading.Event()
    step = model.engine.step

    def wait_for_the_loop():
        begun.set()
        # A loop that waits for this pass cannot set the event.
        assert continued.wait(PATIENCE_S)
        return step()

    async def answer():
        task = asyncio.create_task(model.agenerate("It is a truth", max_tokens=2))
        while not (begun.is_set() or task.done()):
            await asyncio.sleep(0)
        continued.set()
        return await task

    expected = model.generate("It is a truth", max_tokens=2)
    monkeypatch.setattr(model.engine, "step", wait_for_the_loop)
    assert asyncio.run(answer()) == expected
    assert begun.is_set()


def test_a_conversation_is_encoded_beside_the_loop(model, monkeypatch):
    threads = []

    def encode(messages):
        threads.append(threading.current_thread())
        return model.tokenizer.encode(messages[0]["content"])

    monkeypatch.setattr(model, "encode_chat", encode)
    messages = [{"role": "user", "content": "It is a truth"}]
    answer = asyncio.run(model.achat(messages, max_tokens=2))
    assert answer == model.generate("It is a truth", max_tokens=2)
    assert threads
    assert threading.main_thread() not in threads


def test_a_cancelled_task_ends_its_answer(model):
    async def leave():
        begun = asyncio.Event()

        async def read():
            async for _ in model.astream("It is a truth", max_tokens=50):
                begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert not model.engine.busy
    assert model.generate("It is a truth", max_tokens=4)


def test_an_async_answer_raises_the_error_of_the_synchronous_one(model):
    with pytest.raises(bitnet.UsageError, match="the prompt is empty"):
        asyncio.run(model.agenerate(""))


def test_an_answer_shows_its_text_and_why_it_ended(model):
    answer = model.stream("It is a truth", max_tokens=3)
    assert repr(answer) == "<Answer 0 tokens, running: ''>"
    text = "".join(answer)
    assert repr(answer) == f"<Answer 3 tokens, length: {text!r}>"
    answer.text = "<b>"  # notebooks show HTML, in which text must be escaped
    assert "&lt;b&gt;</pre><small>3 tokens, length" in answer._repr_html_()


# Values of many types; a field takes some of them at most.
WRONG = (
    *(-3, 5, 1.5, math.nan, 10**400, "x", "", "\ud800", b"x", True, None, object()),
    *([], [5], ["x"], [None], [["x"]], [{}], [{"role": 5}], [{"role": "user", "content": 5}]),
    *({}, {"a": 5}, {5: 5}, {"a": {"b": [1]}}, {1}, ("x", 1)),
)
# Fields that clients may set in JSON.
CALLERS = [entry.name for entry in fields(Request) if not entry.metadata.get("inner")]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    with bitnet.load(tool_gguf(tmp_path_factory.mktemp("chat") / "m.gguf")) as loaded:
        yield loaded


@pytest.mark.parametrize("name", [*CALLERS, "document", "template_variables"])
def test_a_value_of_any_type_is_taken_or_refused_by_an_error_of_this_package(name, chat_model):
    messages = [{"role": "user", "content": "a"}]
    complete_requests = [
        {"prompt": "a"},
        {"messages": messages},
        {"messages": messages, "tools": [CLOCK]},
    ]
    complete_requests.append({"messages": [*messages, {"role": "assistant", "content": "b"}],
                   "continue_final_message": True})  # fmt: skip
    accepted = 0
    for value in WRONG:
        for fields_beside in complete_requests:
            with contextlib.suppress(bitnet.BitnetError):
                chat_model.prepare(Request(**fields_beside | {"max_tokens": 2, name: value}))
                accepted += 1
    # Any other exception fails the test; at least one value is refused.
    assert accepted < len(WRONG) * len(complete_requests)


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": 5},
        {"messages": "x"},
        {"logit_bias": [5]},
        {"document": 5},
        {"template_variables": 5},
        {"template_variables": {5: 5}},
    ],
)
def test_a_wrong_type_is_named_with_its_field(wrong):
    with pytest.raises(WrongType) as caught:
        Request(**wrong).check()
    assert caught.value.field in wrong

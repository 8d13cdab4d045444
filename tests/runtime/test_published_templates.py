"""Conversations through every chat template that llama.cpp's source has.

``tests/data/chat_templates.json`` says what each template takes, and which conversations are
refused. The templates are read from that source, which the job of the other engines downloads.
"""

import os

import pytest
from conversations import CALLS, CONVERSATIONS, DIALECTS
from published_templates import (
    answer_with_calls,
    entry_of,
    outcome,
    read_answer,
    read_table,
    request_of,
    source_of,
    tokenizer_of,
)

from bitnet.runtime.turns import Turns
from bitnet.tokenizer.chat import chat_template, template_process

TEMPLATES = read_table()["templates"]
needs_source = pytest.mark.skipif(
    "BITNET_LLAMA_CPP" not in os.environ,
    reason="needs llama.cpp's source, which has the templates: BITNET_LLAMA_CPP",
)


def test_the_table_has_a_decision_for_every_published_template():
    assert len(TEMPLATES) >= 70
    for name, entry in TEMPLATES.items():
        # A template takes the arguments of a call as an object or as JSON text, never both.
        assert ("arguments=object" in entry["facts"]) != ("arguments=text" in entry["facts"]), name
        assert set(entry["refused"]) <= set(CONVERSATIONS), name
        assert all(entry["refused"].values()), name


def test_at_most_one_conversation_in_twenty_is_refused():
    refused = {
        (name, conversation)
        for name, entry in TEMPLATES.items()
        for conversation in entry["refused"]
        if conversation not in ("unknown role", "result without call")  # to be refused
    }
    assert len(refused) < len(TEMPLATES) * len(CONVERSATIONS) / 20


@needs_source
@pytest.mark.parametrize("name", TEMPLATES)
def test_no_published_template_reaches_into_python(name):
    assert template_process().reaches(source_of(name)) == []


@needs_source
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_published_template_is_as_in_the_table(name):
    assert entry_of(source_of(name)) == TEMPLATES[name]


def test_the_table_has_a_format_of_calls_for_every_published_template():
    refused = {name for name, entry in TEMPLATES.items() if "refused" in entry["calls"]}
    assert refused == {"fireworks-ai-llama-3-firefunction-v2"}  # it fails without a variable
    for name, entry in TEMPLATES.items():
        # Text that is left when the calls are read must contain no part of them.
        unread = entry["calls"].get("left", "")
        assert "get_forecast" not in unread, name
        assert "Paris" not in unread, name


@needs_source
@pytest.mark.parametrize("conversation", CALLS)
@pytest.mark.parametrize(
    "name", [name for name, entry in TEMPLATES.items() if "format" in entry["calls"]]
)
def test_the_calls_that_a_template_writes_are_read_back_in_every_cut(name, conversation):
    tokenizer = tokenizer_of(source_of(name))
    answers = answer_with_calls(tokenizer, conversation)
    longest = max(len(text) for _, text, _ in answers)
    # Characters that are read at a time.
    for size in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, longest):
        calls = []
        for answer in answers:
            _, calls_of_answer = read_answer(tokenizer, *answer, size)
            calls += calls_of_answer
        assert calls == CALLS[conversation], size


@needs_source
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_dialect_renders_the_same_conversation(name):
    tokenizer = tokenizer_of(source_of(name))
    for conversation in CONVERSATIONS:
        expected = outcome(tokenizer, conversation)
        for dialect in set(DIALECTS) - {"openai"}:
            if request_of(conversation, dialect) is not None:
                assert outcome(tokenizer, conversation, dialect) == expected, (
                    conversation,
                    dialect,
                )


@needs_source
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_rendered_conversation_equals_that_of_transformers(name):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    source = source_of(name)
    template = chat_template(tokenizer_of(source))
    for conversation, (messages, tools) in CONVERSATIONS.items():
        if conversation in TEMPLATES[name]["refused"]:
            continue
        # A template without a place for tools gets their description in the system message.
        offered = tools if template.facts.tools else None
        explained = () if offered or not tools else tools
        turns = Turns(template, messages, tools=offered, explained=explained).messages
        # Some templates fail without a list of tools, even an empty one.
        if offered is None and template.facts.needs_list:
            offered = []
        (expected,), _ = utils.render_jinja_template(
            [[template.adapt(turn) for turn in turns]],
            tools=offered,
            chat_template=source,
            add_generation_prompt=True,
            bos_token="<s>",
            eos_token="</s>",
        )
        assert template.render(turns, tools=offered) == expected, conversation
